"""A streaming query that is killed again and again, and has the source's rows in the end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

import headrace as hr
from headrace.spark_source.source import HAS_LIMITS
from tests.pipeline.lake.jars import need_delta
from tests.pipeline.lake.rounds.versions import versions
from tests.pipeline.reading.killed_child import APPLICATION, TABLE
from tests.pipeline.reading.plain import environment
from tests.support.seeds import chosen_by_the_commit
from tests.support.shop import PATIENCE, Shop
from tests.support.tiers import NIGHTLY

KILLS = {"files": 5 if NIGHTLY else 2, "delta": 3}
"""
Each is another JVM; `HEADRACE_KILLS=20` for more.

Where they fall is decided by the commit, so that they fall elsewhere each time;
`HEADRACE_KILLS_SEED` is that of a run which failed.
"""


class Query:
    """The query's process, and the JVM that it starts."""

    def __init__(self, shop: Shop, folder: Path, kind: str, *, now: bool = False) -> None:
        module = "tests.pipeline.reading.killed_child"
        arguments = [str(shop.data), str(folder), kind, *(["now"] if now else [])]
        self.said: list[str] = []
        self._errors = (folder.parent / "errors.txt").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=folder.parent,
            env=environment(),
            # One group, so that the JVM dies with it.
            start_new_session=True,
        )

    def says(self) -> str:
        """Wait for its next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise AssertionError(Path(self._errors.name).read_text()[-4000:])
        self.said.append(line)
        return line

    def until(self, *words: str) -> str:
        """Wait until it says one of these, and return that."""
        while (word := self.says().split()[0]) not in words:
            pass
        return word

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        self._process.wait()
        assert self._process.stdout is not None
        # What it said until it died, and nobody listened to.
        self.said += self._process.stdout.read().splitlines()
        self._process.stdout.close()
        self._errors.close()


def rows_of_delta(folder: Path) -> dict[int, str]:
    """Return the table's rows, each batch of which is one commit."""
    every = list(versions(folder / TABLE, APPLICATION))
    batches = [version.transaction for version in every if version.transaction is not None]
    assert all(a < b for a, b in pairwise(batches)), batches
    assert len(batches) > 1
    keys = [row["id"] for row in every[-1].rows]
    assert len(keys) == len(set(keys))
    return {row["id"]: row["status"] for row in every[-1].rows}


def rows_of_files(folder: Path) -> dict[int, str]:
    """Return the table that the files come to, batch by batch."""
    found: dict[int, str] = {}
    files = sorted(folder.glob("*.json"), key=lambda path: int(path.stem))
    assert [int(path.stem) for path in files] == list(range(len(files)))
    last = ""
    for path in files:
        # A delete comes before the row that has its place: a key may have moved.
        for key, status, kind, position in sorted(
            json.loads(path.read_text()), key=lambda row: (row[3], row[2] != "delete")
        ):
            assert position >= last, "batches are in the log's order"
            last = position
            if kind == "delete":
                found.pop(key, None)
            else:
                found[key] = status
    return found


@pytest.mark.ci
@pytest.mark.crash
@pytest.mark.spark
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kind", "rows_of"),
    [
        ("files", rows_of_files),
        pytest.param("delta", rows_of_delta, marks=pytest.mark.nightly),
    ],
)
def test_a_query_killed_again_and_again_equals_its_source(
    tmp_path: Path, kind: str, rows_of: Callable[[Path], dict[int, str]]
) -> None:
    if kind == "delta":
        need_delta()
    seed = int(os.environ.get("HEADRACE_KILLS_SEED") or chosen_by_the_commit())
    print(f"HEADRACE_KILLS_SEED={seed}")  # pytest shows it where the test fails
    chance = random.Random(seed)
    shop = Shop(tmp_path, rows=50)
    folder = tmp_path / "target"
    folder.mkdir()
    key = 1000
    said: list[str] = []
    kills = int(os.environ.get("HEADRACE_KILLS", KILLS[kind]))

    def work() -> None:
        nonlocal key
        shop.insert(range(key, key + 7))
        shop.app.execute("update orders set status = 'sent' where id % 5 = ?", (key % 5,))
        shop.app.execute("delete from orders where id % 11 = ?", (key % 11,))
        shop.app.execute("update orders set id = id + 100000 where id = ?", (key,))
        key += 7

    engine = hr.record(shop.source(), ["orders"], data=shop.data)
    try:
        assert engine.await_ready(PATIENCE)
        for _ in range(kills):
            query = Query(shop, folder, kind)
            try:
                query.until("started")
                work()
                for _ in range(chance.randint(1, 6)):
                    if query.until("begin", "ready", "written") == "written":
                        work()  # or nothing more might come, and it would say nothing more
                # A pace, not a wait: it is to die anywhere between what it says.
                time.sleep(chance.choice([0, 0, 0.1, 0.5, 1.5]))
            finally:
                query.kill()
                said += query.said
        work()
        end = shop.captured()
        assert engine._state.readiness.wait_for(
            lambda: engine.source_info("shop").end.commit >= end, PATIENCE
        )
        # Without limits Spark makes one batch of it, and that may be the one that was killed.
        for _ in range(1 if HAS_LIMITS else 2):
            query = Query(shop, folder, kind, now=True)
            try:
                query.until("ended")
            finally:
                query.close()
                said += query.said
    finally:
        engine.stop()
    begun = Counter(line for line in said if line.startswith("begin "))
    # For whoever plays it with more kills, and wants to know where they fell.
    figures = {"kills": kills, "batches": len(begun), "again": begun.total() - len(begun)}
    (tmp_path / "figures.json").write_text(json.dumps(figures))
    assert rows_of(folder) == dict(shop.app.execute("select id, status from orders"))
    shop.close()
