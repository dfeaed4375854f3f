"""What `headrace run` shows: bars on a terminal, lines elsewhere, JSON lines for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

import click

from headrace.interfaces.cli.copies import copy_text

_COPY_SECONDS = 5.0
"""Between two lines about copies, where there are no bars."""


def rows_text(told: Mapping[str, Any]) -> str:
    """Return how much is ready, in a line."""
    pipelines, sources = told["pipelines"], told["sources"]
    count = len(pipelines) or len(sources)
    what = "pipeline" if pipelines else "source recorded"
    known = [each["rows"] for each in pipelines if each["rows"] is not None]
    rows = f", {sum(known):,} rows" if known else ""
    plural = "s" if count != 1 and pipelines else ""
    return f"ready: {count} {what}{plural}{rows}"


def change_text(what: str, name: str, old: str, new: Mapping[str, Any]) -> list[str]:
    """Return a new state of a source or pipeline, with what to do about an error."""
    error = new["error"]
    why = new["reason"] or (error or {}).get("message", "")
    states = f"{old} → {new['state']}".replace("_", " ")
    line = f"{what} {name}: {states}"
    lines = [f"{line}{f': {why}' if why else ''}"]
    if error:
        lines += [f"  → {error['remedy']}", f"  {error['code']}"]
    return lines


def failures(told: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the sources and pipelines that stand still on an error."""
    return [
        (what, each)
        for what in ("source", "pipeline")
        for each in told.get(f"{what}s", ())
        if each["state"] == "failed"
    ]


def failure_text(what: str, failed: Mapping[str, Any]) -> list[str]:
    """Return why a source or pipeline stands still, and what to do about it."""
    error = failed["error"] or {}
    why = failed["reason"] or error.get("message", "")
    lines = [f"{what} {failed['name']}{f': {why}' if why else ''}"]
    return [*lines, f"  → {error['remedy']}", f"  {error['code']}"] if error else lines


class LinesView:
    """For people, without a terminal that can be drawn on: lines to stderr, each with its time."""

    def __init__(self, commands: Callable[[Mapping[str, Any]], Sequence[str]]) -> None:
        self._commands = commands
        self._copies_due = 0.0

    def __enter__(self) -> LinesView:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is open."""

    def step(self, text: str) -> None:
        self._line(text)

    def show(self, told: Mapping[str, Any]) -> None:
        copies = [copy for source in told["sources"] for copy in source["copies"]]
        if copies and time.monotonic() >= self._copies_due:
            self._copies_due = time.monotonic() + _COPY_SECONDS
            for copy in copies:
                self._line(copy_text(copy))

    def ready(self, told: Mapping[str, Any]) -> None:
        self._line(rows_text(told))
        for line in ("", "try next, in another terminal", *self._commands(told), ""):
            self._plain(f"  {line}" if line else "")

    def changed(self, what: str, name: str, old: str, new: Mapping[str, Any]) -> None:
        first, *rest = change_text(what, name, old, new)
        self._line(first)
        for line in rest:
            self._plain(f"         {line}")

    def stopped(self, told: Mapping[str, Any]) -> None:
        failed = failures(told)
        names = ", ".join(f"{what} {each['name']}" for what, each in failed)
        self._line(f"stopped; failed before: {names}" if failed else "stopped")
        for what, each in failed:
            first, *rest = failure_text(what, each)
            for line in (f"  {first}", *rest):
                self._plain(f"         {line}")

    def _line(self, text: str) -> None:
        self._plain(f"{datetime.now():%H:%M:%S} {text}")

    def _plain(self, text: str) -> None:
        click.echo(text, err=True)


class BarsView(LinesView):
    """For people at a terminal: lines, and beneath them bars while tables are copied."""

    def __init__(self, commands: Callable[[Mapping[str, Any]], Sequence[str]]) -> None:
        super().__init__(commands)
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True, highlight=False)
        # Transient: a bar that is done says nothing, the line about being ready does.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> BarsView:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def show(self, told: Mapping[str, Any]) -> None:
        from rich.console import Group, RenderableType
        from rich.text import Text

        from headrace.interfaces.cli.copies import copy_bar

        parts: list[RenderableType] = [
            copy_bar(copy) for source in told["sources"] for copy in source["copies"]
        ]
        if told["phase"] == "starting":
            parts.append(Text(f"starting: {told['step'] or 'checking the configuration'} …", "dim"))
        self._live.update(Group(*parts), refresh=True)

    def _plain(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


class JsonView:
    """For programs: an object a line to stdout, each with its `event`."""

    def __enter__(self) -> JsonView:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is open."""

    def step(self, text: str) -> None:
        self._print("step", text=text)

    def show(self, told: Mapping[str, Any]) -> None:
        """Programs that want to look ask for the status."""

    def ready(self, told: Mapping[str, Any]) -> None:
        self._print("ready", status=told)

    def changed(self, what: str, name: str, old: str, new: Mapping[str, Any]) -> None:
        self._print(
            "changed",
            what=what,
            name=name,
            old=old,
            new=new["state"],
            reason=new["reason"],
            error=new["error"],
        )

    def stopped(self, told: Mapping[str, Any]) -> None:
        failed = [
            {"what": what, "name": each["name"], "reason": each["reason"], "error": each["error"]}
            for what, each in failures(told)
        ]
        self._print("stopped", failed=failed)

    def _print(self, event: str, **fields: Any) -> None:
        click.echo(json.dumps({"event": event, **fields}, ensure_ascii=False))
