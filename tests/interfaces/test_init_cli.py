"""`headrace init URL`: from a database to a configuration that can be run."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from headrace.cli.init import MOST_PIPELINES
from headrace.cli.main import exit_code
from headrace.engine.from_config import EngineConfig
from headrace.errors import SourceRefused

TABLES = """
create table orders (id integer primary key, customer_id integer, total numeric);
create table "odd name" (id integer primary key, note text);
create table no_key (rowid, _rowid_, oid);
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    database = sqlite3.connect("shop.db")
    database.executescript(TABLES)
    database.close()
    return tmp_path


def test_a_file_becomes_a_configuration_that_is_right(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["init", "sqlite:shop.db"]) == 0
    told = capsys.readouterr()
    assert "✓ headrace.conf written: source shop, 2 tables" in told.out
    assert "next: headrace run" in told.out
    assert "no_key" in told.err
    text = (folder / "headrace.conf").read_text()
    assert 'tables = ["odd name"]' in text
    assert "# columns: id INTEGER, customer_id INTEGER, total numeric" in text
    assert exit_code(["validate"]) == 0
    assert not (folder / "headrace-data").exists()
    database = sqlite3.connect("shop.db")
    assert database.execute(
        "select count(*) from sqlite_schema where type='trigger'"
    ).fetchone() == (0,)


def test_a_path_will_do_and_the_answer_may_be_json(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["init", "shop.db", "--output", "mine.conf", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["written"] == "mine.conf"
    assert told["tables"] == ["odd name", "orders"]
    assert [each["facts"]["table"] for each in told["left_out"]] == ["no_key"]
    assert exit_code(["validate", "--config", "mine.conf"]) == 0


def test_a_file_that_is_there_is_replaced_only_when_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "headrace.conf").write_text("mine")
    assert exit_code(["init", "shop.db"]) == 2
    assert (folder / "headrace.conf").read_text() == "mine"
    assert "--force" in capsys.readouterr().err
    assert exit_code(["init", "shop.db", "--force"]) == 0


@pytest.mark.parametrize("url", ["sqlite:gone.db", "notes.txt", "kafka://broker"])
def test_what_is_no_database_is_refused_and_nothing_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    (folder / "notes.txt").write_text("not a database, but long enough to be one")
    assert exit_code(["init", url]) == 2
    assert "postgresql://" in capsys.readouterr().err
    assert not (folder / "headrace.conf").exists()
    assert not (folder / "gone.db").exists()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("mysql://u:HUNTER2@h/x", "mysql is not a supported database"),
        ("postgres:/u:HUNTER2@h/x", "postgres is not a supported database"),
        ("mssql+odbc://u:HUNTER2@h/x", "mssql+odbc is not a supported database"),
        ("x password=HUNTER2", "x password=*** does not exist"),
    ],
)
def test_of_an_address_that_is_not_known_no_password_is_shown(
    folder: Path, capsys: pytest.CaptureFixture[str], url: str, told: str
) -> None:
    for options in ([], ["--json"]):
        assert exit_code(["init", url, *options]) == 2
        said = capsys.readouterr()
        assert told in said.out + said.err
        assert "HUNTER2" not in said.out + said.err


def test_the_answer_as_json_comes_after_the_check_too(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(self: EngineConfig) -> None:
        raise SourceRefused("It cannot be captured")

    monkeypatch.setattr(EngineConfig, "check", wrong)
    assert exit_code(["init", "shop.db", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "capture.refused"


def test_nothing_or_both_to_begin_with_is_wrong_usage(folder: Path) -> None:
    assert exit_code(["init"]) == 2
    assert exit_code(["init", "shop.db", "--from", "shop.db"]) == 2


def test_an_empty_database_says_what_a_pipeline_looks_like(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sqlite3.connect("empty.db").close()
    assert exit_code(["init", "empty.db"]) == 0
    assert "# pipelines.orders" in (folder / "headrace.conf").read_text()
    assert "headrace validate" in capsys.readouterr().out


def test_of_many_tables_the_last_stand_in_comments(folder: Path) -> None:
    database = sqlite3.connect("many.db")
    for number in range(MOST_PIPELINES + 3):
        database.execute(f"create table t{number:02} (id integer primary key)")
    database.close()
    assert exit_code(["init", "many.db"]) == 0
    text = (folder / "headrace.conf").read_text()
    assert text.count("\npipelines.") == MOST_PIPELINES
    assert text.count("\n# pipelines.") == 3
    assert exit_code(["validate"]) == 0
    uncommented = text.replace("# pipelines.", "pipelines.")
    assert "t22" in uncommented
