"""
The change log as a source of Spark's own: `format("headrace")` (S11).

A DataFrame of the changes of one table, for people who write their own queries. Nothing here
runs an engine: the log's files are read as they lie, by the executors, and what is decided on
the driver is decided from the log's index alone.

`options` says what was asked for, `offsets` how far a query is, where it begins and where it goes
on to, `plan` what lies between two places; `slices` reads it and `columns` gives it its form,
`where` says which rows, `leases` keeps what a named query has not read yet. `source` is what Spark
calls.
"""
