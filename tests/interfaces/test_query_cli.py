"""`headrace query` and `headrace watch`: rows and changes, for people and for programs."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from rich.console import Console

from headrace.api.table_reads import found, readings, shown_value
from headrace.changelog.schema import Column
from headrace.changelog.values import ValueType
from headrace.cli import main
from headrace.cli.query import change_line, row_table
from headrace.errors import BadRequest, UnknownIndex
from headrace.targets.memory import memory
from tests.interfaces.at_work import AtWork, environment, lines_of, printed, told
from tests.interfaces.network_front import front, service_of
from tests.support.patience import patience
from tests.support.shop import Shop


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[Any]:
    return [row["id"] for row in lines_of(told(capsys, "query", "orders", *arguments, "--json"))]


SEVEN = {"id": 7, "customer_id": 0, "status": "paid", "card": "x"}


def test_a_row_is_found_by_key_and_by_lookup(
    here: AtWork, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lines_of(told(capsys, "query", "orders", "--key", "7", "--json")) == [SEVEN]
    assert lines_of(told(capsys, "query", "orders", "--lookup", "7", "--json")) == [SEVEN]
    page = told(capsys, "query", "orders", "--key", "7")
    assert [line.split() for line in page.splitlines()] == [
        [name, str(value)] for name, value in SEVEN.items()
    ]


def test_the_schema_tells_the_columns_and_by_what_rows_are_found(
    here: AtWork, capsys: pytest.CaptureFixture[str]
) -> None:
    head, *lines = told(capsys, "schema", "orders").splitlines()
    assert head.split() == ["COLUMN", "OF", "orders", "TYPE", "FOUND", "BY"]
    assert [line.split() for line in lines] == [
        ["id", "int64", "--key,", "--lookup"],
        ["customer_id", "int64", "--index", "by_customer"],
        ["status", "text"],
        ["card", "text"],
    ]
    (table,) = lines_of(told(capsys, "schema", "orders", "--table", "orders", "--json"))
    assert (table["table"], table["key"]) == ("orders", ["id"])
    assert main.exit_code(["schema", "orders", "--table", "bills"]) == 2
    assert "Use one of orders." in capsys.readouterr().err


def test_a_target_that_is_not_in_memory_has_no_schema_here(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lake = {"pipeline": "lake", "readable": False, "tables": []}
    with front(service_of(Tables=lambda _: lake)) as served:
        code, out, err = printed(capsys, "schema", "lake", "--address", served.address)
    assert (code, out, "cannot be queried" in err) == (2, "", True)


def test_a_key_without_a_row_is_exit_code_1(
    here: AtWork, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.exit_code(["query", "orders", "--key", "-7", "--json"]) == 1
    assert capsys.readouterr() == ("", "No such row.\n")


def test_an_index_takes_its_values_after_its_name(
    here: AtWork, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rows(capsys, "--index", "by_customer", "3") == [3, 10]
    assert rows(capsys, "--index", "by_customer", "3", "--limit", "1") == [3]
    assert rows(capsys, "--index", "by_customer", "99") == []
    assert "3" in told(capsys, "query", "orders", "--index", "by_customer", "3")


def test_rows_are_counted_listed_and_limited(
    here: AtWork, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(capsys, "query", "orders", "--count") == "10\n"
    assert lines_of(told(capsys, "query", "orders", "--count", "--json")) == [{"count": 10}]
    assert rows(capsys, "--all", "--table", "orders") == list(range(1, 11))
    assert main.exit_code(["query", "orders", "--limit", "2"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 4
    assert err == "2 rows\nThere are more rows than 2. Use --limit N or --all.\n"
    here.shop.insert(range(11, 31))
    assert here.engine._state.readiness.wait_for(lambda: here.engine.pipelines()[0].rows == 30, 30)
    assert len(rows(capsys)) == 20
    assert len(rows(capsys, "--limit", "0")) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["other"], 2, "There is no pipeline other (pipelines orders)"),
        (["orders", "--table", "other"], 2, "Pipeline orders has no table other"),
        (["orders", "--index", "nope", "1"], 2, "No such index"),
        (["orders", "--index", "nope", "1"], 2, "→ Use one of by_customer; or declare it in"),
        (["orders", "--index", "nope", "1"], 2, "indexes.nope { fields = [COLUMN] }"),
        (["orders", "--index", "by_customer", "1", "2"], 2, "1 value needed, 2 given"),
        (["orders", "--key", "seven"], 2, "is not a valid int64"),
        (["orders", "--key", "1", "--count"], 2, "Choose one of"),
        (["orders", "7"], 2, "VALUES can only be given with"),
        (["orders", "--count", "--limit", "3"], 2, "--limit cannot be used with"),
    ],
)
def test_what_cannot_be_found_is_said_with_a_remedy(
    here: AtWork, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    assert main.exit_code(["query", *arguments]) == code
    err = capsys.readouterr().err
    assert said in " ".join(err.split())
    assert "→ " in err
    assert "seven" not in err  # a value is row data


def test_a_lookup_that_is_not_declared_is_asked_for_as_a_file_declares_it(tmp_path: Path) -> None:
    shop, target = Shop(tmp_path), memory()
    with shop.engine(shop.pipeline(target)) as engine:
        assert engine.await_ready(patience())
        for lookup, index in ((["x"], None), (None, "i")):
            with pytest.raises(UnknownIndex) as caught:
                orders = target.table("orders")
                found(orders, key=None, lookup=lookup, index=index, values=["x"])
            assert "in the pipeline's target: " in caught.value.remedy
            assert "memory(" not in caught.value.remedy
    shop.close()


def test_rows_of_a_paused_pipeline_come_with_a_word_about_it(
    here: AtWork, capsys: pytest.CaptureFixture[str]
) -> None:
    here.engine.pause("orders")
    for arguments in (["--key", "1"], ["--index", "by_customer", "1"], ["--all"], ["--count"]):
        assert main.exit_code(["query", "orders", *arguments]) == 0
        assert "! orders is paused. Rows may be out of date." in capsys.readouterr().err


# -- watch --------------------------------------------------------------------------------


def watching(here: AtWork, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", "watch", "orders", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=here.shop.path.parent,
        env=environment(PYTHONUNBUFFERED="1"),
    )


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_changes_are_printed_as_they_come_and_a_signal_ends_it(
    number: signal.Signals, here: AtWork
) -> None:
    with watching(here, "--rows", "--json") as child:
        assert child.stdout is not None
        first = [json.loads(child.stdout.readline()) for _ in range(10)]
        assert {change["op"] for change in first} == {"insert"}
        here.shop.app.execute("update orders set customer_id = 70 where id = 7")
        update = json.loads(child.stdout.readline())
        assert (update["op"], update["key"]) == ("update", [7])
        assert (update["before"]["customer_id"], update["after"]["customer_id"]) == (0, 70)
        child.send_signal(number)
        _, err = child.communicate(timeout=patience())
    assert (child.returncode, err) == (0, "")


@pytest.mark.process
def test_a_watch_ends_with_its_engine_and_says_so(here: AtWork) -> None:
    with watching(here, "--rows") as child:
        assert child.stdout is not None
        assert "+ insert" in child.stdout.readline()
        here.serving.withdraw()
        here.engine.stop()
        _, err = child.communicate(timeout=patience())
    assert (child.returncode, err) == (3, "The engine stopped.\n")


def test_a_watch_of_so_many_changes_ends_by_itself(
    here: AtWork, capsys: pytest.CaptureFixture[str]
) -> None:
    out = told(capsys, "watch", "orders", "--rows", "--limit", "3", "--table", "orders")
    assert [line.split()[1:4] for line in out.splitlines()] == [
        ["+", "insert", str(number)] for number in (1, 2, 3)
    ]


# -- values -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (2**53, 2**53),
        (2**53 + 1, "9007199254740993"),
        (-(2**63), "-9223372036854775808"),
        (1.5, 1.5),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (Decimal("1.50"), "1.50"),
        (b"\x00\xff", "AP8="),
        ("ada", "ada"),
        ("a\udcff", {"kind": "text_bytes", "value": "Yf8="}),
        (date(2026, 11, 15), "2026-11-15"),
        (datetime(2026, 11, 15, 6, 41, tzinfo=UTC), "2026-11-15T06:41:00+00:00"),
        ([1, Decimal("2.0")], [1, "2.0"]),
        ({"a": b"x"}, {"a": "eA=="}),
    ],
)
def test_a_value_is_exact_in_json(value: object, shown: object) -> None:
    assert shown_value(value) == shown
    json.dumps(shown_value(value), allow_nan=False).encode()


def test_a_column_of_many_kinds_says_which_one() -> None:
    assert shown_value(b"x", mixed=True) == {"kind": "bytes", "value": "eA=="}
    assert shown_value(2**60, mixed=True) == {"kind": "int", "value": str(2**60)}
    assert shown_value("1", mixed=True) == "1"


@pytest.mark.parametrize(
    ("kind", "given", "meant"),
    [
        (ValueType("int64"), "42", [42]),
        (ValueType("int64"), 42, [42]),
        (ValueType("int64"), None, [None]),
        (ValueType("text"), "42", ["42"]),
        (ValueType("float64"), "1.5", [1.5]),
        (ValueType("boolean"), "true", [True]),
        (ValueType("decimal", 10, 2), "1.50", [Decimal("1.50")]),
        (ValueType("bytes"), "AP8=", [b"\x00\xff"]),
        (ValueType("bytes"), "X'00FF'", [b"\x00\xff"]),
        (
            ValueType("uuid"),
            "12345678123456781234567812345678",
            [UUID(int=0x12345678 * (2**96 + 2**64 + 2**32 + 1))],
        ),
        (ValueType("date"), "2026-11-15", [date(2026, 11, 15)]),
        (ValueType("variant"), "42", [42, "42"]),
        (ValueType("variant"), "ada", ["ada"]),
    ],
)
def test_what_is_typed_means_what_its_column_is(
    kind: ValueType, given: object, meant: list[object]
) -> None:
    assert list(readings(Column("c", kind, 1), given)) == meant


@pytest.mark.parametrize(
    "kind", ["int64", "float64", "boolean", "numeric", "bytes", "uuid", "date"]
)
def test_what_is_not_of_its_column_is_refused_without_repeating_it(kind: str) -> None:
    with pytest.raises(BadRequest) as caught:
        list(readings(Column("c", ValueType(kind), 1), "hush!"))
    assert "hush" not in str(caught.value)


def drawn(view: object) -> str:
    paper = io.StringIO()
    Console(width=200, file=paper).print(view)
    return paper.getvalue()


def test_values_cannot_move_the_cursor_or_pass_for_markup() -> None:
    row = {"a": "\x1b[2J[red]x[/]", "b": None, "c": "null", "d": "y" * 100}
    text = drawn(row_table([{"name": name} for name in row], [row]))
    assert "\\x1b[2J[red]x[/]" in text
    assert "'null'" in text
    assert "y" * 59 + "…" in text
    change = {
        "op": "update",
        "key": ["\x1b"],
        "before": {"a": 1},
        "after": {"a": 2},
        "position": "p",
    }
    assert "~ update" in drawn(change_line(change))
    assert "\x1b" not in change_line(change).plain


def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(
    here: AtWork, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.exit_code(["query", "order"]) == 2
    assert "Did you mean orders?" in capsys.readouterr().err
