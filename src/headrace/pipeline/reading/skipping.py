"""
Which segments need not be opened at all.

The index says of a segment which kinds of changes it holds, between which positions and which
times. Where `where` cannot be true of any such change, the segment is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.changelog.entry import File
from headrace.changelog.log import LogBatch
from headrace.pipeline.reading.predicates import And, Compare, In, Not, Or, Predicate

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Known:
    """What the index knows of a segment's rows."""

    ranges: Mapping[str, tuple[Any, Any]]
    """The lowest and the highest value of a column, both included."""

    types: frozenset[str]
    """The types of change in it."""

    @classmethod
    def of(cls, flush: LogBatch, file: File, *, both: bool) -> Known:
        """Return what is known of one segment of a flush."""
        kinds = {
            "insert": file.inserts or file.key_changes,
            "update_postimage": file.updates,
            "update_preimage": file.updates if both else 0,
            "delete": file.deletes or file.key_changes,
            "truncate": file.truncates,
        }
        times = (_EPOCH + timedelta(microseconds=each) for each in (flush.begun, flush.time))
        return cls(
            {
                "_commit_version": (flush.first.commit, flush.last.commit),
                "_position": (str(flush.first), str(flush.last)),
                "_commit_timestamp": (next(times), next(times)),
            },
            frozenset(kind for kind, count in kinds.items() if count),
        )


def may_pass(predicate: Predicate, known: Known) -> bool:
    """Whether a row of such a segment may pass; true where that cannot be told."""
    match predicate:
        case And(parts):
            return all(may_pass(part, known) for part in parts)
        case Or(parts):
            return any(may_pass(part, known) for part in parts)
        case In(name, values):
            return any(_may(Compare(name, "=", value), known) for value in values)
        case Compare():
            return _may(predicate, known)
        case Not():
            return _may_not(predicate.of, known)
        case _:
            return True


def _may(compare: Compare, known: Known) -> bool:
    name, op, value = compare.column, compare.op, compare.value
    if name == "_change_type":
        if op in ("=", "<=>"):
            return value in known.types
        return op != "<>" or bool(known.types - {value})
    if name not in known.ranges:
        return True
    low, high = known.ranges[name]
    match op:
        case "=" | "<=>":
            return bool(low <= value <= high)
        case "<":
            return bool(low < value)
        case "<=":
            return bool(low <= value)
        case ">":
            return bool(high > value)
        case ">=":
            return bool(high >= value)
    return True


def _may_not(predicate: Predicate, known: Known) -> bool:
    if isinstance(predicate, In) and predicate.column == "_change_type":
        return bool(known.types - set(predicate.values))
    return True
