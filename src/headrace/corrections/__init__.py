"""
Corrections of a pipeline: changes that a person or a rule of the pipeline added to the log's order.

 journal  the corrections of one pipeline, durable, in the order of positions
 overlay  the log as one pipeline reads it: with its corrections between the commits
 expiry   rows that expire, and the deletes of them
"""
