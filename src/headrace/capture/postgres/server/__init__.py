"""What is asked of a PostgreSQL server, and what is set up on it."""
