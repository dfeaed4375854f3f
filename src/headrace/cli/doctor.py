"""
`headrace doctor`: checks of everything, each with a remedy.

It starts nothing. Each part is checked separately, so that a problem in one does not hide those of
the others. `--bundle` writes a zip file for support: versions, configuration and log files; no
rows, no secrets.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from headrace.cli import errors
from headrace.cli.common import (
    DEFAULT_DATA,
    DEFAULT_FILE,
    claim_in,
    command_line,
    engine_options,
    installed,
    json_option,
)
from headrace.cli.errors import force_option, opened_output, refuse_taken
from headrace.config.secrets import masked_text
from headrace.errors import (
    ConfigUnreadable,
    HeadraceError,
    InvalidConfiguration,
    NoEngine,
    NoJava,
    NotInstalled,
)
from headrace.extras import DISTRIBUTION, require

if TYPE_CHECKING:
    from headrace.capture.source import Recordable
    from headrace.engine.from_config import BuiltEngine, EngineConfig


# --- the checks -----------------------------------------------------------------------------------

Kind = Literal["well", "note", "wrong"]

LEAST_DISK = 1 << 30
LEAST_MEMORY = 2 << 30
"""Below these a JVM, or a first baseline, is likely to fail."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    part: str
    """`installation`, `machine`, `data`, `configuration`, `storage`, `source shop`, `engine`."""

    kind: Kind
    says: str
    remedy: str = ""
    code: str = ""


def examined(
    config: Path | None, sets: tuple[str, ...], data: Path | None
) -> Iterator[CheckResult]:
    """Yield the results of all checks, in the order in which a start needs them."""
    yield from _installation()
    found: EngineConfig | None = None
    results = []
    try:
        from headrace.cli.common import read_configuration

        found = read_configuration(config, sets, warn=False)
    except HeadraceError as error:
        without = config is None and isinstance(error, ConfigUnreadable) and _without_file(data)
        results += [_NO_FILE] if without else list(_wrong("configuration", error))
    folder = data or (found.data if found else Path("headrace-data"))
    folder = folder.expanduser().absolute()
    yield from _machine(folder)
    yield from _data(folder)
    yield from results
    if found is not None:
        options = [
            *(() if config is None else ("--config", str(config))),
            *(word for each in sets for word in ("--set", each)),
            *(() if data is None else ("--data", str(data))),
        ]
        yield from _configuration(found, folder, options)
    yield from _engine(folder)


_NO_FILE = CheckResult(
    "configuration",
    "note",
    f"There is no {DEFAULT_FILE} in this folder, so no database is checked",
    "An engine that was made in Python and the demo need none. If the file is elsewhere, name it"
    " with --config.",
)


def _without_file(data: Path | None) -> bool:
    """Whether an engine was here that needs no file: one made in Python, or the demo's."""
    from headrace.cli.demo.shops import FOLDERS

    folders = [DEFAULT_DATA, *map(Path, FOLDERS.values())] if data is None else [data.expanduser()]
    return not DEFAULT_FILE.exists() and any(folder.exists() for folder in folders)


def _installation() -> Iterator[CheckResult]:
    from headrace.spark_session.java import find_java

    part = "installation"
    ours = f"headrace {installed(DISTRIBUTION) or 'missing'}"
    others = [f"{name} {installed(name) or 'missing'}" for name in ("pyspark", "pyarrow")]
    yield CheckResult(
        part, "well", ", ".join([f"Python {platform.python_version()}", ours, *others])
    )
    try:
        require("spark", "A pipeline")
    except NotInstalled as error:
        # Recording and reading the log work without it; `_configuration` checks for pipelines.
        yield CheckResult(part, "note", error.sentence, error.remedy, error.code)
        return
    try:
        java = find_java(os.environ)
    except NoJava as error:
        yield from _wrong(part, error)
    else:
        yield CheckResult(part, "well", f"Java {java.version} ({java.origin}, {java.home})")


def _machine(folder: Path) -> Iterator[CheckResult]:
    part = "machine"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    says = f"{os.cpu_count()} cores, {memory / 2**30:,.1f} GiB of memory"
    if memory < LEAST_MEMORY:
        remedy = (
            "Spark alone needs about 1 GiB. Use a machine with more, or lower spark.driver.memory."
        )
        yield CheckResult(part, "note", says, remedy)
    else:
        yield CheckResult(part, "well", says)
    there = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(there).free
    says = f"{free / 2**30:,.1f} GiB free on the disk of the data directory"
    if free < LEAST_DISK:
        yield CheckResult(
            part, "wrong", says, "Free some space, or use another folder with --data."
        )
    else:
        yield CheckResult(part, "well", says)


def _data(folder: Path) -> Iterator[CheckResult]:
    part = "data"
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not os.access(there, os.W_OK):
        yield CheckResult(
            part, "wrong", f"{there} is not writable", "Use another folder with --data."
        )
    elif not folder.exists():
        yield CheckResult(part, "well", f"{folder} will be created")
    else:
        held = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
        yield CheckResult(part, "well", f"{folder} holds {held / 1e6:,.1f} MB")
        if folder.stat().st_mode & 0o077:
            remedy = f"Restrict access: chmod 700 {shlex.quote(str(folder))}"
            yield CheckResult(
                part, "note", f"Other users can read {folder}, which contains rows", remedy
            )


def _configuration(
    found: EngineConfig, folder: Path, options: Sequence[str]
) -> Iterator[CheckResult]:
    part = "configuration"
    for warning in found.warnings:
        yield CheckResult(part, "note", warning.sentence, warning.remedy, warning.code)
    if found.pipelines:
        try:
            require("spark", f"Pipeline {', '.join(found.pipelines)}")
        except NotInstalled as error:
            yield from _wrong(part, error)
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
        yield CheckResult(part, "well", f"{counts}; all databases can be captured")
    yield from _storage(found)
    yield from _sources(built, folder, found.log["storage"], options)


def _storage(found: EngineConfig) -> Iterator[CheckResult]:
    storage = found.log["storage"]
    if storage is None:
        return
    from headrace.storage.s3 import opened

    try:
        opened(storage).prove()
    except HeadraceError as error:
        yield from _wrong("storage", error)
    else:
        yield CheckResult(
            "storage", "well", f"{storage} is readable, writable, and refuses a second writer"
        )


def _sources(
    built: BuiltEngine, folder: Path, storage: str | None, options: Sequence[str]
) -> Iterator[CheckResult]:
    from headrace.capture.registry import findings
    from headrace.capture.source import reader_of
    from headrace.capture.table_selection import matching
    from headrace.engine.tables import TakenTables

    taken = TakenTables(built.pipelines, built.records, [])
    for name, source in built.sources.items():
        part = f"source {name}"
        try:
            if claim_in(folder, storage, name) is None:
                yield from _abandoned(part, source, reader_of(name, folder), options)
            named = taken.named(name)
            tables = [*named, *matching(source, named, taken.selections(name))]
            found = findings(source, tables, reader_of(name, folder))
        except HeadraceError as error:
            yield from _wrong(part, error)
            continue
        for each in found:
            kind: Kind = "note" if each.remedy else "well"
            yield CheckResult(part, kind, f"{each.about}: {each.says}", each.remedy)


def _abandoned(
    part: str, source: Recordable, reader: str, options: Sequence[str]
) -> Iterator[CheckResult]:
    """Yield what was created for a log that does not exist any more."""
    from headrace.capture.registry import objects

    left = [each for each in objects(source, reader, "") if not each.kept]
    if not left:
        return
    names = ", ".join(f"{each.kind} {each.name}" for each in left)
    costs = "".join(f" ({each.says})" for each in left[:1] if each.says)
    yield CheckResult(
        part,
        "note",
        f"left by a data directory that no longer exists: {names}{costs}",
        f"If no engine is to use it again, run: {command_line('teardown', source.name, *options)}",
    )


def _engine(folder: Path) -> Iterator[CheckResult]:
    from headrace.api.client import Control

    part = "engine"
    try:
        report = Control.connect(folder).status()
    except NoEngine as error:
        if "pid" in error.facts:
            yield CheckResult(part, "note", error.message, error.remedy, error.code)
        else:
            yield CheckResult(part, "well", "not running on this data directory")
        return
    except HeadraceError as error:
        yield from _wrong(part, error)
        return
    from headrace.cli.status import remarks

    for each in remarks(report):
        kind: Kind = "wrong" if each.wrong else "note"
        says = f"{each.what}: {each.why}" if each.why else each.what
        yield CheckResult(part, kind, says, each.remedy, each.code)
    says = "ready" if report["ready"] else f"running, not ready{_waits(report)}"
    yield CheckResult(part, "well" if report["ready"] else "note", says)


def _waits(report: Mapping[str, Any]) -> str:
    """Return what keeps the engine from being ready."""
    if report["phase"] != "running":
        return (
            f": {report['phase']}, {report['step']}" if report["step"] else f": {report['phase']}"
        )
    names = [each["name"] for each in report["pipelines"] if not each["ready"]]
    return f": {', '.join(names)}" if names else ""


def _wrong(part: str, error: HeadraceError) -> Iterator[CheckResult]:
    if isinstance(error, InvalidConfiguration) and error.errors:
        for each in error.errors:
            yield from _wrong(part, each)
        return
    yield CheckResult(part, "wrong", error.sentence, error.remedy, error.code)


# --- the zip file ---------------------------------------------------------------------------------

MOST_LOG_BYTES = 1 << 20
"""Only the end of each log file: what happened last."""


def write_bundle(
    path: Path,
    results: Sequence[CheckResult],
    config: Path | None,
    sets: tuple[str, ...],
    data: Path | None,
    *,
    force: bool,
) -> None:
    """Write the results, the masked configuration, the status and the log files."""
    with (
        opened_output(path, force=force) as stream,
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as bundle,
    ):
        _put(bundle, "doctor.json", [asdict(result) for result in results])
        # Not platform.platform(): it starts a process to learn the processor's name.
        system = f"{platform.system()} {platform.release()} {platform.machine()}"
        _put(bundle, "machine.json", {"platform": system, "cores": os.cpu_count()})
        folder = data
        try:
            from headrace.cli.common import read_configuration

            found = read_configuration(config, sets, warn=False)
            _put(bundle, "configuration.json", found.masked())
            folder = folder or found.data
        except HeadraceError as error:
            _put(bundle, "configuration.json", {"error": error.code})
        folder = (folder or Path("headrace-data")).expanduser().absolute()
        _put(bundle, "status.json", _status(folder))
        for log in sorted((folder / "logs").glob("*.log*")):
            # Masked again: a line from a library may contain a URL.
            bundle.writestr(f"logs/{log.name}", masked_text(_end_of(log)))


def _status(folder: Path) -> object:
    from headrace.api.client import Control

    try:
        return Control.connect(folder).status()
    except HeadraceError as error:
        return {"error": error.code}


def _put(bundle: zipfile.ZipFile, name: str, value: object) -> None:
    bundle.writestr(name, json.dumps(value, indent=2, ensure_ascii=False, default=str))


def _end_of(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - MOST_LOG_BYTES))
        return file.read().decode("utf-8", "replace")


# --- the verb -------------------------------------------------------------------------------------

_SYMBOLS = {"well": ("✓", "green"), "note": ("!", "yellow"), "wrong": ("✗", "red")}


@click.command(short_help="Check everything and say how to fix problems.")
@engine_options
@click.option(
    "--bundle",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write a zip file for support; it contains no rows and no passwords.",
)
@force_option
@json_option
def doctor(
    config: Path | None,
    sets: tuple[str, ...],
    data: Path | None,
    bundle: Path | None,
    force: bool,
    as_json: bool,
) -> int:
    """
    Check the installation, the machine, the configuration, its databases and the engine.

    Changes nothing. Also lists slots, publications and triggers in your databases that belong to
    an engine that no longer exists. Exits with code 1 if there is a problem.
    """

    if bundle is not None:
        refuse_taken(bundle, force=force)
    found = []
    for result in examined(config, sets, data):
        found.append(result)
        if not as_json:
            _print(result)
    if bundle is not None:
        write_bundle(bundle, found, config, sets, data, force=force)
    wrong = sum(result.kind == "wrong" for result in found)
    if as_json:
        listed = [asdict(result) for result in found]
        report = {"well": not wrong, "results": listed, "bundle": str(bundle) if bundle else None}
        click.echo(json.dumps(report, ensure_ascii=False))
    else:
        _print_end(found, wrong, bundle)
    return errors.FAILED if wrong else errors.DONE


def _print(result: CheckResult) -> None:
    mark, colour = _SYMBOLS[result.kind]
    click.echo(
        f"{click.style(mark, fg=colour)} {click.style(result.part, dim=True)}  {result.says}"
    )
    if result.remedy and result.kind != "well":
        click.echo(f"    → {result.remedy}")


def _print_end(found: list[CheckResult], wrong: int, bundle: Path | None) -> None:
    notes = sum(result.kind == "note" for result in found)
    problems = f"{wrong} problem{'' if wrong == 1 else 's'}" if wrong else "No problems"
    click.echo(f"{problems}, {notes} note{'' if notes == 1 else 's'}.")
    if bundle is not None:
        click.echo(f"{bundle} written. Review it before you send it.")
