"""
Steps that read a column which a change may come without (R21).

Without the value nobody can tell whether a filter is true of the row, or what a transform makes
of it, so such a step is refused before anything starts. To leave the column out is no reading of
it, nor is another name for it; one that goes to the target as it is is not refused either: most
changes have it, and the pipeline stops at the first that has not (`targets.unknown_value`).

Which columns an expression reads only Spark can tell: those are looked at when it analyses them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from headrace.changelog.schema import TableSchema
from headrace.errors import HeadraceError, UnsentColumn
from headrace.pipeline.steps import (
    Derive,
    Drop,
    Equals,
    Filter,
    Frame,
    Function,
    Mask,
    Prefix,
    Regex,
    Rename,
    Timestamp,
    Transform,
)


def check_unsent(
    filters: Sequence[Filter], transforms: Sequence[Transform], schema: TableSchema
) -> list[HeadraceError]:
    """Return the steps that read what may be missing, as far as that is known without Spark."""
    unsent = frozenset(column.name for column in schema.columns if column.may_be_unsent)
    return list(_found(filters, transforms, unsent, schema.table)) if unsent else []


def unsent_column(
    place: str, columns: Collection[str], table: str, *, surely: bool = True
) -> UnsentColumn:
    """Return the error for a step that reads these columns, or may do so for all that is known."""
    names = sorted(columns)
    told = f"column {names[0]}" if len(names) == 1 else f"columns {', '.join(names)}"
    return UnsentColumn(
        f"{place} {'reads' if surely else 'may read'} the {told}, and an update may come without",
        table=table,
        columns=names,
    )


def _found(
    filters: Sequence[Filter],
    transforms: Sequence[Transform],
    unsent: frozenset[str],
    table: str,
) -> Iterator[UnsentColumn]:
    for number, filter_ in enumerate(filters, 1):
        if hit := _read_by(filter_, unsent):
            yield unsent_column(f"Filter {number}", hit, table, surely=_told(filter_))
    # By the names that they have at that point, as long as nothing was made of them.
    for number, transform in enumerate(transforms, 1):
        if hit := _read_by(transform, unsent):
            yield unsent_column(f"Transform {number}", hit, table, surely=_told(transform))
        unsent = _after(transform, unsent)


def _read_by(step: Filter | Transform, unsent: frozenset[str]) -> frozenset[str]:
    match step:
        case Equals(field) | Prefix(field) | Regex(field):
            return unsent & {field}
        case Mask(fields):
            return unsent & set(fields)
        case Function():
            return unsent if step.reads is None else unsent & set(step.reads)
        case Frame():
            return unsent
    return frozenset()


def _told(step: Filter | Transform) -> bool:
    """Whether a step says which columns it reads."""
    return not isinstance(step, Frame) and (not isinstance(step, Function) or bool(step.reads))


def _after(transform: Transform, unsent: frozenset[str]) -> frozenset[str]:
    """Return which columns may be missing after a transform; what it made never is."""
    match transform:
        case Drop(names):
            return unsent - set(names)
        case Rename(names):
            others = dict(names)
            return frozenset(others.get(name, name) for name in unsent)
        case Derive(columns):
            return unsent - {name for name, _ in columns}
        case Timestamp(name):
            return unsent - {name}
        case Mask(fields):
            return unsent - set(fields)
        case Function():
            return unsent - {name for name, _ in transform.columns or ()}
        case Frame():
            return frozenset()
    return unsent
