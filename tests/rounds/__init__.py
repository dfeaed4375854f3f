"""
The frame of rounds: a PostgreSQL server, an engine in a process of its own, and a report.

What is written, who is killed when and what is judged is said by those who play them, in
`tests.postgres.rounds` and `tests.pipeline.lake.rounds`.
"""
