"""`headrace version`: what is installed, without starting any of it."""

from __future__ import annotations

import json
import os
import platform
from importlib import metadata

import click

from headrace.errors import NoJava


@click.command(short_help="Print what is installed, and which Java it uses.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def version(as_json: bool) -> None:
    """Print the versions of Headrace, Python, PySpark and the Java it would use."""
    found = {
        "headrace": installed("headrace"),
        "python": platform.python_version(),
        "pyspark": installed("pyspark"),
        "pyarrow": installed("pyarrow"),
        "java": _java(),
    }
    if as_json:
        click.echo(json.dumps(found))
        return
    for name, of in found.items():
        click.echo(f"{name:<9} {of or 'not found'}")


def installed(package: str) -> str | None:
    """Return the version of a package; None where it is not installed."""
    # From the package's metadata: importing pyspark takes seconds.
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _java() -> str | None:
    from headrace.pipeline.java import find_java

    try:
        java = find_java(os.environ)
    except NoJava:
        return None
    return f"{java.version} ({java.origin}, {java.home})"
