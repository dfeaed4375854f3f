"""`headrace doctor`: everything examined, each finding with what to do."""

from __future__ import annotations

import json
import platform
import shlex
import sqlite3
import zipfile
from pathlib import Path

import pytest

from headrace.api.server import serve
from headrace.capture.sqlite.source import sqlite
from headrace.cli.main import exit_code
from headrace.engine.engine import Engine
from headrace.pipeline.definition import Pipeline
from headrace.targets.memory import memory
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience

SECRET = "hunter2-4711"
CONFIGURATION = """
sources.shop { type = sqlite, path = shop.db }
pipelines.orders { source = shop, tables = [orders], target { type = indexed-memory } }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    database = sqlite3.connect("shop.db")
    database.execute("pragma journal_mode = wal")
    database.execute("create table orders (id integer primary key, note text)")
    database.execute("create table customers (id integer primary key)")
    database.close()
    (tmp_path / "headrace.conf").write_text(CONFIGURATION)
    return tmp_path


def results(capsys: pytest.CaptureFixture[str]) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for each in json.loads(capsys.readouterr().out)["results"]:
        found.setdefault(each["part"], []).append(each)
    return found


def test_where_all_is_well_it_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["doctor"]) == 0
    told = capsys.readouterr().out
    assert "No problems" in told
    for part in ("installation", "machine", "data", "configuration", "source shop", "engine"):
        assert part in told
    assert not (folder / "headrace-data").exists()


@pytest.mark.parametrize(
    ("there", "options", "exits"),
    [
        ("headrace-demo", [], 0),
        ("headrace-data", [], 0),
        ("elsewhere", ["--data", "elsewhere"], 0),
        ("elsewhere", ["--data", "nowhere"], 1),
        ("elsewhere", [], 1),
        ("headrace-demo", ["--config", "headrace.conf"], 1),
    ],
)
def test_an_engine_without_a_file_needs_none(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    there: str,
    options: list[str],
    exits: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / there).mkdir(mode=0o700)
    assert exit_code(["doctor", "--json", *options]) == exits
    [found] = results(capsys)["configuration"]
    assert found["kind"] == ("wrong" if exits else "note")
    assert "headrace.conf" in found["says"]


def test_tables_that_are_captured_for_nobody_are_named_with_the_way_to_end_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = Pipeline(sqlite("shop.db"), tables=["orders", "customers"], target=memory())
    with Engine(both, data="headrace-data", runner=ArrowRunner(), recorder="thread") as engine:
        assert engine.await_ready(patience())
    assert exit_code(["doctor", "--json"]) == 0
    [left] = [
        each for each in results(capsys)["source shop"] if each["says"].startswith("customers")
    ]
    assert left["kind"] == "note"
    assert "headrace sqlite teardown" in left["remedy"]


def captured(folder: Path) -> set[str]:
    database = sqlite3.connect(folder / "shop.db")
    found = database.execute("select tbl_name from sqlite_schema where type = 'trigger'").fetchall()
    database.close()
    return {table for (table,) in found if not table.startswith("__headrace")}


def untaken(capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    """Return what doctor says of tables that are captured for nobody."""
    assert exit_code(["doctor", "--json"]) == 0
    return [each for each in results(capsys)["source shop"] if "is captured" in each["says"]]


def test_tables_that_a_pattern_stands_for_are_in_use(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    patterns = ["*", "!nokey"]
    (folder / "headrace.conf").write_text(CONFIGURATION.replace("[orders]", json.dumps(patterns)))
    every = Pipeline(sqlite("shop.db"), tables=patterns, target=memory())
    with Engine(every, data="headrace-data", runner=ArrowRunner(), recorder="thread") as engine:
        assert engine.await_ready(patience())
    assert captured(folder) == {"orders", "customers"}
    assert untaken(capsys) == []


def test_the_way_to_end_a_capture_can_be_pasted_and_ends_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = sqlite3.connect("shop.db")
    database.execute('create table "our customers" (id integer primary key)')
    database.close()
    source = sqlite("shop.db")
    for tables in (["orders", "our customers"], ["orders"]):
        pipeline = Pipeline(source, tables=tables, target=memory())
        with Engine(
            pipeline, data="headrace-data", runner=ArrowRunner(), recorder="thread"
        ) as engine:
            assert engine.await_ready(patience())
        [left] = untaken(capsys)
        # As long as the engine has not started without the table, it is still its reader.
        assert left["remedy"].startswith("Start the engine once") == (len(tables) == 2)
    assert exit_code(shlex.split(left["remedy"])[1:]) == 0
    capsys.readouterr()
    assert captured(folder) == {"orders"}
    assert untaken(capsys) == []


def test_a_capture_of_somebody_else_is_said_to_be_his(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["sqlite", "setup", "--db", "shop.db", "--table", "customers"]) == 0
    capsys.readouterr()
    [left] = untaken(capsys)
    assert "for the reader default" in left["says"]
    command = left["remedy"].partition(": ")[2]
    assert exit_code(shlex.split(command)[1:]) == 0
    assert captured(folder) == set()
    other = Pipeline(sqlite("shop.db"), tables=["customers"], target=memory())
    with Engine(other, data="elsewhere", runner=ArrowRunner(), recorder="thread") as engine:
        assert engine.await_ready(patience())
    capsys.readouterr()
    [left] = untaken(capsys)
    assert "for another engine" in left["says"]
    assert "teardown" not in left["remedy"]


def test_rows_that_are_held_and_pipelines_that_rest_are_told_of_a_running_engine(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = sqlite3.connect("shop.db")
    database.execute("insert into orders values (1, 'a'), (2, 'b')")
    database.commit()
    runner = ArrowRunner(fails=lambda pipeline, row: "NO" if row["id"] == 2 else None)
    orders = Pipeline(sqlite("shop.db"), "orders", memory())
    with (
        Engine(orders, data="headrace-data", runner=runner, recorder="thread") as engine,
        serve(engine, Path("headrace-data")),
    ):
        assert engine.await_ready(patience())
        assert exit_code(["doctor", "--json"]) == 0
        held, ready = results(capsys)["engine"]
        assert (held["kind"], held["says"]) == ("note", "pipeline orders has 1 dead letter")
        assert held["remedy"] == "headrace dead-letters list orders"
        assert (ready["kind"], ready["says"]) == ("well", "ready")
        engine.pause("orders")
        assert exit_code(["doctor", "--json"]) == 0
        paused, _, ready = results(capsys)["engine"]
        assert (paused["says"], paused["remedy"]) == (
            "pipeline orders is paused",
            "headrace resume orders",
        )
        assert (ready["kind"], ready["says"]) == ("note", "running, not ready: orders")


def test_what_is_wrong_is_told_with_its_code_and_hides_nothing_else(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "headrace.conf").write_text(CONFIGURATION.replace("[orders]", "[gone]"))
    assert exit_code(["doctor", "--json"]) == 1
    found = results(capsys)
    assert any(each["kind"] == "wrong" and each["code"] for each in found["configuration"])
    assert "installation" in found
    assert "engine" in found
    (folder / "headrace.conf").write_text("nonsense {")
    assert exit_code(["doctor", "--json"]) == 1
    assert any(each["kind"] == "wrong" for each in results(capsys)["configuration"])


def test_a_data_directory_that_others_may_enter_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = folder / "headrace-data"
    data.mkdir()
    for mode, kinds in ((0o755, ["well", "note"]), (0o700, ["well"])):
        data.chmod(mode)
        assert exit_code(["doctor", "--json"]) == 0
        found = results(capsys)["data"]
        assert [each["kind"] for each in found] == kinds
        assert mode == 0o700 or f"chmod 700 {data}" in found[1]["remedy"]


platform.processor()  # asks a program, once in a process: not within a test


def test_a_bundle_has_no_secret_and_no_row(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = sqlite3.connect("shop.db")
    database.execute("insert into orders values (1, 'a private note')")
    database.commit()
    server = f'connection = "postgresql://me:{SECRET}@127.0.0.1:1/none?connect_timeout=1"'
    (folder / "headrace.conf").write_text(
        f"{CONFIGURATION}\nsources.pg {{ type = postgres, {server}, record = [t] }}\n"
    )
    logs = folder / "headrace-data" / "logs"
    logs.mkdir(parents=True)
    (logs / "headrace.log").write_text(f"connecting to postgresql://me:{SECRET}@127.0.0.1:1/none")
    assert exit_code(["doctor", "--bundle", "help.zip", "--data", "headrace-data"]) == 1
    told = capsys.readouterr()
    assert SECRET not in told.out + told.err
    with zipfile.ZipFile("help.zip") as bundle:
        names = bundle.namelist()
        assert {"doctor.json", "configuration.json", "status.json", "logs/headrace.log"} <= {*names}
        for name in names:
            text = bundle.read(name).decode()
            assert SECRET not in text
            assert "a private note" not in text
    assert (folder / "help.zip").stat().st_mode & 0o077 == 0


def test_another_configuration_may_be_examined(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "headrace.conf").rename(folder / "other.conf")
    changed = ["--set", "pipelines.orders.tables=[customers]"]
    assert exit_code(["doctor", "--json", "--config", "other.conf", *changed]) == 0
    assert all(each["kind"] != "wrong" for each in results(capsys)["configuration"])
