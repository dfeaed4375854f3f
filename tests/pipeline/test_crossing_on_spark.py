"""What becomes of a change whose images lie inside or outside a filter (R22, R23)."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.capture.source import SourceTraits
from headrace.changelog.change import Change
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.runner import SparkRunner
from headrace.pipeline.steps import derive, equals, rename, where
from tests.pipeline.making import (
    ORDERS,
    REPLACING,
    TRAITS,
    delete,
    insert,
    pipeline,
    row_tuples,
    run,
    truncate,
    update,
)
from tests.support.arrow_runner import ArrowRunner

if TYPE_CHECKING:
    from headrace.spark_session.session import Spark

pytestmark = pytest.mark.spark


def row(id: int, status: str | None = "paid") -> dict[str, Any]:
    return {"id": id, "status": status, "qty": id * 10, "price": Decimal("9.99")}


def filtered(how: str) -> Pipeline:
    """The same pipeline, once as text, once as a column, once as a typed comparison."""
    from pyspark.sql import functions as F

    condition = {
        "text": where("status = 'paid'"),
        "column": where(F.col("status") == "paid"),
        "equals": equals("status", "paid"),
    }[how]
    return pipeline(filters=[condition])


BOTH_WAYS = pytest.mark.parametrize("how", ["text", "column", "equals"])
IN, OUT = "paid", "new"

CROSSINGS: list[tuple[str, Change, list[tuple[Any, ...]], list[tuple[Any, ...]]]] = [
    # what happens, the change, what follows from it, and what where inserts replace
    ("comes in", insert(1, row(1, IN)), [("insert", 1, IN)], [("insert", 1, IN)]),
    ("comes outside", insert(1, row(1, OUT)), [], [("delete", 1, None)]),
    ("stays in", update(1, row(1, IN), row(1, IN)), [("update", 1, IN)], [("update", 1, IN)]),
    ("enters", update(1, row(1, OUT), row(1, IN)), [("insert", 1, IN)], [("insert", 1, IN)]),
    ("leaves", update(1, row(1, IN), row(1, OUT)), [("delete", 1, None)], [("delete", 1, None)]),
    ("stays out", update(1, row(1, OUT), row(1, OUT)), [], [("delete", 1, None)]),
    ("goes", delete(1, row(1, IN)), [("delete", 1, None)], [("delete", 1, None)]),
    ("goes outside", delete(1, row(1, OUT)), [], []),
    (
        "moves inside",
        update(1, row(1, IN), row(2, IN)),
        [("delete", 1, None), ("update", 2, IN)],
        [("delete", 1, None), ("update", 2, IN)],
    ),
    (
        "moves in",
        update(1, row(1, OUT), row(2, IN)),
        [("insert", 2, IN)],
        [("insert", 2, IN)],
    ),
    (
        "moves out",
        update(1, row(1, IN), row(2, OUT)),
        [("delete", 1, None)],
        [("delete", 1, None), ("delete", 2, None)],
    ),
    ("moves outside", update(1, row(1, OUT), row(2, OUT)), [], [("delete", 2, None)]),
    (
        "is in, before unknown",
        update(1, None, row(1, IN)),
        [("update", 1, IN)],
        [("update", 1, IN)],
    ),
    (
        "is out, before unknown",
        update(1, None, row(1, OUT)),
        [("delete", 1, None)],
        [("delete", 1, None)],
    ),
]


@pytest.mark.meets("R22", "R23")
@BOTH_WAYS
@pytest.mark.parametrize("traits", [TRAITS, REPLACING], ids=["plain", "replacing"])
def test_a_change_is_told_as_what_it_amounts_to_within_the_filter(
    spark: Spark, tmp_path: Path, how: str, traits: SourceTraits
) -> None:
    runner, replaces = SparkRunner(spark), traits.inserts_replace
    changes, expected = [], []
    for commit, (_, change, plain, replacing) in enumerate(CROSSINGS, 1):
        changes.append(Change(change.op, commit, 0, commit, change.before, change.after))
        expected += [(op, commit, id, s) for op, id, s in (replacing if replaces else plain)]
    result = run(runner, filtered(how), tmp_path, ORDERS, changes, traits=traits)
    assert row_tuples(result, "id", "status") == expected


@pytest.mark.meets("R22", "R23")
@BOTH_WAYS
@pytest.mark.parametrize("traits", [TRAITS, REPLACING], ids=["plain", "replacing"])
@pytest.mark.parametrize("crossing", ["comes in", "comes outside", "leaves", "goes outside"])
def test_a_change_alone_in_its_batch_is_told_the_same(
    spark: Spark, tmp_path: Path, how: str, traits: SourceTraits, crossing: str
) -> None:
    # Alone it takes the narrowest plan, in company of the others the widest.
    _, change, plain, replacing = next(each for each in CROSSINGS if each[0] == crossing)
    result = run(SparkRunner(spark), filtered(how), tmp_path, ORDERS, [change], traits=traits)
    expected = replacing if traits.inserts_replace else plain
    assert [(op, id, s) for op, _, id, s in row_tuples(result, "id", "status")] == expected


@pytest.mark.meets("R22", "R23")
@pytest.mark.parametrize("seed", range(6))
def test_spark_and_the_runner_of_simulations_agree(spark: Spark, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    traits = chance.choice([TRAITS, REPLACING])
    filters = chance.choice([[], [equals("status", IN)], [equals("status", IN), equals("qty", 10)]])
    renamed = [rename(id="key", qty="amount")] if chance.random() < 0.5 else []
    what = pipeline(filters=filters, transforms=renamed)
    changes = [_any_change(chance, commit) for commit in range(1, 60)]
    kinds = chance.choice([{0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}])
    changes = [change for change in changes if int(change.op) in kinds]
    ours = run(SparkRunner(spark), what, tmp_path, ORDERS, changes, traits=traits)
    theirs = run(ArrowRunner(), what, tmp_path, ORDERS, changes, traits=traits)
    assert ours.rows.to_pylist() == theirs.rows.to_pylist()
    assert ours.truncate == theirs.truncate


def _any_change(chance: random.Random, commit: int) -> Change:
    def image(id: int) -> dict[str, Any]:
        return row(id, chance.choice([IN, OUT, None])) | {"qty": chance.choice([10, None, 20])}

    id = chance.randrange(5)
    match chance.randrange(10):
        case 0:
            return truncate(commit)
        case 1 | 2:
            return delete(commit, image(id))
        case 3 | 4 | 5:
            return insert(commit, image(id))
        case 6:
            return update(commit, image(id), image(id + 1))
        case _:
            return update(commit, image(id), image(id))


@pytest.mark.meets("R23d")
@BOTH_WAYS
def test_a_truncate_clears_what_came_before_it_in_the_batch(
    spark: Spark, tmp_path: Path, how: str
) -> None:
    changes = [insert(1, row(1)), truncate(2), insert(3, row(3)), truncate(4), insert(5, row(5))]
    result = run(SparkRunner(spark), filtered(how), tmp_path, ORDERS, changes)
    assert (row_tuples(result, "id"), result.truncate) == ([("insert", 5, 5)], (4, 0))


@pytest.mark.parametrize("condition", ["status <> 'new'", "not (status = 'new')"])
def test_a_condition_that_is_null_of_a_row_is_not_true_of_it(
    spark: Spark, tmp_path: Path, condition: str
) -> None:
    changes = [insert(1, row(1, None)), insert(2, row(2, OUT)), insert(3, row(3, IN))]
    what = pipeline(filters=[where(condition)])
    assert row_tuples(run(SparkRunner(spark), what, tmp_path, ORDERS, changes), "id") == [
        ("insert", 3, 3)
    ]


def test_equals_none_keeps_rows_without_a_value(spark: Spark, tmp_path: Path) -> None:
    changes = [insert(1, row(1, None)), insert(2, row(2, IN))]
    what = pipeline(filters=[equals("status", None)])
    assert row_tuples(run(SparkRunner(spark), what, tmp_path, ORDERS, changes), "id") == [
        ("insert", 1, 1)
    ]


@pytest.mark.parametrize("as_column", [False, True], ids=["text", "column"])
def test_a_row_outside_the_filter_cannot_fail_the_job(
    spark: Spark, tmp_path: Path, as_column: bool
) -> None:
    from pyspark.sql import functions as F

    nothing = row(1) | {"qty": 0}
    changes = [insert(1, nothing), update(2, row(2), row(2) | {"qty": 0}), delete(3, nothing)]
    share: Any = F.lit(100) / F.col("qty") if as_column else "100 / qty"
    positive: Any = F.col("qty") > 0 if as_column else "qty > 0"
    fewer: Any = F.lit(100) / F.col("qty") < 50 if as_column else "100 / qty < 50"
    what = pipeline(filters=[where(positive), where(fewer)], transforms=[derive(share=share)])
    result = run(SparkRunner(spark), what, tmp_path, ORDERS, changes, traits=REPLACING)
    assert row_tuples(result, "id", "share") == [("delete", 1, 1, None), ("delete", 2, 2, None)]
