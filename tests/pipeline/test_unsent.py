"""Steps that read a column which an update may leave out, as far as Spark is not needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.capture.messages import FoundTable
from headrace.changelog.history import as_columns, as_table
from headrace.changelog.schema import TableSchema
from headrace.errors import UnsentColumn
from headrace.pipeline.steps import (
    derive,
    drop,
    equals,
    frame,
    function,
    mask,
    prefix,
    regex,
    rename,
    timestamp,
    where,
)
from tests.pipeline.making import pipeline, table

pytestmark = pytest.mark.meets("R21")


def unsent(schema: TableSchema, *names: str) -> TableSchema:
    """The table, with columns that an update may come without."""
    columns = (replace(each, may_be_unsent=each.name in names) for each in schema.columns)
    return replace(schema, columns=tuple(columns))


SENT = table(("id", "int64"), ("status", "text"), ("note", "text"), ("body", "text"))
LONG = unsent(SENT, "note", "body")


def refused(**given: Any) -> list[str]:
    """What is said of the steps; of the same ones nothing is said where every value is sent."""
    assert not pipeline(**given).check(SENT)
    found = pipeline(**given).check(LONG)
    assert all(isinstance(error, UnsentColumn) for error in found)
    assert all(error.facts["table"] == "orders" for error in found)
    return [error.message.removesuffix(", which an update may leave out") for error in found]


@pytest.mark.parametrize("filter_", [equals("note", "x"), prefix("note", "x"), regex("note", "x")])
def test_a_filter_on_such_a_column_is_refused(filter_: object) -> None:
    assert refused(filters=[equals("status", "paid"), filter_]) == [
        "Filter 2 reads the column note"
    ]


def test_a_function_is_refused_unless_it_names_other_columns() -> None:
    assert refused(filters=[function(bool)]) == ["Filter 1 may read the columns body, note"]
    assert not refused(filters=[function(bool, reads=["id", "status"])])
    size = {"size": "int"}
    assert refused(transforms=[function(len, reads=["note"], columns=size)]) == [
        "Transform 1 reads the column note"
    ]
    assert not refused(transforms=[function(len, reads=["status"], columns=size)])


def test_a_frame_is_refused_unless_all_of_them_are_dropped_before() -> None:
    assert refused(transforms=[drop("note"), frame(lambda df: df)]) == [
        "Transform 2 may read the column body"
    ]
    assert not refused(transforms=[drop("note", "body"), frame(lambda df: df)])


def test_a_column_is_known_by_the_name_it_was_given() -> None:
    steps = [rename(note="status", status="note"), mask("note"), mask("status")]
    assert refused(transforms=steps) == ["Transform 3 reads the column status"]


def test_what_is_left_out_renamed_or_made_anew_is_not_read() -> None:
    assert not refused(transforms=[drop("note"), rename(body="text")])
    assert not refused(
        transforms=[timestamp("note"), drop("body"), function(id, columns={"x": "int"})]
    )
    assert not refused(
        transforms=[derive(note="'none'"), mask("note"), rename(status="note2", note="status")]
    )


def test_what_an_expression_reads_is_for_spark_to_tell() -> None:
    assert not refused(filters=[where("note like 'x%'")], transforms=[derive(size="length(body)")])


def test_every_way_out_is_named() -> None:
    (error,) = pipeline(filters=[equals("note", "x")]).check(LONG)
    for way in ("REPLICA IDENTITY FULL", "toast_store", "published columns", "drop", "reads"):
        assert way in error.remedy


def test_the_engine_hears_of_it_and_no_log_keeps_it() -> None:
    heard = FoundTable.of(LONG).schema
    assert [column.may_be_unsent for column in heard.columns] == [False, False, True, True]
    kept = as_table(LONG.table, as_columns(LONG), LONG.key, LONG.whole_before)
    assert kept == LONG == SENT
    assert not any(column.may_be_unsent for column in kept.columns)
