"""`headrace try`: a pipeline's steps on a few rows, shown, and nothing left behind."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.cli import try_
from headrace.cli.try_ import title, view
from headrace.engine.preview import PreviewRow, TriedTable
from headrace.pipeline.batch import Runner
from tests.interfaces.at_work import printed
from tests.support.arrow_runner import ArrowRunner
from tests.support.children import python

CONF = """
sources.shop { type = sqlite, path = shop.db }
spark.master = "spark://elsewhere:7077"
pipelines.orders {
  source = shop
  tables = [orders]
  filters = [{ type = field-equals, field = status, value = paid }]
  transforms = [{ type = drop-fields, fields = [card] }]
  target { type = indexed-memory }
}
"""
SPARK = """
sources.shop { type = sqlite, path = shop.db }
pipelines.orders {
  source = shop
  tables = [orders]
  filters = [{ type = where, condition = "status <> 'void'" }]
  transforms = [
    { type = derive, columns { each = "total / qty", status = "upper(status)" } }
    { type = drop-fields, fields = [card] }
    { type = function, call = "grading_orders:grade", reads = [id], columns { grade = string } }
  ]
  target { type = indexed-memory }
}
"""
GRADING = """
def grade(row):
    if row["id"] == 4:
        raise ValueError("no grade")
    return {"grade": "A"}
"""
COLOUR = "{type=drop-fields,fields=[colour]}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a shop of four orders, to stand in."""
    monkeypatch.chdir(tmp_path)
    app = sqlite3.connect("shop.db")
    app.executescript(
        """
        create table orders
            (id integer primary key, status text, qty integer, total integer, card text);
        insert into orders values
            (1, 'paid', 2, 10, 'x'), (2, 'void', 1, 5, 'x'),
            (3, 'paid', 0, 7, 'x'), (4, 'paid', 4, 12, 'x');
        """
    )
    app.close()
    (tmp_path / "headrace.conf").write_text(CONF)
    return tmp_path


@pytest.fixture
def confs(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, str]]:
    """Run without Spark: the order that has no quantity fails; see what Spark would be given."""
    given: list[Mapping[str, str]] = []

    @contextmanager
    def arrow(conf: Mapping[str, str]) -> Iterator[Runner]:
        given.append(conf)
        yield ArrowRunner(fails=lambda _, row: None if row["qty"] else "DIVIDE_BY_ZERO")

    monkeypatch.setattr(try_, "spark_alone", arrow)
    return given


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return printed(capsys, "try", *arguments)


def test_rows_are_shown_with_what_became_of_them(
    confs: list[Mapping[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ran(capsys, "orders")
    assert code == 1
    heading, _, _, *rows = out.splitlines()
    assert heading == "orders: 4 rows, 2 passed, 1 filtered, 1 failed; dropped card"
    assert [row.split() for row in rows] == [
        ["✓", "1", "paid", "2", "10"],
        ["-", "2", "void", "1", "5", "filtered", "out"],
        ["✗", "3", "paid", "0", "7", "DIVIDE_BY_ZERO"],
        ["✓", "4", "paid", "4", "12"],
    ]
    assert (
        err == "Starting Spark and computing …\n! In a run this row would become a dead letter,"
        " and later changes of it would wait.\n"
    )
    # The rows lie in a temporary folder, which no other machine sees.
    assert confs == [{}]


def test_as_json_each_row_is_a_line(
    confs: list[Mapping[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ran(
        capsys, "orders", "--json", "--rows", "2", "--table", "orders", "--config", "headrace.conf"
    )
    assert (code, err) == (0, "")
    first, second = map(json.loads, out.splitlines())
    assert first == {
        "table": "orders",
        "outcome": "passed",
        "before": {"id": 1, "status": "paid", "qty": 2, "total": 10, "card": "x"},
        "after": {"id": 1, "status": "paid", "qty": 2, "total": 10},
        "failed": None,
        "facts": {},
    }
    assert (second["outcome"], second["after"]) == ("filtered", None)


@pytest.mark.parametrize(
    ("handling", "told"),
    [
        ("on_persistent_failure=stop", "would stop at the first row that fails"),
        ("dead_letter.max_per_batch=1", "would stop: a batch may have at most 1 failed row"),
    ],
)
def test_what_a_run_would_make_of_failures_is_said(
    handling: str, told: str, confs: list[Mapping[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    with sqlite3.connect("shop.db") as app:
        app.execute("update orders set qty = 0 where id = 4")
    app.close()
    code, _, err = ran(capsys, "orders", "--set", f"pipelines.orders.error_handling.{handling}")
    assert code == 1
    assert told in err


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["nobody"], 2, "control.unknown_pipeline"),
        (["orders", "--rows", "0"], 2, "--rows"),
        (["orders", "--table", "nobody"], 2, "Its tables: orders."),
        (["orders", "--set", "sources.shop.path=none.db"], 2, "Database not found"),
        (["orders", "--set", f"pipelines.orders.transforms=[{COLOUR}]"], 2, "colour"),
    ],
)
def test_what_is_wrong_is_told_without_starting_spark(
    arguments: list[str],
    code: int,
    told: str,
    confs: list[Mapping[str, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, out, err = ran(capsys, *arguments)
    assert (found, out, confs) == (code, "", [])
    assert told in err


def test_where_no_table_fits_spark_is_not_started(
    confs: list[Mapping[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    fitting = f"pipelines.orders.transforms=[{COLOUR}]"
    code, out, err = ran(
        capsys, "orders", "--set", 'pipelines.orders.tables=["ord*"]', "--set", fitting
    )
    assert (code, out, confs) == (0, "", [])
    assert "! " in err
    assert err.endswith("No table to try.\n")


# --- as it looks --------------------------------------------------------------------------------

BEFORE = TableSchema(
    "orders",
    (Column("id", ValueType("int64"), 1), Column("note", ValueType("text"), 2)),
    ("id",),
)
AFTER = TableSchema(
    "orders",
    (*BEFORE.columns, Column("n", ValueType("int64"), 3)),
    ("id",),
)
ROWS = TriedTable(
    BEFORE,
    AFTER,
    (
        PreviewRow({"id": 1, "note": "a"}, {"id": 1, "note": "A\x1b[2J[red]", "n": 3}),
        PreviewRow({"id": 2, "note": {"exact": "X'FF'"}}, None, "OUTSIDE_TYPE", {"column": "note"}),
        PreviewRow({"id": 3, "note": None}, {"id": 3, "note": None, "n": None}),
        PreviewRow({"id": 4, "note": "null"}, None),
    ),
)


def shown(width: int, *, colour: bool = False) -> str:
    console = Console(
        width=width, force_terminal=colour, color_system="standard" if colour else None
    )
    with console.capture() as captured:
        console.print(title(ROWS))
        console.print(view(ROWS, width))
    return captured.get()


def test_a_table_shows_what_changed_in_place() -> None:
    lines = [line.rstrip() for line in shown(100).splitlines()]
    assert lines[0] == "orders: 4 rows, 2 passed, 1 filtered, 1 failed"
    assert lines[1].split() == ["id", "note", "n"]
    assert lines[3].split() == ["✓", "1", "a", "→", r"A\x1b[2J[red]", "3"]
    assert lines[4].split() == ["✗", "2", "X'FF'", "OUTSIDE_TYPE:", "column", "note"]
    assert lines[5].split() == ["✓", "3", "null", "null"]
    assert lines[6].split() == ["-", "4", "'null'", "filtered", "out"]


def test_where_a_table_is_too_wide_a_row_is_a_line_with_what_changed() -> None:
    lines = [line.rstrip() for line in shown(46).splitlines()[1:]]
    assert lines == [
        r"✓ 1  note a → A\x1b[2J[red], n 3",
        "✗ 2  OUTSIDE_TYPE: column note",
        "✓ 3  n null",
        "- 4  filtered out",
    ]


def test_what_changed_and_what_is_new_stand_out_and_no_colour_is_heeded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    bright = shown(100, colour=True)
    assert "\x1b[1;33m" in bright
    assert "\x1b[1;32m" in bright
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;3" not in shown(100, colour=True)


# --- with Spark ---------------------------------------------------------------------------------


@pytest.mark.ci
@pytest.mark.spark
@pytest.mark.meets("S10")
def test_real_rows_go_through_sparks_expressions_and_nothing_is_left(
    folder: Path,
) -> None:
    (folder / "headrace.conf").write_text(SPARK)
    (folder / "grading_orders.py").write_text(GRADING)
    with sqlite3.connect("shop.db") as app:
        app.execute("insert into orders values (5, 'paid', 'many', 1, 'x')")
    app.close()
    before = contents(folder)
    # A process of its own: in this one another Spark may run, which has other settings.
    done = python("-m", "headrace", "try", "orders", "--json", seconds=300)
    assert (done.returncode, done.stderr) == (1, "")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["outcome"], each["failed"]) for each in found] == [
        ("passed", None),
        ("filtered", None),
        ("failed", "DIVIDE_BY_ZERO"),
        ("failed", "FUNCTION_FAILED"),
        ("failed", "VALUE_OUTSIDE_TYPE"),
    ]
    assert [each["after"] for each in found if each["after"]] == [
        {"id": 1, "status": "PAID", "qty": 2, "total": 10, "each": 5.0, "grade": "A"},
    ]
    assert found[3]["facts"]["function"] == "grading_orders:grade"
    assert found[4]["before"]["qty"] == {"exact": "many"}
    assert contents(folder) == before
    assert {path.name for path in folder.iterdir() if path.is_dir()} <= {"__pycache__"}


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file, but for what Python itself keeps of a module."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
