"""What a seed decides before anything happens: tables, pipelines, limits, and how rough it gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random

from headrace.changelog.schema import TableName
from headrace.pipeline.definition import DeadLetters, Mode, OnError
from headrace.pipeline.steps import Filter, Transform, drop, equals, rename
from headrace.runtime.info import LogOptions
from headrace.testing.source import Row
from tests.simulation.database import TABLES

KINDS = ("a", "b", None)
BAD = "bad"
"""A note that some pipelines cannot compute."""

CALM = {
    "write": 10,
    "recorder": 14,
    "commands": 6,
    "reports": 8,
    "run": 14,
    "clock": 7,
    "busy": 11,
    "idle_commit": 1,
}
"""What goes on all the time, and how often."""

ROUGH = {
    "kill_recorder": 2,
    "kill_engine": 2,
    "power_cut": 2,
    "arm_kill": 4,
    "arm_power_cut": 4,
    "arm_other": 5,
    "disk_fault": 4,
    "disk_full": 1,
    "source_away": 1,
    "source_error": 2,
    "source_replaced": 1,
    "source_forgets": 1,
    "source_rewritten": 2,
    "target_fault": 3,
    "target_stops": 1,
    "store_fault": 2,
    "log_lost": 1,
    "restart": 1,
    "take_over": 1,
    "pause": 3,
    "resume": 3,
    "reload": 4,
    "replay_letters": 4,
    "edit_letters": 5,
}
"""
What goes wrong, or is asked for, each only in some seeds.

A few together find more than all at once.
"""


OFTEN = {
    "reload": 10,
    "edit_letters": 12,
    "replay_letters": 6,
    "target_fault": 8,
    "arm_kill": 8,
    "store_fault": 5,
    "take_over": 3,
}
"""What some seeds have a lot of."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A pipeline to be."""

    tables: tuple[TableName, ...]
    target: str
    """`memory`, `database`, which takes a batch with its position, or `queue`, which does not."""

    mode: Mode
    kind: str | None
    """Only rows of this kind pass, where `filtered`."""

    filtered: bool
    drops: bool
    breaks: bool
    """Whether a bad note cannot be computed."""

    on_error: OnError
    names: tuple[tuple[str, str], ...]
    scan: float = 0.0
    """How often rows are looked for that have expired; 0: they never do."""

    @property
    def key(self) -> str:
        """The key's column in the target."""
        return dict(self.names).get("id", "id")

    @property
    def filters(self) -> list[Filter]:
        return [equals("kind", self.kind)] if self.filtered else []

    @property
    def transforms(self) -> list[Transform]:
        made = [drop("note")] if self.drops else []
        return [*made, rename(**dict(self.names))] if self.names else made

    @property
    def durable(self) -> bool:
        return self.target != "memory"

    @property
    def limited(self) -> bool:
        """Whether a few bad rows are enough to stop it."""
        return self.on_error != PLENTY

    def passes(self, row: Mapping[str, object]) -> bool:
        """Return whether the filter lets a row pass."""
        return not self.filtered or row["kind"] == self.kind

    def breaks_on(self, row: Mapping[str, object]) -> bool:
        """Return whether a row cannot be computed."""
        return self.breaks and row["note"] == BAD and self.passes(row)

    def expected(
        self, rows: Mapping[object, Row], upto: int = 0
    ) -> dict[object, dict[str, object]]:
        """Return what the target must hold of these rows of the source, as of a watermark."""
        names = dict(self.names)
        found = {}
        for key, row in rows.items():
            if not self.passes(row) or (self.scan and has_expired(row["note"], upto)):
                continue
            found[key] = {
                names.get(name, name): value
                for name, value in row.items()
                if not (self.drops and name == "note")
            }
        return found


@dataclass(frozen=True, slots=True)
class Plan:
    """A seed's choices."""

    flows: tuple[Flow, ...]
    limits: Mapping[str, int]
    weights: Mapping[str, int]
    warm: bool
    """Whether trouble begins only after all tables are loaded."""

    action_count: int
    batch_rows: int
    chunk_rows: int
    first_rows: int
    bad_share: float
    """How many of the notes are bad."""

    truncate_share: float
    """How many of the changes empty a table."""

    resumes: bool
    inserts_replace: bool
    care: LogOptions | None
    """How the log is kept; None: all of it is."""

    expires: bool = False
    """Whether notes are times, at which rows of some pipelines expire."""

    @classmethod
    def of(cls, dice: Random) -> Plan:
        """Throw the dice."""
        count = dice.choice((1, 1, 1, 2, 2, 3))
        flows = tuple(_flow(dice) for _ in range(count))
        limits = {
            "read_rows": dice.choice((1, 3, 20_000, 20_000)),
            "flush_rows": dice.choice((2, 5, 100_000)),
            "remembered": dice.choice((2, 4, 20_000)),
            "spill_bytes": dice.choice((1, 32 << 20, 32 << 20)),
            "checkpoint_every": dice.choice((3, 7, 1_000, 1_000)),
            "part_bytes": dice.choice((1, 32 << 20, 32 << 20)),
            "least_flushes": dice.choice((2, 3, 16)),
            "work_seconds": dice.choice((0, 0, 1)),
            "care_seconds": dice.choice((0, 0, 2)),
            "fold_seconds": dice.choice((0, 0, 2)),
            "fold_bytes": dice.choice((1, 1, 5_000)),
            "fold_rows": dice.choice((2, 400_000)),
            "fold_share": 1_000,
        }
        weights = dict(CALM)
        share = dice.choice((0.15, 0.3, 0.6))
        for action, weight in ROUGH.items():
            if dice.random() < share:
                weights[action] = weight
        for action, weight in OFTEN.items():
            if dice.random() < 0.2:
                weights[action] = weight
        plan = cls(
            flows=flows,
            limits=limits,
            weights=weights,
            warm=dice.random() < 0.6,
            action_count=dice.randint(10, 50),
            batch_rows=dice.choice((1, 4, 400_000)),
            chunk_rows=dice.choice((1, 2, 3, 100)),
            first_rows=dice.randint(0, 6),
            bad_share=dice.choice((0.0, 0.0, 0.05, 0.15, 0.4)),
            truncate_share=dice.choice((0.04, 0.04, 0.15)),
            resumes=dice.random() >= 0.04,
            inserts_replace=dice.random() < 0.3,
            care=_care(dice),
        )
        return _with_many_corrections(plan, dice) if dice.random() < 0.1 else plan


def has_expired(note: object, upto: int) -> bool:
    """Return whether a note is a time, and not after a watermark in microseconds."""
    try:
        time = datetime.fromisoformat(str(note))
    except ValueError:
        return False
    return round(time.timestamp() * 1_000_000) <= upto


PLENTY = DeadLetters(max_per_batch=10_000, max_keys=10_000)
ON_ERROR: tuple[OnError, ...] = (
    PLENTY,
    PLENTY,
    PLENTY,
    DeadLetters(max_per_batch=1),
    DeadLetters(max_keys=2),
    "stop",
)
MODES: tuple[Mode, ...] = (
    *("baseline_then_changes",) * 7,
    "baseline",
    "changes",
)


def _care(dice: Random) -> LogOptions | None:
    if dice.random() < 0.3:
        return None
    return LogOptions(
        keep=dice.choice((0.0, 0.0, 1.0, 100.0)),
        lease=dice.choice((0.5, 20.0)),
        keep_baselines=dice.choice((None, None, True, False)),
    )


def _with_many_corrections(plan: Plan, dice: Random) -> Plan:
    """Return a plan in which rows are corrected, and the log is folded past that, all the time."""
    flows = tuple(
        replace(each, breaks=True, filtered=False, on_error=PLENTY, mode="baseline_then_changes")
        for each in plan.flows
    )
    target = dice.choice(("memory", "memory", "memory", "database"))
    folds = {
        "journal_notes": 1,
        "fold_seconds": 0,
        "fold_bytes": 1,
        "work_seconds": 0,
        "care_seconds": 0,
    }
    weights = {
        **{name: plan.weights.get(name, 0) for name in (*CALM, "arm_kill", "arm_other", "reload")},
        "edit_letters": 16,
        "replay_letters": 5,
        "clock": 12,
        "busy": 16,
        "restart": 3,
        "kill_engine": 4,
        "power_cut": 2,
    }
    return replace(
        plan,
        flows=(replace(flows[0], target=target), *flows[1:]),
        limits={**plan.limits, **folds, "fold_rows": 400_000},
        weights={name: weight for name, weight in weights.items() if weight},
        warm=True,
        action_count=60,
        bad_share=dice.choice((0.15, 0.3)),
        truncate_share=0.02,
        care=LogOptions(keep=0.0, keep_baselines=dice.choice((None, True))),
    )


def _flow(dice: Random) -> Flow:
    names = []
    if dice.random() < 0.4:
        names.append(("n", "amount"))
    if dice.random() < 0.2:
        names.append(("id", "number"))
    tables = dice.sample(TABLES, dice.choice((1, 1, 2, 2, 3)))
    return Flow(
        tables=tuple(tables),
        target=dice.choice(("memory", "database", "queue")),
        mode=dice.choice(MODES),
        kind=dice.choice(KINDS),
        filtered=dice.random() < 0.6,
        drops=dice.random() < 0.4,
        breaks=dice.random() < 0.7,
        on_error=dice.choice(ON_ERROR),
        names=tuple(names),
    )
