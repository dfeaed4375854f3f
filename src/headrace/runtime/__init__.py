"""What runs: one source, one pipeline, their threads and their progress."""
