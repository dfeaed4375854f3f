"""The SQLite capture as a library of its own: records to handlers."""
