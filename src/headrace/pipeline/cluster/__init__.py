"""Executors on other machines: what they are given, and whether they can work."""
