"""
One run of an engine in the foreground: started, watched, and stopped when asked.

The engine starts on a thread of its own, because Spark takes seconds and the recorder already
records meanwhile: the main thread shows that, and listens for the end. Commands are taken
from the moment the data directory is ours.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import HeadraceError
from headrace.interfaces.cli import show
from headrace.interfaces.cli.run_views import failures
from headrace.interfaces.control.handlers import ControlService, Verb
from headrace.interfaces.control.server import Serving
from headrace.observe.logs import logger

if TYPE_CHECKING:
    from headrace.control.engine import Engine
    from headrace.interfaces.cli.demo.ending import Ending

STARTING_SECONDS = 0.2
RUNNING_SECONDS = 1.0

START_SECONDS = 120.0
"""For a start to finish when the end was asked for in the midst of it."""

_log = logger(__name__)


class Startable(Protocol):
    """A configuration that an engine can be made from."""

    @property
    def service(self) -> str: ...
    @property
    def data(self) -> Path: ...
    def engine(self, **overrides: Any) -> Engine: ...


class RunView(Protocol):
    """What is shown of a run; called on one thread."""

    def step(self, text: str) -> None:
        """Something was reached."""

    def show(self, told: Mapping[str, Any]) -> None:
        """The engine, as it stands now."""

    def ready(self, told: Mapping[str, Any]) -> None:
        """Everything is ready, for the first time."""

    def changed(self, what: str, name: str, old: str, new: Mapping[str, Any]) -> None:
        """A `source` or a `pipeline` has another state than before."""

    def stopped(self, told: Mapping[str, Any]) -> None:
        """Everything was stopped in order; `told` is how it stood before."""


class Run:
    """One run, once."""

    def __init__(
        self,
        configured: Startable,
        data: Path,
        view: RunView,
        ending: Ending,
        verbs: Callable[[Engine], Mapping[str, Verb]] = lambda engine: {},
    ) -> None:
        """`verbs` are further ones that its engine can be told."""
        self._data = data
        self._view = view
        self._ending = ending
        self._engine = configured.engine(data=data, on_step=self._hear)
        self._service = ControlService(self._engine, service=configured.service, phase="starting")
        self._service.unary.update(verbs(self._engine))
        self._serving: Serving | None = None
        self._said: list[str] = []
        self._states: dict[tuple[str, str], str] = {}
        self._started: futures.Future[None] = futures.Future()

    def run(self) -> int:
        """Run until the end is asked for; return the exit code, or raise what a start raised."""
        threading.Thread(target=self._start, name="engine-start", daemon=True).start()
        told: dict[str, Any] = {}
        try:
            seen_ready = False
            while not self._ending.wait(RUNNING_SECONDS if seen_ready else STARTING_SECONDS):
                told = self._look()
                if told["ready"] and not seen_ready:
                    seen_ready = True
                    self._view.ready(told)
            if self._started.done():
                told = self._look()
        finally:
            self._stop()
        self._view.stopped(told)
        return show.FAILED if failures(told) else show.DONE

    def _start(self) -> None:
        try:
            self._engine.start()
        except BaseException as error:  # noqa: BLE001 - carried to the main thread, raised there
            self._started.set_exception(error)
        else:
            self._service.phase = "running"
            self._started.set_result(None)

    def _hear(self, text: str) -> None:
        # On the thread that starts the engine. At the first step it holds its data directory:
        # before that, the commands that come there are another's.
        self._service.step = text
        if self._serving is None:
            self._serving = Serving(self._service, self._data)
        self._said.append(text)

    def _look(self) -> dict[str, Any]:
        if self._started.done():
            self._started.result()
        while self._said:
            self._view.step(self._said.pop(0))
        told: dict[str, Any] = self._service.unary["Status"]({})
        for what in ("source", "pipeline"):
            for each in told[f"{what}s"]:
                place = (what, each["name"])
                old, self._states[place] = self._states.get(place, ""), each["state"]
                if old not in ("", each["state"]):
                    self._view.changed(what, each["name"], old, each)
        self._view.show(told)
        return told

    def _stop(self) -> None:
        self._service.phase = "stopping"
        # An engine is stopped when it has started: half of a start cannot be undone.
        futures.wait([self._started], timeout=START_SECONDS)
        if self._serving is not None:
            self._serving.withdraw()
        try:
            self._engine.stop()
        except HeadraceError as error:
            _log.failed("stop failed", error, code=error.code)
            raise
        finally:
            if self._serving is not None:
                self._serving.close()
