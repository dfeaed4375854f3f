"""Fakes and contract suites: for our own tests, and for those who write sources and targets."""
