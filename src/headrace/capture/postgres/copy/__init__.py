"""Baselines of PostgreSQL's tables: snapshots, page ranges, binary COPY."""
