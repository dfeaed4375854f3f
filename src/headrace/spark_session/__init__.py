"""Spark itself: the session, the JVM, Connect, executors, its errors."""
