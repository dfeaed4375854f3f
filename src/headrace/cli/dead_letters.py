"""
`headrace dead-letters`: the changes that pipelines parked, listed and purged.

They are read from the data directory, or from the bucket that it names. Those in memory, or in a
store of another package, come from the running engine, as do all of an engine on the network. A
purge goes through the running engine; without one, it takes the lock of the data directory.

The JSON form loses nothing: every value of a dead letter can be restored from it. Null, true,
false, text, integers from -2^53 to 2^53 and finite floats are plain JSON values; a float always
has a point or an exponent. Any other value is an object with its kind:
`{"kind": "decimal", "value": "1.50"}`.

| kind | value |
|---|---|
| `int` | the digits, as text: beyond 2^53 |
| `float` | `nan`, `inf` or `-inf` |
| `decimal` | its text, with every digit |
| `bytes` | base64 |
| `text_bytes` | base64 of a text that is not UTF-8 |
| `uuid` | its text |
| `date`, `timestamp`, `timestamptz`, `time` | ISO 8601 |
| `timetz` | the text, `micros` since midnight and `offset` in seconds |
| `interval` | the text, `months`, `days` and `micros` |
| `struct` | an object: a row within a row |
| `other` | the text of a value that an expression returned |

A date or time that Python cannot represent is PostgreSQL's text, with `days` or `micros` since
1970 or midnight.

The views are a list of dead letters, a table of their numbers, and one dead letter in full. Values
are row data: nothing in them may move the cursor of a terminal or be taken for markup.

Long because the verbs are listed with the JSON and the views of a dead letter, which all of them
share.
"""

from __future__ import annotations

import base64
import getpass
import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.cli import errors
from headrace.cli.common import (
    FILE_WIDTH,
    as_moment,
    check_names,
    command_line,
    json_option,
    names_here,
    output_console,
    printable,
    shortened,
    value_text,
)
from headrace.cli.connection import EngineChoice, running_engine
from headrace.errors import NoEngine, NotRunning

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from headrace.api.client import Control
    from headrace.changelog.position import Position
    from headrace.changelog.ranges import Moment
    from headrace.deadletters.ledger import Purged
    from headrace.deadletters.letter import DeadLetter
    from headrace.storage.records import Records


_Command = TypeVar("_Command", bound=Callable[..., Any])


# --- `headrace dead-letters` ----------------------------------------------------------------------

_FOR_EVER = 1e10
"""Seconds."""


@click.group("dead-letters", short_help="Show changes that could not be applied.")
def dead_letters() -> None:
    """
    Show dead letters: changes that could not be computed, and later changes of those rows.

    A dead letter holds its row: later changes of the same key wait until a truncate or a reload
    of the table supersedes them, or they are purged. Works with or without a running engine.
    """


@dead_letters.command("list", short_help="List dead letters.")
@click.argument("pipeline", required=False)
@running_engine
@click.option("--table", metavar="TABLE", help="Only this table.")
@click.option("--all", "superseded", is_flag=True, help="Include those that ended.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N.")
@click.option("--after", metavar="POSITION", help="Only those after this position, of PIPELINE.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines with exact values.")
def list_dead_letters(
    pipeline: str | None,
    engine: EngineChoice,
    table: str | None,
    superseded: bool,
    limit: int | None,
    after: str | None,
    as_json: bool,
) -> None:
    """
    List the dead letters of PIPELINE, or of all pipelines, by position.

    With --limit, those at the last position are all listed, so that the next ones are found with
    --after.

    With --json each line is a dead letter with the row before and after the change. Null,
    booleans, text, integers up to 2^53 and finite floats are plain JSON values. Any other value
    is an object with its kind: {"kind": "decimal", "value": "1.50"}. The other kinds are int
    (beyond 2^53), float (nan, inf), bytes and text_bytes (base64), uuid, date, timestamp,
    timestamptz and time (ISO 8601), timetz, interval and struct.
    """
    if after is not None and pipeline is None:
        raise click.UsageError("--after needs a PIPELINE: positions of sources differ.")
    first = None if after is None else _position(after, "--after")
    found = _read(engine, pipeline, table, superseded=superseded, after=first, limit=limit)
    if not found:
        _check_names(engine, pipeline, table)
    if as_json:
        _echo(dead_letter_line(dead_letter) for dead_letter in found)
        return
    if not found:
        click.echo("No dead letters.")
        return

    console = output_console()
    console.print(dead_letter_list(found, _now(), console.width, superseded=superseded))
    console.print(count_line(found))


@dead_letters.command("show", short_help="Show a dead letter in full, and what to do about it.")
@click.argument("position")
@running_engine
@click.option("--pipeline", metavar="PIPELINE", help="Only this pipeline.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines, as list does.")
def show_dead_letter(
    position: str,
    engine: EngineChoice,
    pipeline: str | None,
    as_json: bool,
) -> None:
    """
    Show the dead letters at POSITION: the reason, the row before and after, what to do.

    There can be several: one for each pipeline that uses the table, or one for each row of a
    baseline that failed. Rows of a baseline have the position where the baseline begins. With
    --json, "behind" lists the positions of the later changes that wait.
    """
    dead_letters = _read(engine, pipeline, superseded=True)
    if not dead_letters:
        _check_names(engine, pipeline, None)
    found = _at(position, dead_letters)
    if as_json:
        from headrace.deadletters.letter import waiting_changes

        _echo(
            dead_letter_line(
                dead_letter,
                behind=[str(each.position) for each in waiting_changes(dead_letter, dead_letters)],
            )
            for dead_letter in found
        )
        return

    console = output_console()
    for number, dead_letter in enumerate(found):
        if number:
            console.rule()
        for part in dead_letter_page(dead_letter, dead_letters, _now(), engine.again()):
            console.print(part)


@dead_letters.command("summary", short_help="Count dead letters by table and reason.")
@click.argument("pipeline", required=False)
@running_engine
@json_option
def summarize_dead_letters(
    pipeline: str | None,
    engine: EngineChoice,
    as_json: bool,
) -> None:
    """
    Count the dead letters of PIPELINE, or of all pipelines, by table, kind and code.

    Also the rows that may differ from those of the source, because dead letters were purged.
    """
    from headrace.deadletters.store import ledger_of

    counts, given_up = [], []
    for name, records in _stores(engine, pipeline):
        ledger = ledger_of(records, name)
        counts += [
            {
                "pipeline": name,
                "table": each.table,
                "kind": each.kind,
                "code": each.code,
                "count": each.count,
            }
            for each in ledger.counts()
        ]
        given_up += [
            {"pipeline": name, "table": table, "rows": rows}
            for table, rows in ledger.purged_keys().items()
        ]
    if not counts and not given_up:
        _check_names(engine, pipeline, None)
    if as_json:
        click.echo(
            json.dumps({"dead_letters": counts, "rows_given_up": given_up}, ensure_ascii=False)
        )
        return
    if counts:
        output_console().print(_summary(counts))
    else:
        click.echo("No dead letters.")
    for each in given_up:
        again = command_line(
            "reload",
            str(each["pipeline"]),
            "--table",
            str(each["table"]),
            *engine.again(),
        )
        click.echo(
            f"{_count(int(str(each['rows'])), 'row')} of {each['table']} may differ from the"
            f" source: dead letters were purged. To repair: {again}"
        )


def _selection_options(command: _Command) -> _Command:
    """Add the options that select dead letters, and the note that stays with them."""
    for option in reversed(
        (
            click.option("--table", metavar="TABLE", help="Only this table."),
            click.option("--code", metavar="CODE", help="Only those with this reason."),
            click.option(
                "--before",
                metavar="MOMENT",
                callback=as_moment,
                help="Only of changes before a position, or parked before a time or an age (-7d).",
            ),
            click.option("--position", metavar="POSITION", help="Only those at this position."),
            click.option(
                "--note", metavar="TEXT", default="", help="Why; stays with them in list --all."
            ),
        )
    ):
        command = option(command)
    return command


@dead_letters.command("purge", short_help="Give up changes that became dead letters.")
@click.argument("pipeline")
@running_engine
@_selection_options
@click.option("--dry-run", is_flag=True, help="Show what would be purged, without doing it.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def purge_dead_letters(
    pipeline: str,
    engine: EngineChoice,
    table: str | None,
    code: str | None,
    before: Moment | None,
    position: str | None,
    note: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """
    Give up the changes of dead letters of PIPELINE, for good.

    Without options all of them; with several, those that all of the options name. Later changes of
    the same rows that wait behind them are given up, too. Their keys are released: the next
    changes of these rows reach the target again. The target's rows may differ from those of the
    source; headrace status says so until headrace reload copies the table again. Shows what would
    be purged, and asks before doing it. --json does not ask, and purges only with --yes.
    """
    chosen = {
        "table": table,
        "code": code,
        "before": before,
        "position": None if position is None else _position(position, "--position"),
    }
    purge = _purge(engine, pipeline, chosen, _signed(note))
    answer = purge(True)
    if not answer["tables"]:
        _check_names(engine, pipeline, table)
    if not as_json:
        _show_purge(answer)
    asks = not (as_json or yes or dry_run) and bool(answer["tables"])
    do_it = bool(answer["tables"]) and not dry_run
    if do_it and (engine.confirmed("Purge them") if asks else yes):
        answer = purge(False)
    if as_json:
        click.echo(json.dumps(answer, ensure_ascii=False))
    elif answer["done"]:
        click.echo("✓ purged")
        for each in answer["tables"]:
            options = engine.again()
            again = command_line("reload", pipeline, "--table", str(each["table"]), *options)
            click.echo(f"  to make the rows those of the source: {again}", err=True)
    return errors.DONE


@dead_letters.command("replay", short_help="Apply dead letters to the target.")
@click.argument("pipeline")
@running_engine
@_selection_options
@click.option("--dry-run", is_flag=True, help="Show what would happen, without doing it.")
@json_option
def replay_dead_letters(
    pipeline: str,
    engine: EngineChoice,
    table: str | None,
    code: str | None,
    before: Moment | None,
    position: str | None,
    note: str,
    dry_run: bool,
    as_json: bool,
) -> int:
    """
    Apply the dead letters of PIPELINE, after their cause is corrected.

    Without options all of them; with several, those that all of the options name. Each is applied
    together with all dead letters of the same row, in their order, at the position that the table
    has reached. Later changes of the row then reach the target again. A change that fails again is
    a dead letter again, at its new position, and the exit code is 1. Needs a running engine.
    """
    fields = {
        "table": table,
        "code": code,
        "before": before.isoformat() if isinstance(before, datetime) else before and str(before),
        "position": position and str(_position(position, "--position")),
    }
    return _apply(engine, pipeline, fields, _signed(note), dry_run=dry_run, as_json=as_json)


@dead_letters.command("edit", short_help="Apply a dead letter with other values.")
@click.argument("pipeline")
@click.argument("position")
@running_engine
@click.option(
    "--value",
    "values",
    metavar="COLUMN=VALUE",
    multiple=True,
    help="A new value, as headrace query prints it; may be repeated.",
)
@click.option("--null", "nulls", metavar="COLUMN", multiple=True, help="A column to make null.")
@click.option("--table", metavar="TABLE", help="The table, if several have this position.")
@click.option("--note", metavar="TEXT", default="", help="Why; stays with it in list --all.")
@click.option("--dry-run", is_flag=True, help="Show what would happen, without doing it.")
@json_option
def edit_dead_letter(
    pipeline: str,
    position: str,
    engine: EngineChoice,
    values: tuple[str, ...],
    nulls: tuple[str, ...],
    table: str | None,
    note: str,
    dry_run: bool,
    as_json: bool,
) -> int:
    """
    Apply the dead letter of PIPELINE at POSITION with other values in its row.

    The values are those of the captured table, before filters and transforms; key columns cannot
    be edited. Dead letters of the same row are applied with it, in their order. The target's row
    then differs from the source's, until it changes there or the table is reloaded. Needs a
    running engine.
    """
    found: dict[str, Any] = dict.fromkeys(nulls)
    for each in values:
        name, equals, value = each.partition("=")
        if not equals or name in found:
            raise click.UsageError(f"--value {each}: write COLUMN=VALUE, each column once.")
        found[name] = value
    if not found:
        raise click.UsageError("Nothing to edit: use --value or --null.")
    at = str(_position(position, "POSITION"))
    fields = {"table": table, "position": at, "values": found}
    return _apply(engine, pipeline, fields, _signed(note), dry_run=dry_run, as_json=as_json)


def _apply(
    engine: EngineChoice,
    pipeline: str,
    fields: Mapping[str, Any],
    note: str,
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Have the running engine apply dead letters, and show the outcomes; return the exit code."""
    control = _control(engine)
    asked = {"pipeline": pipeline, "note": note, "dry_run": dry_run, **fields}
    answer = control.call("ReplayDeadLetters", **asked)
    failed = [each for each in answer["outcomes"] if each["outcome"] != "applied"]
    if as_json:
        click.echo(json.dumps(answer, ensure_ascii=False))
        return errors.FAILED if failed else errors.DONE
    for each in answer["outcomes"]:
        mark = "✓" if each["outcome"] == "applied" else "✗"
        words = {
            "applied": "would be applied" if dry_run else "applied",
            "failed": f"{'would fail' if dry_run else 'failed'} again: {each['code']}",
            "waiting": "waits behind one that fails" if dry_run else "waits behind one that failed",
        }
        line = f"{mark} {each['table']} {each['position']}: {words[each['outcome']]}"
        click.echo(printable(line))
    if failed and not dry_run:
        listed = command_line("dead-letters", "list", pipeline, *engine.again())
        click.echo(f"  They are dead letters again: {listed}", err=True)
    return errors.FAILED if failed else errors.DONE


def _control(engine: EngineChoice) -> Control:
    """Return the running engine; `BadDataDirectory` for a folder that none has used."""
    if not engine.on_network:
        engine.used_folder()
    return engine.reach()


def _purge(
    engine: EngineChoice, pipeline: str, chosen: Mapping[str, Any], note: str
) -> Callable[[bool], dict[str, Any]]:
    """Return the purge, to be called with whether it is a dry run: by an engine, or without one."""
    try:
        control = _control(engine)
    except NoEngine:
        if engine.on_network:
            raise
        folder = engine.used_folder()
        return lambda dry_run: _purge_here(folder, pipeline, chosen, note, dry_run=dry_run)
    before = chosen["before"]
    fields = {
        **chosen,
        "before": before.isoformat() if isinstance(before, datetime) else before and str(before),
        "position": chosen["position"] and str(chosen["position"]),
    }
    return lambda dry_run: control.call(
        "PurgeDeadLetters", pipeline=pipeline, note=note, dry_run=dry_run, **fields
    )


def _purge_here(
    folder: Path, pipeline: str, chosen: Mapping[str, Any], note: str, *, dry_run: bool
) -> dict[str, Any]:
    from headrace.api.handlers import purged_fields
    from headrace.deadletters.ledger import Selection
    from headrace.deadletters.store import DeadLetterStore, stores_in
    from headrace.runtime.lease import Lease
    from headrace.storage.s3 import storage_of

    selection = Selection(**chosen)
    lease = Lease(folder, time.time)
    try:
        _warn_elsewhere(folder, pipeline)
        found: tuple[Purged, ...] = ()
        for name, records in stores_in(storage_of(folder), pipeline):
            # Nothing that ended is removed: the configuration says how long it stays.
            store = DeadLetterStore(records, name, time.time, keep=_FOR_EVER)
            found = store.to_purge(selection) if dry_run else store.purge(selection, note)
        return purged_fields(pipeline, found, done=not dry_run)
    finally:
        lease.release()


def _signed(note: str) -> str:
    """Return a note with who wrote it."""
    who = f"{getpass.getuser()} on {socket.gethostname()}"
    return f"{who}: {note}" if note else who


def _show_purge(answer: Mapping[str, Any]) -> None:
    for each in answer["tables"]:
        click.echo(
            f"{each['table']}: {_count(each['dead_letters'], 'dead letter')} of"
            f" {_count(each['keys'], 'row')} would be purged"
        )
    if answer["tables"]:
        click.echo(
            "Their changes are given up for good. These rows may differ from those of the source"
            " until the table is reloaded."
        )
    else:
        click.echo("No dead letters.")


def _read(
    engine: EngineChoice,
    pipeline: str | None,
    table: str | None = None,
    *,
    superseded: bool,
    after: Position | None = None,
    limit: int | None = None,
) -> tuple[DeadLetter, ...]:
    # Imported here: `--help` needs no Arrow, and would be slow with it.
    from headrace.deadletters.store import read_records

    found: list[DeadLetter] = []
    for name, records in _stores(engine, pipeline):
        left = None if limit is None else max(0, limit - len(found))
        found += read_records(records, name, table, superseded=superseded, after=after, limit=left)
    return tuple(found)


def _stores(engine: EngineChoice, pipeline: str | None) -> Iterator[tuple[str, Records]]:
    """
    Yield the records of all pipelines, or of one.

    A running engine gives those that it alone has; an engine on the network gives all.
    """
    from headrace.deadletters.store import pipelines_elsewhere, stores_in
    from headrace.storage.s3 import storage_of

    if engine.on_network:
        control = engine.reach()
        names = _names_of(control.status()) if pipeline is None else [pipeline]
        yield from ((name, _records_of(control, name)) for name in sorted(names))
        return
    folder = engine.used_folder()
    files = storage_of(folder)
    found = dict(stores_in(files, pipeline))
    for name in pipelines_elsewhere(files):
        if pipeline in (None, name):
            try:
                found[name] = _records_of(engine.reach(), name)
            except NoEngine:
                _warn_elsewhere(folder, name)
    yield from sorted(found.items())


def _names_of(report: Mapping[str, Any]) -> list[str]:
    """Return the pipelines of an engine; raises while it does not know them."""
    if report["phase"] == "starting":
        raise NotRunning("The engine is still starting", remedy="Try again in a moment.")
    return [each["name"] for each in report["pipelines"]]


def _records_of(control: Control, pipeline: str) -> Records:
    from headrace.storage.records import MemoryRecords

    records = MemoryRecords()
    for each in control.stream("DeadLetterRecords", pipeline=pipeline):
        records.create(each["number"], base64.b64decode(each["data"]))
    return records


def _warn_elsewhere(folder: Path, pipeline: str) -> None:
    """Say that a pipeline's dead letters cannot be seen: "No dead letters." would be wrong."""
    from headrace.deadletters.store import pipelines_elsewhere
    from headrace.storage.s3 import storage_of

    match pipelines_elsewhere(storage_of(folder)).get(pipeline):
        case None:
            pass
        case "memory":
            click.echo(
                f"! Dead letters of {pipeline} are in memory, and are gone when its engine stops.",
                err=True,
            )
        case kind:
            click.echo(
                f"! Dead letters of {pipeline} are in a store of type {kind}, which only its engine"
                " reads. Start it.",
                err=True,
            )


def _check_names(engine: EngineChoice, pipeline: str | None, table: str | None) -> None:
    """Raise for an unknown name: "No dead letters." would hide the typing error."""
    if pipeline is None and table is None:
        return
    known: set[tuple[str, str | None]] = {
        (each.pipeline, each.table) for each in _read(engine, None, superseded=True)
    }
    if engine.on_network:
        for each in engine.reach().status()["pipelines"]:
            known |= {(each["name"], None), *((each["name"], of["table"]) for of in each["tables"])}
    else:
        known |= names_here(engine.used_folder(), engine.config)
    check_names(known, pipeline, table)


def _position(text: str, hint: str) -> Position:
    from headrace.changelog.position import Position
    from headrace.errors import BadPosition

    try:
        return Position.parse(text)
    except BadPosition as error:
        raise click.BadParameter(
            f"{text!r} is not a position such as 0001-00000000000004b4-00000000.", param_hint=hint
        ) from error


def _at(position: str, dead_letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    wanted = _position(position, "POSITION")
    found = [dead_letter for dead_letter in dead_letters if dead_letter.position == wanted]
    if not found:
        raise click.BadParameter(
            f"There is no dead letter at {position}; headrace dead-letters list shows all.",
            param_hint="POSITION",
        )
    return found


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _now() -> datetime:
    return datetime.now(UTC)


# --- dead letters as JSON -------------------------------------------------------------------------

_PARTS = ("months", "days", "micros", "offset")
"""The numbers of a date or time that Python cannot represent."""


def dead_letter_line(dead_letter: DeadLetter, **more: object) -> str:
    """Return a dead letter as a line of JSON, with the fields in `more`."""
    return json.dumps(
        {**dead_letter_object(dead_letter), **more}, ensure_ascii=False, allow_nan=False
    )


def dead_letter_object(dead_letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter as plain values."""
    return {
        "pipeline": dead_letter.pipeline,
        "table": dead_letter.table,
        "position": str(dead_letter.position),
        "lineage": dead_letter.lineage,
        "baseline": dead_letter.baseline,
        "op": dead_letter.op,
        "kind": dead_letter.kind,
        "code": dead_letter.code,
        "facts": dict(dead_letter.facts),
        "key": [value_object(value) for value in dead_letter.key],
        "before": _image(dead_letter.before),
        "after": _image(dead_letter.after),
        "time": dead_letter.time.isoformat() if dead_letter.time else None,
        "parked": dead_letter.parked.isoformat(),
        "superseded": dead_letter.superseded,
        "ended": dead_letter.ended.isoformat() if dead_letter.ended else None,
        "note": dead_letter.note,
    }


def value_object(value: object) -> object:
    """Return one value in the form that the module's docstring describes."""
    from headrace.changelog.values_json import by_kind

    return by_kind(value, _with_kind)


def _with_kind(kind: str, value: Any) -> dict[str, object]:
    from headrace.changelog.values_json import kind_text

    text = str(value) if kind in ("float", "decimal") else kind_text(kind, value)
    parts = {name: getattr(value, name) for name in _PARTS if hasattr(value, name)}
    return {"kind": kind, "value": text, **({} if kind == "other" else parts)}


def _image(image: Mapping[str, object] | None) -> dict[str, object] | None:
    if image is None:
        return None
    return {name: value_object(value) for name, value in image.items()}


# --- the view of dead letters ---------------------------------------------------------------------

SHORT = 40
"""Maximum characters of a key in the list."""

LONG = 2_000
"""Maximum characters of a value in the page; `--json` has the whole value."""

LISTED = 10
"""Maximum number of waiting changes that are listed."""


def dead_letter_list(
    dead_letters: Sequence[DeadLetter], now: datetime, width: int, *, superseded: bool
) -> RenderableType:
    """Return the list: a table, or two lines for each dead letter if the table is too wide."""
    from rich.console import Console, Group

    table = _table(dead_letters, now, superseded=superseded)
    needed = Console(width=FILE_WIDTH).measure(table).maximum
    return table if needed <= width else Group(*_lines(dead_letters, now))


def _lines(dead_letters: Sequence[DeadLetter], now: datetime) -> Iterator[Text]:
    from rich.text import Text

    for each in dead_letters:
        style = "red" if each.kind == "failed" else "yellow"
        history = _ended_text(each)
        what = ", ".join(filter(None, (each.code, history)))
        yield Text.assemble(
            f"{each.position}  {each.op}  ", (each.kind, style), f"  {age(each.parked, now)} ago"
        )
        about = f"  {each.pipeline}, table {each.table}, key {shortened(key_text(each), SHORT)}"
        yield _text(f"{about}: {what}" if what else about)


def _ended_text(dead_letter: DeadLetter) -> str:
    """Return what ended a dead letter; empty if nothing did."""
    match dead_letter.superseded:
        case None:
            return ""
        case "truncate" | "reload":
            return f"superseded by a {dead_letter.superseded}"
        case "dropped":
            return "ended with its pipeline"
        case reason:
            return reason


def _summary(counts: Sequence[Mapping[str, object]]) -> Table:
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("pipeline", "table", "kind", "code"):
        shown.add_column(name, overflow="fold")
    shown.add_column("count", justify="right", no_wrap=True)
    for each in counts:
        shown.add_row(*(_text(str(value)) for value in each.values()))
    return shown


def _table(dead_letters: Sequence[DeadLetter], now: datetime, *, superseded: bool) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("pipeline", "table"):
        shown.add_column(name, overflow="fold")
    shown.add_column("position", no_wrap=True)
    for name in ("key", "op", "kind", "code"):
        shown.add_column(name, overflow="fold")
    shown.add_column("age", justify="right", no_wrap=True)
    if superseded:
        shown.add_column("superseded")
    for each in dead_letters:
        cells = [
            _text(each.pipeline),
            _text(each.table),
            Text(str(each.position)),
            _text(shortened(key_text(each), SHORT)),
            Text(each.op),
            Text(each.kind, style="red" if each.kind == "failed" else "yellow"),
            _text(each.code),
            Text(age(each.parked, now)),
        ]
        if superseded:
            cells.append(Text(each.superseded or ""))
        shown.add_row(*cells, style="dim" if each.superseded else None)
    return shown


def count_line(dead_letters: Sequence[DeadLetter]) -> str:
    """Return the number of dead letters and of the keys they hold."""
    held = {
        (each.pipeline, each.table, key)
        for each in dead_letters
        if each.superseded is None
        for key in each.keys
    }
    return f"{_count(len(dead_letters), 'dead letter')}, {_count(len(held), 'key')} held."


def dead_letter_page(
    dead_letter: DeadLetter,
    dead_letters: Sequence[DeadLetter],
    now: datetime,
    options: Sequence[str] = (),
) -> Iterator[RenderableType]:
    """
    Yield one dead letter in full: the reason, both images, what waits for it, what to do.

    `options` make the command that is suggested select the same engine.
    """
    from rich.text import Text

    yield Text(f"Dead letter {dead_letter.position}", style="bold")
    yield _facts(dead_letter, now)
    yield _images(dead_letter)
    yield from _others(dead_letter, dead_letters)
    yield Text.assemble(("What to do: ", "bold"), printable(what_to_do(dead_letter, options)))


def what_to_do(dead_letter: DeadLetter, options: Sequence[str] = ()) -> str:
    """Return how to resolve this dead letter; `options` select the engine."""
    if dead_letter.superseded is not None:
        by = f" by {dead_letter.note}" if dead_letter.note else ""
        return f"nothing, it was {_ended_text(dead_letter).removeprefix('was ')}{by}."
    failed = "the expression that failed"
    if step := dead_letter.facts.get("step"):
        column = dead_letter.facts.get("column")
        failed = f"the expression of column {column} in {step}" if column else f"the {step}"
    fix = f"fix {failed}, or the row in the source"
    if dead_letter.kind == "behind":
        fix = "fix the cause of the first dead letter of this row"
    name, at = dead_letter.pipeline, str(dead_letter.position)
    reload = command_line("reload", name, "--table", dead_letter.table, *options)
    replay = command_line("dead-letters", "replay", name, "--position", at, *options)
    return (
        f"{fix}. Then apply it, with what waits for the same row: {replay}. Or copy the table"
        " again, which loads the current rows and releases their keys:"
        f" engine.reload(source, {dead_letter.table!r}) in Python, or {reload}"
    )


def age(since: datetime, now: datetime) -> str:
    """Return the time since then, in its largest unit."""
    seconds = max(0, int((now - since).total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def key_text(dead_letter: DeadLetter) -> str:
    """Return the key's values."""
    return ", ".join(exact_value_text(value) for value in dead_letter.key)


def exact_value_text(value: object) -> str:
    """Return a value as text from which text, number, bytes and null can be distinguished."""
    from headrace.changelog.values import exact_text

    return value_text(None if value is None else exact_text(value), None)


# --- parts of the page of a dead letter -----------------------------------------------------------


def _facts(dead_letter: DeadLetter, now: datetime) -> Table:
    from rich.table import Table

    lines = {
        "pipeline": dead_letter.pipeline,
        "table": dead_letter.table,
        "key": shortened(key_text(dead_letter), LONG),
        "change": dead_letter.op
        if dead_letter.baseline is None
        else f"row of baseline {dead_letter.baseline}",
        "why": dead_letter.code
        if dead_letter.kind == "failed"
        else "waits for an earlier dead letter of this row",
        **{f"  {name}": text for name, text in dead_letter.facts.items()},
        "committed": str(dead_letter.time) if dead_letter.time else "not known",
        "parked": f"{dead_letter.parked} ({age(dead_letter.parked, now)} ago)",
        "lineage": dead_letter.lineage,
    }
    if dead_letter.superseded is not None:
        lines["superseded"] = f"by a {dead_letter.superseded}"
    shown = Table(box=None, show_header=False, pad_edge=False)
    shown.add_column(style="dim", no_wrap=True)
    shown.add_column(overflow="fold")
    for name, text in lines.items():
        shown.add_row(_text(name), _text(shortened(text, LONG)))
    return shown


def _images(dead_letter: DeadLetter) -> Table:
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("column", "before", "after"):
        shown.add_column(name, overflow="fold")
    names = dict.fromkeys([*(dead_letter.before or {}), *(dead_letter.after or {})])
    for name in names:
        cells = [_cell(image, name) for image in (dead_letter.before, dead_letter.after)]
        changed = dead_letter.before and dead_letter.after and cells[0] != cells[1]
        shown.add_row(_text(name), *map(_text, cells), style="bold" if changed else None)
    return shown


def _cell(image: Mapping[str, object] | None, name: str) -> str:
    if image is None:
        return ""
    if name not in image:
        return "(not sent)"
    return shortened(exact_value_text(image[name]), LONG)


def _others(dead_letter: DeadLetter, dead_letters: Sequence[DeadLetter]) -> Iterator[Text]:
    """Yield what this dead letter waits for, and what waits for it."""
    from rich.text import Text

    from headrace.deadletters.letter import waiting_changes

    if dead_letter.kind == "behind":
        for other in dead_letters:
            if other.kind == "failed" and dead_letter in waiting_changes(other, dead_letters):
                yield Text(f"Waits for the dead letter at {other.position}.")
                break
    followers = waiting_changes(dead_letter, dead_letters)
    if not followers:
        yield Text("No later changes are waiting.")
        return
    are = "is" if len(followers) == 1 else "are"
    yield Text(f"{_count(len(followers), 'later change')} {are} waiting, in this order:")
    for each in followers[:LISTED]:
        yield Text(f"  {each.position}  {each.op}  {each.code}".rstrip())
    if len(followers) > LISTED:
        yield Text(f"  and {len(followers) - LISTED} more")


def _text(text: str) -> Text:
    from rich.text import Text

    return Text(printable(text))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
