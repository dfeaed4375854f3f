"""
The context of a pipeline's run: log, runner, store, files and clocks.

Everything that a run needs of the engine is in one value, which its parts (`Delivery`, `Loads`,
`SchemaChanges`) receive as an argument. Tests and the simulation build their own, with a
simulated disk and clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headrace.capture.messages import ENDLESS, Retries
from headrace.changelog.reader import LogReader
from headrace.changelog.schema import TableSchema
from headrace.errors import Fenced, HeadraceError
from headrace.observe.events import Event
from headrace.pipeline.batch import Runner
from headrace.runtime.lease import Fence
from headrace.runtime.store import ProgressStore
from headrace.storage.files import Files


@dataclass(frozen=True, slots=True)
class RunContext:
    """What the run of a pipeline works with."""

    log: LogReader
    """The log of the pipeline's source."""

    runner: Runner
    store: ProgressStore
    """Writes nothing for a run that was abandoned."""

    files: Files
    """The data directory."""

    clock: Callable[[], float]
    """Monotonic seconds."""

    wall: Callable[[], float]
    """Seconds since 1970."""

    ask_baseline: Callable[[str, int], None]
    """Requests a baseline of a table, newer than the given number, from the recorder."""

    flush_times: Callable[[int], tuple[float, float] | None]
    """When an index entry's first change was read, and when it was flushed."""

    retries: Retries = ENDLESS
    schemas: Callable[[], Mapping[str, TableSchema] | None] = lambda: None
    """The tables that the pipeline starts with; None while neither source nor log can say."""

    note: Callable[[HeadraceError], None] = lambda problem: None
    """Reports something that happened by itself, as a notice of the source."""

    on_failure: Callable[[str, HeadraceError], None] = lambda pipeline, error: None
    """Called once the pipeline has failed, with its name: others may have to stop, too."""
    emit: Callable[[Event], None] = lambda event: None
    """Passes an event to observers, after its effect."""

    fence: Fence = field(default_factory=Fence)
    """Closed once another writer has the log."""

    abandoned: threading.Event = field(default_factory=threading.Event)
    """Set once the step of the run is no longer waited for: it must have no further effect."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "store", self.store.for_run(self.check_run))

    def check_run(self) -> None:
        """
        Raise `Fenced` if the run was abandoned: its target may already have another pipeline.

        Called before every effect, also on a volatile target.
        """
        if self.abandoned.is_set():
            raise Fenced("The pipeline was stopped without waiting for this step")

    def check(self) -> None:
        """Raise `Fenced` or `LostLog` if another engine, or another run, has taken over."""
        self.store.check()
        self.fence.check(self.log.last_entry)
