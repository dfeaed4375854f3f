"""PostgreSQL as a source: its slot, its publication, its stream and its tables."""
