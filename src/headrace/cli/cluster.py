"""`headrace cluster`: packages for the executors of a Spark cluster."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.common import json_option
from headrace.cli.errors import force_option, opened_output, refuse_taken
from headrace.extras import require

if TYPE_CHECKING:
    from headrace.spark_session.pack import Contents, PackedArchive


_MEGABYTE = 1e6


@click.group("cluster", short_help="Prepare a Spark cluster to run pipelines.")
def cluster() -> None:
    """
    Prepare a Spark cluster to run pipelines.

    Executors need the Python packages of the driver, and must be able to read the log. Use
    `cluster pack` for the packages. An engine checks both when it starts on a cluster.
    """


@cluster.command("pack", short_help="Pack this Python environment for executors.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("headrace-env.tar.gz"),
    show_default=True,
    metavar="FILE",
    help="Archive to write.",
)
@click.option(
    "--with",
    "named",
    multiple=True,
    metavar="MODULE|PATH",
    help="Also pack this module, .py file or package folder; can be repeated.",
)
@click.option("--lean", is_flag=True, help="Pack only Headrace, its dependencies and --with.")
@click.option(
    "--python",
    metavar="PATH",
    help="Path of this Python version on the workers (default: its path on this machine).",
)
@click.option(
    "--with-python",
    is_flag=True,
    help="Also pack Python, for workers with the same operating system and architecture.",
)
@force_option
@json_option
def pack(
    output: Path,
    named: tuple[str, ...],
    lean: bool,
    python: str | None,
    with_python: bool,
    force: bool,
    as_json: bool,
) -> None:
    """
    Pack the Python environment of this command into an archive for executors.

    The archive contains every installed package, including Headrace, but not Spark's jars and
    Java, which workers already have. Add modules that define your functions with --with. Prints
    the Spark settings that use the archive.
    """
    from headrace.spark_session.pack import contents
    from headrace.spark_session.pack import pack as write

    if python is not None and with_python:
        raise click.UsageError("Use either --python or --with-python, not both.")
    require("spark", "Packing an environment for executors")
    refuse_taken(output, force=force)
    began = time.monotonic()
    found = contents(named, lean=lean)
    with opened_output(output, force=force) as stream:
        on_progress = _progress(output.name)
        packed = write(
            found, stream, python=python, with_python=with_python, on_progress=on_progress
        )
    _print(output.absolute(), found, packed, time.monotonic() - began, as_json=as_json)


def _progress(name: str) -> Callable[[int, int], None]:
    """Return a function that shows the progress on one line, if stderr is a terminal."""
    shown = -1

    def show(done: int, total: int) -> None:
        nonlocal shown
        percent = done * 100 // max(1, total)
        if sys.stderr.isatty() and percent != shown:
            shown = percent
            end = "\r" + " " * (len(name) + 16) + "\r" if done == total else ""
            click.echo(f"\r{name}: {percent} % packed{end}", err=True, nl=False)

    return show


def _print(
    archive: Path, found: Contents, packed: PackedArchive, seconds: float, *, as_json: bool
) -> None:
    from headrace.spark_session.pack import settings

    size = archive.stat().st_size
    conf = settings(archive)
    if as_json:
        fields: dict[str, Any] = {
            "archive": str(archive),
            "bytes": size,
            "files": packed.file_count,
            "seconds": round(seconds, 3),
            "python": platform.python_version(),
            "interpreter": packed.interpreter,
            "not_packed": list(found.not_packed),
            "settings": conf,
        }
        click.echo(json.dumps(fields, ensure_ascii=False))
        return
    click.echo(
        f"{archive.name}: {size / _MEGABYTE:.1f} MB of {packed.bytes_in / _MEGABYTE:.0f} MB,"
        f" {packed.file_count:,} files, {seconds:.1f} s"
    )
    major_minor = ".".join(platform.python_version_tuple()[:2])
    if packed.interpreter is None:
        click.echo(f"Includes Python {major_minor} for {platform.system()} {platform.machine()}.")
    else:
        click.echo(
            f"Python itself is not included: workers need Python {major_minor} at"
            f" {packed.interpreter}. Use --python for another path, or --with-python to include it."
        )
    for folder in found.not_packed:
        click.echo(f"! {folder} was not packed. Use --with to add modules from it.", err=True)
    click.echo("\nIn the configuration:\n\nspark.conf {")
    for name, value in conf.items():
        click.echo(f"  {json.dumps(name)} = {json.dumps(value)}")
    click.echo("}\n\nOr with spark-submit, in client mode:\n")
    click.echo(f"  --archives {conf['spark.archives']} \\")
    click.echo(f"  --conf spark.pyspark.python={conf['spark.pyspark.python']} \\")
    # Otherwise the driver would start with the executors' Python, which is not on this machine.
    click.echo(f"  --conf spark.pyspark.driver.python={sys.executable}")
