"""
`headrace run`: an engine from a configuration, in the foreground.

It shows bars on a terminal, lines elsewhere, and JSON lines with `--json`.

A run starts the engine, watches it, and stops it on request. The engine starts on a thread of its
own, because Spark takes seconds to start and the recorder already records: the main thread shows
the progress, and listens for keys and signals. Commands are accepted as soon as the engine holds
its data directory. All of this is in `RunningEngine`, which the demo uses, too.

Long because what a run shows is next to the run, in three views with the same methods.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import click

from headrace.api.connect import sentence_of
from headrace.cli import errors
from headrace.cli.common import (
    DEFAULT_FILE,
    command_line,
    engine_options,
    json_option,
    on_terminal,
    same_engine,
)
from headrace.cli.status import (
    SHOWN_BATCH_SECONDS,
    batch_text,
    copy_text,
    dead_letters_text,
    server_phrase,
)
from headrace.errors import HeadraceError, NotRunning
from headrace.observe.logs import logger

if TYPE_CHECKING:
    from headrace.api.handlers import ControlService, Verb
    from headrace.api.server import ControlServer
    from headrace.cli.signals import EndOnRequest
    from headrace.engine.engine import Engine
    from headrace.engine.from_config import EngineConfig
    from headrace.server.network import NetworkServer

    Network = Callable[[Engine, ControlService], NetworkServer]
    """Makes the server of an engine, not yet started."""


@click.command(short_help="Run the engine.")
@engine_options
@json_option
def run(config: Path | None, sets: tuple[str, ...], data: Path | None, as_json: bool) -> int:
    """
    Start every source and pipeline of the configuration and keep them running.

    Shows the progress of copies, then every change of state. Ctrl-C or SIGTERM stops the
    engine in an orderly way; the next run continues where this one stopped. Exits with code 1
    if a source or pipeline had failed by then. With --json each line is an event: step, ready,
    changed, notice, dead_letters, stopping, stopped.
    """
    from headrace.api.handlers import ApplyVerb
    from headrace.cli.common import read_configuration
    from headrace.cli.signals import EndOnRequest
    from headrace.server.settings import configured_server

    configured = read_configuration(config, sets, warn=not as_json)
    folder = (configured.data if data is None else data).expanduser().absolute()
    options = same_engine(config, sets, data)
    file = (config or DEFAULT_FILE).expanduser().absolute().resolve()
    again = partial(read_configuration, config, sets, warn=False)

    section = configured.server
    settings = None if section is None else configured_server(section, read=True)

    servers: list[NetworkServer] = []

    def network(engine: Engine, control: ControlService) -> NetworkServer:
        from headrace.server.network import NetworkServer

        assert settings is not None
        servers.append(NetworkServer(engine, settings, control=control))
        return servers[0]

    def renewal(after: EngineConfig) -> Callable[[], None]:
        assert after.server is not None
        return servers[0].renew(configured_server(after.server, read=True).tokens)

    def verbs(engine: Engine) -> Mapping[str, Verb]:
        changes = ApplyVerb(engine, configured, again, file, renewal)
        return {"Apply": changes.verb, "Configuration": changes.effective}

    with EndOnRequest() as ending, _view(options, as_json=as_json) as view:
        serving = None if settings is None else network
        return EngineRun(configured, folder, view, ending, verbs, serving).run()


def next_commands(options: tuple[str, ...], report: Mapping[str, Any]) -> list[str]:
    """Return commands to type next; they can be pasted where the engine was started."""
    readable = [each["name"] for each in report["pipelines"] if each["target"] == "indexed-memory"]
    words = [("status",), *((verb, name) for name in readable[:1] for verb in ("query", "watch"))]
    return [command_line(*each, *options) for each in words]


def _view(options: tuple[str, ...], *, as_json: bool) -> BarsView | JsonView | LinesView:
    if as_json:
        return JsonView()
    return BarsView(options) if on_terminal(sys.stderr) else LinesView(options)


# --- the views ------------------------------------------------------------------------------------


def print_event(event: str, **fields: Any) -> None:
    """Print an event as one line of JSON."""
    click.echo(json.dumps({"event": event, **fields}, ensure_ascii=False))


_COPY_SECONDS = 5.0
"""Time between two lines about copies and long batches, if there are no bars."""

DEAD_LETTER_SECONDS = 60.0
"""Time between two lines about the dead letters of a pipeline."""


def rows_text(report: Mapping[str, Any]) -> str:
    """Return the line that says how many pipelines and rows are ready."""
    pipelines, sources = report["pipelines"], report["sources"]
    count = len(pipelines) or len(sources)
    what = "pipeline" if pipelines else "source"
    known = [each["rows"] for each in pipelines if each["rows"] is not None]
    least = "" if all_counted(report) else "at least "
    rows = f", {least}{sum(known):,} rows" if known else ""
    only_capture = "" if pipelines else ", capture only"
    return f"ready: {count} {what}{'' if count == 1 else 's'}{rows}{only_capture}"


def all_counted(report: Mapping[str, Any]) -> bool:
    """Whether the rows of every table were counted for this report."""
    tables = (table for each in report["pipelines"] for table in each["tables"])
    return all(table.get("rows_age_seconds", 0) == 0 for table in tables)


def change_text(what: str, name: str, old: str, new: Mapping[str, Any]) -> list[str]:
    """Return the lines about a new state of a source or pipeline, with the remedy of an error."""
    error = new["error"]
    why = new["reason"] or sentence_of(error, name)
    states = f"{old} → {new['state']}".replace("_", " ")
    line = f"{what} {name}: {states}"
    lines = [f"{line}{f': {why}' if why else ''}"]
    if error:
        lines += [f"  → {error['remedy']}", f"  {error['code']}"]
    return lines


def server_text(server: Mapping[str, Any]) -> list[str]:
    """Return the lines about a new state of the server, with the remedy of an error."""
    error = server["error"]
    if server["state"] == "serving":
        grpc = f", gRPC on {server['grpc']}" if server["grpc"] else ""
        lines = [f"serving on {server['http']}{grpc}"]
        lines += [f"  {server['reason']}"] if server["reason"] else []
    else:
        lines = [f"{server_phrase(server['state'])}: {server['reason']}"]
    return [*lines, f"  → {error['remedy']}", f"  {error['code']}"] if error else lines


def failures(report: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the sources and pipelines that have failed."""
    return [
        (what, each)
        for what in ("source", "pipeline")
        for each in report.get(f"{what}s", ())
        if each["state"] == "failed"
    ]


def failure_text(what: str, failed: Mapping[str, Any]) -> list[str]:
    """Return why a source or pipeline failed, and the remedy."""
    error = failed["error"]
    why = failed["reason"] or sentence_of(error, failed["name"])
    lines = [f"{what} {failed['name']}{f': {why}' if why else ''}"]
    return [*lines, f"  → {error['remedy']}", f"  {error['code']}"] if error else lines


def _batches(report: Mapping[str, Any], least: float) -> list[str]:
    """Return the lines about batches that have taken at least this number of seconds."""
    return [
        batch_text(each)
        for each in report["pipelines"]
        if (batch := each.get("applying")) and batch["seconds"] >= least
    ]


_SOURCE_AWAY = re.compile(r"source [^\s:]+ ")
"""Begins the reason of a pipeline whose source is not read; with a colon, it is only behind."""


class LinesView:
    """Without a terminal: lines to stderr, each with its time."""

    def __init__(self, options: tuple[str, ...]) -> None:
        """`options` make the suggested commands select the same engine."""
        self._options = options
        self._copies_due = 0.0
        self._source_away: dict[str, str] = {}
        """The states of pipelines before their source was away, which the source's line says."""

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

    def show(self, report: Mapping[str, Any]) -> None:
        lines = [copy_text(copy) for source in report["sources"] for copy in source["copies"]]
        lines += _batches(report, _COPY_SECONDS)
        if lines and time.monotonic() >= self._copies_due:
            self._copies_due = time.monotonic() + _COPY_SECONDS
            for line in lines:
                self._line(line)

    def ready(self, report: Mapping[str, Any]) -> None:
        self._line(rows_text(report))
        for line in (
            "",
            "try next, in another terminal",
            *next_commands(self._options, report),
            "",
        ):
            self._plain(f"  {line}" if line else "")

    def changed(self, what: str, name: str, old: str, new: Mapping[str, Any]) -> None:
        if what == "pipeline":
            if _SOURCE_AWAY.match(new["reason"]):
                self._source_away.setdefault(name, old)
                return
            old = self._source_away.pop(name, old)
            if old == new["state"]:
                return
        first, *rest = change_text(what, name, old, new)
        self._line(first)
        for line in rest:
            self._plain(f"         {line}")

    def notice(self, source: str, notice: Mapping[str, Any]) -> None:
        self._line(f"source {source}: {notice['message']}")
        self._plain(f"           → {notice['remedy']}")
        self._plain(f"           {notice['code']}")

    def server(self, server: Mapping[str, Any]) -> None:
        first, *rest = server_text(server)
        self._line(first)
        for line in rest:
            self._plain(f"         {line}")

    def dead_letters(self, name: str, count: int) -> None:
        self._line(dead_letters_text(name, count))
        self._plain(f"         → {command_line('dead-letters', 'list', name, *self._options)}")

    def stopping(self) -> None:
        self._line("stopping … (Ctrl-C again to stop at once)")

    def stopped(self, report: Mapping[str, Any]) -> None:
        failed = failures(report)
        names = ", ".join(f"{what} {each['name']}" for what, each in failed)
        self._line(f"stopped; these had failed: {names}" if failed else "stopped")
        for what, each in failed:
            first, *rest = failure_text(what, each)
            for line in (f"  {first}", *rest):
                self._plain(f"         {line}")

    def _line(self, text: str) -> None:
        self._plain(f"{datetime.now():%H:%M:%S} {text}")

    def _plain(self, text: str) -> None:
        click.echo(text, err=True)


class BarsView(LinesView):
    """On a terminal: lines, and below them bars while tables are copied."""

    def __init__(self, options: tuple[str, ...]) -> None:
        super().__init__(options)
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

    def show(self, report: Mapping[str, Any]) -> None:
        from rich.console import Group, RenderableType
        from rich.text import Text

        from headrace.cli.status import copy_bar

        parts: list[RenderableType] = [
            copy_bar(copy) for source in report["sources"] for copy in source["copies"]
        ]
        parts += [Text(line, "dim") for line in _batches(report, SHOWN_BATCH_SECONDS)]
        if report["phase"] == "starting":
            parts.append(Text(f"{report['step'] or 'checking the configuration'} …", "dim"))
        self._live.update(Group(*parts), refresh=True)

    def _plain(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


class JsonView:
    """For programs: one object on each line of stdout, with its `event`."""

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
        print_event("step", text=text)

    def show(self, report: Mapping[str, Any]) -> None:
        """Print nothing: programs ask for the status when they need it."""

    def ready(self, report: Mapping[str, Any]) -> None:
        print_event("ready", status=report)

    def changed(self, what: str, name: str, old: str, new: Mapping[str, Any]) -> None:
        print_event(
            "changed",
            what=what,
            name=name,
            old=old,
            new=new["state"],
            reason=new["reason"],
            error=new["error"],
        )

    def notice(self, source: str, notice: Mapping[str, Any]) -> None:
        print_event("notice", source=source, **notice)

    def server(self, server: Mapping[str, Any]) -> None:
        print_event("server", **server)

    def dead_letters(self, name: str, count: int) -> None:
        print_event("dead_letters", pipeline=name, count=count)

    def stopping(self) -> None:
        print_event("stopping")

    def stopped(self, report: Mapping[str, Any]) -> None:
        failed = [
            {"what": what, "name": each["name"], "reason": each["reason"], "error": each["error"]}
            for what, each in failures(report)
        ]
        print_event("stopped", failed=failed)


# --- one run of an engine -------------------------------------------------------------------------

STARTING_SECONDS = 0.2
RUNNING_SECONDS = 1.0

_COUNT_LOOKS = 25
"""After this number of statuses it is reported as ready even if a target cannot count its rows."""

START_SECONDS = 120.0
"""How long to wait for a start to finish if the end was requested meanwhile."""

_log = logger(__name__)


class Startable(Protocol):
    """A configuration that makes an engine."""

    @property
    def service(self) -> str: ...
    @property
    def data(self) -> Path: ...
    def engine(self, **overrides: Any) -> Engine: ...


class RunView(Protocol):
    """What is shown of a run; called on one thread."""

    def step(self, text: str) -> None:
        """Show a step of the start."""

    def show(self, report: Mapping[str, Any]) -> None:
        """Show the current status of the engine."""

    def ready(self, report: Mapping[str, Any]) -> None:
        """Show that everything is ready, for the first time."""

    def changed(self, what: str, name: str, old: str, new: Mapping[str, Any]) -> None:
        """Show that a `source` or a `pipeline` changed its state."""

    def notice(self, source: str, notice: Mapping[str, Any]) -> None:
        """Show what a source did by itself, such as copying a table again."""

    def server(self, server: Mapping[str, Any]) -> None:
        """Show that the server has begun to serve, or what keeps it from that."""

    def dead_letters(self, name: str, count: int) -> None:
        """Show that a pipeline has more dead letters than were shown before."""

    def stopping(self) -> None:
        """Show that the end was requested, which may take a while."""

    def stopped(self, report: Mapping[str, Any]) -> None:
        """Show that everything was stopped; `report` is the last status before that."""


class RunningEngine:
    """
    An engine and the socket for its commands: a context that starts both, and stops them in order.

    The start runs on a thread of its own; `status` can be called meanwhile. `run` and `demo` both
    use it.
    """

    def __init__(
        self,
        make: Callable[[Callable[[str], None]], Engine],
        data: Path,
        *,
        service: str,
        network: Network | None = None,
    ) -> None:
        """`make` takes a callback for steps and returns the engine, not yet started."""
        from headrace.api.handlers import ControlService

        self.engine = make(self._on_step)
        self.service = ControlService(self.engine, service=service, phase="starting")
        self._network = None if network is None else network(self.engine, self.service)
        self._data = data
        self._server: ControlServer | None = None
        self._steps: list[str] = []
        self._started: futures.Future[None] = futures.Future()

    def __enter__(self) -> RunningEngine:
        threading.Thread(target=self._start, name="engine-start", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.service.phase = "stopping"
        if self._network is not None:
            self._network.drain()
        # The start ends at its next step, and undoes what it did: an engine cannot be stopped in
        # the middle of a step.
        self.engine.cancel_start()
        futures.wait([self._started], timeout=START_SECONDS)
        if self._server is not None:
            self._server.withdraw()
        try:
            self.engine.stop()
        except HeadraceError as failure:
            _log.failed("stop failed", failure, code=failure.code)
            raise
        finally:
            if self._network is not None:
                self._network.close()
            if self._server is not None:
                self._server.close()

    @property
    def started(self) -> bool:
        """Whether the start has finished, successfully or not."""
        return self._started.done()

    def steps(self) -> Iterator[str]:
        """Yield the steps of the start since the last call."""
        while self._steps:
            yield self._steps.pop(0)

    def status(self) -> dict[str, Any]:
        """Return the fields of the verb `Status`; raises the error if the start failed."""
        if self._started.done():
            self._started.result()
        report: dict[str, Any] = self.service.unary["Status"]({})
        return report

    def _start(self) -> None:
        try:
            self.engine.start()
        except BaseException as error:  # noqa: BLE001 - carried to the main thread, raised there
            cancelled = isinstance(error, NotRunning) and self.service.phase == "stopping"
            if cancelled:
                self._started.set_result(None)
            else:
                self._started.set_exception(error)
        else:
            if self.service.phase == "starting":
                self.service.phase = "running"
            self._started.set_result(None)

    def _on_step(self, text: str) -> None:
        # Runs on the thread that starts the engine. From its first step on, the engine holds its
        # data directory; before that, commands there are for another engine.
        from headrace.api.server import ControlServer

        self.service.step = text
        if self._server is None:
            self._server = ControlServer(self.service, self._data)
            if self._network is not None:
                self._network.start()
        self._steps.append(text)


class Notices:
    """The notices of all sources, each once."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def new(self, report: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield each notice that an earlier status did not have, with the name of its source."""
        names = {source["name"] for source in report["sources"]}
        self._last = {name: number for name, number in self._last.items() if name in names}
        for source in report["sources"]:
            name = source["name"]
            numbers = [notice["number"] for notice in source["notices"]]
            if max(numbers, default=0) < self._last.get(name, 0):
                del self._last[name]  # dropped and added again since
            for notice in source["notices"]:
                if notice["number"] > self._last.get(name, 0):
                    self._last[name] = notice["number"]
                    yield name, notice


class EngineRun:
    """One run, once."""

    def __init__(
        self,
        configured: Startable,
        data: Path,
        view: RunView,
        ending: EndOnRequest,
        verbs: Callable[[Engine], Mapping[str, Verb]] = lambda engine: {},
        network: Network | None = None,
    ) -> None:
        """`verbs` returns further verbs of its engine."""
        self._view = view
        self._ending = ending
        self._running = RunningEngine(
            lambda on_step: configured.engine(data=data, on_step=on_step),
            data,
            service=configured.service,
            network=network,
        )
        self._running.service.unary.update(verbs(self._running.engine))
        self._states: dict[tuple[str, str], str] = {}
        self._server: tuple[str, str] | None = None
        """The state of the server that was shown, with its reason."""

        self._notices = Notices()
        self._dead_letters: dict[str, tuple[int, float]] = {}
        """By pipeline, how many dead letters were shown, and when more may be."""

    def run(self) -> int:
        """Run until the end is requested; return the exit code. Raises what the start raised."""
        report: dict[str, Any] = {}
        with self._running:
            seen_ready, looks = False, 0
            while not self._ending.wait(RUNNING_SECONDS if seen_ready else STARTING_SECONDS):
                report = self._look()
                looks += report["ready"] and not seen_ready
                if looks and report["ready"] and (all_counted(report) or looks > _COUNT_LOOKS):
                    seen_ready, looks = True, 0
                    self._view.ready(report)
            self._view.stopping()
            if self._running.started:
                report = self._look()
        for text in self._running.steps():
            self._view.step(text)  # what did not stop
        self._view.stopped(report)
        return errors.FAILED if failures(report) else errors.DONE

    def _look(self) -> dict[str, Any]:
        report = self._running.status()
        for text in self._running.steps():
            self._view.step(text)
        for what in ("source", "pipeline"):
            for each in report[f"{what}s"]:
                key = (what, each["name"])
                old, self._states[key] = self._states.get(key, ""), each["state"]
                if old not in ("", each["state"]):
                    self._view.changed(what, each["name"], old, each)
        self._show_server(report["server"])
        for source, notice in self._notices.new(report):
            self._view.notice(source, notice)
        for each in report["pipelines"]:
            self._show_dead_letters(each["name"], each["dead_letters"])
        self._view.show(report)
        return report

    def _show_server(self, server: Mapping[str, Any] | None) -> None:
        if server is None or server["state"] in ("starting", "stopping", "stopped"):
            return
        shown = (server["state"], server["reason"])
        if shown != self._server:
            self._server = shown
            self._view.server(server)

    def _show_dead_letters(self, pipeline: str, count: int) -> None:
        shown, due = self._dead_letters.get(pipeline, (0, 0.0))
        if count > shown and time.monotonic() >= due:
            self._view.dead_letters(pipeline, count)
            due = time.monotonic() + DEAD_LETTER_SECONDS
        elif count > shown:
            return
        self._dead_letters[pipeline] = (count, due)
