"""
Rounds from a PostgreSQL server into Delta: writers, an engine on Spark, and somebody who kills.

`python -m tests.pipeline.lake.rounds --rounds 3 --seed 1` plays three of them.
"""
