"""Targets: where changes are brought to."""
