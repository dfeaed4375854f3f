"""
Rounds against a PostgreSQL server: writers, an engine, and somebody who kills.

`python -m tests.postgres.rounds --rounds 10 --seed 1` plays ten of them.
"""
