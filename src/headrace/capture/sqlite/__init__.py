"""Capture from SQLite by triggers that write into one log table beside the data."""
