"""How Python is started where a test wants to see every warning as an error."""

from __future__ import annotations

from importlib import metadata

STRICT = ["-W", "error"]
if metadata.version("pyspark").startswith("4.1."):
    # It leaves closing its sockets to the garbage collector.
    STRICT += ["-W", "ignore:unclosed <socket.socket:ResourceWarning"]
