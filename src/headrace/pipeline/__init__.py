"""Batches on Spark: what a pipeline is, the session it runs in, its plan, and its result."""
