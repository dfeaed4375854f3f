from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.changelog.change import Op
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import NullKey
from headrace.lake.rows import bounds, fresh, history_rows, net, shaped, versions
from headrace.pipeline.result import result_schema

SCHEMA = TableSchema(
    "things",
    (
        Column("a", ValueType("int64"), 1),
        Column("b", ValueType("text"), 2),
        Column("name", ValueType("text"), 3),
    ),
    key=("a", "b"),
)
ONE = TableSchema("things", SCHEMA.columns, key=("a",))

Change = tuple[int, Op, int, str, str | None]
"""Commit, operation, the two columns of the key, and the rest."""


def changes(rows: list[Change], schema: TableSchema = SCHEMA) -> pa.Table:
    ordinals: dict[int, int] = {}
    made: list[list[object]] = []
    for commit, op, a, b, name in rows:
        ordinals[commit] = ordinal = ordinals.get(commit, -1) + 1
        gone = op == Op.DELETE
        made.append([int(op), commit, ordinal, commit * 1000, a, b, None if gone else name])
    columns = zip(*made, strict=True) if made else [[] for _ in range(7)]
    fields = result_schema(schema)
    return pa.table(
        [pa.array(list(each), field.type) for each, field in zip(columns, fields, strict=True)],
        schema=fields,
    )


rows_of_changes = st.lists(
    st.tuples(
        st.integers(1, 6),
        st.sampled_from([Op.INSERT, Op.UPDATE, Op.DELETE]),
        st.integers(0, 3),
        st.sampled_from(["", "x", "xx"]),
        st.sampled_from(["p", "q", None]),
    ),
    max_size=40,
).map(lambda rows: sorted(rows, key=lambda row: row[0]))


def state(rows: list[Change], upto: int = 100) -> dict[tuple[int, str], str | None]:
    there: dict[tuple[int, str], str | None] = {}
    for commit, op, a, b, name in rows:
        if commit > upto:
            break
        if op == Op.DELETE:
            there.pop((a, b), None)
        else:
            there[a, b] = name
    return there


@given(rows_of_changes, rows_of_changes)
@pytest.mark.meets("R24")
def test_the_net_changes_of_a_batch_end_in_the_same_rows(
    before: list[Change], rows: list[Change]
) -> None:
    there = state(before)
    expected = dict(there)
    for _, op, a, b, name in rows:
        if op == Op.DELETE:
            expected.pop((a, b), None)
        else:
            expected[a, b] = name
    found = net(changes(rows), SCHEMA, SCHEMA.key)
    touched = [(row["a"], row["b"]) for row in found.rows.to_pylist()]
    assert len(touched) == len(set(touched)) == len({(a, b) for _, _, a, b, _ in rows})
    for row, gone in zip(found.rows.to_pylist(), found.gone, strict=True):
        if gone:
            there.pop((row["a"], row["b"]), None)
        else:
            there[row["a"], row["b"]] = row["name"]
    assert there == expected


@given(rows_of_changes)
def test_versions_of_a_batch_tell_what_was_there_after_every_commit(rows: list[Change]) -> None:
    found = versions(changes(rows), SCHEMA, SCHEMA.key)
    shown = found.rows.to_pylist()
    for commit in range(7):
        there = {
            (row["a"], row["b"]): row["name"]
            for at, row in enumerate(shown)
            if row["_commit"] <= commit
            and not found.gone[at]
            and (found.next[at] < 0 or shown[found.next[at]]["_commit"] > commit)
        }
        assert there == state(rows, commit)
    firsts: dict[tuple[int, str], int] = {}
    for at, row in enumerate(shown):
        firsts.setdefault((row["a"], row["b"]), at)
    assert {at for at in range(len(shown)) if found.opens[at]} == set(firsts.values())


@given(rows_of_changes)
def test_rows_of_a_history_end_where_the_next_one_begins(rows: list[Change]) -> None:
    shape = shaped("history", SCHEMA, None)
    shown = history_rows(
        versions(changes(rows), SCHEMA, SCHEMA.key), shape, 1, emptied=None
    ).to_pylist()
    for row in shown:
        if row["added"]:
            assert row["k0"] is row["k1"] is None
            assert row["c6"] is None or row["c5"] < row["c6"]
        else:
            assert (row["c0"], row["c3"], row["c5"]) == (None, None, None)
            assert row["k0"] is not None
            assert row["c6"] is not None
    ending = [(row["k0"], row["k1"]) for row in shown if not row["added"]]
    assert len(ending) == len(set(ending))


def test_a_key_change_is_a_delete_and_an_upsert() -> None:
    rows = [(1, Op.DELETE, 1, "x", None), (1, Op.UPDATE, 2, "x", "moved")]
    found = net(changes(rows, ONE), ONE, ONE.key)
    assert found.rows["a"].to_pylist() == [1, 2]
    assert found.gone.tolist() == [True, False]


KINDS: dict[str, list[object]] = {
    "numeric": ["1.0", "1.00"],
    "interval": [
        {"months": 0, "days": 1, "us": 0},
        {"months": 0, "days": 0, "us": 86_400_000_000},
    ],
    "timetz": [{"us": 0, "offset": 0}, {"us": 3_600_000_000, "offset": -3600}],
    "variant": [
        {"kind": 1, "i": 1, "d": None, "t": None, "b": None},
        {"kind": 2, "i": None, "d": 1.0, "t": None, "b": None},
    ],
    "text": ["a", "A"],
    "uuid": [bytes(16), bytes(15) + b"1"],
    "boolean": [False, True],
    "date": [0, 1],
    "timestamptz": [0, 1],
}
"""Of each kind two values that a MERGE takes for two, however equal the source holds them."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beside", [0, 1], ids=["alone", "with another column"])
def test_keys_are_one_where_the_table_cannot_tell_them_apart(kind: str, beside: int) -> None:
    columns = (Column("a", ValueType(kind), 1), Column("b", ValueType("int64"), 2))
    schema = TableSchema("things", columns, key=("a", "b")[: 1 + beside])
    one, other = KINDS[kind]
    rows = [(1, Op.DELETE, one), (1, Op.UPDATE, other), (2, Op.UPDATE, other)]
    made = [[int(op), commit, at, 0, a, 5] for at, (commit, op, a) in enumerate(rows)]
    fields = result_schema(schema)
    arrays = [
        pa.array(list(each), field.type)
        for each, field in zip(zip(*made, strict=True), fields, strict=True)
    ]
    table = pa.table(arrays, schema=fields)
    found = net(table, schema, schema.key)
    assert found.rows.column(2).to_pylist() == [0, 2]
    assert found.gone.tolist() == [True, False]
    assert versions(table, schema, schema.key).next.tolist() == [-1, 2, -1]


def test_minus_zero_is_zero_and_any_nan_is_any_other() -> None:
    schema = TableSchema("things", (Column("a", ValueType("float64"), 1),), key=("a",))
    values = [0.0, -0.0, float("nan"), -float("nan"), 1.5]
    made = [[int(Op.INSERT), 1, at, 0, value] for at, value in enumerate(values)]
    fields = result_schema(schema)
    arrays = [
        pa.array(list(each), field.type)
        for each, field in zip(zip(*made, strict=True), fields, strict=True)
    ]
    found = net(pa.table(arrays, schema=fields), schema, schema.key)
    assert found.rows.column(2).to_pylist() == [1, 3, 4]


def test_a_row_without_a_key_is_refused() -> None:
    rows = changes([(1, Op.INSERT, 1, "x", "n")])
    without = rows.set_column(4, rows.schema.field(4), pa.nulls(1, pa.int64()))
    with pytest.raises(NullKey):
        net(without, SCHEMA, SCHEMA.key)


def test_only_what_is_behind_the_position_is_fresh() -> None:
    rows = changes(
        [(1, Op.INSERT, 1, "", "n"), (1, Op.INSERT, 2, "", "n"), (2, Op.DELETE, 1, "", "")]
    )
    assert fresh(rows, 1, ORIGIN).num_rows == 3
    assert fresh(rows, 1, Position(1, 1, 0)).num_rows == 2
    assert fresh(rows, 1, Position(1, 1, 1)).num_rows == 1
    assert fresh(rows, 1, Position(1, 2, 0)).num_rows == 0
    assert fresh(rows, 2, Position(1, 9)).num_rows == 3
    assert fresh(rows, 1, Position(2, 0)).num_rows == 0


def test_bounds_are_of_whole_numbers_alone() -> None:
    rows = changes([(1, Op.INSERT, 7, "x", "n"), (1, Op.INSERT, -2, "y", "n")])
    assert bounds(rows, SCHEMA, SCHEMA.key) == {"a": (-2, 7)}
    assert bounds(rows.slice(0, 0), SCHEMA, SCHEMA.key) == {}
