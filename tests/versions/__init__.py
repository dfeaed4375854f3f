"""Spark of other releases, and what came with them."""
