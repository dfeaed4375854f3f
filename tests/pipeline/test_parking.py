"""Which changes are parked: the vectorised way against one that looks at each change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.changelog.change import Change, Op, as_segment
from headrace.changelog.position import Position
from headrace.changelog.schema import META, TableSchema
from headrace.deadletters.hold import ParkedChange, changes_to_park, keys_of, without
from headrace.pipeline.result import Failure, RowReference
from tests.pipeline.making import delete, insert, table, truncate, update
from tests.support.tiers import examples

EPOCH = 3
BY_NUMBER = table(("id", "int64"), ("v", "text"))
BY_TEXT = table(("id", "text"), ("v", "text"))
BY_BOTH = table(("id", "int64"), ("name", "text"), key=("id", "name"))
BY_NUMERIC = table(("id", "numeric"), ("v", "text"))


def parked(
    schema: TableSchema,
    changes: Sequence[Change],
    held: Mapping[bytes, Position] | None = None,
    failed: Sequence[RowReference] = (),
) -> list[tuple[RowReference, str]]:
    found = changes_to_park(
        as_segment(schema, changes), schema, EPOCH, held or {}, failures(failed)
    )
    assert all(changes[each.row].commit == each.reference[0] for each in found)
    return [(each.reference, each.kind) for each in found]


def failures(references: Sequence[RowReference]) -> dict[RowReference, Failure]:
    return {reference: Failure(reference, "DIVIDE_BY_ZERO") for reference in references}


def key(number: object, schema: TableSchema = BY_NUMBER) -> bytes:
    (found,) = keys_of(as_segment(schema, [insert(1, {"id": number})]), schema)
    return found


@pytest.mark.meets("R30")
def test_a_failed_change_takes_along_what_follows_it_by_key() -> None:
    changes = [insert(1, {"id": 1}), insert(2, {"id": 2}), update(3, {"id": 1}, {"id": 1})]
    assert parked(BY_NUMBER, changes, failed=[(1, 0)]) == [((1, 0), "failed"), ((3, 0), "behind")]


@pytest.mark.meets("R30")
def test_a_change_of_key_carries_the_hold_to_the_new_key_and_leaves_it_on_the_old() -> None:
    changes = [
        insert(1, {"id": 2}),
        update(2, {"id": 1}, {"id": 2}),
        update(3, {"id": 2}, {"id": 3}),
        insert(4, {"id": 1}),
        delete(5, {"id": 3}),
        insert(6, {"id": 9}),
    ]
    held = {key(1): Position(EPOCH, 1)}
    assert parked(BY_NUMBER, changes, held) == [((at, 0), "behind") for at in (2, 3, 4, 5)]


@pytest.mark.meets("R30")
@pytest.mark.parametrize(
    ("since", "commits"),
    [
        (Position(EPOCH, 2), [2, 3]),
        (Position(EPOCH, 2, 1), [3]),
        (Position(EPOCH, 9), []),
        (Position(EPOCH - 1, 9), [1, 2, 3]),
        (Position(EPOCH + 1, 0), []),
    ],
)
def test_a_key_is_held_from_its_position_on(since: Position, commits: list[int]) -> None:
    changes = [update(at, {"id": 1}, {"id": 1}) for at in (1, 2, 3)]
    found = parked(BY_NUMBER, changes, {key(1): since})
    assert found == [((at, 0), "behind") for at in commits]


@pytest.mark.meets("R30", "R23d")
def test_a_truncate_ends_the_holds_before_it_and_no_other() -> None:
    changes = [
        insert(1, {"id": 1}),
        truncate(2),
        insert(3, {"id": 1}),
        insert(4, {"id": 2}),
        insert(5, {"id": 3}),
        update(6, {"id": 3}, {"id": 4}),
        insert(7, {"id": 4}),
    ]
    held = {key(1): Position(1, 1), key(2): Position(EPOCH, 4)}
    assert parked(BY_NUMBER, changes, held, failed=[(5, 0)]) == [
        ((1, 0), "behind"),
        ((4, 0), "behind"),
        ((5, 0), "failed"),
        ((6, 0), "behind"),
        ((7, 0), "behind"),
    ]


def test_failures_of_other_rows_are_not_looked_at() -> None:
    changes = [insert(2, {"id": 1}), insert(4, {"id": 2}, ordinal=3)]
    assert parked(BY_NUMBER, changes, failed=[(1, 0), (2, 1), (3, 0), (4, 2), (5, 0)]) == []


def test_a_change_set_aside_says_its_keys_and_its_failure() -> None:
    changes = [
        insert(1, {"id": 7}),
        update(2, {"id": 1}, {"id": 2}),
        update(3, {"id": 2}, {"id": 2}),
    ]
    rows = as_segment(BY_NUMBER, changes)
    failure = Failure((2, 0), "DIVIDE_BY_ZERO", {"column": "v"})
    one, other = changes_to_park(rows, BY_NUMBER, EPOCH, {}, {failure.reference: failure})
    assert (one.keys, one.failure, one.row) == ((key(1), key(2)), failure, 1)
    assert (other.keys, other.failure, other.row) == ((key(2),), None, 2)
    assert keys_of(rows.slice(1, 1), BY_NUMBER) == one.keys


def test_where_nothing_failed_and_nothing_is_held_nothing_is_read() -> None:
    assert changes_to_park(pa.table({"_op": [1]}), BY_NUMBER, EPOCH, {}, {}) == []
    assert (
        changes_to_park(
            BY_NUMBER.segment.empty_table(), BY_NUMBER, EPOCH, {b"": Position(1, 1)}, {}
        )
        == []
    )


def test_a_long_chain_of_key_changes_is_followed_to_its_end() -> None:
    changes = [update(at, {"id": at}, {"id": at + 1}) for at in range(1, 500)]
    found = parked(BY_NUMBER, changes, failed=[(100, 0)])
    assert found == [((at, 0), "failed" if at == 100 else "behind") for at in range(100, 500)]


# --- against a model -------------------------------------------------------------------------


def naive(
    changes: Sequence[Change],
    held: Mapping[tuple[object, ...], Position],
    failed: Sequence[RowReference],
) -> list[tuple[RowReference, str]]:
    """The changes to park, change by change, over plain values."""
    holding = {value: [since] for value, since in held.items()}
    found = []
    for change in changes:
        at = Position(EPOCH, change.commit, change.ordinal)
        if change.op is Op.TRUNCATE:
            for positions in holding.values():
                positions[:] = [since for since in positions if since > at]
        own = {tuple(image.values()) for image in (change.before, change.after) if image}
        blocked = any(since <= at for value in own for since in holding.get(value, ()))
        if (reference := (change.commit, change.ordinal)) in failed or blocked:
            found.append((reference, "failed" if reference in failed else "behind"))
            for value in own:
                holding.setdefault(value, []).append(at)
    return found


KEYS: dict[str, tuple[TableSchema, list[dict[str, object]]]] = {
    "number": (BY_NUMBER, [{"id": at} for at in (0, 1, -1, 2**63 - 1, None, "odd")]),
    "text": (BY_TEXT, [{"id": text} for text in ("", "a", "b", "a\0", "é", None, b"odd")]),
    "both": (BY_BOTH, [{"id": at, "name": text} for at in (0, None) for text in ("", "a", None)]),
    "numeric": (BY_NUMERIC, [{"id": at} for at in (0, 1, 10, 100)]),
}


@st.composite
def histories(draw: st.DrawFn, rows: list[dict[str, object]]) -> list[Change]:
    changes = []
    commit = ordinal = 0
    for _ in range(draw(st.integers(1, 14))):
        if draw(st.booleans()):
            commit, ordinal = commit + draw(st.integers(1, 3)), draw(st.integers(0, 2))
        else:
            ordinal += draw(st.integers(1, 2))
        images = draw(st.tuples(st.sampled_from(rows), st.sampled_from(rows)))
        match draw(st.sampled_from(["insert", "move", "update", "bare", "delete", "truncate"])):
            case "insert":
                changes.append(insert(commit, images[0], ordinal))
            case "move":
                changes.append(update(commit, images[0], images[1], ordinal))
            case "update":
                changes.append(update(commit, images[0], images[0], ordinal))
            case "bare":
                changes.append(update(commit, None, images[0], ordinal))
            case "delete":
                changes.append(delete(commit, images[0], ordinal))
            case _:
                changes.append(truncate(commit, ordinal))
    return changes


positions = st.builds(Position, st.sampled_from([1, EPOCH, EPOCH, EPOCH + 1]), st.integers(0, 12))


@pytest.mark.slow
@pytest.mark.meets("R30")
@pytest.mark.parametrize("name", sorted(KEYS))
@examples(150)
@given(data=st.data())
def test_what_is_set_aside_is_what_looking_at_each_change_finds(
    name: str, data: st.DataObject
) -> None:
    schema, rows = KEYS[name]
    changes = data.draw(histories(rows))
    wanted = data.draw(st.dictionaries(st.sampled_from(range(len(rows))), positions, max_size=3))
    references = [
        (change.commit, change.ordinal) for change in changes if change.op is not Op.TRUNCATE
    ]
    failed = data.draw(st.lists(st.sampled_from(references), max_size=2)) if references else []
    packed = [keys_of(as_segment(schema, [insert(1, row)]), schema)[0] for row in rows]
    held = {packed[at]: since for at, since in wanted.items()}
    plain = {tuple(rows[at].values()): since for at, since in wanted.items()}
    assert parked(schema, changes, held, failed) == naive(changes, plain, failed)


# --- in bulk -----------------------------------------------------------------------------------


def bulk(schema: TableSchema, count: int) -> pa.Table:
    """Updates of this many rows, made quickly."""
    ids: pa.Array = pa.array(np.arange(count) * 7919 % count)
    if schema.column("id").type.kind == "text":
        ids = ids.cast(pa.string())
    image = pa.StructArray.from_arrays(
        [ids, pa.nulls(count, pa.string())], fields=list(schema.arrow)
    )
    made = {
        "_op": pa.array(np.full(count, Op.UPDATE, np.int8)),
        "_commit": pa.array(np.arange(count)),
        "_ordinal": pa.array(np.zeros(count, np.int32)),
        "before": image,
        "after": image,
    }
    columns = [made.get(field.name, pa.nulls(count, field.type)) for field in schema.segment]
    return pa.Table.from_arrays(columns, schema=schema.segment)


@pytest.mark.parametrize("schema", [BY_NUMBER, BY_TEXT], ids=["number", "text"])
def test_ten_held_keys_are_found_by_as_few_steps_among_many_changes_as_among_few(
    schema: TableSchema,
) -> None:
    def found_among(count: int) -> None:
        rows = bulk(schema, count)
        values: list[object] = list(range(0, count, count // 10))
        if schema is BY_TEXT:
            values = list(map(str, values))
        held = {key(value, schema): Position(1, 1) for value in values}
        taken.append(steps(lambda: found.extend(changes_to_park(rows, schema, EPOCH, held, {}))))

    taken: list[int] = []
    found: list[ParkedChange] = []
    found_among(100)
    found_among(100_000)
    assert len(found) == 20
    assert taken[1] < 1.5 * taken[0]


def steps(work: Callable[[], object]) -> int:
    """Return how many lines of Python some work runs through: one of each turn of a loop."""
    count = 0

    def traced(frame: FrameType, event: str, about: Any) -> Any:
        nonlocal count
        count += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


# --- taking rows out ----------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12),
    st.frozensets(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=6),
)
def test_the_rows_at_some_places_are_left_out(
    rows: list[RowReference], references: frozenset[RowReference]
) -> None:
    made = pa.table(
        {
            "_op": pa.array([0] * len(rows), pa.int8()),
            "_commit": pa.array([commit for commit, _ in rows], pa.int64()),
            "_ordinal": pa.array([ordinal for _, ordinal in rows], pa.int32()),
            "at": pa.array(range(len(rows))),
        }
    )
    kept = without(made, references)["at"].to_pylist()
    assert kept == [at for at, reference in enumerate(rows) if reference not in references]


def test_rows_are_left_out_by_our_columns_though_a_user_has_such_names() -> None:
    fields = [*META[:3], pa.field("_commit", pa.int64())]
    arrays = [
        pa.array([values] * 1, of.type) for values, of in zip([0, 5, 6, 7], fields, strict=True)
    ]
    rows = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    assert without(rows, {(7, 6)}).num_rows == 1
    assert without(rows, {(5, 6)}).num_rows == 0
