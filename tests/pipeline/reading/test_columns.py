"""Columns that come, go and change their names: by which schema came first, not by their ids."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from headrace.changelog.index import history_of, state_of
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import ColumnsChanged
from headrace.spark_source.columns import Fit, filled
from tests.changelog.log_making import ORDERS, insert
from tests.pipeline.reading.made_log import MadeLog, collected, ids, short

NOTE = Column("note", ValueType("text"), 3, missing="none")
WITH_NOTE = TableSchema("orders", (*ORDERS.columns, NOTE), ("id",))
RENAMED = replace(ORDERS, columns=(ORDERS.columns[0], replace(ORDERS.columns[1], name="title")))


def noted(log: MadeLog) -> None:
    log.flush(replace(insert(1), after={"id": 1, "name": "a", "note": "x"}), schema=WITH_NOTE)


def test_the_youngest_column_is_told_when_it_is_dropped(log: MadeLog) -> None:
    noted(log)
    stream = log.stream()
    log.flush(insert(2))
    assert [(row["id"], row["note"]) for row in stream.batch() or []] == [(1, "x")]
    with pytest.raises(ColumnsChanged, match=r"note dropped, position=0001-0{15}2-.*load\(\)"):
        stream.batch()


def test_a_frame_from_before_a_column_was_dropped_does_not_fill_it(log: MadeLog) -> None:
    noted(log)
    reader = log.reader(where="note = 'none'")
    log.flush(insert(2))
    with pytest.raises(ColumnsChanged, match="note dropped"):
        reader.partitions()


@pytest.mark.parametrize("added", [False, True], ids=["youngest", "not the youngest"])
def test_a_dropped_column_is_null_for_who_keeps_it(log: MadeLog, added: bool) -> None:
    noted(log)
    stream = log.stream(onSchemaChange="continue")
    none = log.reader(onSchemaChange="continue", where="note = 'none'")
    more = (Column("more", ValueType("text"), 4),) if added else ()
    log.flush(insert(2), schema=replace(ORDERS, columns=(*ORDERS.columns, *more)))
    assert [row["note"] for row in stream.batch() or []] == ["x", None]
    assert collected(none, none.partitions()).num_rows == 0


def test_segments_with_a_column_that_is_gone_are_read_without_it(log: MadeLog) -> None:
    noted(log)
    log.flush(insert(2))
    assert [sorted(row)[-2:] for row in log.read()] == [["id", "name"]] * 2
    assert [ids(batch) for batch in log.stream().all()] == [[1, 2]]


def test_a_schema_that_is_read_late_is_one_from_before(log: MadeLog) -> None:
    log.flush(insert(1))
    log.flush(replace(insert(2), after={"id": 2, "title": "b"}), schema=RENAMED)
    log.flush(insert(3))
    log.flush(replace(insert(4), after={"id": 4, "title": "d"}), schema=RENAMED)
    assert [row["title"] for row in log.read()] == ["n1", "b", "n3", "d"]
    assert [len(batch) for batch in log.stream().all()] == [4]


def test_a_column_that_came_again_is_another_one(log: MadeLog) -> None:
    noted(log)
    log.flush(insert(2))
    again = replace(ORDERS, columns=(*ORDERS.columns, replace(NOTE, field=4, missing="new")))
    log.flush(replace(insert(3), after={"id": 3, "name": "c", "note": "y"}), schema=again)
    assert [row["note"] for row in log.read()] == ["new", "new", "y"]


def test_which_schemas_were_read_late_is_kept_with_the_state(log: MadeLog) -> None:
    log.flush(insert(1))
    log.flush(replace(insert(2), after={"id": 2, "title": "b"}), schema=RENAMED)
    log.flush(insert(3))
    log.writer.describe({"orders": WITH_NOTE})
    noted_late = replace(insert(4), after={"id": 4, "name": "d", "note": "x"})
    log.flush(noted_late, schema=WITH_NOTE)
    log.writer.require_baseline("orders", "columns")
    written = log.writer.history
    read = history_of(state_of(written, log.writer.head()))
    for history in (written, read):
        known = history.tables["orders"]
        assert [known.rank(number) for number in known.schemas] == [1, 2, 1, 4]
        assert [each.reason for each in known.rebaselines] == ["columns"]


def test_who_chose_his_columns_is_told_only_of_those(log: MadeLog) -> None:
    noted(log)
    chosen, others = log.stream(columns="id,note"), log.stream(columns="id,name")
    log.flush(insert(2))
    assert short(others.batch() or []) == [(1, "insert", 1), (2, "insert", 2)]
    assert ids(chosen.batch() or []) == [1]
    with pytest.raises(ColumnsChanged, match="note dropped"):
        chosen.batch()


@pytest.mark.parametrize(
    ("kind", "text", "wanted"),
    [
        ("boolean", "t", True),
        ("boolean", "f", False),
        ("boolean", "true", True),
        ("int16", "-5", -5),
        ("int32", "5", 5),
        ("int64", "9223372036854775807", 2**63 - 1),
        ("float32", "1.5", 1.5),
        ("float64", "-1e-07", -1e-07),
        ("decimal(7,2)", "10.00", Decimal("10.00")),
        ("text", "t", "t"),
        ("json", '{"a": 1}', '{"a": 1}'),
        ("date", "2026-01-02", date(2026, 1, 2)),
        ("timestamp", "2026-01-02 03:04:05.000006", datetime(2026, 1, 2, 3, 4, 5, 6)),
        ("timestamptz", "2026-01-02 03:04:05.5+00", datetime(2026, 1, 2, 3, 4, 5, 500_000, UTC)),
        ("timestamptz", "2026-01-02 03:04:05+05:30", datetime(2026, 1, 1, 21, 34, 5, 0, UTC)),
    ],
)
def test_what_older_rows_have_is_read_as_postgres_writes_it(
    kind: str, text: str, wanted: object
) -> None:
    column = Column("c", ValueType.parse(kind), 3, missing=text)
    assert filled(Fit(column, None, 3), 2).to_pylist() == [wanted, wanted]
