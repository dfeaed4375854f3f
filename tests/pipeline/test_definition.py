from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest

from headrace.errors import (
    BadExpression,
    BadFunction,
    BadTransform,
    HeadraceError,
    UnknownColumn,
)
from headrace.pipeline.definition import Pipeline
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
        "Filter 1 names the column stat, which does not exist; columns: id, status, qty, price"
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
        "Transform 1 drops all columns"
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


@pytest.mark.parametrize("make", [prefix, regex])
def test_texts_are_compared_with_columns_of_text(make: Any) -> None:
    assert not errors(filters=[make("status", "pa")])
    (error,) = errors(filters=[make("qty", "1")])
    assert isinstance(error, BadExpression)
    assert error.facts == {"column": "qty"}
    assert error.message == "Filter 1: A column of type int32 is not text"
    (error,) = errors(filters=[make("nope", "1")])
    assert isinstance(error, UnknownColumn)
    for text in (1, None, "\ud800"):
        (error,) = errors(filters=[make("status", text)])
        assert isinstance(error, BadExpression)


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        (drop("id"), "a key column can be renamed"),
        (derive(id="qty"), "a key column can be renamed"),
        (rename(qty="status"), "unique name"),
        (rename(qty=""), "Give every column a name"),
        (derive(**{"": "qty"}), "Give every column a name"),
        (mask("status", with_="\ud800"), "with_="),
    ],
)
def test_the_remedy_of_a_step_fits_what_is_wrong_with_it(wrong: Any, remedy: str) -> None:
    (error,) = errors(transforms=[wrong])
    assert isinstance(error, BadTransform)
    assert remedy in error.remedy
    assert error.remedy != BadTransform.remedy


@pytest.mark.meets("R23")
def test_only_text_that_is_not_the_key_is_masked() -> None:
    assert not errors(transforms=[mask("status"), mask("status", keep=4, with_="x")])
    named = table(("id", "text"), ("v", "variant"))
    (error,) = pipeline(transforms=[mask("id")]).check(named)
    assert error.message == "Transform 1 masks the key column id"
    for name, found in (
        ("qty", errors(transforms=[mask("qty")])),
        ("v", pipeline(transforms=[mask("v")]).check(named)),
    ):
        (error,) = found
        assert isinstance(error, BadTransform)
        assert error.facts == {"column": name}
        assert "derive" in error.remedy
    # Of a derived column only Spark knows the type.
    assert not errors(transforms=[derive(x="qty"), mask("x")])


@pytest.mark.parametrize(
    "transform",
    [
        mask(),
        mask("status", keep=-1),
        mask("status", with_=""),
        mask("status", with_="ab"),
        mask("nope"),
        timestamp(""),
        timestamp("at", of="clock"),
        timestamp("id"),
        frame("df"),  # type: ignore[arg-type]
    ],
)
def test_a_transform_that_cannot_be_done_is_an_error(transform: object) -> None:
    assert len(errors(transforms=[transform])) == 1


@pytest.mark.meets("TRF-03", "R23g")
def test_a_time_that_the_log_does_not_have_is_refused_with_those_that_it_has() -> None:
    assert not errors(transforms=[timestamp("at"), timestamp("seen", of="capture")])
    (error,) = errors(transforms=[timestamp("at", of="apply")])
    assert isinstance(error, BadTransform)
    assert '"commit" or "capture"' in error.message
    assert 'of="commit"' in error.remedy
    assert 'of="capture"' in error.remedy


def is_paid(row: dict[str, Any]) -> bool:
    return bool(row["status"] == "paid")


@pytest.mark.meets("S10")
@pytest.mark.parametrize(
    "filter_",
    [
        function("no path"),
        function("module:"),
        function(":name"),
        function(5),  # type: ignore[arg-type]
        function(is_paid, columns={"x": "int"}),
        function(is_paid, reads=[]),
        function(is_paid, reads=["nope"]),
        function(is_paid, reads=["qty", "qty"]),
        function(is_paid, time_limit=0),
        function(is_paid, time_limit=float("inf")),
    ],
)
def test_a_filter_that_is_no_function_is_an_error(filter_: object) -> None:
    (error,) = errors(filters=[filter_])
    assert isinstance(error, BadFunction | UnknownColumn)


@pytest.mark.meets("S10", "R23")
def test_a_function_declares_columns_that_are_not_the_key() -> None:
    made = function(is_paid, columns={"total": "double", "qty": "int"}, reads=["qty", "id"])
    assert not errors(filters=[function("shop.rules:is_paid")], transforms=[made, drop("total")])
    for columns, kind in (
        ({"id": "bigint"}, BadTransform),
        ({"": "int"}, BadTransform),
        ({"x": " "}, BadFunction),
        ({}, BadFunction),
        (None, BadFunction),
    ):
        (error,) = errors(transforms=[function(is_paid, columns=columns)])
        assert isinstance(error, kind)


def test_a_function_is_called_by_its_name() -> None:
    assert function(is_paid).name == "is_paid"
    assert function("shop.rules:is_paid").name == "shop.rules:is_paid"


@pytest.mark.meets("S17")
def test_a_frame_shows_no_column_whose_name_is_ours() -> None:
    def same(df: Any) -> Any:
        return df

    taken = table(("id", "int64"), ("_op", "text"), ("_time", "text"))
    found = pipeline(transforms=[frame(same)]).check(taken)
    assert [error.facts["column"] for error in found] == ["_op", "_time"]
    assert all("rename(" in error.remedy for error in found)
    renamed = [rename(_op="op", _time="time"), frame(same)]
    assert not pipeline(transforms=renamed).check(taken)


@pytest.mark.meets("S17")
def test_behind_a_frame_names_are_not_known_but_the_key_is() -> None:
    def same(df: Any) -> Any:
        return df

    assert not errors(transforms=[frame(same), drop("new"), rename(newer="newest"), mask("newest")])
    assert not errors(transforms=[frame(same), mask("qty"), rename(price="status")])
    (error,) = errors(transforms=[frame(same), drop("id")])
    assert error.facts == {"column": "id"}
    (error,) = errors(transforms=[frame(same), frame(same)])
    assert "second frame" in error.message
    (error,) = errors(transforms=[frame(same), function(is_paid, columns={"x": "int"})])
    assert "comes after a frame" in error.message
    by_batch = function(is_paid, columns={"x": "int"}, batch=True)
    assert not errors(transforms=[frame(same), by_batch])


def test_a_pipeline_takes_tables_each_once() -> None:
    some: Any = object()
    assert Pipeline(some, target=some, tables=["orders"]).tables == ("orders",)
    assert Pipeline(some, "a", some, tables=["b"]).tables == ("a", "b")
    for given in ([], ["a", "a"]):
        with pytest.raises(BadTransform):
            Pipeline(some, target=some, tables=given)


def test_a_pipeline_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        pipeline().tables = ("other",)  # type: ignore[misc]


@pytest.mark.process
def test_defining_and_checking_a_pipeline_loads_no_spark() -> None:
    program = (
        "import sys; from tests.pipeline.test_definition import "
        "test_a_sound_pipeline_has_no_errors as check; check(); assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": "src:."})
