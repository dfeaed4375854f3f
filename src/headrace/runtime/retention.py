"""
Retention of a log: the engine decides here what may be removed, and the recorder removes it.

A pin keeps a log from being pruned, and has an owner (R27). A pin is a position: its owner needs
everything after it. Pins are computed from values, so that this can be tested and simulated.

Retention is decided every few seconds, when the recorder reports something, and not before all
pipelines are open: what a pipeline needs is not known until then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from headrace.capture.messages import MaintainLog
from headrace.changelog.position import ORIGIN, Position, before_commit, in_log
from headrace.changelog.reader import LogReader
from headrace.changelog.retention import ReaderLease, leases
from headrace.errors import HeadraceError, LogFilling
from headrace.observe.logs import logger
from headrace.runtime.info import LogInfo, LogOptions
from headrace.runtime.model import FOLLOWING, WANTING, Member, TableState
from headrace.runtime.pipeline_run import PipelineRun
from headrace.runtime.source_run import SourceRun
from headrace.runtime.store import Needs, ProgressStore
from headrace.runtime.target_load import is_newer
from headrace.runtime.wal_pressure import is_tight
from headrace.storage.disk import free_bytes
from headrace.storage.files import Files

# --- pins -----------------------------------------------------------------------------------------

PinKind: TypeAlias = Literal[
    "progress", "loading", "intent", "origin", "baseline", "reader", "keep", "correction"
]


@dataclass(frozen=True, slots=True)
class Pin:
    """A position after which everything is needed."""

    kind: PinKind
    """
    progress: the position of a pipeline; loading: F of a baseline that it loads; intent: the
    start of a batch that may have had effects; origin: where it began, and is rebuilt from;
    baseline: the newest of a table; reader: a named reader; keep: the minimum retention time;
    correction: how far a pipeline has noted which of its corrections changes replace.
    """

    whose: str
    """The owner: a pipeline and a table, a table, a reader's name, or a time."""

    position: Position


def pipeline_pins(
    run: PipelineRun, store: ProgressStore, log: LogReader, options: LogOptions, *, found: bool
) -> list[Pin]:
    """
    Return what one pipeline needs, whether it runs, is paused or has failed.

    `found` says whether the recorder has listed the tables that match patterns.
    """
    durable = run.target.traits.durable
    changes = run.pipeline.mode == "changes"
    pins: list[Pin] = []
    patterns = run.pipeline.patterns and not (found and run.new_tables.next is None)
    if patterns or not run.recalled:
        # What it needs of tables that are not added or known yet is not known.
        pins.append(Pin("progress", run.name, log.floor))
    # Before the members: what is stored later is also in the member.
    origins = store.origins(run.name) if changes else {}
    for member in run.members:
        seen, whose = consistent_state(member), f"{run.name}/{member.table}"
        if seen.following:
            # A durable pipeline restarts from its stored position, not from the current one.
            at = min(seen.stored, seen.reached) if durable else seen.reached
            pins.append(Pin("progress", whose, before_commit(at)))
        if seen.loads_from is not None:
            pins.append(Pin("loading", whose, seen.loads_from))
        # A volatile target begins there at every start, a durable one until it follows the log.
        if member.table in origins and not (durable and seen.following):
            pins.append(Pin("origin", whose, origins[member.table]))
        if changes or (usable := log.usable_baseline(member.table)) is None:
            continue
        # It will be loaded next: if it were dropped now, it would have to be copied again.
        wanted = seen.wants_load and is_newer(usable, seen.newer_than)
        if wanted and run.delivery.takes_frames:
            # Part of it may have been delivered: after a fold, all of it would be delivered again.
            pins.append(Pin("loading", whose, usable.window[0]))
        if wanted or _keeps_baseline(seen, durable=durable, options=options):
            pins.append(Pin("baseline", member.table, usable.window[0]))
    if (intent := store.intent(run.name)) is not None:
        pins.append(Pin("intent", run.name, before_commit(Position.parse(intent.after))))
    return [*pins, *(correction_pins(run) if run.recalled and not durable else ())]


def correction_pins(run: PipelineRun) -> Iterator[Pin]:
    """
    Yield pins at the stored positions of a volatile pipeline's tables with corrections.

    A fold up to there loses no correction: when the target is rebuilt, it is moved to where the
    folded rows begin. Beyond, after a crash, nobody would know whether its row has changed since.
    """
    for member in run.members:
        seen = consistent_state(member)
        at = min(seen.stored, seen.reached) if seen.following else seen.stored
        if (seen.following or at > ORIGIN) and run.delivery.journal.concerns(member.table):
            yield Pin("correction", f"{run.name}/{member.table}", before_commit(at))


def baseline_pin(log: LogReader, table: str) -> list[Pin]:
    """Return the pin of a table's newest usable baseline, if there is one (R19)."""
    usable = log.usable_baseline(table)
    return [] if usable is None else [Pin("baseline", table, usable.window[0])]


def absent_pins(needs: Iterable[Needs], running: Collection[str], log: LogReader) -> list[Pin]:
    """
    Return the pins of durable pipelines that are stored but not run by this engine.

    Only pipelines in mode `changes` have one: others are loaded again when they return.
    """
    return [
        Pin("progress", each.pipeline, before_commit(each.position))
        for each in absent(needs, running, log)
        if each.changes
    ]


def absent(needs: Iterable[Needs], running: Collection[str], log: LogReader) -> list[Needs]:
    """Return the pipelines that do not run and could continue: the log has all they need."""
    floor, end = log.floor, log.end
    return [
        each
        for each in needs
        if each.pipeline not in running
        and floor <= in_log(each.position)
        and before_commit(each.position) <= end
    ]


class PinState(NamedTuple):
    """The state of a table at one instant, as far as pins need it."""

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
        """Whether a baseline has to be loaded before anything else."""
        return not self.loaded and self.state in WANTING


def consistent_state(member: Member) -> PinState:
    """
    Return a consistent state of a table while its run changes it.

    At every instant one of the fields pins what the table needs, but not always the same one:
    fields read one after another, during a change, could seem to need nothing. So they are read
    until two reads in a row are equal.
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
    """Return the lowest position of the pins, except those kinds; `end` if there are none."""
    return min([end, *(pin.position for pin in pins if pin.kind not in but)])


# --- retention ------------------------------------------------------------------------------------

LOOK_SECONDS = 2.0
"""Between two decisions: each pruning writes an entry of the index."""

_log = logger(__name__)


class LogRetention:
    """Retention of one source's log. *Threads*: any."""

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
        free: Callable[[], int | None] = lambda: None,
    ) -> None:
        """
        `runs` returns the source's pipelines, `recorded` its tables without a pipeline.

        `free` returns how many bytes the log's disk has left; None: unknown, or no disk.
        """
        self._recording = recording
        self._runs = runs
        self._recorded = recorded
        self._store = store
        self._files = files
        self._options = options
        self._clock = clock
        self._wall = wall
        self._free = free
        self._disk_cap: int | None = None
        self.look_at = clock()
        """When it is time to decide again."""
        self._sent: MaintainLog | None = None
        self._superseded: set[int] = set()
        self._warned = False
        self._warned_absent: set[str] = set()

    def look(self) -> None:
        """Decide again if it is time to; never raises."""
        if self._clock() < self.look_at:
            return
        self.look_at = self._clock() + LOOK_SECONDS
        try:
            order = self.decide()
            self._warn()
            self._warn_of_absent(Position.parse(order.prune))
        except HeadraceError as error:
            # Nothing is removed then; the next call tries again.
            _log.warning(
                "log retention failed",
                source=self._recording.name,
                code=error.code,
                problem=str(error),
            )
            return
        sent = self._sent
        if sent is not None and Position.parse(order.prune) <= self._recording.log.floor:
            # Everything was done: entries read since make no difference.
            sent = msgspec.structs.replace(sent, known_entry=order.known_entry)
        if sent != order:
            self._sent = order
            self._recording.send(order)

    def forget(self) -> None:
        """Send the whole order again, because there is a new recorder."""
        self._sent, self.look_at = None, self._clock()

    def pins(self) -> list[Pin]:
        """Return all pins, the lowest first."""
        return self._pins()[0]

    def _pins(self) -> tuple[list[Pin], list[ReaderLease]]:
        """Return all pins and the leases, which in a bucket should not be read twice."""
        log, options, wall = self._recording.log, self._options, self._wall()
        found = self._recording.found is not None
        runs = self._runs()
        pins = [
            pin
            for run in runs
            for pin in pipeline_pins(run, self._store, log, options, found=found)
        ]
        # After the running ones: a pipeline that ends meanwhile has stored its position.
        needs = self._store.needs_of(self._recording.name)
        pins += absent_pins(needs, {run.name for run in runs}, log)
        # Without it, tables that are only recorded would be copied again and again.
        pins += [pin for table in self._recorded() for pin in baseline_pin(log, table)]
        named = leases(self._files, self._recording.name, wall)
        pins += [Pin("reader", lease.name, lease.position) for lease in named]
        pins += [Pin("reader", held.whose, held.position) for held in log.holds.all()]
        old = log.older_than(int((wall - options.keep) * 1_000_000))
        pins.append(Pin("keep", f"{options.keep:g}s", old))
        found_pins = dict.fromkeys(pins)
        return sorted(found_pins, key=lambda pin: (pin.position, pin.kind, pin.whose)), named

    def decide(self) -> MaintainLog:
        """Return what may be removed from the log."""
        log, options = self._recording.log, self._options
        # Read before the pins: later entries are not part of this decision.
        newest, end = log.last_entry, log.end
        pins, named = self._pins()
        members = [member for run in self._runs() for member in run.members]
        # A pipeline that will load a baseline reads the changes after it next.
        loading = any(member.wants_load for member in members)
        others: tuple[PinKind, ...] = () if loading else ("baseline", "correction")
        settled = lowest(pins, end, but=("keep", "origin", *others))
        cuts = self._store.positions() | {pin.position for pin in pins if pin.kind != "keep"}
        cuts |= {at for run in self._runs() if run.recalled for at in run.delivery.journal.fences()}
        floor = log.floor
        # Not at once: a pipeline may have chosen one, and not started to load it.
        before, self._superseded = self._superseded, log.superseded()
        in_use = {member.loads_number for member in members}
        in_use |= {number for held in log.holds.all() for number in held.baselines}
        in_use |= {number for lease in named for number in lease.baselines}
        drop = before & self._superseded - in_use
        return MaintainLog(
            known_entry=newest,
            prune=str(lowest(pins, end)),
            settled=str(settled),
            fences=tuple(str(at) for at in sorted(cuts) if floor <= at < settled),
            drop=tuple(sorted(drop)),
            fold=str(lowest(pins, end, but=("baseline",))) if options.fold else "",
            compact=options.compact,
            lease=options.lease,
            cap=self.cap(),
            needed=str(lowest(pins, end, but=("baseline",))),
        )

    def info(self) -> LogInfo:
        """Return what the log contains, and what keeps it."""
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
            cap=self.cap(),
            pins=tuple(self.pins()),
        )

    def cap(self) -> int | None:
        """
        Return the maximum size of the log: the configured one, or what its disk has space for.

        None: no limit. A disk that other programs also use has less space at every look, so the
        last value is kept until it is wrong by two percent: a new one is a new order.
        """
        if self._options.cap is not None:
            return self._options.cap or None
        free = self._free()
        cap = None if free is None else self._recording.log.size + free
        if cap is None or self._disk_cap is None or 50 * abs(cap - self._disk_cap) > self._disk_cap:
            self._disk_cap = cap
        return self._disk_cap

    @property
    def last_cap(self) -> int | None:
        """The cap as last computed: it asks no disk, which may hang. None: no limit, or unknown."""
        return self._disk_cap if self._options.cap is None else self._options.cap or None

    def _warn(self) -> None:
        cap, size = self.cap(), self._recording.log.size
        before, self._warned = self._warned, is_tight(size, cap, before=self._warned)
        if self._warned and not before:
            pin = self.pins()[0]
            self._recording.note(
                LogFilling(
                    f"The log of source {self._recording.name} has {size:,} of {cap:,} bytes, kept"
                    f" for {pin.kind} {pin.whose}",
                    bytes=size,
                    cap=cap,
                    pin=pin.kind,
                    pinned_by=pin.whose,
                    position=str(pin.position),
                )
            )

    def _warn_of_absent(self, prune: Position) -> None:
        """Warn once about each durable pipeline that is stored and does not run."""
        source, log = self._recording.name, self._recording.log
        running = {run.name for run in self._runs()}
        for each in absent(self._store.needs_of(source), running, log):
            if each.pipeline in self._warned_absent or not (each.changes or each.position < prune):
                continue
            self._warned_absent.add(each.pipeline)
            warning = (
                "log is kept for a pipeline that does not run: start it or drop it"
                if each.changes
                else "log is pruned past a pipeline that does not run: it will be loaded again"
            )
            at = str(each.position)
            _log.warning(warning, source=source, pipeline=each.pipeline, position=at)


def start_retention(
    recordings: Mapping[str, SourceRun],
    runs: Sequence[PipelineRun],
    recorded: Callable[[str], Sequence[str]],
    store: ProgressStore,
    files: Files,
    options: LogOptions,
    clocks: tuple[Callable[[], float], Callable[[], float]],
) -> None:
    """Start retention for logs that do not have it; `clocks`: monotonic, and since 1970."""
    # A bucket has no limit of its own.
    free = partial(free_bytes if files.local else _unknown, files.path(""))
    for name, recording in recordings.items():
        if recording.retention is None:
            mine, alone = partial(_of_source, runs, name), partial(recorded, name)
            recording.retention = LogRetention(
                recording, mine, alone, store, files, options, *clocks, free
            )


def _unknown(path: str) -> None:
    return None


def stop_retention(recordings: Mapping[str, SourceRun]) -> None:
    """Stop retention."""
    for recording in recordings.values():
        recording.retention = None


def _of_source(runs: Sequence[PipelineRun], name: str) -> list[PipelineRun]:
    return [run for run in list(runs) if run.source == name]
