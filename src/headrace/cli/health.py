"""
`headrace health` and `headrace metrics`: what probes and monitoring systems ask a running engine.

Both are answered within a second, whatever hangs. The engine computes them: see `engine/health.py`
and `engine/metrics.py`. `health` has the exit code that a probe wants: 0 if the checks are green, 1
if one is red.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from headrace.cli import errors
from headrace.cli.common import json_option, output_console
from headrace.cli.connection import EngineChoice, running_engine
from headrace.cli.status import time_text
from headrace.engine.health import CHECKS

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from headrace.api.client import Control


def _answered(engine: Control, verb: str, **fields: Any) -> dict[str, Any]:
    """Return an answer that waits for nothing; `NoAnswer` if the engine itself hangs."""
    from headrace.api.client import STATUS_SECONDS

    return engine.call(verb, answer_seconds=STATUS_SECONDS, **fields)


# --- `headrace health` ----------------------------------------------------------------------------

_MEANINGS = {
    "live": "the engine's threads run and answer",
    "ready": "everything is applied that was committed not long ago",
    "startup": "the start is over",
}


@click.command(short_help="Check whether a running engine is live, ready and started.")
@running_engine
@click.option("--live", is_flag=True, help="Check only that the engine's threads run and answer.")
@click.option("--ready", is_flag=True, help="Check only that everything is applied.")
@click.option("--startup", is_flag=True, help="Check only that the start is over.")
@json_option
def health(
    engine: EngineChoice,
    live: bool,
    ready: bool,
    startup: bool,
    as_json: bool,
) -> int:
    """
    Show three checks, each with its reasons if it is red: live, ready and startup.

    The exit code is 0 if they are green, 1 if one is red, and 4 if no engine answers. With
    --live, --ready or --startup only these are looked at. Every check can go back to red.
    """
    answer = _answered(engine.reach(), "Health")
    given = zip(CHECKS, (live, ready, startup), strict=True)
    chosen = [check for check, wanted in given if wanted] or list(CHECKS)
    if as_json:
        click.echo(json.dumps({name: answer[name] for name in chosen}, ensure_ascii=False))
    else:
        output_console().print(health_view(answer, chosen))
    return errors.DONE if all(answer[name]["ok"] for name in chosen) else errors.FAILED


def health_view(answer: Mapping[str, Any], chosen: Sequence[str] = CHECKS) -> RenderableType:
    """Return a table of the checks, and below it the reasons of those that are red."""
    from rich.console import Group
    from rich.text import Text

    lines = [
        Text(line, style)
        for name in chosen
        for each in answer[name]["reasons"]
        for line, style in _reason_lines(name, each)
    ]
    return Group(_table(answer, chosen), *lines)


def _table(answer: Mapping[str, Any], chosen: Sequence[str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("CHECK", "RESULT", "MEANING"):
        shown.add_column(heading, no_wrap=heading != "MEANING")
    for name in chosen:
        result = Text("✓ ok", "green") if answer[name]["ok"] else Text("✗ not ok", "bold red")
        shown.add_row(name, result, Text(_MEANINGS[name], "dim"))
    return shown


def _reason_lines(check: str, reason: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    part = " ".join(word for word in (reason["part"], reason["name"]) if word)
    yield f"• {check}: {part}: {reason['message']}{_since(reason['since'])}", "red"
    yield f"  {reason['code']}", "red"


def _since(since: float | None) -> str:
    if since is None:
        return ""
    ago = time_text(max(0.0, time.time() - since))
    return f", since {datetime.fromtimestamp(since):%Y-%m-%d %H:%M:%S} ({ago})"


# --- `headrace metrics` ---------------------------------------------------------------------------


@click.command(short_help="Print the metrics of a running engine for Prometheus.")
@running_engine
@click.option("--compat", is_flag=True, help="Print them under the names of Laredo as well.")
@json_option
def metrics(
    engine: EngineChoice,
    compat: bool,
    as_json: bool,
) -> None:
    """
    Print all metrics in the text format of Prometheus, for a file that a collector reads.

    With --json the output is one object with every metric and its samples.
    """
    answer = _answered(engine.reach(), "Metrics", compat=compat, fields=as_json)
    if as_json:
        click.echo(json.dumps(answer, ensure_ascii=False))
    else:
        click.echo(answer["text"], nl=False)
