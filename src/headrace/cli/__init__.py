"""
The command line, `headrace`.

Modules here import click and the standard library at their top, everything else where
it is used: printing help must not wait for Spark, Arrow or rich.
"""
