"""
Retention of a log: the engine decides here what may be removed, and the recorder removes it.

What keeps a log from being pruned is a pin, which has an owner (R27). A pin is a position:
everything after it is needed by its owner. Pins are computed from values, so that this can be
tested and simulated.

Retention is decided every few seconds, when the recorder reports something. Nothing is decided
before all pipelines are open: what one that is not open yet needs is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from headrace.capture.messages import MaintainLog
from headrace.changelog.position import Position
from headrace.changelog.reader import LogReader
from headrace.changelog.retention import ReaderLease, leases
from headrace.errors import HeadraceError
from headrace.observe.logs import logger
from headrace.runtime.info import LogInfo, LogOptions
from headrace.runtime.model import FOLLOWING, WANTING, Member, TableState
from headrace.runtime.pipeline_run import PipelineRun
from headrace.runtime.source_run import SourceRun
from headrace.runtime.store import Needs, ProgressStore
from headrace.runtime.target_load import is_newer
from headrace.storage.files import Files

# --- pins -----------------------------------------------------------------------------------------

PinKind: TypeAlias = Literal[
    "progress", "loading", "intent", "origin", "baseline", "reader", "keep"
]


@dataclass(frozen=True, slots=True)
class Pin:
    """Everything after a position is needed."""

    kind: PinKind
    """
    progress: a pipeline has come so far; loading: it loads a baseline from there; intent: a
    batch may have had effects; origin: it began there, and is rebuilt from there; baseline:
    the newest of a table; reader: a named one; keep: the time that everything is kept.
    """

    whose: str
    """A pipeline and a table, a table, a reader's name, or a time."""

    position: Position


def pipeline_pins(
    run: PipelineRun, store: ProgressStore, log: LogReader, options: LogOptions, *, found: bool
) -> list[Pin]:
    """
    Return what one pipeline needs, whether it runs, rests or has failed.

    `found` says whether the tables are known that patterns stand for.
    """
    durable = run.target.traits.durable
    changes = run.pipeline.mode == "changes"
    pins: list[Pin] = []
    if run.pipeline.patterns and not (found and run.growing.next is None):
        # What it has of tables that are still to be taken in is not known.
        pins.append(Pin("progress", run.name, log.floor))
    # Before the members: what is stored since is what a member says of itself.
    origins = store.origins(run.name) if changes else {}
    for member in run.members:
        seen, whose = standing(member), f"{run.name}/{member.table}"
        if seen.following:
            # A restart of a durable one begins where it was stored, not where it has come to.
            at = min(seen.stored, seen.reached) if durable else seen.reached
            pins.append(Pin("progress", whose, at))
        if seen.loads_from is not None:
            pins.append(Pin("loading", whose, seen.loads_from))
        # A volatile one begins there at every start, a durable one until it follows the log.
        if member.table in origins and not (durable and seen.following):
            pins.append(Pin("origin", whose, origins[member.table]))
        if changes or (usable := log.usable_baseline(member.table)) is None:
            continue
        # It is about to be loaded: dropped now, it would have to be copied again.
        wanted = seen.wants_load and is_newer(usable, seen.newer_than)
        if wanted and run.delivery.takes_frames:
            # Perhaps it was given in part: folded, all of it would come again as another one.
            pins.append(Pin("loading", whose, usable.window[0]))
        if wanted or _keeps_baseline(seen, durable=durable, options=options):
            pins.append(Pin("baseline", member.table, usable.window[0]))
    if (intent := store.intent(run.name)) is not None:
        pins.append(Pin("intent", run.name, Position.parse(intent.after)))
    return pins


def baseline_pin(log: LogReader, table: str) -> list[Pin]:
    """Return the pin of a table's newest baseline, if there is one that can be used (R19)."""
    usable = log.usable_baseline(table)
    return [] if usable is None else [Pin("baseline", table, usable.window[0])]


def absent_pins(needs: Iterable[Needs], running: Collection[str], log: LogReader) -> list[Pin]:
    """
    Return what is kept for durable pipelines that are stored, and that this engine does not run.

    Only for those that take changes alone: others are loaded anew when they come back.
    """
    return [
        Pin("progress", each.pipeline, each.position)
        for each in absent(needs, running, log)
        if each.changes
    ]


def absent(needs: Iterable[Needs], running: Collection[str], log: LogReader) -> list[Needs]:
    """Return those that do not run and could go on: the log has all they need."""
    floor, end = log.floor, log.end
    return [
        each for each in needs if each.pipeline not in running and floor <= each.position <= end
    ]


class PinState(NamedTuple):
    """Where a table stood at one instant, as far as pins are concerned."""

    state: TableState
    loaded: bool
    loads_from: Position | None
    reached: Position
    stored: Position
    newer_than: int

    @property
    def following(self) -> bool:
        """Whether it takes part in the pipeline's batches."""
        return self.state in FOLLOWING

    @property
    def wants_load(self) -> bool:
        """Whether a baseline is to be brought to the target before anything else."""
        return not self.loaded and self.state in WANTING


def standing(member: Member) -> PinState:
    """
    Return where a table stands, while its run moves it.

    At every instant something pins what it needs, but never the same: read one by one, while
    it goes from one to the next, it could seem to need nothing. So it is read until it is
    twice the same, and was so in between.
    """
    before, seen = None, _read(member)
    while before != seen:
        before, seen = seen, _read(member)
    return seen


def _read(member: Member) -> PinState:
    return PinState(
        member.state,
        member.load is not None,
        member.loads_from,
        member.reached,
        member.stored,
        member.newer_than,
    )


def _keeps_baseline(seen: PinState, *, durable: bool, options: LogOptions) -> bool:
    if options.keep_baselines is not None and seen.following:
        return options.keep_baselines
    return not durable


def lowest(pins: Iterable[Pin], end: Position, *, but: Sequence[PinKind] = ()) -> Position:
    """Return the lowest position of the pins, of other kinds than those; without any, `end`."""
    return min([end, *(pin.position for pin in pins if pin.kind not in but)])


# --- retention ------------------------------------------------------------------------------------

LOOK_SECONDS = 2.0
"""Between two looks: pruning is worth an entry of the index each time."""

WARN = 0.7
"""From this share of the cap on a person is told, and whom the log is kept for (R28)."""

_log = logger(__name__)


class LogRetention:
    """Cares for the log of one source. *Threads*: any."""

    def __init__(
        self,
        recording: SourceRun,
        runs: Callable[[], Sequence[PipelineRun]],
        recorded: Callable[[], Sequence[str]],
        store: ProgressStore,
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
        self.look_at = clock()
        """When it is time to decide again."""
        self._sent: MaintainLog | None = None
        self._superseded: set[int] = set()
        self._warned = False
        self._told_absent: set[str] = set()

    def look(self) -> None:
        """Decide anew, if it is time to; never raises."""
        if self._clock() < self.look_at:
            return
        self.look_at = self._clock() + LOOK_SECONDS
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
        self._sent, self.look_at = None, self._clock()

    def pins(self) -> list[Pin]:
        """Return everything that keeps the log, the lowest first."""
        return self._pins()[0]

    def _pins(self) -> tuple[list[Pin], list[ReaderLease]]:
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

    def decide(self) -> MaintainLog:
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
        return MaintainLog(
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
    recordings: Mapping[str, SourceRun],
    runs: Sequence[PipelineRun],
    recorded: Callable[[str], Sequence[str]],
    store: ProgressStore,
    files: Files,
    options: LogOptions,
    clocks: tuple[Callable[[], float], Callable[[], float]],
) -> None:
    """Begin to care for the logs that nobody cares for; `clocks`: monotonic, and since 1970."""
    for name, recording in recordings.items():
        if recording.care is None:
            mine, alone = partial(_of_source, runs, name), partial(recorded, name)
            recording.care = LogRetention(recording, mine, alone, store, files, options, *clocks)


def end_care(recordings: Mapping[str, SourceRun]) -> None:
    """Decide nothing any more."""
    for recording in recordings.values():
        recording.care = None


def _of_source(runs: Sequence[PipelineRun], name: str) -> list[PipelineRun]:
    return [run for run in list(runs) if run.source == name]
