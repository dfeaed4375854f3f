"""
Shared by the verbs: options, formats of their values, and how an engine or its data is found.

Durations are written as `30s`, `2m`, `1h`, `1m30s` or `500ms`.

`check_names` compares a name with the pipelines and tables that the data directory or the
configuration has. Which running engine a verb talks to is in `connection`.

`command_line` returns a command to type next. It can be pasted where this one was started.

A point in a log is written as a position, a time, or an age.

The options that verbs share are defined here, so that one name means one thing everywhere. Each
is a decorator; its docstring says which parameter it adds to the function.

`read_configuration` returns the configuration that a verb works with, and prints its warnings.
`headrace version` prints what is installed, without starting any of it. A verb that needs no
engine reads a data directory itself, or a log in object storage: see `log_location`.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, TypeVar

import click

from headrace.cli import errors
from headrace.config.units import duration
from headrace.engine.health import state_phrase
from headrace.errors import BadDataDirectory, HeadraceError, NoJava, StorageError, UnknownPipeline
from headrace.extras import DISTRIBUTION

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.changelog.ranges import Moment
    from headrace.config.text import Node
    from headrace.engine.from_config import EngineConfig
    from headrace.storage.files import Files

FILE_WIDTH = 10_000
"""Columns if the output is not a terminal: nothing is folded, the reading program can cut."""


def output_console() -> Console:
    """Return the console that prints tables; rich itself honours NO_COLOR."""
    from rich.console import Console

    found = Console(highlight=False, soft_wrap=False)
    return found if found.is_terminal else Console(highlight=False, width=FILE_WIDTH)


# --- values of rows, on a terminal ----------------------------------------------------------------

SHORT = 60
"""Maximum characters of a value in a table or a line; JSON has the whole value."""

_WITH_KIND = ({"kind", "value"}, {"exact"}, {"float"}, {"bytes"})
"""Keys of a value that JSON gives with its kind; the value itself is the last of them."""


def value_text(value: object, most: int | None = SHORT) -> str:
    """Return a JSON value as text; the text `null` is quoted, to distinguish it from null."""
    if isinstance(value, dict) and value.keys() in _WITH_KIND:
        *_, inner = value.values()
        value = str(inner)
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return shortened("'null'" if value == "null" else printable(str(value)), most)


def printable(text: str) -> str:
    """Return a text in which everything that a terminal would obey is escaped."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def shortened(text: str, most: int | None) -> str:
    """Return a text of at most `most` characters."""
    return text if most is None or len(text) <= most else f"{text[: most - 1]}…"


def on_terminal(stream: TextIO) -> bool:
    """Return whether a live view can be drawn on the stream."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


# --- durations ------------------------------------------------------------------------------------

_UNITS = ("d", "h", "m", "s", "ms")
"""Largest first, each once: `30s2m` is more likely a mistake than a duration."""

_SPAN = re.compile("".join(rf"([0-9]{{1,30}}(?:\.[0-9]{{1,30}})?{unit})?" for unit in _UNITS))


def parse_seconds(text: str) -> float | None:
    """Return the seconds that `text` means; None if it is not a duration."""
    found = _SPAN.fullmatch(text.strip().lower())
    parts = [part for part in found.groups() if part] if found else []
    return sum(map(duration, parts), 0.0) if parts else None


def as_optional_seconds(
    context: click.Context, option: click.Parameter, value: str | None
) -> float | None:
    """Turn an option's text, if given, into seconds above zero: a callback for click."""
    return None if value is None else as_seconds(context, option, value)


def as_seconds(_context: click.Context, _option: click.Parameter, value: str) -> float:
    """Turn an option's text into seconds above zero: a callback for click."""
    seconds = parse_seconds(value)
    if not seconds:
        raise click.BadParameter(f"{value!r} is not a duration like 30s, 2m or 1m30s.")
    return seconds


# --- the data directory of an engine --------------------------------------------------------------

DEFAULT_FILE = Path("headrace.conf")
DEFAULT_DATA = Path("headrace-data")


def caution(pipeline: str, answer: Mapping[str, Any]) -> None:
    """Warn on stderr if the rows of a pipeline may be older than those of its source."""
    if not answer["ready"]:
        why = f": {answer['reason']}" if answer["reason"] else ""
        click.echo(
            f"! {pipeline} {state_phrase(answer['state'])}{why}. Rows may be out of date.", err=True
        )


def data_directory(config: Path | None, sets: tuple[str, ...], data: Path | None) -> Path:
    """Return the given folder, or the one in the configuration; it need not exist."""
    _only_data(sets)
    if data is None:
        data = _configured_folder(config, sets)
    return data.expanduser().absolute()


def _only_data(sets: tuple[str, ...]) -> None:
    """Refuse settings that would have no effect: only `data` selects an engine."""
    from headrace.config.hocon import parse_path
    from headrace.config.text import SourceText

    for each in sets:
        path, _ = parse_path(SourceText(each, "--set", located=False))
        if path != ("data",):
            raise click.UsageError(
                f"--set {'.'.join(path)}=… has no effect here: this command only reads the data"
                " directory from the configuration, so only data=FOLDER can be set. A running"
                " engine keeps the settings it was started with."
            )


def _configured_folder(config: Path | None, sets: tuple[str, ...]) -> Path:
    # An engine made in Python has no file: it is found in its default folder.
    if config is None and not sets and not DEFAULT_FILE.exists():
        return Path(os.environ.get("HEADRACE_DATA", DEFAULT_DATA))
    from headrace.config.load import load
    from headrace.config.schema import FilePath

    tree = load(config, environment=os.environ, sets=sets).value
    named = tree.get("data") if isinstance(tree, dict) else None
    return DEFAULT_DATA if named is None else FilePath().resolved(named)


# --- commands to type next ------------------------------------------------------------------------


def command_line(*words: str) -> str:
    """Return a command of this Headrace that can be pasted in the current folder."""
    return shlex.join([*program(), *words])


def program() -> tuple[str, ...]:
    """Return how to call this Headrace: by its name, if the shell finds it by that name."""
    script = Path(sys.executable).with_name("headrace")
    if not script.exists():
        return (as_typed(Path(sys.executable)), "-m", "headrace")
    found = shutil.which("headrace")
    same = found is not None and Path(found).absolute() == script.absolute()
    return ("headrace",) if same else (as_typed(script),)


def as_typed(path: Path) -> str:
    """Return the path as a person in the current folder would type it."""
    here = Path.cwd()
    path = path.absolute()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def same_engine(config: Path | None, sets: tuple[str, ...], data: Path | None) -> tuple[str, ...]:
    """Return the options with which the next command selects the same engine."""
    if data is not None:
        return ("--data", str(data))
    chosen = () if config is None else ("--config", str(config))
    named = [each for each in sets if each.partition("=")[0].strip() == "data"]
    return (*chosen, *(word for each in named for word in ("--set", each)))


def confirmed(question: str) -> bool:
    """Ask whether to do what was shown; the default is no."""
    try:
        return click.confirm(question, default=False)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        # The input ended, as in a CI job: the question was not answered, so this is not a no.
        click.echo()
        raise click.UsageError(
            "Cannot ask for confirmation without a terminal; use --yes or --dry-run."
        ) from None


# --- names that a data directory or its configuration knows ---------------------------------------


def one_of(names: Sequence[str]) -> str:
    """Return the remedy for a name that is none of these."""
    return f"Use one of {', '.join(names)}." if names else "There are none yet."


def names_here(folder: Path, config: Path | None) -> set[tuple[str, str | None]]:
    """Return the pipelines and their tables that a data directory or a configuration names."""
    from headrace.runtime.store import stored_progress

    # Also pipelines without a table: a pipeline that has no table yet has a name.
    stored = ((each.pipeline, each.table) for each in stored_progress(folder))
    return {*stored, *_configured_names(config)}


def check_names(
    known: set[tuple[str, str | None]], pipeline: str | None, table: str | None
) -> None:
    """Raise `UnknownPipeline` for an unknown name: an empty list would hide the typing error."""
    pipelines = sorted({name for name, _ in known})
    if pipeline is not None and pipeline not in pipelines:
        raise UnknownPipeline(
            f"There is no pipeline {pipeline}",
            remedy=one_of(pipelines),
        )
    tables = sorted({of for name, of in known if of and pipeline in (None, name)})
    if table is not None and table not in tables:
        whose = "No pipeline" if pipeline is None else f"Pipeline {pipeline}"
        raise UnknownPipeline(
            f"{whose} has {'a' if pipeline is None else 'no'} table {table}",
            remedy=one_of(tables),
        )


def _configured_names(config: Path | None) -> Iterator[tuple[str, str | None]]:
    """Yield the pipelines and tables of a configuration; `run` and `validate` report its errors."""
    if config is None and not DEFAULT_FILE.exists():
        return
    from headrace.config.load import load

    try:
        tree = load(config, environment=os.environ)
    except HeadraceError:
        return
    for name, pipeline in _entries(_entries(tree).get("pipelines")).items():
        yield name, None
        listed = _entries(pipeline).get("tables")
        for each in listed.value if listed is not None and isinstance(listed.value, list) else ():
            yield name, str(each.value)


def _entries(node: Node | None) -> dict[str, Node]:
    return node.value if node is not None and isinstance(node.value, dict) else {}


# --- points in a log ------------------------------------------------------------------------------

FROM_HELP = "Start at a position, a time (2026-11-15T12:00, UTC if without offset) or an age (-2h)."
TO_HELP = "End at a position, a time or an age, inclusive."


def parse_moment(text: str, now: datetime) -> Moment | None:
    """Return the position or time that `text` means; None if it is neither."""
    from headrace.changelog.position import Position
    from headrace.errors import BadPosition

    text = text.strip()
    if text == "now":
        return now
    if text.startswith("-"):
        seconds = parse_seconds(text[1:])
        return None if seconds is None else now - timedelta(seconds=seconds)
    try:
        return Position.parse(text)
    except BadPosition:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def as_moment(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> Moment | None:
    """Turn an option's text into a point in the log: a callback for click."""
    if value is None:
        return None
    found = parse_moment(value, datetime.now(UTC))
    if found is None:
        raise click.BadParameter(
            f"{value!r} is not a position (0001-00000000000004b4-00000000), a time"
            " (2026-11-15T12:00) or an age (-2h)."
        )
    return found


# --- options --------------------------------------------------------------------------------------

_Command = TypeVar("_Command", bound=Callable[..., Any])


def config_options(command: _Command) -> _Command:
    """Add `--config FILE` and `--set KEY=VALUE`: `config: Path | None, sets: tuple[str, ...]`."""
    command = click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="KEY=VALUE",
        help="Override one key of the file; can be repeated.",
    )(command)
    return click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Configuration file (default: headrace.conf in this folder).",
    )(command)


def data_option(command: _Command) -> _Command:
    """Add `--data FOLDER`: `data: Path | None`, None for the one the configuration names."""
    return click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="FOLDER",
        help="Data directory of the engine (default: the one in the configuration).",
    )(command)


def storage_option(command: _Command) -> _Command:
    """Add `--storage URL`: `storage: str | None`, None for that of the data directory."""
    return click.option(
        "--storage",
        metavar="URL",
        help="Read the log at this URL (s3://bucket/prefix), without a data directory.",
    )(command)


def json_option(command: _Command) -> _Command:
    """Add `--json`: `as_json: bool`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")(command)


def engine_options(command: _Command) -> _Command:
    """Add the options that select an engine of this machine: `--config`, `--set`, `--data`."""
    return config_options(data_option(command))


# --- the configuration ----------------------------------------------------------------------------


def read_configuration(
    config: Path | None, sets: Sequence[str], *, warn: bool = True
) -> EngineConfig:
    """
    Return the checked configuration of `--config` and `--set`; warnings go to stderr.

    Raises `InvalidConfiguration` with every error, or the syntax error of the text.
    """
    # Imported here: `--help` reads no configuration.
    from headrace.config.load import load
    from headrace.engine.from_config import configured

    found = configured(load(config, environment=os.environ, sets=sets))
    if found.server is not None:
        from headrace.server.settings import configured_server

        configured_server(found.server)
    if warn:
        for warning in found.warnings:
            errors.print_warning(warning)
    return found


# --- what is installed ----------------------------------------------------------------------------


@click.command(short_help="Print the installed versions.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def version(as_json: bool) -> None:
    """Print the versions of Headrace, Python, PySpark and PyArrow, and the Java that Spark uses."""
    found = {
        "headrace": installed(DISTRIBUTION),
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
    """Return the version of a package; None if it is not installed."""
    # From the package's metadata: importing pyspark takes seconds.
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _java() -> str | None:
    from headrace.spark_session.java import find_java

    try:
        java = find_java(os.environ)
    except NoJava:
        return None
    return f"{java.version} ({java.origin}, {java.home})"


# --- data that is read without an engine ----------------------------------------------------------

_OURS = ("control.sqlite", "log", "dead-letters", "storage")
"""An engine's data directory has at least one of these."""


class LogLocation(NamedTuple):
    """The storage that logs are read from."""

    files: Files
    folder: Path | None
    """The data directory; None if only the storage was given."""


def log_location(
    config: Path | None, sets: tuple[str, ...], data: Path | None, storage: str | None
) -> LogLocation:
    """Return the given storage, or that of the data directory."""
    # Imported here: `--help` needs no Arrow, and would be slow with it.
    from headrace.storage.s3 import opened, storage_of

    if storage is None:
        folder = used_folder(data_directory(config, sets, data))
        return LogLocation(storage_of(folder), folder)
    if config is not None or sets or data is not None:
        raise click.UsageError("--storage cannot be combined with --data, --config or --set.")
    return LogLocation(opened(storage), None)


def recorded(files: Files) -> list[str]:
    """Return the sources that have a log in this storage."""

    def begun(name: str) -> bool:
        try:
            return bool(files.list(f"log/{name}/index"))
        except StorageError:
            # On a disk, an entry among the logs may be a file, or a folder we may not read.
            if files.local:
                return False
            raise

    return [name for name in files.list("log") if begun(name)]


def claim_in(data: Path, storage: str | None, source: str) -> str | None:
    """Return what the log of a source notes that it created there; None if there is no log."""
    from headrace.changelog.reader import LogReader
    from headrace.storage.s3 import opened, storage_of

    if storage is None and not data.exists():
        return None
    files = storage_of(data) if storage is None else opened(storage)
    return LogReader.open(files, source).notes.get("", "") if source in recorded(files) else None


def used_folder(data: Path) -> Path:
    """Return the full path of a data directory; `BadDataDirectory` if no engine has used it."""
    folder = data.expanduser().absolute()
    if not any((folder / name).exists() for name in _OURS):
        raise BadDataDirectory(
            "No engine has used this data directory",
            data=str(folder),
            remedy="Give the data directory of an engine with --data, or set data in the"
            " configuration. headrace run creates it.",
        )
    return folder
