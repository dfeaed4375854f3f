"""What a seed decides before anything happens: tables, pipelines, limits, and how rough it gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from headrace.changelog.schema import TableName
from headrace.pipeline.definition import Filter, Transform, drop, equals, rename
from headrace.testing.source import Row
from tests.simulation.database import TABLES

KINDS = ("a", "b", None)

CALM = {
    "write": 10,
    "recorder": 14,
    "commands": 6,
    "reports": 8,
    "run": 14,
    "clock": 7,
    "busy": 6,
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
    "target_fault": 3,
    "target_stops": 1,
    "store_fault": 2,
    "log_lost": 1,
    "restart": 1,
    "take_over": 1,
}
"""What goes wrong, each only in some seeds: a few together find more than all at once."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A pipeline to be."""

    table: TableName
    durable: bool
    kind: str | None
    """Only rows of this kind pass, where `filtered`."""

    filtered: bool
    drops: bool
    names: tuple[tuple[str, str], ...]

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

    def expected(self, rows: Mapping[tuple[object, ...], Row]) -> dict[object, dict[str, object]]:
        """Return what the target must hold while the source holds `rows`."""
        names = dict(self.names)
        found = {}
        for (key,), row in rows.items():
            if self.filtered and row["kind"] != self.kind:
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
    action_count: int
    chunk_rows: int
    first_rows: int
    resumes: bool
    inserts_replace: bool

    @classmethod
    def of(cls, dice: Random) -> Plan:
        """Throw the dice."""
        count = dice.choice((1, 1, 2))
        flows = tuple(_flow(dice) for _ in range(count))
        limits = {
            "read_rows": dice.choice((1, 3, 20_000, 20_000)),
            "flush_rows": dice.choice((2, 5, 100_000)),
            "remembered": dice.choice((2, 4, 20_000)),
            "spill_bytes": dice.choice((1, 32 << 20, 32 << 20)),
            "checkpoint_every": dice.choice((3, 7, 1_000, 1_000)),
            "part_bytes": dice.choice((1, 32 << 20, 32 << 20)),
            "batch_rows": dice.choice((1, 4, 400_000)),
        }
        weights = dict(CALM)
        share = dice.choice((0.15, 0.3, 0.6))
        for action, weight in ROUGH.items():
            if dice.random() < share:
                weights[action] = weight
        return cls(
            flows=flows,
            limits=limits,
            weights=weights,
            action_count=dice.randint(20, 80),
            chunk_rows=dice.choice((1, 2, 3, 100)),
            first_rows=dice.randint(0, 6),
            resumes=dice.random() >= 0.04,
            inserts_replace=dice.random() < 0.3,
        )


def _flow(dice: Random) -> Flow:
    names = []
    if dice.random() < 0.4:
        names.append(("n", "amount"))
    if dice.random() < 0.2:
        names.append(("id", "number"))
    return Flow(
        table=dice.choice(TABLES),
        durable=dice.random() < 0.6,
        kind=dice.choice(KINDS),
        filtered=dice.random() < 0.6,
        drops=dice.random() < 0.4,
        names=tuple(names),
    )
