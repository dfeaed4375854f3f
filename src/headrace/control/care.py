"""
An engine's care for a log: what may be let go of is decided here, and done by the recorder.

Looked at every few seconds, whenever the recorder says something. Nothing is decided before
all pipelines are open: what one that is not open yet needs is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from headrace.capture.wire import Tend
from headrace.changelog.position import Position
from headrace.changelog.readers import Lease, leases
from headrace.control.info import LogInfo
from headrace.control.keeping import LogOptions
from headrace.control.pins import Pin, absent, absent_pins, baseline_pin, lowest, pipeline_pins
from headrace.control.recording import Recording
from headrace.control.run import PipelineRun
from headrace.control.store import Store
from headrace.errors import HeadraceError
from headrace.observe.logs import logger
from headrace.storage.files import Files

LOOK_SECONDS = 2.0
"""Between two looks: pruning is worth an entry of the index each time."""

WARN = 0.7
"""From this share of the cap on a person is told, and whom the log is kept for (R28)."""

_log = logger(__name__)


class Care:
    """Cares for the log of one source. *Threads*: any."""

    def __init__(
        self,
        recording: Recording,
        runs: Callable[[], Sequence[PipelineRun]],
        recorded: Callable[[], Sequence[str]],
        store: Store,
        files: Files,
        options: LogOptions,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """`runs` gives the source's pipelines, `recorded` its tables that are only recorded."""
        self._recording = recording
        self._runs = runs
        self._recorded = recorded
        self._store = store
        self._files = files
        self._options = options
        self._clock = clock
        self._wall = wall
        self._look_at = clock()
        self._sent: Tend | None = None
        self._superseded: set[int] = set()
        self._warned = False
        self._told_absent: set[str] = set()

    def look(self) -> None:
        """Decide anew, if it is time to; never raises."""
        if self._clock() < self._look_at:
            return
        self._look_at = self._clock() + LOOK_SECONDS
        try:
            order = self.decide()
            self._warn()
            self._warn_of_absent(Position.parse(order.prune))
        except HeadraceError as error:
            # Nothing is let go of then; the next look tries again.
            _log.warning("log not cared for", source=self._recording.name, code=error.code)
            return
        sent = self._sent
        if sent is not None and Position.parse(order.prune) <= self._recording.log.floor:
            # All is done: that more was heard since makes no difference.
            sent = msgspec.structs.replace(sent, heard=order.heard)
        if sent != order:
            self._sent = order
            self._recording.send(order)

    def forget(self) -> None:
        """Say it all again: there is a new recorder."""
        self._sent, self._look_at = None, self._clock()

    def pins(self) -> list[Pin]:
        """Return everything that keeps the log, the lowest first."""
        return self._pins()[0]

    def _pins(self) -> tuple[list[Pin], list[Lease]]:
        """Return it with the leases among it, which in a bucket are not asked for twice."""
        log, options, wall = self._recording.log, self._options, self._wall()
        found = self._recording.found is not None
        runs = self._runs()
        pins = [
            pin
            for run in runs
            for pin in pipeline_pins(run, self._store, log, options, found=found)
        ]
        # After those that run: one that ends meanwhile has stored where it is.
        needs = self._store.needs_of(self._recording.name)
        pins += absent_pins(needs, {run.name for run in runs}, log)
        # Without it, what is only recorded would be copied again and again.
        pins += [pin for table in self._recorded() for pin in baseline_pin(log, table)]
        named = leases(self._files, self._recording.name, wall)
        pins += [Pin("reader", lease.name, lease.position) for lease in named]
        pins += [Pin("reader", held.whose, held.position) for held in log.holds.all()]
        old = log.older_than(int((wall - options.keep) * 1_000_000))
        pins.append(Pin("keep", f"{options.keep:g}s", old))
        found_pins = dict.fromkeys(pins)
        return sorted(found_pins, key=lambda pin: (pin.position, pin.kind, pin.whose)), named

    def decide(self) -> Tend:
        """Return what the log may let go of."""
        log, options = self._recording.log, self._options
        heard, end = log.last_entry, log.end  # before the pins: what comes later is not judged
        pins, named = self._pins()
        members = [member for run in self._runs() for member in run.members]
        # Who is about to load a baseline reads what follows it next.
        loading = any(member.wants_load for member in members)
        settled = lowest(pins, end, but=("keep", "origin", *(() if loading else ("baseline",))))
        places = self._store.places() | {pin.position for pin in pins if pin.kind != "keep"}
        floor = log.floor
        # Not at the first look: somebody may have chosen one, and not begun to load it.
        before, self._superseded = self._superseded, log.superseded()
        in_use = {member.loads_number for member in members}
        in_use |= {number for held in log.holds.all() for number in held.baselines}
        in_use |= {number for lease in named for number in lease.baselines}
        drop = before & self._superseded - in_use
        return Tend(
            heard=heard,
            prune=str(lowest(pins, end)),
            settled=str(settled),
            fences=tuple(str(at) for at in sorted(places) if floor <= at < settled),
            drop=tuple(sorted(drop)),
            fold=str(lowest(pins, end, but=("baseline",))) if options.fold else "",
            compact=options.compact,
            lease=options.lease,
            cap=options.cap,
            needed=str(lowest(pins, end, but=("baseline",))),
        )

    def info(self) -> LogInfo:
        """Return what the log holds, and for whom."""
        log, extent = self._recording.log, self._recording.log.extent()
        return LogInfo(
            source=self._recording.name,
            floor=log.floor,
            end=log.end,
            entries=log.last_entry,
            flushes=extent.flushes,
            segments=extent.segments,
            rows=extent.rows,
            bytes=extent.bytes,
            baselines=extent.baselines,
            baseline_bytes=extent.baseline_bytes,
            oldest=None if extent.oldest is None else extent.oldest / 1_000_000,
            newest=None if extent.newest is None else extent.newest / 1_000_000,
            cap=self._options.cap,
            pins=tuple(self.pins()),
        )

    def _warn(self) -> None:
        cap, size = self._options.cap, self._recording.log.size
        tight = cap is not None and size >= WARN * cap
        if tight and not self._warned:
            pin = self.pins()[0]
            _log.warning(
                "log runs out of room",
                source=self._recording.name,
                bytes=size,
                cap=cap,
                pin=pin.kind,
                pinned_by=pin.whose,
                position=str(pin.position),
            )
        self._warned = tight

    def _warn_of_absent(self, prune: Position) -> None:
        """Say once what becomes of a durable pipeline that is stored, and does not run here."""
        source, log = self._recording.name, self._recording.log
        running = {run.name for run in self._runs()}
        for each in absent(self._store.needs_of(source), running, log):
            if each.pipeline in self._told_absent or not (each.changes or each.position < prune):
                continue
            self._told_absent.add(each.pipeline)
            told = (
                "log is kept for a pipeline that does not run: start it, or drop it"
                if each.changes
                else "log is pruned beyond a pipeline that does not run: it will be loaded anew"
            )
            at = str(each.position)
            _log.warning(told, source=source, pipeline=each.pipeline, position=at)


def care_for(
    recordings: Mapping[str, Recording],
    runs: Sequence[PipelineRun],
    recorded: Callable[[str], Sequence[str]],
    store: Store,
    files: Files,
    options: LogOptions,
    clocks: tuple[Callable[[], float], Callable[[], float]],
) -> None:
    """Begin to care for the logs that nobody cares for; `clocks`: monotonic, and since 1970."""
    for name, recording in recordings.items():
        if recording.care is None:
            mine, alone = partial(_of_source, runs, name), partial(recorded, name)
            recording.care = Care(recording, mine, alone, store, files, options, *clocks)


def end_care(recordings: Mapping[str, Recording]) -> None:
    """Decide nothing any more."""
    for recording in recordings.values():
        recording.care = None


def _of_source(runs: Sequence[PipelineRun], name: str) -> list[PipelineRun]:
    return [run for run in list(runs) if run.source == name]
