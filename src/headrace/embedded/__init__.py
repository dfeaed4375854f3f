"""Servers of our own, for the demo and for tests: no installation, no root, loopback only."""
