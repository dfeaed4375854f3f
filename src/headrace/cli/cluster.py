"""`headrace cluster`: what a Spark cluster is given to work for us."""

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


@click.group("cluster", short_help="Prepare what a Spark cluster needs.")
def cluster() -> None:
    """
    Prepare what a Spark cluster needs to run pipelines.

    Executors need the driver's Python packages, and storage where they read the log. The first
    is packed here; both are looked at when an engine starts on a cluster.
    """


@cluster.command("pack", short_help="Write this environment into an archive for executors.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("headrace-env.tar.gz"),
    show_default=True,
    metavar="FILE",
    help="The archive.",
)
@click.option(
    "--with",
    "named",
    multiple=True,
    metavar="MODULE|PATH",
    help="Also a module of yours, a .py file, or a package's folder; again for each other one.",
)
@click.option("--lean", is_flag=True, help="Only Headrace, what it needs, and what --with names.")
@click.option(
    "--python",
    metavar="PATH",
    help="Where workers have this version of Python; where it is here by default.",
)
@click.option(
    "--with-python",
    is_flag=True,
    help="With Python itself, for workers of the same system and architecture.",
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
    Write the Python environment that runs this command into an archive for executors.

    Packed is all that is installed here, Headrace among it, without Spark's own jars and Java:
    workers have them. Give modules that your functions come from with --with. The settings of
    Spark that go with the archive are printed.
    """
    from headrace.spark_session.pack import contents
    from headrace.spark_session.pack import pack as write

    if python is not None and with_python:
        raise click.UsageError("Either --python or --with-python.")
    require("spark", "An environment for executors")
    refuse_taken(output, force=force)
    began = time.monotonic()
    found = contents(named, lean=lean)
    with opened_output(output, force=force) as stream:
        told = _progress(output.name)
        packed = write(found, stream, python=python, with_python=with_python, told=told)
    _print(output.absolute(), found, packed, time.monotonic() - began, as_json=as_json)


def _progress(name: str) -> Callable[[int, int], None]:
    """Return what keeps one line about the archive, where a person looks at it."""
    shown = -1

    def told(done: int, total: int) -> None:
        nonlocal shown
        percent = done * 100 // max(1, total)
        if sys.stderr.isatty() and percent != shown:
            shown = percent
            end = "\r" + " " * (len(name) + 16) + "\r" if done == total else ""
            click.echo(f"\r{name}: {percent} % packed{end}", err=True, nl=False)

    return told


def _print(
    archive: Path, found: Contents, packed: PackedArchive, seconds: float, *, as_json: bool
) -> None:
    from headrace.spark_session.pack import settings

    size = archive.stat().st_size
    conf = settings(archive)
    if as_json:
        told: dict[str, Any] = {
            "archive": str(archive),
            "bytes": size,
            "files": packed.file_count,
            "seconds": round(seconds, 3),
            "python": platform.python_version(),
            "interpreter": packed.interpreter,
            "not_packed": list(found.not_packed),
            "settings": conf,
        }
        click.echo(json.dumps(told, ensure_ascii=False))
        return
    click.echo(
        f"{archive.name}: {size / _MEGABYTE:.1f} MB of {packed.bytes_in / _MEGABYTE:.0f} MB,"
        f" {packed.file_count:,} files, {seconds:.1f} s"
    )
    major_minor = ".".join(platform.python_version_tuple()[:2])
    if packed.interpreter is None:
        click.echo(f"With Python {major_minor}, for {platform.system()} {platform.machine()}.")
    else:
        click.echo(
            f"Without Python itself: workers need {major_minor} at {packed.interpreter}"
            " (--python names another place, --with-python packs it)."
        )
    for folder in found.not_packed:
        click.echo(f"! {folder} is not in it; --with names modules in it to be packed.", err=True)
    click.echo("\nIn the configuration:\n\nspark.conf {")
    for name, value in conf.items():
        click.echo(f"  {json.dumps(name)} = {json.dumps(value)}")
    click.echo("}\n\nOr with spark-submit, in client mode:\n")
    click.echo(f"  --archives {conf['spark.archives']} \\")
    click.echo(f"  --conf spark.pyspark.python={conf['spark.pyspark.python']} \\")
    # Else it would start the program with the Python of executors, which is not here.
    click.echo(f"  --conf spark.pyspark.driver.python={sys.executable}")
