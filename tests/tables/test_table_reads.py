"""What a table takes, gives and refuses."""

import copy
import pickle
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import BeyondDate, BeyondTimestamp, Interval, OffsetTime, ValueType
from headrace.errors import (
    NoKey,
    NotUnique,
    NullKey,
    TableError,
    UnknownColumn,
    UnknownIndex,
    UnknownTable,
)
from headrace.tables import Table, store
from tests.tables.build import DELETE, INSERT, UPDATE, Writer, baseline, changes, table_schema

ORDERS = table_schema(id="int64", email="text", grp="int32")

VALUES: list[tuple[str | ValueType, list[object]]] = [
    ("int16", [-(2**15), 0, 2**15 - 1]),
    ("int32", [-(2**31), 7]),
    ("int64", [-(2**63), 2**63 - 1]),
    ("float32", [0.5, -0.25]),
    ("float64", [0.1, -1e300, float("inf")]),
    ("boolean", [True, False]),
    (ValueType("decimal", 12, 2), [Decimal("-12.30"), Decimal("9999999999.99"), Decimal("0.00")]),
    (ValueType("decimal", 38, 0), [Decimal(10**38 - 1), Decimal(-(10**38) + 1), Decimal(-1)]),
    (ValueType("decimal", 30, 30), [Decimal("1e-30"), Decimal("-0." + "5" * 30)]),
    ("numeric", [Decimal("1.50"), Decimal("1e400"), Decimal("Infinity")]),
    ("text", ["", "ä€😀", "x" * 5000]),
    ("json", ['{"a": 1}', "[]"]),
    ("bytes", [b"", b"\x00\xff"]),
    ("text_bytes", [b"\xff\xfe", b"ok"]),
    ("uuid", [UUID(int=0), UUID(int=2**128 - 1)]),
    ("date", [date(1, 1, 1), date(9999, 12, 31), BeyondDate(2**31 - 1)]),
    (
        "timestamp",
        [datetime(1, 1, 1), datetime(2026, 1, 2, 3, 4, 5, 6), BeyondTimestamp(2**63 - 1)],
    ),
    (
        "timestamptz",
        [datetime(2026, 1, 2, tzinfo=UTC), BeyondTimestamp(-(2**63), utc=True)],
    ),
    ("time", [time(0), time(23, 59, 59, 999_999)]),
    ("timetz", [OffsetTime(5, -3600), OffsetTime(86_400_000_000, 0)]),
    ("interval", [Interval(1, 2, 3), Interval(-1, 0, -5)]),
    ("variant", [1, 2.5, "text", b"bytes", -(2**63)]),
    (ValueType("arrow", other=pa.list_(pa.int32())), [[1, 2], []]),
    (ValueType("arrow", other=pa.duration("us")), [timedelta(days=1, microseconds=1)]),
    (ValueType("arrow", other=pa.date64()), [date(2026, 1, 2)]),
]


def kind_name(kind: str | ValueType) -> str:
    return str(kind)[:20]


def shown(schema: TableSchema, **options: object) -> Writer:
    return Writer(Table(schema, **options))  # type: ignore[arg-type]


@pytest.mark.meets("S13", "S6")
@pytest.mark.parametrize(("kind", "values"), VALUES, ids=lambda value: kind_name(value)[:20])
def test_values_come_back_as_they_are_nulls_included(
    kind: str | ValueType, values: list[object]
) -> None:
    writer = shown(table_schema(id="int64", v=kind))
    rows = [{"id": at, "v": value} for at, value in enumerate([None, *values, None, *values])]
    for row in rows:
        writer.put(row)
    writer.put(*({**row, "id": row["id"] + 100} for row in rows))  # type: ignore[operator]
    for row in rows:
        for number in (row["id"], row["id"] + 100):  # type: ignore[operator]
            found = writer.table.get(number)
            assert found is not None
            assert found["v"] == row["v"]
            assert type(found["v"]) is type(row["v"])


@pytest.mark.meets("S13")
@pytest.mark.parametrize(("kind", "values"), VALUES, ids=lambda value: kind_name(value)[:20])
def test_rows_are_found_by_a_key_or_an_index_of_any_type(
    kind: str | ValueType, values: list[object]
) -> None:
    writer = shown(table_schema(("k",), k=kind, n="int32"))
    other = shown(table_schema(id="int64", k=kind), indexes={"by_k": ["k"]})
    for at, value in enumerate(values):
        writer.put({"k": value, "n": -1})
        writer.put({"k": value, "n": at})
        other.put({"id": at, "k": value}, {"id": at + 100, "k": value})
    other.put({"id": -1, "k": None})
    assert writer.table.count() == len(values)
    for at, value in enumerate(values):
        assert writer.table.get(value) == {"k": value, "n": at}
        assert [row["id"] for row in other.table.lookup_all("by_k", value)] == [at, at + 100]
    assert [row["id"] for row in other.table.lookup_all("by_k", None)] == [-1]
    assert writer.table.get(None) is None


def test_a_number_is_found_whatever_python_type_asks_for_it() -> None:
    writer = shown(table_schema(id="int64", d=ValueType("decimal", 12, 2)), indexes={"d": ["d"]})
    writer.put({"id": 1_000_000, "d": Decimal("2.50")})
    for key in (1_000_000, 1_000_000.0, Decimal(1_000_000), np.int64(1_000_000), np.int16(0)):
        assert (writer.table.get(key) is not None) == (key == 1_000_000)
    for value in (Decimal("2.5"), Decimal("2.500"), 2.5):
        assert len(writer.table.lookup_all("d", value)) == 1
    for other in (Decimal("2.505"), "2.50", Decimal(10**30), float("nan"), True):
        assert writer.table.lookup_all("d", other) == []


def test_what_no_row_can_have_is_simply_not_found() -> None:
    writer = shown(table_schema(("a", "b"), a="text", b="int64"))
    writer.put({"a": "1", "b": 1})
    for key in ((1, 1), ("1", "1"), ("1", 2**80), ("\ud800", 1), (None, 1), (b"1", 1), ("1", 1.5)):
        assert writer.table.get(*key) is None
    single = shown(ORDERS)
    single.put({"id": 1})
    for wrong in ("1", None, 1.5, float("nan"), 2**64 + 1, b"", object()):
        assert single.table.get(wrong) is None


def test_equal_numbers_of_a_mixture_are_one_key() -> None:
    writer = shown(table_schema(("k",), k="variant"))
    writer.put({"k": 1}, {"k": 1.0}, {"k": 1.5}, {"k": "1"})
    assert writer.table.count() == 3
    assert writer.table.get(1) == {"k": 1.0}
    assert writer.table.get(Decimal("1.5")) == {"k": 1.5}


def test_nan_and_minus_zero_are_keys_like_others() -> None:
    writer = shown(table_schema(("k",), k="float64", n="int32"))
    writer.put({"k": float("nan"), "n": 1}, {"k": float("nan"), "n": 2}, {"k": -0.0, "n": 3})
    assert writer.table.count() == 2
    assert (found := writer.table.get(float("nan"))) is not None
    assert found["n"] == 2
    assert (zero := writer.table.get(0)) is not None
    assert zero["n"] == 3


def test_an_instant_is_found_from_any_zone() -> None:
    writer = shown(table_schema(("at",), at="timestamptz"))
    writer.put({"at": datetime(2026, 1, 1, 12, tzinfo=UTC)})
    east = timezone(timedelta(hours=5, minutes=30))
    assert writer.table.get(datetime(2026, 1, 1, 17, 30, tzinfo=east)) is not None
    assert writer.table.get(datetime(2026, 1, 1, 12)) is None


def test_a_row_is_a_mapping_that_outlives_its_table() -> None:
    writer = shown(ORDERS)
    writer.put({"id": 1, "email": "a@x", "grp": None})
    row = writer.table.get(1)
    assert row is not None
    writer.put({"id": 1, "email": "b@x", "grp": 2})
    expected = {"id": 1, "email": "a@x", "grp": None}
    assert isinstance(row, Mapping)
    assert row == expected
    assert expected == row
    assert list(row) == ["id", "email", "grp"]
    assert len(row) == 3
    assert "email" in row
    assert "nothing" not in row
    assert row.get("nothing", 5) == 5
    assert repr(row) == "Row({'id': 1, 'email': 'a@x', 'grp': None})"
    assert pickle.loads(pickle.dumps(row)) == expected
    assert copy.deepcopy(row) == expected
    with pytest.raises(KeyError):
        row["nothing"]


@pytest.mark.meets("R23")
def test_a_table_without_a_key_is_refused_with_a_remedy() -> None:
    with pytest.raises(NoKey) as caught:
        Table(table_schema((), a="text"))
    assert "key=" in caught.value.remedy
    assert Table(table_schema((), a="text"), key=["a"]).key == ("a",)
    assert Table(table_schema((), name="text"), key="name").key == ("name",)


@pytest.mark.meets("R23")
def test_a_named_key_is_good_for_inserts_and_whatever_names_no_row_is_refused() -> None:
    schema = table_schema((), a="text", n="int64")
    table = Table(schema, key=["a"])
    table.load(baseline(schema, [{"a": "x", "n": 1}]))
    table.switch(Position(1, 1))
    table.apply(
        changes(schema, [(INSERT, Position(1, 2), {"a": "y", "n": 2})]),
        epoch=1,
        upto=Position(1, 2),
    )
    assert {row["a"] for row in table.all()} == {"x", "y"}
    # As a pipeline has them that knows of no key: which row it was stands nowhere.
    for op, row in ((DELETE, {}), (UPDATE, {"a": "z", "n": 1})):
        told = changes(schema, [(op, Position(1, 3), row)])
        with pytest.raises(NoKey) as caught:
            table.apply(told, epoch=1, upto=Position(1, 3))
        assert caught.value.facts == {"table": schema.table, "rows": 1}
        assert "primary key" in caught.value.remedy
        assert "reload the table" in caught.value.remedy
        with pytest.raises(NoKey):
            table.catch_up(told, epoch=1, upto=Position(1, 3))
    assert {row["a"] for row in table.all()} == {"x", "y"}
    table.apply(None, epoch=1, upto=Position(1, 4), truncate=Position(1, 4))
    assert table.count() == 0


@pytest.mark.meets("R23")
def test_another_key_than_the_sources_is_refused() -> None:
    with pytest.raises(TableError):
        Table(ORDERS, key=["email"])
    assert Table(ORDERS, key=["id"]).key == ("id",)


@pytest.mark.parametrize(
    "options", [{"key": ["x"]}, {"lookup": ["x"]}, {"indexes": {"by": ["a", "x"]}}]
)
def test_a_column_that_is_not_there_is_named(options: dict[str, object]) -> None:
    schema = table_schema((), a="text")
    with pytest.raises(UnknownColumn) as caught:
        Table(schema, **{"key": ["a"], **options})  # type: ignore[arg-type]
    assert caught.value.facts["column"] == "x"


def test_a_null_in_the_key_is_refused_and_leaves_the_table_as_it_was() -> None:
    writer = shown(ORDERS)
    writer.put({"id": 1})
    with pytest.raises(NullKey):
        writer.put({"id": 2}, {"id": None})
    assert writer.table.count() == 1
    assert writer.table.position == Position(1, 1)


def test_unknown_indexes_and_wrong_counts_of_values_are_refused() -> None:
    writer = shown(ORDERS, indexes={"by_grp": ["grp"]})
    with pytest.raises(UnknownIndex):
        writer.table.lookup_all("grp", 1)
    with pytest.raises(UnknownIndex):
        writer.table.lookup("a@x")
    for read in (writer.table.get, lambda *key: writer.table.lookup_all("by_grp", *key)):
        with pytest.raises(TableError):
            read()
        with pytest.raises(TableError):
            read(1, 2)


def test_a_lookup_that_is_not_unique_says_so() -> None:
    writer = shown(ORDERS, lookup=["email"])
    writer.put({"id": 1, "email": "a@x"}, {"id": 2, "email": "b@x"})
    assert writer.table.lookup("b@x") == {"id": 2, "email": "b@x", "grp": None}
    assert writer.table.lookup("c@x") is None
    writer.put({"id": 1, "email": "b@x"})
    with pytest.raises(NotUnique) as caught:
        writer.table.lookup("b@x")
    assert "b@x" not in str(caught.value)


@pytest.mark.meets("invariant 7")
def test_nobody_reads_a_table_before_its_first_rows_are_whole() -> None:
    table = Table(ORDERS, indexes={"by_grp": ["grp"]}, lookup=["email"])
    table.load(baseline(ORDERS, [{"id": 1}]))
    late = changes(ORDERS, [(INSERT, Position(1, 5), {"id": 2})])
    table.apply(late, epoch=1, upto=Position(1, 5))
    table.catch_up(late, epoch=1, upto=Position(1, 5))
    reads = (
        lambda: table.get(1),
        lambda: table.lookup("a"),
        lambda: table.lookup_all("by_grp", 1),
        table.all,
        table.count,
    )
    for read in reads:
        with pytest.raises(UnknownTable):
            read()
    assert table.shown is None
    assert not table.visible
    assert len(table.present()) == 0
    table.switch(Position(1, 5))
    assert table.count() == 2
    assert table.shown == Position(1, 5)


@pytest.mark.meets("invariant 7")
def test_a_reload_is_not_seen_before_it_is_exact_and_then_at_once() -> None:
    writer = shown(ORDERS)
    writer.put({"id": 1}, {"id": 2})
    table = writer.table
    table.load(baseline(ORDERS, [{"id": 3}]))
    assert table.count() == 2
    writer.put({"id": 4})
    late = changes(ORDERS, [(INSERT, Position(1, 3), {"id": 5})])
    table.catch_up(late, epoch=1, upto=Position(1, 3))
    assert sorted(row["id"] for row in table.all()) == [1, 2, 4]  # type: ignore[type-var]
    assert table.shown == Position(1, 3)
    table.switch(Position(1, 3))
    assert sorted(row["id"] for row in table.all()) == [3, 5]  # type: ignore[type-var]
    writer.put({"id": 6})
    assert sorted(row["id"] for row in table.all()) == [3, 5, 6]  # type: ignore[type-var]
    assert table.shown == Position(1, 4)


@pytest.mark.meets("invariant 4", "R11")
def test_what_is_caught_up_with_may_come_again_and_begin_before_the_baseline() -> None:
    table = Table(ORDERS)
    table.load(baseline(ORDERS, [{"id": 1, "grp": 3}]))
    steps = [
        (INSERT, Position(1, 1), {"id": 1, "grp": 1}),
        (UPDATE, Position(1, 3), {"id": 1, "grp": 3}),
        (DELETE, Position(1, 4), {"id": 1}),
        (INSERT, Position(1, 5), {"id": 2, "grp": 5}),
    ]
    table.catch_up(changes(ORDERS, steps[:2]), epoch=1, upto=Position(1, 3))
    for _ in range(2):
        table.catch_up(changes(ORDERS, steps), epoch=1, upto=Position(1, 5))
    table.catch_up(None, epoch=1, upto=Position(1, 9))
    table.catch_up(changes(ORDERS, steps[:1]), epoch=1, upto=Position(1, 1))
    table.switch(Position(1, 9))
    assert [dict(row) for row in table.all()] == [{"id": 2, "email": None, "grp": 5}]


@pytest.mark.meets("R23d")
def test_a_truncate_is_caught_up_with() -> None:
    table = Table(ORDERS)
    table.load(baseline(ORDERS, [{"id": 1}, {"id": 2}]))
    steps = [(INSERT, Position(1, 6), {"id": 3})]
    table.catch_up(changes(ORDERS, steps), epoch=1, upto=Position(1, 6), truncate=Position(1, 5))
    table.catch_up(None, epoch=1, upto=Position(1, 7), truncate=Position(1, 5))
    table.switch(Position(1, 7))
    assert [row["id"] for row in table.all()] == [3]


def test_what_was_loaded_and_discarded_is_in_no_later_load() -> None:
    writer = shown(ORDERS)
    writer.put({"id": 1})
    table = writer.table
    table.load(baseline(ORDERS, [{"id": 2}]))
    table.catch_up(None, epoch=1, upto=Position(1, 9))
    table.discard()
    assert table.count() == 1
    table.load(baseline(ORDERS, [{"id": 3}]))
    late = changes(ORDERS, [(INSERT, Position(1, 8), {"id": 4})])
    table.catch_up(late, epoch=1, upto=Position(1, 8))
    table.switch(Position(1, 8))
    assert [row["id"] for row in table.all()] == [3, 4]


@pytest.mark.meets("invariant 4")
def test_rows_out_of_position_order_are_refused() -> None:
    table = Table(ORDERS)
    steps = [(INSERT, Position(1, 2), {"id": 1}), (INSERT, Position(1, 1), {"id": 2})]
    with pytest.raises(TableError):
        table.apply(changes(ORDERS, steps), epoch=1, upto=Position(1, 2))


@pytest.mark.meets("R1", "invariant 4")
def test_a_new_epoch_begins_after_every_position_of_the_old_one() -> None:
    table = Table(ORDERS)
    table.switch(ORIGIN)
    late = changes(ORDERS, [(INSERT, Position(1, 900), {"id": 1})])
    early = changes(ORDERS, [(UPDATE, Position(2, 1), {"id": 1, "grp": 5})])
    table.apply(late, epoch=1, upto=Position(1, 900))
    table.apply(early, epoch=2, upto=Position(2, 1))
    table.apply(late, epoch=1, upto=Position(1, 900))
    assert table.get(1) == {"id": 1, "email": None, "grp": 5}
    assert table.position == Position(2, 1)


def test_a_batch_without_rows_moves_the_position_and_nothing_else() -> None:
    writer = shown(ORDERS)
    writer.put({"id": 1})
    for rows in (None, changes(ORDERS, [])):
        upto = Position(1, writer.table.position.commit + 1)
        assert len(writer.table.apply(rows, epoch=1, upto=upto)) == 0
        assert writer.table.shown == upto
    assert writer.table.count() == 1


def test_rows_from_spark_may_have_wider_types_and_several_pieces() -> None:
    table = Table(ORDERS)
    table.switch(ORIGIN)
    steps = [(INSERT, Position(1, n), {"id": n, "email": "e", "grp": n}) for n in (1, 2)]
    pieces = [changes(ORDERS, [step]) for step in steps]
    rows = pa.concat_tables(pieces)
    rows = rows.set_column(5, "email", rows["email"].cast(pa.large_string()))
    table.apply(rows, epoch=1, upto=Position(1, 2))
    assert [dict(row)["grp"] for row in table.all()] == [1, 2]


def test_rows_that_lack_a_column_are_refused() -> None:
    table = Table(ORDERS)
    rows = changes(ORDERS, [(INSERT, Position(1, 1), {"id": 1})]).drop_columns(["grp"])
    with pytest.raises(UnknownColumn):
        table.apply(rows, epoch=1, upto=Position(1, 1))


@pytest.mark.meets("S13")
@pytest.mark.slow
def test_many_rows_over_many_chunks_are_what_a_dict_would_be() -> None:
    count = 150_000
    writer = shown(ORDERS, indexes={"by_grp": ["grp"]})
    table = writer.table
    random = np.random.default_rng(5)
    expected: dict[int, int] = {}
    for commit, size in enumerate((count, 40_000, 1, 70_000, 90_000, 3), 1):
        ids = random.integers(0, count, size)
        groups = random.integers(0, 50, size)
        ops = random.choice([INSERT, UPDATE, DELETE], size, p=[0.5, 0.3, 0.2])
        rows = pa.table(
            {
                "_op": pa.array(ops, pa.int8()),
                "_commit": pa.array(np.full(size, commit)),
                "_ordinal": pa.array(np.arange(size), pa.int32()),
                "_time": pa.array(np.zeros(size, np.int64), pa.timestamp("us", "UTC")),
                "id": pa.array(ids),
                "email": pa.array([f"{n}@x" for n in ids.tolist()]),
                "grp": pa.array(groups, pa.int32()),
            }
        )
        table.apply(rows, epoch=1, upto=Position(1, commit, size))
        for op, key, group in zip(ops.tolist(), ids.tolist(), groups.tolist(), strict=True):
            if op == DELETE:
                expected.pop(key, None)
            else:
                expected[key] = group
    assert table.count() == len(expected)
    for key in range(0, count, 37):
        row = table.get(key)
        assert (row and row["grp"]) == expected.get(key)
        assert row is None or row["email"] == f"{key}@x"
    found = {row["id"] for row in table.lookup_all("by_grp", 7)}
    assert found == {key for key, group in expected.items() if group == 7}
    assert {row["id"]: row["grp"] for row in table.all()} == expected


@pytest.mark.meets("S13")
@pytest.mark.slow
def test_dead_rows_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_FEW", 100)
    writer = shown(ORDERS, indexes={"by_grp": ["grp"]})
    for at in range(1500):
        writer.put({"id": at % 3, "email": "x" * 1000, "grp": at % 5})
        assert sum(chunk.count for chunk in writer.table._store.chunks) <= 110
    assert writer.table.count() == 3
    assert sum(len(writer.table.lookup_all("by_grp", group)) for group in range(5)) == 3


def test_bytes_of_a_table_are_told() -> None:
    writer = shown(ORDERS, indexes={"by_grp": ["grp"]})
    empty = writer.table.nbytes
    writer.put(*({"id": n, "email": "x" * 100, "grp": n} for n in range(1000)))
    assert writer.table.nbytes > empty + 100_000


def test_text_beyond_32_bits_begins_a_new_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.tables.columns.MOST_TEXT", 3_000)
    writer = shown(table_schema(id="int64", t="text", v="variant"))
    for at in range(30):
        writer.put({"id": at, "t": "t" * 500, "v": "v" * 400})
    writer.delete({"id": 7})
    writer.put({"id": 8, "t": "new", "v": 1})
    assert len(writer.table._store.chunks) > 5
    assert writer.table.count() == 29
    assert {row["id"] for row in writer.table.all()} == {*range(30)} - {7}
    assert writer.table.get(8) == {"id": 8, "t": "new", "v": 1}
    assert writer.table.get(29) == {"id": 29, "t": "t" * 500, "v": "v" * 400}


def test_a_column_may_have_a_name_of_ours() -> None:
    schema = TableSchema(
        "odd",
        (Column("id", ValueType("int64"), 1), Column("a b.c`", ValueType("text"), 2)),
        ("id",),
    )
    writer = Writer(Table(schema, indexes={"odd": ["a b.c`"]}))
    writer.put({"id": 1, "a b.c`": "x"})
    assert writer.table.lookup_all("odd", "x") == [{"id": 1, "a b.c`": "x"}]


@pytest.mark.process
def test_tables_are_imported_without_spark_and_the_engine() -> None:
    code = (
        "import sys, headrace.tables; "
        "bad = [m for m in sys.modules if m.split('.')[0] in ('pyspark', 'py4j', 'structlog')"
        " or m.startswith(('headrace.runtime', 'headrace.engine', 'headrace.pipeline'))"
        " or m.startswith('headrace.targets')]; "
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_columns_of_all_rows_are_listed_as_written_and_of_those_that_are_loaded() -> None:
    table = Table(ORDERS)
    assert table.list_rows(["id"]).num_rows == 0
    table.load(baseline(ORDERS, [{"id": 1, "email": "a", "grp": 1}, {"id": 2, "email": "b"}]))
    assert table.list_rows(["id"]).num_rows == 0
    assert table.list_rows(["email"], loading=True).to_pydict() == {"email": ["a", "b"]}
    table.switch(Position(1, 1))
    rows = changes(
        ORDERS, [(DELETE, Position(1, 2), {"id": 1}), (INSERT, Position(1, 2), {"id": 3})]
    )
    table.apply(rows, epoch=1, upto=Position(1, 2), publish=False)
    assert table.list_rows(["email", "id"]).to_pydict() == {"email": ["b", None], "id": [2, 3]}
    assert table.count() == 2
    with pytest.raises(UnknownColumn):
        table.list_rows(["ids"])


@pytest.mark.parametrize("key", ["int64", "text"])
def test_pages_of_a_table_that_grows_have_every_row_that_stays(key: str) -> None:
    kinds: dict[str, str | ValueType] = {"k": key, "n": "int32"}
    writer = shown(table_schema(("k",), **kinds))
    named = str if key == "text" else int
    stays = {named(number * 7 - 900) for number in range(150)}
    goes = [named(10_000 + number) for number in range(100)]
    writer.put(*({"k": value, "n": 0} for value in [*stays, *goes]))
    seen: list[object] = []
    after, pages = None, 0
    while True:
        version = writer.table.version()
        page = version.page(after, 13)
        seen += [version.row(number)["k"] for number in page.rows.tolist()]
        pages += 1
        if (after := page.after) is None:
            break
        # More keys than there is room for, and fewer; and updates of all that stay.
        writer.put(*({"k": named(20_000 + pages * 40 + n), "n": 0} for n in range(40)))
        writer.put(*({"k": value, "n": pages} for value in stays))
        writer.delete(*({"k": value} for value in goes[pages * 3 : pages * 3 + 3]))
    assert pages > 20
    assert len(set(seen)) == len(seen)
    assert stays <= set(seen)


@pytest.mark.parametrize("key", ["int64", "text"])
def test_pages_pass_over_keys_that_are_gone(key: str) -> None:
    kinds: dict[str, str | ValueType] = {"k": key, "n": "int32"}
    writer = shown(table_schema(("k",), **kinds))
    keys = [str(n) if key == "text" else n for n in range(3000)]
    writer.put(*({"k": value, "n": 0} for value in keys))
    writer.delete(*({"k": value} for n, value in enumerate(keys) if n % 20))
    version = writer.table.version()
    for limit in (5, 149, 150, 1000):
        seen: list[object] = []
        after = None
        while True:
            page = version.page(after, limit)
            seen += [version.row(number)["k"] for number in page.rows.tolist()]
            if (after := page.after) is None:
                break
            assert len(page.rows) == limit
        assert len(seen) == 150
        assert set(seen) == set(keys[::20])


def test_a_page_may_be_larger_than_the_table_and_a_table_empty() -> None:
    writer = shown(ORDERS)
    assert writer.table.version().page(None, 10).rows.tolist() == []
    assert writer.table.version().arrow(np.empty(0, np.int32)).num_rows == 0
    writer.put({"id": 1, "email": "a", "grp": None})
    page = writer.table.version().page(None, 10)
    assert (len(page.rows), page.after) == (1, None)
    assert writer.table.version().page(2**64 - 1, 10).rows.tolist() == []
