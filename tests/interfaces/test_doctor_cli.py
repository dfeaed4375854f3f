"""`headrace doctor`: everything examined, each finding with what to do."""

from __future__ import annotations

import json
import sqlite3
import zipfile
from pathlib import Path

import pytest

from headrace.capture.sqlite.source import sqlite
from headrace.control.engine import Engine
from headrace.interfaces.cli.main import exit_code
from headrace.pipeline.definition import Pipeline
from headrace.targets.memory import memory
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE

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
    assert "nothing is wrong" in told
    for part in ("installation", "machine", "data", "configuration", "source shop", "engine"):
        assert part in told
    assert not (folder / "headrace-data").exists()


def test_tables_that_are_captured_for_nobody_are_named_with_the_way_to_end_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = Pipeline(sqlite("shop.db"), tables=["orders", "customers"], target=memory())
    with Engine(both, data="headrace-data", runner=ArrowRunner()) as engine:
        assert engine.await_ready(PATIENCE)
    assert exit_code(["doctor", "--json"]) == 0
    [left] = [
        each for each in results(capsys)["source shop"] if each["says"].startswith("customers")
    ]
    assert left["kind"] == "note"
    assert "headrace sqlite teardown" in left["remedy"]


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
