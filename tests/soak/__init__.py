"""Hours in small: a steady mixed load, and whether anything grows that should not (P6)."""
