"""
`headrace status` and `headrace top`: the status of every pipeline of a running engine.

Everything is made from the fields of the verb `Status`: a table of pipelines; below it, the
progress of copies as text or bars, and remarks about what is wrong or waiting. Nothing is shown in
a better state than the fields say.

`top` shows the same, live.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from headrace.api.connect import sentence_of
from headrace.cli import errors
from headrace.cli.common import (
    as_optional_seconds,
    command_line,
    json_option,
    on_terminal,
    output_console,
)
from headrace.cli.connection import EngineChoice, running_engine
from headrace.engine.health import state_phrase
from headrace.errors import NoAnswer, NoEngine

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text


# --- the progress of a copy -----------------------------------------------------------------------

_BAR = 16
"""Narrow: speed and time left fit next to it on a terminal of 80 columns."""


def copy_text(copy: Mapping[str, Any]) -> str:
    """Return rows, speed and time left as one line."""
    of = "" if copy["expected"] is None else f" of about {copy['expected']:,}"
    parts = [f"copying {copy['table']}: {copy['rows']:,}{of} rows", speed_text(copy)]
    if copy["waits"]:
        parts.append(f"waiting for {copy['waits']}")
    return ", ".join(part for part in parts if part)


def speed_text(copy: Mapping[str, Any]) -> str:
    """Return the speed and the time left; empty while they are not known."""
    parts = []
    if copy["rows_per_s"]:
        parts.append(f"{copy['rows_per_s']:,.0f} rows/s")
    if copy["left_seconds"] is not None:
        parts.append(f"{time_text(copy['left_seconds'])} left")
    return ", ".join(parts)


def time_text(seconds: float) -> str:
    """Return a time, no more precise than an estimate can be."""
    if seconds < 90:
        return f"{max(0, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


def copy_bar(copy: Mapping[str, Any]) -> RenderableType:
    """Return a bar with its speed; it only pulses while the number of rows is not known."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    row = Table.grid(padding=(0, 1))
    row.add_column(no_wrap=True)
    row.add_column(min_width=_BAR)
    row.add_column(no_wrap=True, justify="right", min_width=4)
    row.add_column(no_wrap=True, overflow="ellipsis")
    expected = copy["expected"]
    share = f"{copy['rows'] / expected:.0%}" if expected else ""
    bar = ProgressBar(total=expected or None, completed=copy["rows"], width=_BAR)
    text = f"{copy['rows']:,} rows{', ' if speed_text(copy) else ''}{speed_text(copy)}"
    row.add_row(f"copying {copy['table']}", bar, share, Text(text, "dim"))
    return row


# --- what is wrong or waiting ---------------------------------------------------------------------

_WELL = ("streaming", "watching")
_NOTICE_SHOWN = timedelta(hours=1)

SHOWN_BATCH_SECONDS = 2.0
"""Most batches take less: a remark would come and go."""


@dataclass(frozen=True, slots=True)
class Remark:
    """One remark about the engine."""

    what: str
    why: str = ""
    remedy: str = ""
    code: str = ""
    """The code of the error; empty if nothing is broken, and the user decides."""

    @property
    def wrong(self) -> bool:
        """Whether an error is the reason."""
        return bool(self.code)


def remarks(
    report: Mapping[str, Any],
    command: Callable[..., str] = lambda *words: " ".join(("headrace", *words)),
) -> Iterator[Remark]:
    """
    Yield the remarks about the fields of the verb `Status`; sources first.

    `command` turns the words of a suggested command into a command line.
    """
    if (down := report.get("spark_down_seconds")) is not None:
        since = _moment(time.time() - down)
        yield Remark(f"Spark is not running, or does not answer, since {since}")
    if (server := report.get("server")) is not None:
        yield from _of_server(server)
    for each in report.get("observers", ()):
        if each["dropped"] or each["errors"]:
            yield Remark(_observer_text(each))
    for source in report["sources"]:
        name = f"source {source['name']}"
        if source["state"] not in _WELL or source["error"]:
            why = source["reason"] or sentence_of(source["error"], source["name"])
            yield _remark(
                f"{name} {state_phrase(source['state'])}{_since(source)}", why, source["error"]
            )
        elif source["reason"]:
            yield Remark(f"{name} is behind", source["reason"])
        yield from _left_out(name, source["left_out"])
        for notice in source["notices"]:
            at = datetime.fromisoformat(notice["time"])
            if datetime.now(UTC) - at < _NOTICE_SHOWN:
                yield Remark(f"{at.astimezone():%H:%M:%S} {name}", notice["message"])
    for each in report["pipelines"]:
        yield from _of_pipeline(each, command)


_SERVER_STATES = {
    "serving": "gRPC is not served",
    "starting": "the server is starting",
    "port_taken": "the server cannot listen",
    "restarting": "the server is restarted",
    "not_answering": "the server does not answer",
}
"""What is wrong with a server that has a reason."""


def server_phrase(state: str) -> str:
    """Return the state of a server that has a reason, in words."""
    return _SERVER_STATES.get(state, f"the server is {state}")


def _of_server(server: Mapping[str, Any]) -> Iterator[Remark]:
    """Yield what keeps the server from serving, with since when."""
    if server["reason"] and server["state"] not in ("stopping", "stopped"):
        since = f" since {_moment(server['since'])}"
        phrase = server_phrase(server["state"])
        yield _remark(f"{phrase}{since}", server["reason"], server["error"])


def state_text(pipeline: Mapping[str, Any]) -> str:
    """Return a pipeline's state in plain words."""
    return str(pipeline["state"]).replace("_", " ")


def _of_pipeline(each: Mapping[str, Any], command: Callable[..., str]) -> Iterator[Remark]:
    name = f"pipeline {each['name']}"
    if each["error"]:
        why = sentence_of(each["error"], name)
        yield _remark(f"{name} {state_phrase(each['state'])}{_since(each)}", why, each["error"])
    elif each["reason"] and not each["reason"].startswith("source "):
        yield _remark(f"{name} {state_phrase(each['state'])}", each["reason"], None)
    if each["state"] == "paused":
        yield Remark(f"{name} is paused", remedy=command("resume", each["name"]))
    if each["set_aside"] and not each["error"]:
        yield _remark(name, sentence_of(each["set_aside"], name), each["set_aside"])
    if (batch := each.get("applying")) and batch["seconds"] >= SHOWN_BATCH_SECONDS:
        yield Remark(batch_text(each))
    if count := each["dead_letters"]:
        yield Remark(
            dead_letters_text(each["name"], count),
            remedy=command("dead-letters", "list", each["name"]),
        )
    for notice in each.get("notices", ()):
        yield _remark(name, sentence_of(notice, name), notice)
    yield from _left_out(name, each["left_out"])


def _since(each: Mapping[str, Any]) -> str:
    """Return since when a source or a pipeline is in error, and of when the log's rows are."""
    if (since := each.get("error_since")) is None:
        return ""
    newest = each.get("newest")
    rows = (
        ""
        if newest is None
        else f"; the newest change in its log was committed at {_moment(newest)}"
    )
    return f" since {_moment(since)}{rows}"


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"


def _observer_text(observer: Mapping[str, Any]) -> str:
    dropped, errors = observer["dropped"], observer["errors"]
    parts = [f"missed {dropped:,} events, because it is too slow"] if dropped else []
    parts += [f"raised {errors:,} times; the log file has the first error"] if errors else []
    return f"observer {observer['name']} {', and '.join(parts)}"


def batch_text(pipeline: Mapping[str, Any]) -> str:
    """Return how large the batch in progress is, and how long it has taken so far."""
    batch = pipeline["applying"]
    changes = f"{batch['changes']:,} change{'' if batch['changes'] == 1 else 's'}"
    took = time_text(batch["seconds"])
    return f"pipeline {pipeline['name']} has been applying {changes} for {took}"


def dead_letters_text(pipeline: str, count: int) -> str:
    """Return how many dead letters a pipeline has."""
    return f"pipeline {pipeline} has {count:,} dead letter{'' if count == 1 else 's'}"


def _left_out(of: str, errors: Mapping[str, Mapping[str, Any]]) -> Iterator[Remark]:
    for table, error in errors.items():
        what = f"{of} left out table {table}"
        yield _remark(what, sentence_of(error, what), error)


def _remark(what: str, why: str, error: Mapping[str, Any] | None) -> Remark:
    if error is None:
        return Remark(what, why)
    return Remark(what, why, error["remedy"], error["code"])


# --- `headrace status` ----------------------------------------------------------------------------

NOT_READY = 3
_LOOK_SECONDS = 0.25


@click.command(short_help="Show the status of every pipeline.")
@running_engine
@click.option("--ready", is_flag=True, help="Exit with code 3 unless everything is ready.")
@click.option(
    "--wait",
    metavar="DURATION",
    callback=as_optional_seconds,
    help="Wait up to this long until the engine runs and everything is ready.",
)
@click.option("-v", "--verbose", is_flag=True, help="Also show counts by table and operation.")
@json_option
def status(
    engine: EngineChoice,
    ready: bool,
    wait: float | None,
    verbose: bool,
    as_json: bool,
) -> int:
    """
    Show state, rows, lag, rate and position of every pipeline, and what is wrong.

    LAG is the age of the oldest change that readers do not see yet (- if it is not known). RATE
    is changes per second over the last five seconds. With --wait the exit code is 3 if not
    everything was ready in time. With --json the output is one object.
    """

    def asked() -> dict[str, Any]:
        return engine.reach().status()

    report = asked() if wait is None else _awaited(asked, wait)
    if as_json:
        click.echo(json.dumps(report, ensure_ascii=False))
    else:
        if verbose and report["pipelines"]:
            output_console().print(counts_table(report))
        output_console().print(status_view(report, engine.again()))
    wanted = ready or wait is not None
    return NOT_READY if wanted and not report["ready"] else errors.DONE


def _awaited(asked: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any]:
    until = time.monotonic() + seconds
    while True:
        try:
            if (report := asked())["ready"] or time.monotonic() >= until:
                return report
        except (NoAnswer, NoEngine):
            if time.monotonic() >= until:
                raise
        time.sleep(_LOOK_SECONDS)


# --- the view of the status -----------------------------------------------------------------------

_COLUMNS = ("PIPELINE", "SOURCE", "TARGET", "STATE", "ROWS", "LAG", "RATE", "POSITION")
_NUMBERS = ("ROWS", "LAG", "RATE")
_FIRST_TO_GO = ("POSITION", "TARGET", "SOURCE")
_ANY_WIDTH = 10_000
_GREEN = ("streaming", "complete")
_RED = ("failed", "stopped")

UNKNOWN = "-"


def status_view(report: Mapping[str, Any], options: Sequence[str] = ()) -> RenderableType:
    """
    Return everything: the table, running copies, what is wrong, and whether all is ready.

    `options` make the suggested commands select the same engine.
    """
    from rich.text import Text

    return _view(report, options, lambda copy: Text(copy_text(copy), "cyan"), sources=True)


def live_view(report: Mapping[str, Any], options: Sequence[str] = ()) -> RenderableType:
    """Return the same for a view that is redrawn repeatedly, with bars for copies."""
    return _view(report, options, copy_bar)


def _view(
    report: Mapping[str, Any],
    options: Sequence[str],
    copy: Callable[[Mapping[str, Any]], RenderableType],
    *,
    sources: bool = False,
) -> RenderableType:
    from rich.console import Group

    table = [status_table(report)] if report["pipelines"] else []
    if sources and report["sources"]:
        table.append(source_table(report))
    copies = [copy(each) for source in report["sources"] for each in source["copies"]]
    found = remarks(report, lambda *words: command_line(*words, *options))
    streams = [line for each in report["sources"] if (line := source_line(each)) is not None]
    return Group(*table, *streams, *copies, *map(remark_text, found), ready_line(report))


def status_table(report: Mapping[str, Any]) -> RenderableType:
    """Return the table of pipelines, with as many columns as fit."""
    return _Fitted(report["pipelines"])


def source_table(report: Mapping[str, Any]) -> RenderableType:
    """Return the table of sources: their states, since when, and their own positions."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("SOURCE", "STATE", "SINCE", "ORDER"):
        shown.add_column(name, no_wrap=True)
    shown.add_column("SOURCE POSITION", overflow="fold")
    for each in report["sources"]:
        phase, order = str(each["phase"]), str(each["ordering"]).replace("_", " ")
        colour = {"streaming": "green", "error": "red"}.get(phase, "yellow")
        since, at = _moment(each["since"]), each["source_position"] or UNKNOWN
        shown.add_row(each["name"], Text(phase, colour), since, order, at)
    return shown


_COUNTS = (
    *("inserts", "updates", "deletes", "truncates"),
    *("baseline_rows", "expired", "errors", "dead_letters"),
)


def counts_table(report: Mapping[str, Any]) -> RenderableType:
    """Return what was delivered, by table and operation, since each pipeline first ran."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    shown.add_column("PIPELINE")
    shown.add_column("TABLE")
    for name in _COUNTS:
        shown.add_column(name.replace("_", " ").upper(), justify="right")
    shown.add_column("LAST CHANGE")
    for each in report["pipelines"]:
        tables = each["tables"]
        for table in tables if len(tables) == 1 else [*tables, {**each, "table": "(all)"}]:
            # The errors of most pipelines are of no table: they are in the pipeline's counts.
            counts = each["counts"] if len(tables) == 1 else table["counts"]
            last = UNKNOWN if table["last_change"] is None else _moment(table["last_change"])
            shown.add_row(
                each["name"], table["table"], *(f"{counts[name]:,}" for name in _COUNTS), last
            )
    return shown


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A table that leaves columns out rather than cut a number, which would be wrong."""

    pipelines: Sequence[Mapping[str, Any]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.measure import Measurement

        for count in range(len(_FIRST_TO_GO) + 1):
            shown = [name for name in _COLUMNS if name not in _FIRST_TO_GO[:count]]
            table = self._table(shown)
            wide = Measurement.get(console, options.update(max_width=_ANY_WIDTH), table)
            if wide.maximum <= options.max_width:
                break
        else:
            # Even the numbers do not fit, unless a long name continues on the next line.
            table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
        yield table

    def _table(self, columns: Sequence[str]) -> Table:
        from rich.table import Table

        shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for name in columns:
            right = name in _NUMBERS
            shown.add_column(name, justify="right" if right else "left", no_wrap=True)
        for each in self.pipelines:
            cells = _cells(each)
            shown.add_row(*(cells[name] for name in columns))
        return shown


def _cells(pipeline: Mapping[str, Any]) -> dict[str, RenderableType]:
    from rich.text import Text

    return {
        "PIPELINE": pipeline["name"],
        "SOURCE": pipeline["source"],
        "TARGET": pipeline["target"],
        "STATE": Text(state_text(pipeline), _style(pipeline)),
        "ROWS": UNKNOWN if pipeline["rows"] is None else f"{pipeline['rows']:,}",
        "LAG": lag_text(pipeline["lag_seconds"]),
        "RATE": rate_text(pipeline["rate_per_s"]),
        "POSITION": pipeline["position"],
    }


def lag_text(seconds: float | None) -> str:
    """Return a lag in the unit that fits."""
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else time_text(seconds)


def rate_text(rate: float | None) -> str:
    """Return changes per second."""
    if rate is None:
        return UNKNOWN
    return f"{rate:,.0f}/s" if rate >= 10 or rate == int(rate) else f"{rate:.1f}/s"


def source_line(source: Mapping[str, Any]) -> Text | None:
    """Return how current a source's log is; None for a source without a stream."""
    from rich.text import Text

    if source["silence_seconds"] is None:
        return None
    parts = [f"last message {lag_text(source['silence_seconds'])} ago"]
    if source["lag_bytes"] is not None:
        parts.insert(0, f"{source['lag_bytes']:,} bytes behind the server")
    if source["current_seconds"] is not None:
        age = lag_text(source["current_seconds"])
        parts.append(f"everything committed up to {age} ago has been read")
    return Text(f"source {source['name']}: {', '.join(parts)}", "dim")


def remark_text(remark: Remark) -> Text:
    """Return a remark with its remedy."""
    from rich.text import Text

    line = f"• {remark.what}{f': {remark.why}' if remark.why else ''}"
    # On a line of its own: a command that will be pasted must not be wrapped.
    if remark.remedy:
        line += f"\n  → {remark.remedy}"
    return Text(f"{line}\n  {remark.code}", "red") if remark.wrong else Text(line, "yellow")


def ready_line(report: Mapping[str, Any]) -> Text:
    """Return whether everything is ready, or which step the engine has reached."""
    from rich.text import Text

    since = f"pid {report['pid']}, up {time_text(report['seconds'])}"
    if (server := report.get("server")) is not None and server["state"] == "serving":
        since += f", serving on {server['http']}"
    if report["ready"]:
        return Text(f"✓ ready ({since})", "green")
    if report["phase"] != "running":
        step = f": {report['step']}" if report["step"] else ""
        return Text(f"… {report['phase']}{step} ({since})", "yellow")
    waits = [each["name"] for each in report["pipelines"] if not each["ready"]]
    names = f": {', '.join(waits)}" if waits else ""
    return Text(f"✗ not ready{names} ({since})", "bold red")


def _style(pipeline: Mapping[str, Any]) -> str:
    if pipeline["state"] in _RED or pipeline["state"] == "not_ready":
        return "bold red"
    return "green" if pipeline["state"] in _GREEN and pipeline["ready"] else "yellow"


# --- `headrace top` -------------------------------------------------------------------------------

_TOP_LOOK_SECONDS = 1.0


@click.command(short_help="Watch all pipelines live.")
@running_engine
@click.option("--once", is_flag=True, help="Print once and exit.")
@json_option
def top(engine: EngineChoice, once: bool, as_json: bool) -> int:
    """
    Show every pipeline, running copies and what is wrong, refreshed every second.

    Press q or Ctrl-C to quit. Without a terminal, or with --json, each update is printed below
    the last one.
    """
    control = engine.reach()
    options = engine.again()
    if once:
        with _lines(options, as_json) as show_status:
            show_status(control.status())
        return errors.DONE
    from headrace.cli.signals import EndOnRequest

    live = not as_json and on_terminal(sys.stdout)
    with (
        EndOnRequest(keys=live and sys.stdin.isatty()) as ending,
        _picture(options) if live else _lines(options, as_json) as show_status,
    ):
        while not ending.asked:
            show_status(control.status())
            ending.wait(_TOP_LOOK_SECONDS)
            ending.pressed("")
    return errors.DONE


@contextmanager
def _lines(options: Sequence[str], as_json: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    out = output_console()

    def show_status(report: dict[str, Any]) -> None:
        if as_json:
            click.echo(json.dumps(report, ensure_ascii=False))
        else:
            out.print(status_view(report, options))

    yield show_status


@contextmanager
def _picture(options: Sequence[str]) -> Iterator[Callable[[dict[str, Any]], None]]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(highlight=False), auto_refresh=False, screen=True) as live:

        def show_status(report: dict[str, Any]) -> None:
            shown = Group(live_view(report, options), Text("q to quit", "dim"))
            live.update(shown, refresh=True)

        yield show_status
