"""The code that runs on executors, without executors."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.errors import BadFunction, code_in
from headrace.pipeline.plan.executor_calls import BadResult, caller, imported
from tests.support.children import python

TOTAL = (("total", pa.float64()),)


def struct(*rows: dict[str, Any] | None, **types: pa.DataType) -> pa.Array:
    fields = types or {"id": pa.int64(), "qty": pa.int64()}
    return pa.array(rows, pa.struct(list(fields.items())))


def rows(*quantities: int | None) -> pa.Array:
    """Rows numbered from 0; None is an image that is not there."""
    return struct(*(None if q is None else {"id": at, "qty": q} for at, q in enumerate(quantities)))


def made(
    function: Callable[..., Any] | None, columns: Any = None, *, batch: bool = False, **given: Any
) -> Callable[[pa.Array], pa.Array]:
    load: Any = given.pop("load", lambda: function)
    return caller("totals", load, columns, batch, given.pop("time_limit", 10.0))


def field(found: pa.Array, name: str) -> list[Any]:
    return found.field(name).to_pylist()  # type: ignore[no-any-return]


def errors(found: pa.Array) -> dict[int, dict[str, str]]:
    return {at: json.loads(each) for at, each in enumerate(field(found, "error")) if each}


def test_a_filter_of_rows_is_asked_only_where_there_is_an_image() -> None:
    seen = []

    def many(row: dict[str, Any]) -> bool | None:
        seen.append(row["id"])
        return None if row["qty"] == 9 else row["qty"] > 1

    found = made(many)(rows(1, None, 2, 9))
    assert field(found, "pass") == [False, None, True, False]
    assert field(found, "error") == [None] * 4
    assert seen == [0, 2, 3]


def test_a_function_of_rows_gives_its_declared_columns_or_none() -> None:
    def total(row: dict[str, Any]) -> dict[str, Any] | None:
        return None if row["qty"] == 0 else {"total": row["qty"] * 2, "more": "is not taken"}

    found = made(total, TOTAL)(rows(1, 0, None, 3))
    assert [field.name for field in found.type] == ["c0", "pass", "error"]
    assert field(found, "c0") == [2.0, None, None, 6.0]
    assert field(found, "pass") == [True, False, None, True]


@pytest.mark.meets("S2", "S10")
@pytest.mark.parametrize("batch", [False, True], ids=["rows", "batches"])
def test_rows_that_a_function_fails_on_are_alone_among_ten_thousand(batch: bool) -> None:
    calls = 0

    def by_row(row: dict[str, Any]) -> dict[str, Any]:
        return {"total": 10 / row["qty"]}

    def by_batch(given: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal calls
        calls += 1
        if 0 in given["qty"].to_pylist():
            raise ZeroDivisionError("division by zero")
        return pa.record_batch({"total": pc.divide(10.0, given["qty"].cast("double"))})

    bad = {5, 6_000, 9_999}
    given = rows(*(0 if at in bad else 5 for at in range(10_000)))
    found = made(by_batch if batch else by_row, TOTAL, batch=batch)(given)
    assert set(errors(found)) == bad
    assert errors(found)[5] == {
        "function": "totals",
        "error": "ZeroDivisionError",
        "message": "division by zero",
    }
    passed = field(found, "pass")
    assert [at for at, each in enumerate(passed) if not each] == sorted(bad)
    assert [each for each in field(found, "c0") if each is not None] == [2.0] * 9_997
    assert calls <= 3 * 30


@pytest.mark.parametrize(
    ("value", "type"),
    [
        (1.5, pa.int32()),
        (1.0, pa.int64()),
        (True, pa.int64()),
        (True, pa.float64()),
        ("1", pa.int64()),
        (1, pa.string()),
        (b"x", pa.string()),
        ("x", pa.binary()),
        (1, pa.bool_()),
        (1, pa.timestamp("us", "UTC")),
        (datetime(2026, 1, 1), pa.timestamp("us", "UTC")),
        (datetime(2026, 1, 1, tzinfo=UTC), pa.timestamp("us")),
        (datetime(2026, 1, 1), pa.date32()),
        (1.5, pa.decimal128(5, 2)),
        (Decimal("1.234"), pa.decimal128(5, 2)),
        (2**40, pa.int32()),
        ("\ud800", pa.string()),
    ],
)
def test_a_value_of_another_type_fails_its_row_and_is_not_bent(
    value: object, type: pa.DataType
) -> None:
    found = made(lambda row: {"x": value if row["qty"] else None}, (("x", type),))(rows(0, 1, 0))
    assert list(errors(found)) == [1]
    assert errors(found)[1]["error"] == "TypeError"
    assert "column x" in errors(found)[1]["message"]
    assert field(found, "pass") == [True, False, True]


@pytest.mark.parametrize(
    ("value", "type", "wanted"),
    [
        (1, pa.float64(), 1.0),
        (1, pa.decimal128(5, 2), Decimal("1.00")),
        (date(2026, 1, 1), pa.date32(), date(2026, 1, 1)),
        ([1, None], pa.list_(pa.int32()), [1, None]),
        ({"a": 1}, pa.struct([("a", pa.int32())]), {"a": 1}),
    ],
)
def test_a_value_that_is_of_the_type_is_taken(
    value: object, type: pa.DataType, wanted: object
) -> None:
    found = made(lambda row: {"x": value}, (("x", type),))(rows(1))
    assert field(found, "c0") == [wanted]


@pytest.mark.parametrize("value", [{}, [1], 7])
def test_a_row_without_a_declared_column_fails(value: object) -> None:
    found = made(lambda row: value, TOTAL)(rows(1))
    assert errors(found)[0]["error"] in ("KeyError", "TypeError")


def test_a_filter_that_gives_neither_true_nor_false_fails_its_row() -> None:
    found = made(lambda row: row["qty"])(rows(1))
    assert errors(found)[0]["error"] == "TypeError"


def test_a_row_that_python_cannot_hold_fails_alone() -> None:
    instant = pa.timestamp("us", "UTC")
    given = pa.StructArray.from_arrays(
        [pa.array([0, 2**62, 1], pa.int64()).cast(instant)], names=["at"]
    )
    found = made(lambda row: row["at"].tzinfo is not None)(given)
    assert field(found, "pass") == [True, False, True]
    assert list(errors(found)) == [1]


def test_long_words_of_an_error_are_cut_and_odd_ones_kept() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def fail(row: dict[str, Any]) -> bool:
        if row["qty"] == 1:
            raise Mute
        raise ValueError("\ud800" + "x" * 1_000)

    found = errors(made(fail)(rows(1, 2)))
    assert found[0] == {"function": "totals", "error": "Mute", "message": ""}
    assert len(found[1]["message"]) == 300


@pytest.mark.meets("S10")
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda given: given.slice(1), "returned 2 rows for 3"),
        (lambda given: given.select(["id"]), "did not return the column total"),
        (lambda given: pa.record_batch({"total": given["qty"]}), "as int64, declared as double"),
        (lambda given: given.to_pylist(), "returned list"),
    ],
)
def test_a_wrong_result_of_a_batch_is_the_functions_error_and_not_a_rows(
    value: Any, words: str
) -> None:
    with pytest.raises(BadResult) as caught:
        made(value, TOTAL, batch=True)(rows(1, 2, 3))
    assert code_in(str(caught.value)) == BadFunction.code
    assert "totals" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "value", [lambda given: given["qty"], lambda given: pa.array([True]), lambda given: True]
)
def test_a_filter_of_batches_gives_as_many_truths(value: Any) -> None:
    with pytest.raises(BadResult):
        made(value, batch=True)(rows(1, 2, 3))


def test_a_filter_of_batches_sees_only_images_that_are_there() -> None:
    found = made(lambda given: pc.greater(given["qty"], 1), batch=True)(rows(1, None, 2))
    assert field(found, "pass") == [False, None, True]


def test_a_function_is_not_called_without_rows() -> None:
    def never(given: object) -> object:
        raise AssertionError

    for batch in (False, True):
        found = made(never, TOTAL, batch=batch)(rows(None, None))
        assert field(found, "pass") == [None, None]
        assert len(made(never, TOTAL, batch=batch)(rows())) == 0


def test_too_little_memory_is_not_a_rows_fault() -> None:
    def hungry(given: object) -> object:
        raise MemoryError

    for batch in (False, True):
        with pytest.raises(MemoryError):
            made(hungry, TOTAL, batch=batch)(rows(1))


@pytest.mark.meets("S10")
def test_a_function_that_takes_too_long_ends_the_batch() -> None:
    never = threading.Event()

    def slow(row: object) -> bool:
        try:
            return never.wait(30)
        except Exception:  # noqa: BLE001  # What a careless function does.
            return True

    with pytest.raises(TimeoutError) as caught:
        made(slow, time_limit=0.05)(rows(1))
    assert "totals took longer than 0.05 s" in str(caught.value)


def test_a_function_on_another_thread_runs_without_a_limit() -> None:
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.extend(field(made(lambda row: True)(rows(1)), "pass"))
    )
    thread.start()
    thread.join()
    assert found == [True]


def test_a_function_is_imported_by_its_path() -> None:
    assert imported("operator:itemgetter")() is __import__("operator").itemgetter
    assert imported("datetime:datetime.fromisoformat")()("2026-01-01") == datetime(2026, 1, 1)
    for path in ("no_such_module:f", "operator:no_such_name", "math:pi"):
        with pytest.raises(BadResult) as caught:
            made(None, load=imported(path))(rows())
        assert code_in(str(caught.value)) == BadFunction.code


@pytest.mark.process
@pytest.mark.meets("S12")
def test_what_is_sent_to_executors_needs_no_headrace_there(tmp_path: Path) -> None:
    from pyspark import cloudpickle

    import headrace.pipeline.plan.functions  # noqa: F401  # It says how `calling` is pickled.
    from headrace.pipeline.plan.executor_calls import unpickled

    local = cloudpickle.dumps(lambda row: {"total": row["qty"] + 0.5})  # type: ignore[no-untyped-call]
    sent = cloudpickle.dumps(caller("totals", unpickled(local), TOTAL, False, 5.0))  # type: ignore[no-untyped-call]
    (tmp_path / "sent").write_bytes(sent)
    program = """
import pathlib, pickle, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "headrace":
            raise ImportError("there is no headrace here")
sys.meta_path.insert(0, Refuse())
import pyarrow as pa
call = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
print(call(pa.array([{"qty": 1}, None])).to_pylist())
assert not any(name.split(".")[0] == "headrace" for name in sys.modules)
"""
    done = python("-c", program, str(tmp_path / "sent"), seconds=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (
        "[{'c0': 1.5, 'pass': True, 'error': None}, {'c0': None, 'pass': None, 'error': None}]"
    )
