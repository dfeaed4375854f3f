"""
What keeps a log from being pruned: pins, and whose they are (R27).

A pin is a position: everything after it is needed by somebody. Computed from values, so that
it can be tested and simulated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from headrace.changelog.log import LogReader
from headrace.changelog.position import Position
from headrace.control.keeping import LogOptions
from headrace.control.loading import is_newer
from headrace.control.member import Member
from headrace.control.run import PipelineRun
from headrace.control.states import FOLLOWING, WANTING, TableState
from headrace.control.store import Needs, Store

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
    run: PipelineRun, store: Store, log: LogReader, options: LogOptions, *, found: bool
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


class Standing(NamedTuple):
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


def standing(member: Member) -> Standing:
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


def _read(member: Member) -> Standing:
    return Standing(
        member.state,
        member.load is not None,
        member.loads_from,
        member.reached,
        member.stored,
        member.newer_than,
    )


def _keeps_baseline(seen: Standing, *, durable: bool, options: LogOptions) -> bool:
    if options.keep_baselines is not None and seen.following:
        return options.keep_baselines
    return not durable


def lowest(pins: Iterable[Pin], end: Position, *, but: Sequence[PinKind] = ()) -> Position:
    """Return the lowest position of the pins, of other kinds than those; without any, `end`."""
    return min([end, *(pin.position for pin in pins if pin.kind not in but)])
