"""`headrace teardown` of SQLite files: what is shown, what goes, and what stays for others."""

from __future__ import annotations

import io
import json
import shlex
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest

from headrace.capture.sqlite.source import sqlite
from headrace.cli.main import exit_code
from headrace.engine.engine import Engine
from headrace.pipeline.definition import Pipeline
from headrace.targets.memory import memory
from tests.interfaces.at_work import AtWork, printed
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience

CONFIGURATION = """
sources.shop { type = sqlite, path = shop.db }
sources.more { type = sqlite, path = more.db }
pipelines.orders { source = shop, tables = [orders], target { type = indexed-memory } }
pipelines.goods { source = more, tables = [orders], target { type = indexed-memory } }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("shop", "more"):
        with sqlite3.connect(f"{name}.db") as database:
            database.execute("create table orders (id integer primary key, note text)")
            database.execute("create table customers (id integer primary key)")
        database.close()
    (tmp_path / "headrace.conf").write_text(CONFIGURATION)
    return tmp_path


def capture(data: str = "headrace-data", table: str = "orders") -> None:
    """Run an engine that captures a table of both files."""
    pipelines = [
        Pipeline(sqlite(f"{name}.db"), table, memory(), name=name) for name in ("shop", "more")
    ]
    with Engine(*pipelines, data=data, runner=ArrowRunner(), recorder="thread") as engine:
        assert engine.await_ready(patience())


def ours(name: str = "shop") -> set[str]:
    """Return the names of everything that capture created in a file."""
    database = sqlite3.connect(f"{name}.db")
    found = database.execute("select name from sqlite_schema where name like '\\_\\_%' escape '\\'")
    names = {name for (name,) in found.fetchall()}
    database.close()
    return names


def test_everything_is_shown_before_it_goes_and_a_source_can_be_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capture()
    before = ours()
    assert {"__headrace_log", "__headrace_1_insert"} <= before
    chosen = ("--config", "headrace.conf", "--set", "data=headrace-data")
    code, out, _ = printed(capsys, "teardown", "--dry-run", *chosen)
    assert code == 0
    assert all(f" {name}" in out for name in before)
    assert "source shop" in out
    assert "source more" in out
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    code, _, err = printed(capsys, "teardown", "shop")
    assert (code, "--yes" in err) == (2, True)  # there is nobody to ask
    assert ours() == before
    code, out, err = printed(capsys, "teardown", "shop", "--yes")
    assert code == 0
    assert "✓ removed" in out
    assert str(folder / "headrace-data") in err
    assert ours() == set()
    assert ours("more") == before
    code, out, _ = printed(capsys, "teardown", "shop", "--yes")
    assert (code, out) == (0, "source shop: nothing to remove\n")
    code, _, err = printed(capsys, "teardown", "shops")
    assert (code, "shop" in err) == (2, True)


def test_it_works_and_is_advised_when_the_data_directory_is_gone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture()
    shutil.rmtree("headrace-data")
    assert exit_code(["doctor", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    (left,) = [
        each
        for each in results
        if each["part"] == "source shop" and "no longer exists" in each["says"]
    ]
    assert "table __headrace_log" in left["says"]
    command = shlex.split(left["remedy"].partition("run: ")[2])
    code, out, _ = printed(capsys, *command[command.index("teardown") :], "--yes", "--json")
    assert code == 0
    answer = json.loads(out)
    assert answer["done"]
    assert [each["source"] for each in answer["sources"]] == ["shop"]
    assert ours() == set()
    code, out, _ = printed(capsys, "teardown", "--json")
    assert not json.loads(out)["done"]
    assert ours("more")


def test_what_another_engine_or_reader_needs_stays_with_its_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture("elsewhere", "customers")
    theirs = ours()
    capture()
    assert ours() > theirs
    assert exit_code(["sqlite", "setup", "--db", "more.db", "--table", "orders"]) == 0
    capsys.readouterr()
    code, out, _ = printed(capsys, "teardown", "--yes")
    assert code == 0
    assert f"The engine of {folder}/elsewhere reads it" in out
    assert "as reader default" in out
    assert ours() == theirs
    assert {"__headrace_log", "__headrace_2_insert"} <= ours("more")
    # The command that is named for an engine that is gone removes the rest.
    (command,) = {
        line.partition("run: ")[2] for line in out.splitlines() if "teardown shop" in line
    }
    shutil.rmtree("elsewhere")
    assert exit_code([*shlex.split(command)[1:], "--yes"]) == 0
    assert ours() == set()


def test_an_engine_that_runs_keeps_what_it_needs(
    here: AtWork, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = printed(capsys, "teardown", "--yes")
    assert (code, out) == (3, "")
    assert "has been using" in err
    here.shop.insert(range(100, 101))
    assert here.engine.await_ready(patience())


@pytest.mark.parametrize(
    "statements",
    [
        [
            "update __headrace_meta set value = 99 where name = 'format'",
            "alter table __headrace_tables rename column columns to shape",
        ],
        ["drop table __headrace_readers"],
        ["drop table __headrace_meta"],
    ],
    ids=["unknown format", "without readers", "without format"],
)
def test_a_capture_whose_readers_are_not_known_stays_and_the_command_to_remove_it_is_shown(
    folder: Path, capsys: pytest.CaptureFixture[str], statements: list[str]
) -> None:
    capture()
    with sqlite3.connect("shop.db") as database:
        for statement in statements:
            database.execute(statement)
    database.close()
    before = ours()
    code, out, _ = printed(capsys, "teardown", "shop", "--yes")
    assert code == 0
    assert ours() == before
    assert "✓ removed" not in out
    (command,) = {line.partition("run: ")[2] for line in out.splitlines() if "run: " in line}
    assert exit_code(shlex.split(command)[1:]) == 0, capsys.readouterr().err
    assert ours() == set()
