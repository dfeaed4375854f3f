"""
What keeps a log from being pruned: pins, and whose they are (R27).

A pin is a position: everything after it is needed by somebody. Computed from values, so that
it can be tested and simulated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from headrace.changelog.log import LogReader
from headrace.changelog.position import Position
from headrace.control.keeping import LogOptions
from headrace.control.loading import is_newer
from headrace.control.member import Member
from headrace.control.run import PipelineRun
from headrace.control.store import Store

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
    pins = []
    if run.pipeline.patterns and not (found and run.growing.next is None):
        # What it has of tables that are still to be taken in is not known.
        pins.append(Pin("progress", run.name, log.floor))
    origins = store.origins(run.name) if changes and not durable else {}
    for member in run.members:
        whose = f"{run.name}/{member.table}"
        if member.following:
            # A restart of a durable one begins where it was stored, not where it has come to.
            at = min(member.stored, member.reached) if durable else member.reached
            pins.append(Pin("progress", whose, at))
        if (first := member.loads_from) is not None:
            pins.append(Pin("loading", whose, first))
        if member.table in origins:
            pins.append(Pin("origin", whose, origins[member.table]))
        if not changes and _needs_baseline(member, log, durable=durable, options=options):
            pins += baseline_pin(log, member.table)
    if (intent := store.intent(run.name)) is not None:
        pins.append(Pin("intent", run.name, Position.parse(intent.after)))
    return pins


def baseline_pin(log: LogReader, table: str) -> list[Pin]:
    """Return the pin of a table's newest baseline, if there is one that can be used (R19)."""
    usable = log.usable_baseline(table)
    return [] if usable is None else [Pin("baseline", table, usable.window[0])]


def _needs_baseline(member: Member, log: LogReader, *, durable: bool, options: LogOptions) -> bool:
    if options.keep_baselines is not None and member.following:
        return options.keep_baselines
    if not durable:
        return True
    usable = log.usable_baseline(member.table)
    # It is about to be loaded: dropped now, it would have to be copied again.
    return member.wants_load and usable is not None and is_newer(usable, member.newer_than)


def lowest(pins: Iterable[Pin], end: Position, *, but: Sequence[PinKind] = ()) -> Position:
    """Return the lowest position of the pins, of other kinds than those; without any, `end`."""
    return min([end, *(pin.position for pin in pins if pin.kind not in but)])
