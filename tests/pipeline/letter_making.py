"""Dead letters for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.changelog.change import Change, as_segment
from headrace.changelog.position import Position
from headrace.changelog.schema import TableSchema
from headrace.deadletters.hold import keys_of
from headrace.deadletters.letter import Kind, NewDeadLetter
from headrace.deadletters.store import DeadLetterStore
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.storage.simulation import SimulatedDisk
from tests.pipeline.making import ORDERS, delete, insert, update

LINEAGE = "sqlite/a"
EPOCH = 1
NOW = 1_763_000_000.25


def files_on(disk: SimulatedDisk | RealDisk, root: str = "/data") -> Files:
    return Files(disk, root)


def opened(files: Files, pipeline: str = "orders") -> DeadLetterStore:
    return DeadLetterStore.open(files, pipeline, lambda: NOW)


def at(commit: int, ordinal: int = 0) -> Position:
    return Position(EPOCH, commit, ordinal)


def letter(
    change: Change,
    *,
    schema: TableSchema = ORDERS,
    kind: Kind = "failed",
    code: str = "DIVIDE_BY_ZERO",
    facts: Mapping[str, str] | None = None,
    lineage: str = LINEAGE,
    baseline: tuple[int, Position] | None = None,
) -> NewDeadLetter:
    """A dead letter of `change`; for a row of a baseline, with the baseline's number and its F."""
    row = as_segment(schema, [change])
    return NewDeadLetter(
        table=schema.table,
        lineage=lineage,
        position=baseline[1] if baseline else Position(EPOCH, change.commit, change.ordinal),
        baseline=baseline[0] if baseline else None,
        kind=kind,
        code=code if kind == "failed" else "",
        facts=facts or {},
        keys=keys_of(row, schema),
        schema=schema,
        row=row,
    )


def order(number: int, **values: Any) -> dict[str, Any]:
    return {"id": number, "status": "new", "qty": 1, **values}


def inserted(commit: int, number: int, **of: Any) -> NewDeadLetter:
    return letter(insert(commit, order(number)), **of)


def moved(commit: int, old: int, new: int, **of: Any) -> NewDeadLetter:
    return letter(update(commit, order(old), order(new)), **of)


def deleted(commit: int, number: int, **of: Any) -> NewDeadLetter:
    return letter(delete(commit, order(number)), **of)
