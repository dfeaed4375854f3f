"""
Rounds in which the status of an engine is a witness that is cross-examined.

All the while an engine says whether it is ready, and how far behind. A writer knows what it had
committed by then. Who says ready must show all that had been committed `PROMISE_SECONDS` before.
"""
