"""
Everything that can be examined without starting anything: what `headrace doctor` tells.

Each part is examined by itself, so that what is wrong with one hides nothing of the others.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import HeadraceError, InvalidConfiguration, NoEngine, NoJava
from headrace.interfaces.cli.version import installed

if TYPE_CHECKING:
    from headrace.control.configured import Built, Configured

Kind = Literal["well", "note", "wrong"]

LEAST_DISK = 1 << 30
LEAST_MEMORY = 2 << 30
"""Below these a JVM, or a first baseline, is likely to fail."""


@dataclass(frozen=True, slots=True)
class Result:
    """One thing that was examined."""

    part: str
    """`installation`, `machine`, `data`, `configuration`, `storage`, `source shop`, `engine`."""

    kind: Kind
    says: str
    remedy: str = ""
    code: str = ""


def examined(config: Path | None, sets: tuple[str, ...], data: Path | None) -> Iterator[Result]:
    """Yield all there is to say, in the order in which things are needed."""
    yield from _installation()
    found: Configured | None = None
    results = []
    try:
        from headrace.interfaces.cli.reading import read_configuration

        found = read_configuration(config, sets, warn=False)
    except HeadraceError as error:
        results += list(_wrong("configuration", error))
    folder = data or (found.data if found else Path("headrace-data"))
    folder = folder.expanduser().absolute()
    yield from _machine(folder)
    yield from _data(folder)
    yield from results
    if found is not None:
        yield from _configuration(found, folder)
    yield from _engine(folder)


def _installation() -> Iterator[Result]:
    from headrace.pipeline.java import find_java

    part = "installation"
    packages = ", ".join(
        f"{name} {installed(name) or 'missing'}" for name in ("headrace", "pyspark", "pyarrow")
    )
    yield Result(part, "well", f"Python {platform.python_version()}, {packages}")
    try:
        java = find_java(os.environ)
    except NoJava as error:
        yield from _wrong(part, error)
    else:
        yield Result(part, "well", f"Java {java.version} ({java.origin}, {java.home})")


def _machine(folder: Path) -> Iterator[Result]:
    part = "machine"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    says = f"{os.cpu_count()} cores, {memory / 2**30:,.1f} GiB of memory"
    if memory < LEAST_MEMORY:
        remedy = (
            "Spark alone takes about 1 GiB; give the machine more, or spark.driver.memory less."
        )
        yield Result(part, "note", says, remedy)
    else:
        yield Result(part, "well", says)
    there = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(there).free
    says = f"{free / 2**30:,.1f} GiB free where the data directory is"
    if free < LEAST_DISK:
        yield Result(part, "wrong", says, "Make room, or give another folder with --data.")
    else:
        yield Result(part, "well", says)


def _data(folder: Path) -> Iterator[Result]:
    part = "data"
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not os.access(there, os.W_OK):
        yield Result(part, "wrong", f"{there} cannot be written to", "Give another with --data.")
    elif not folder.exists():
        yield Result(part, "well", f"{folder} will be made")
    else:
        held = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
        yield Result(part, "well", f"{folder} holds {held / 1e6:,.1f} MB")
        if folder.stat().st_mode & 0o077:
            remedy = f"Close it: chmod 700 {shlex.quote(str(folder))}"
            yield Result(part, "note", f"Others may look into {folder}, which holds rows", remedy)


def _configuration(found: Configured, folder: Path) -> Iterator[Result]:
    part = "configuration"
    for warning in found.warnings:
        yield Result(part, "note", warning.message, warning.remedy, warning.code)
    try:
        built = found.build()
    except HeadraceError as error:
        yield from _wrong(part, error)
        return
    try:
        found.check()
    except HeadraceError as error:
        yield from _wrong(part, error)
    else:
        counts = f"sources: {len(found.sources)}, pipelines: {len(found.pipelines)}"
        yield Result(part, "well", f"{counts}; their databases can be captured as it says")
    yield from _storage(found)
    yield from _sources(built, folder)


def _storage(found: Configured) -> Iterator[Result]:
    place = found.log["storage"]
    if place is None:
        return
    from headrace.storage.opening import opened

    try:
        opened(place).prove()
    except HeadraceError as error:
        yield from _wrong("storage", error)
    else:
        yield Result(
            "storage", "well", f"{place} can be read and written, and keeps two writers apart"
        )


def _sources(built: Built, folder: Path) -> Iterator[Result]:
    from headrace.capture.choosing import matching
    from headrace.capture.findings import findings
    from headrace.capture.source import reader_of
    from headrace.control.taken import TakenTables

    taken = TakenTables(built.pipelines, built.records, [])
    for name, source in built.sources.items():
        part = f"source {name}"
        try:
            named = taken.named(name)
            tables = [*named, *matching(source, named, taken.selections(name))]
            found = findings(source, tables, reader_of(name, folder))
        except HeadraceError as error:
            yield from _wrong(part, error)
            continue
        for each in found:
            kind: Kind = "note" if each.remedy else "well"
            yield Result(part, kind, f"{each.about}: {each.says}", each.remedy)


def _engine(folder: Path) -> Iterator[Result]:
    from headrace.interfaces.control.client import Control

    part = "engine"
    try:
        told = Control.connect(folder).call("Status")
    except NoEngine:
        yield Result(part, "well", "none is running on this data directory")
        return
    except HeadraceError as error:
        yield from _wrong(part, error)
        return
    from headrace.interfaces.cli.remarks import remarks

    for each in remarks(told):
        kind: Kind = "wrong" if each.wrong else "note"
        says = f"{each.what}: {each.why}" if each.why else each.what
        yield Result(part, kind, says, each.remedy, each.code)
    says = "ready" if told["ready"] else f"running, and not ready{_waits(told)}"
    yield Result(part, "well" if told["ready"] else "note", says)


def _waits(told: Mapping[str, Any]) -> str:
    """Return whom being ready waits for."""
    if told["phase"] != "running":
        return f": {told['phase']}, {told['step']}" if told["step"] else f": {told['phase']}"
    names = [each["name"] for each in told["pipelines"] if not each["ready"]]
    return f": {', '.join(names)}" if names else ""


def _wrong(part: str, error: HeadraceError) -> Iterator[Result]:
    if isinstance(error, InvalidConfiguration) and error.errors:
        for each in error.errors:
            yield from _wrong(part, each)
        return
    yield Result(part, "wrong", error.message, error.remedy, error.code)
