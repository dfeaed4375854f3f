"""Capture: from a source into the change log, one recorder a source."""
