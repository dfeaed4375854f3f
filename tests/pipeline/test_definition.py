from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest

from headrace.errors import BadExpression, BadTransform, HeadraceError, UnknownColumn
from headrace.pipeline.definition import Pipeline, derive, drop, equals, rename, where
from tests.pipeline.making import ORDERS, pipeline, table


def errors(**given: Any) -> list[HeadraceError]:
    return pipeline(**given).check(ORDERS)


def test_a_sound_pipeline_has_no_errors() -> None:
    assert not errors(
        filters=[equals("status", "paid"), where("qty > 1")],
        transforms=[drop("price"), rename(qty="amount", id="key"), derive(double="amount * 2")],
    )


def test_all_errors_are_found_together() -> None:
    found = errors(
        filters=[equals("nope", 1), where("  ")],
        transforms=[drop("gone"), rename(qty="price"), derive(id="1")],
    )
    assert [type(error) for error in found] == [
        UnknownColumn,
        BadExpression,
        UnknownColumn,
        BadTransform,
        BadTransform,
    ]


def test_an_unknown_column_is_named_with_the_columns_there_are() -> None:
    (error,) = errors(filters=[equals("stat", 1)])
    assert error.message == (
        "Filter 1 names the column stat, and there is none; there are id, status, qty, price"
    )


@pytest.mark.meets("R23")
@pytest.mark.parametrize("transform", [drop("id"), derive(id="id + 1")])
def test_the_key_may_be_neither_dropped_nor_computed(transform: object) -> None:
    (error,) = errors(transforms=[transform])
    assert isinstance(error, BadTransform)
    assert error.facts == {"column": "id"}


@pytest.mark.meets("R23")
def test_a_renamed_key_is_still_the_key() -> None:
    (error,) = errors(transforms=[rename(id="number"), drop("number")])
    assert error.facts == {"column": "number"}
    assert not errors(transforms=[rename(id="number"), derive(id="1")])


def test_two_columns_cannot_get_one_name() -> None:
    (error,) = errors(transforms=[rename(qty="status")])
    assert isinstance(error, BadTransform)
    assert error.facts == {"column": "status"}


def test_two_columns_can_exchange_their_names() -> None:
    assert not errors(transforms=[rename(qty="price", price="qty")])


def test_a_transform_sees_the_columns_as_the_one_before_left_them() -> None:
    assert not errors(transforms=[rename(qty="amount"), drop("amount")])
    (error,) = errors(transforms=[drop("qty"), rename(qty="amount")])
    assert isinstance(error, UnknownColumn)


@pytest.mark.parametrize("transform", [drop(), rename(), derive(), rename(qty=""), derive(x=" ")])
def test_an_empty_transform_is_an_error(transform: object) -> None:
    assert len(errors(transforms=[transform])) == 1


def test_every_column_dropped_leaves_no_table() -> None:
    bare = table(("a", "text"), key=())
    assert [e.message for e in pipeline(transforms=[drop("a")]).check(bare)] == [
        "Transform 1 drops every column"
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "1"),
        ("id", 2**63),
        ("id", True),
        ("status", 1),
        ("qty", 2**31),
        ("price", Decimal("1.234")),
    ],
)
def test_a_value_that_no_row_can_have_is_an_error(field: str, value: object) -> None:
    (error,) = errors(filters=[equals(field, value)])
    assert isinstance(error, BadExpression)
    assert str(value) not in error.message.removeprefix("Filter 1")


@pytest.mark.parametrize("expression", [1, None, ["qty > 1"]])
def test_an_expression_is_text_or_a_column(expression: Any) -> None:
    (error,) = errors(filters=[where(expression)])
    assert isinstance(error, BadExpression)


def test_one_table_can_be_given_in_a_list_and_several_are_refused() -> None:
    some: Any = object()
    assert Pipeline(some, target=some, tables=["orders"]).table == "orders"
    for tables in ([], ["a", "b"]):
        with pytest.raises(BadTransform):
            Pipeline(some, target=some, tables=tables)
    with pytest.raises(BadTransform):
        Pipeline(some, "a", some, tables=["b"])


def test_a_pipeline_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        pipeline().table = "other"  # type: ignore[misc]


def test_defining_and_checking_a_pipeline_loads_no_spark() -> None:
    program = (
        "import sys; from tests.pipeline.test_definition import "
        "test_a_sound_pipeline_has_no_errors as check; check(); assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": "src:."})
