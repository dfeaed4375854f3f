"""What can be seen from outside: for now, the log file."""
