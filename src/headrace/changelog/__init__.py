"""The change log: what every later stage reads, and nothing else."""
