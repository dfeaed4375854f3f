"""`where` and `columns`: the rows that Spark's own filter would leave, and fewer bytes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.changelog.change import Change, Op, as_segment
from headrace.changelog.schema import TableSchema
from headrace.errors import BadExpression, BadValue, UnknownColumn, UnknownValue
from headrace.spark_source.slices import read_slice
from headrace.spark_source.source import Partition
from headrace.spark_source.where import parse_where, passing
from tests.changelog.log_making import (
    ORDERS,
    delete,
    insert,
    row_table,
    table,
    truncate,
    update,
)
from tests.pipeline.reading.made_log import MadeLog, ids, short

KINDS = {
    "id": "int64",
    "small": "int16",
    "price": "decimal(7,2)",
    "weight": "float64",
    "short": "float32",
    "status": "text",
    "paid": "boolean",
    "day": "date",
    "at": "timestamptz",
    "local": "timestamp",
    "odd name": "text",
    "free": "numeric",
    "blob": "bytes",
}
SCHEMA = table("orders", **KINDS)
NAN = float("nan")
ROWS: list[dict[str, Any]] = [
    {"id": 1, "small": 1, "price": Decimal("9.99"), "weight": 0.5, "short": 0.5, "status": "paid"},
    {"id": 2, "small": -5, "price": Decimal(10), "weight": NAN, "short": NAN, "status": "open"},
    {"id": 3, "status": None, "paid": None},
    {"id": 4, "small": 7, "price": Decimal("10.01"), "weight": -0.0, "status": "p%id"},
    {"id": 5, "paid": True, "day": date(2026, 1, 2), "status": "it's", "odd name": "x"},
    {
        "id": 6,
        "paid": False,
        "at": datetime(2026, 1, 2, 3, tzinfo=UTC),
        "status": "",
        "odd name": "C:\\tmp\\x",
    },
    {
        "id": 7,
        "local": datetime(2026, 1, 2, 3),
        "weight": 7.0,
        "status": "PAID",
        "odd name": "a.\nb\\",
    },
]
PREDICATES = {
    "id = 3": [3],
    "id == 3 or id = 5": [3, 5],
    "3 < id and id <= 6": [4, 5, 6],
    "not id > 2": [1, 2],
    "id <> 1 and id != 2": [3, 4, 5, 6, 7],
    "id in (1, 7, 99)": [1, 7],
    "id not in (1, 2, 3)": [4, 5, 6, 7],
    "id between 2 and 3": [2, 3],
    "id not between 2 and 6": [1, 7],
    "small > -6 and small < 2": [1, 2],
    "price >= 10": [2, 4],
    "price = 10.0": [2],
    "price < 10.005": [1, 2],
    "price in (9.99, 10.01)": [1, 4],
    "weight > 0.4": [1, 2, 7],
    "weight <= 7": [1, 4, 7],
    "weight = 0": [4],
    "weight <> 7.0": [1, 2, 4],
    "short >= 5e-1": [1, 2],
    "status = 'paid'": [1],
    "status = 'it''s'": [5],
    r"status = 'it\'s'": [5],
    "status like 'p%'": [1, 4],
    r"status like 'p\%id'": [4],
    "status like '_pen'": [2],
    "status not like '%i%'": [2, 6, 7],
    "status is null": [3],
    "status is not null and status <> ''": [1, 2, 4, 5, 7],
    "status <=> null": [3],
    "status <=> 'open'": [2],
    "not (status = 'paid' or id = 2)": [4, 5, 6, 7],
    "paid": [5],
    "not paid": [6],
    "paid = false": [6],
    "day = date '2026-01-02'": [5],
    "day > '2026-01-01'": [5],
    "at >= timestamp '2026-01-02T04:00:00+01:00'": [6],
    "local < timestamp_ntz '2026-01-02 03:00:01'": [7],
    "local = '2026-01-02 03:00:00'": [7],
    "`odd name` = 'x'": [5],
    "free is null and blob is null and id = 1": [1],
    r"status = 'p\%id' or status = 'p\0'": [],
    r"status like '%\\\\%'": [],
    r"`odd name` like '%tmp\\\\x'": [6],
    r"`odd name` not like '%tmp\\\\x'": [5, 7],
    r"`odd name` like '%\\\\'": [7],
    r"`odd name` like '%\\\\x%'": [6],
    "`odd name` like '_._b_'": [7],
    "`odd name` like '%.%'": [7],
    "`odd name` like 'A%'": [],
    "price < 12345678901234567890123456789012345678": [1, 2, 4],
    "_change_type = 'insert' and _commit_version = 4": [4],
    "_position > '0001-0000000000000006-00000000'": [7],
}


@pytest.fixture
def log(tmp_path: Path) -> MadeLog:
    return with_rows(tmp_path)


def with_rows(folder: Path) -> MadeLog:
    """Return a log of all `ROWS`."""
    made = MadeLog(folder)
    changes = [Change(Op.INSERT, n, 0, n * 1000, after=row) for n, row in enumerate(ROWS, 1)]
    made.flush(*changes, schema=SCHEMA)
    return made


@pytest.mark.parametrize(("text", "wanted"), PREDICATES.items(), ids=list(PREDICATES))
def test_a_predicate_leaves_the_rows_that_sql_would(
    log: MadeLog, text: str, wanted: list[int]
) -> None:
    assert ids(log.read(where=text)) == wanted
    assert ids(log.read(where=text, columns="id")) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "id > 1.5",
        "id = 'one'",
        "id = null",
        "small = 40000",
        "free > 1",
        "blob = 'x'",
        "at > '2026-01-02 03:00:00'",
        "local > '2026-01-02T03:00:00Z'",
        "status like 5",
        "id like '1%'",
        "id",
        "id = ",
        "id = 1 and",
        "(id = 1",
        "id = 1; drop table orders",
        "id + 1 = 2",
        "upper(status) = 'PAID'",
        "id in ()",
        "id = -'x'",
        # Spark reads a character by its number in these, or not, as more digits follow.
        r"status = '\u0041'",
        r"status = '\U00000041'",
        r"status = '\101'",
        r"status = '\1'",
        r"status = '\00'",
        # A backslash before nothing special is an error in Spark, too.
        r"status like 'a\\b'",
        r"status like 'a\\'",
        # A double to Spark, which then takes the column for one.
        "id = 9007199254740993e0",
        "price > 1e3",
        # A moment to Spark, which then takes the column for one, by the session's time zone.
        "local < timestamp '2026-01-02 03:00:01'",
        # More digits than a decimal has in Spark.
        "price < 123456789012345678901234567890123456789",
    ],
)
def test_what_would_not_mean_the_same_to_spark_is_refused(log: MadeLog, text: str) -> None:
    with pytest.raises(BadExpression) as caught:
        log.read(where=text)
    assert "load()" in str(caught.value)
    assert text not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "character"),
    [
        ("id = ", 5),
        ("status = 'paid' and  id + 1 = 2", 25),
        ("status = 'paid' ; id", 17),
        ("status = 'paid' and upper(status) = 'PAID'", 21),
        (r"status = 'a\101'", 12),
        ("status = 'paid' and weight = null", 30),
        ("status = 'paid' and 'x' id", 25),
        ("status = 'paid' like 'x'", 17),
    ],
)
def test_where_a_condition_is_wrong_is_told_in_characters(text: str, character: int) -> None:
    with pytest.raises(BadExpression) as caught:
        parse_where(text, {column.name: column.type for column in SCHEMA.columns})
    assert caught.value.facts == {"character": character}


def test_a_column_that_is_not_there_is_told_with_the_nearest(log: MadeLog) -> None:
    with pytest.raises(UnknownColumn, match="Did you mean status"):
        log.read(where="stats = 'paid'")


def test_deletes_are_looked_at_as_the_rows_that_they_show(tmp_path: Path) -> None:
    made = MadeLog(tmp_path)
    made.flush(insert(1), update(2, 10, old=1), delete(3, 10))
    assert short(made.read(where="id = 10")) == [(10, "insert", 2), (10, "delete", 3)]
    # Of what is not known of a row nothing is true.
    assert short(made.read(where="name = 'n3' or _change_type = 'delete'")) == [
        (1, "delete", 2),
        (10, "delete", 3),
    ]


def test_a_truncate_that_was_asked_for_is_of_all_rows(tmp_path: Path) -> None:
    made = MadeLog(tmp_path)
    made.flush(insert(1), truncate(2), insert(3))
    made.flush(truncate(4))
    for where in ("id > 1", "_change_type = 'insert' and id > 1"):
        assert short(made.read(onTruncate="row", where=where)) == [
            (None, "truncate", 2),
            (3, "insert", 3),
            (None, "truncate", 4),
        ]
    assert ids(made.read(onTruncate="ignore", where="id > 1")) == [3]


@pytest.mark.meets("R21")
@pytest.mark.parametrize("marks", ["true", "false"])
def test_a_row_of_which_nobody_knows_whether_it_passes_is_not_left_out(
    tmp_path: Path, marks: str
) -> None:
    made = MadeLog(tmp_path)
    sent = update(2, 1)
    rows = as_segment(ORDERS, [insert(1), replace(sent, after={"id": 1, "name": None})])
    unsent = pa.array([None, [2]], rows.schema.field("_unsent").type)
    rows = rows.set_column(rows.schema.get_field_index("_unsent"), "_unsent", unsent)
    made.flush_rows(rows)
    with pytest.raises(UnknownValue, match=r"column=name.*filter after load\(\)"):
        made.read(marks=marks, where="name = 'n1'")
    assert len(made.read(marks="true", where="id = 1")) == 2


@pytest.mark.meets("R23f")
def test_in_a_baseline_too_only_rows_that_pass_must_be_known(tmp_path: Path) -> None:
    made = MadeLog(tmp_path)
    made.flush(insert(1))
    copy = made.writer.baseline(ORDERS)
    exact = pa.array([None, [(2, "1.5")]], ORDERS.segment.field("_exact").type)
    copy.write(row_table(ORDERS, {"id": 1, "name": "a"}, {"id": 2, "name": None}), exact)
    copy.finish(1, 1)
    begin = {"startingPosition": "baseline"}
    assert ids(made.read(**begin, where="id = 1")) == [1]
    with pytest.raises(BadValue, match="column=name"):
        made.read(**begin, where="id = 2")
    assert ids(made.read(**begin, where="id = 2", marks="true")) == [2]
    with pytest.raises(BadValue, match="filter after"):
        made.read(**begin, where="name = 'a'", marks="true")


def test_a_literal_is_compared_in_the_frames_type_with_older_and_narrower_values(
    tmp_path: Path,
) -> None:
    made = MadeLog(tmp_path)
    for key, kind in ((1, "int32"), (2**40, "int64")):
        row = Change(Op.INSERT, key, 0, key, after={"id": key})
        made.flush(row, schema=table("orders", id=kind))
    for where, wanted in (
        ("id < 1099511627776", [1]),
        ("id in (1, 1099511627776)", [1, 2**40]),
        ("id not in (1099511627776)", [1]),
    ):
        assert ids(made.read(onSchemaChange="continue", where=where)) == wanted


def test_kleene_decides_what_is_unknown() -> None:
    types = {column.name: column.type for column in SCHEMA.columns}
    values = {"id": pa.array([None, 1]), "status": pa.array(["paid", None])}
    either = parse_where("id = 1 or status = 'paid'", types)
    assert passing(either, values.__getitem__).tolist() == [True, True]
    both = parse_where("not (id = 1 and status = 'paid')", types)
    assert passing(both, values.__getitem__).tolist() == [False, False]


# --- bytes ------------------------------------------------------------------------------------


def bytes_read(log: MadeLog, **options: object) -> tuple[int, int]:
    """Return how many bytes of segments were read, and how many rows that gave."""
    total = rows = 0

    class Raw:
        def __init__(self, path: str) -> None:
            self._file = Path(path).open("rb")  # noqa: SIM115 - closed by who opened it

        def read(self, count: int = -1) -> bytes:
            nonlocal total
            data = self._file.read(count)
            total += len(data)
            return data

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    for partition in log.reader(**options).partitions():
        if isinstance(partition, Partition):
            for each in partition.slices:
                opened = lambda path: pa.PythonFile(Raw(path), "r")  # noqa: E731
                for batch in read_slice(partition.task, each, opened):
                    rows += batch.num_rows
    return total, rows


@pytest.fixture
def wide(tmp_path: Path) -> MadeLog:
    """Return two segments of which one column has nearly all bytes."""
    made = MadeLog(tmp_path)
    schema: TableSchema = table("orders", id="int64", status="text", body="text")
    for first in (0, 1000):
        made.flush(
            *(
                Change(
                    Op.INSERT,
                    first + n,
                    0,
                    n,
                    after={"id": first + n, "status": "open", "body": "x" * 1000},
                )
                for n in range(1, 1001)
            ),
            schema=schema,
        )
    return made


def test_columns_that_are_not_wanted_are_not_read(wide: MadeLog) -> None:
    whole, rows = bytes_read(wide)
    some, same = bytes_read(wide, columns="id,status")
    assert rows == same == 2000
    assert whole > 2_000_000
    # A footer is read in one go with what stands before it.
    assert some < whole / 8


def test_where_no_row_passes_only_what_decides_that_is_read(wide: MadeLog) -> None:
    whole, _ = bytes_read(wide)
    half, rows = bytes_read(wide, where="id > 1500")
    assert rows == 500
    assert half < whole * 0.6
    none, rows = bytes_read(wide, where="status = 'paid'")
    assert rows == 0
    assert none < whole / 10


def test_segments_of_which_the_index_tells_enough_are_not_opened(wide: MadeLog) -> None:
    assert bytes_read(wide, where="_change_type = 'delete'") == (0, 0)
    assert bytes_read(wide, where="_commit_version > 5000") == (0, 0)
    assert bytes_read(wide, where="_commit_timestamp > '2026-01-01T00:00:00Z'") == (0, 0)
    one, rows = bytes_read(wide, columns="id", where="_commit_version <= 1000")
    both, _ = bytes_read(wide, columns="id")
    assert rows == 1000
    assert one < both * 0.6
