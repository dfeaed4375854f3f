"""
Baselines copied by Spark tasks, in parallel to capture and delivery.

The recorder plans a baseline and keeps its snapshot. Here the parts are copied, some at a time so
that there is progress to show, and the written segments are reported to the recorder. If Spark
fails, the recorder reads the table itself, which is slower.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from headrace.capture.baselines import Order
from headrace.capture.messages import Command, CopyDone, CopyFailed, CopyPlanned
from headrace.capture.source import Recordable, SourceSpec
from headrace.changelog.entries import File
from headrace.errors import CaptureError, HeadraceError
from headrace.observe.logs import logger
from headrace.storage.files import Files

if TYPE_CHECKING:
    from headrace.runtime.source_run import SourceRun


WAVE = 8
"""Parts in one job: some hundred megabytes, a few seconds."""

TRIES = 2
"""Number of attempts on Spark before the recorder reads the table."""

_log = logger(__name__)


@runtime_checkable
class CopiesParts(Protocol):
    """A runner that can copy parts of a baseline."""

    def copy(self, order: Order, numbers: range) -> list[File]:
        """Copy these parts, and return the segments written."""
        ...


class SparkCopies:
    """Copies the baselines of one source, one after the other, on a thread of its own."""

    def __init__(
        self,
        spec: SourceSpec,
        folder: str,
        runner: CopiesParts,
        send: Callable[[Command], None],
        on_progress: Callable[[str, int, int | None], None],
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._runner = runner
        self._send = send
        self._on_progress = on_progress
        """Called with progress: table, rows so far, and the estimated total."""

        self._waiting: queue.SimpleQueue[CopyPlanned | None] = queue.SimpleQueue()
        self._newest: dict[str, str] = {}
        """The newest plan of each table, by the stem of its segments."""

        self._failures: dict[str, int] = {}
        self._over = False
        self._thread = threading.Thread(
            target=self._work, name=f"headrace-copy-{spec.name}", daemon=True
        )
        self._thread.start()

    def take(self, planned: CopyPlanned) -> None:
        """Copy this table next; an earlier plan of the same table is abandoned."""
        self._newest[planned.table] = planned.stem
        self._waiting.put(planned)

    def stop(self, timeout: float = 10.0) -> None:
        """Stop copying; wait at most `timeout` seconds for the running job."""
        self._over = True
        self._waiting.put(None)
        self._thread.join(timeout)

    def _work(self) -> None:
        while (planned := self._waiting.get()) is not None and not self._over:
            try:
                files = self._copied(planned)
            except HeadraceError as error:
                self._failed(planned, error)
                continue
            except Exception as error:  # noqa: BLE001 - the thread must continue
                kind = type(error).__name__
                self._failed(
                    planned, CaptureError("The copy stopped on an unexpected error", error=kind)
                )
                continue
            if files is not None:
                self._failures.pop(planned.table, None)
                self._send(CopyDone(planned.table, planned.stem, tuple(files)))

    def _copied(self, planned: CopyPlanned) -> list[File] | None:
        """Return the segments written; None if the copy was abandoned."""
        order = Order(
            source=self._spec.name,
            kind=self._spec.kind,
            options=self._spec.options,
            table=planned.table,
            folder=self._folder,
            stem=planned.stem,
            schema=planned.schema,
            parts=planned.parts,
            time=planned.time,
        )
        files: list[File] = []
        self._on_progress(planned.table, 0, planned.expected)
        for start in range(0, len(order.parts), WAVE):
            if self._over or self._newest.get(planned.table) != planned.stem:
                return None
            numbers = range(start, min(start + WAVE, len(order.parts)))
            files += self._runner.copy(order, numbers)
            rows = sum(file.rows for file in files)
            # Parts have about the same size: this is closer than the source's estimate.
            self._on_progress(planned.table, rows, rows * len(order.parts) // numbers.stop)
        return files

    def _failed(self, planned: CopyPlanned, error: HeadraceError) -> None:
        count = self._failures[planned.table] = self._failures.get(planned.table, 0) + 1
        _log.warning(
            "copy failed",
            source=self._spec.name,
            table=planned.table,
            code=error.code,
            count=count,
            problem=str(error),
        )
        self._send(CopyFailed(planned.table, planned.stem, shared=count < TRIES))


def share_copies(
    recordings: Mapping[str, SourceRun],
    sources: Mapping[str, Recordable],
    runner: object,
    files: Files,
) -> Iterator[SparkCopies]:
    """Use the runner to copy tables of sources that can be read in parts, if it can."""
    if not isinstance(runner, CopiesParts):
        return
    for name, recording in recordings.items():
        source = sources[name]
        if source.traits.shares:
            recording.copies = SparkCopies(
                source.spec,
                files.path(f"log/{name}/segments"),
                runner,
                recording.send,
                recording.copied,
            )
            yield recording.copies
