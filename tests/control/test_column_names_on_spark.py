"""Columns that have the names of ours, on real Spark: of a change, of a result, of a step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import headrace as hr
from headrace.testing import MemorySource
from tests.support.shop import PATIENCE, await_seen

if TYPE_CHECKING:
    from headrace.spark_session.session import Spark

pytestmark = [pytest.mark.spark, pytest.mark.ci]

SEGMENT = ("_op", "_commit", "_ordinal", "_xid", "_time", "_unsent", "_exact", "before", "after")
FRAME = ("_failed", "_place", "_change", "_position", "0", "1", "_h", "_h_op", "bad", "_moved")
NAMES = (*SEGMENT, *FRAME)


def row(key: int, text: str) -> dict[str, object]:
    return {"id": key, **{name: f"{text} {name}" for name in NAMES}}


def joined(row: dict[str, object]) -> dict[str, object]:
    """A function of a user's."""
    return {"made": f"{row['_op']}, {row['_time']}"}


def steps() -> dict[str, tuple[list[Any], list[Any], str]]:
    """Return filters, transforms and a column of their result; a `Column` needs a session."""
    return {
        "none": ([], [], "_op"),
        "text": ([hr.where("_time <> 'x' and `0` <> 'x'")], [hr.derive(made="_op || `1`")], "made"),
        "column": (
            [hr.where(F.col("_commit") != "x")],
            [hr.derive(made=F.concat("_op", "after"))],
            "made",
        ),
        "function": (
            [],
            [hr.function(joined, columns={"made": "string"}, reads=["_op", "_time"])],
            "made",
        ),
        "timestamp": ([], [hr.timestamp("at"), hr.rename(_time="before_at")], "before_at"),
        "failing": ([], [hr.derive(made="cast(substr(_op, 1, 1) as int)")], "made"),
    }


EXPECTED = {
    "none": "{} _op",
    "text": "{0} _op{0} 1",
    "column": "{0} _op{0} after",
    "function": "{0} _op, {0} _time",
    "timestamp": "{} _time",
}


def test_a_column_may_have_any_name(tmp_path: Path, spark: Spark) -> None:
    source = MemorySource("shop")
    source.set_schema("orders", {"id": "int64", **dict.fromkeys(NAMES, "text")}, ["id"])
    source.add_row("orders", row(1, "1"))
    source.add_row("orders", row(2, "2"))
    made = steps()
    targets = {name: hr.memory() for name in made}
    pipelines = [
        hr.Pipeline(
            source, "orders", targets[name], name=name, filters=filters, transforms=transforms
        )
        for name, (filters, transforms, _) in made.items()
    ]
    with hr.Engine(
        *pipelines, data=tmp_path / "data", spark=spark.session, recorder="thread"
    ) as engine:
        assert engine.await_ready(PATIENCE), engine.pipelines()
        source.emit_insert("orders", row(3, "3"))
        source.emit_update("orders", row(1, "4"))
        source.emit_delete("orders", 2)
        source.emit_insert("orders", row(5, "x"))

        def arrived() -> bool:
            errors = [each.error for each in engine.pipelines() if each.error is not None]
            assert errors == []
            return all(
                target.get(5 if name != "failing" else 3) is not None and target.get(2) is None
                for name, target in targets.items()
            )

        assert await_seen(arrived)
        for name, expected in EXPECTED.items():
            column = made[name][2]
            found = {each["id"]: each[column] for each in targets[name].all()}
            assert found == {1: expected.format(4), 3: expected.format(3), 5: expected.format("x")}
            if name == "none":
                assert dict(targets[name].get(1) or {}) == row(1, "4")
        assert {each["id"]: each["made"] for each in targets["failing"].all()} == {1: 4, 3: 3}
        (letter,) = engine.dead_letters()
        assert (letter.key, letter.after) == ((5,), row(5, "x"))
