"""A streaming query that is killed again and again, and has the source's rows in the end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import headrace as hr
from tests.pipeline.reading.plain import environment
from tests.support.shop import PATIENCE, Shop

KILLS = 5
"""In every run of the tests; `HEADRACE_KILLS=20` for more."""
SEED = 4711


class Query:
    """The query's process, and the JVM that it starts."""

    def __init__(self, shop: Shop, folder: Path, *, now: bool = False) -> None:
        module = "tests.pipeline.reading.killed_child"
        arguments = [str(shop.data), str(folder), *(["now"] if now else [])]
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
        return line

    def until(self, *words: str, times: int = 1) -> None:
        while times:
            times -= self.says().split()[0] in words

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


def rows_of(folder: Path) -> dict[int, str]:
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


@pytest.mark.crash
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_a_query_killed_again_and_again_equals_its_source(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    shop = Shop(tmp_path, rows=50)
    folder = tmp_path / "target"
    folder.mkdir()
    key = 1000

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
        for _ in range(int(os.environ.get("HEADRACE_KILLS", KILLS))):
            query = Query(shop, folder)
            try:
                query.until("started")
                work()
                query.until("begin", "ready", "written", times=chance.randint(1, 6))
            finally:
                query.kill()
        work()
        end = shop.captured()
        assert engine._readiness.wait_for(
            lambda: engine.source_info("shop").end.commit >= end, PATIENCE
        )
        query = Query(shop, folder, now=True)
        try:
            query.until("ended")
        finally:
            query.close()
    finally:
        engine.stop()
    assert rows_of(folder) == dict(shop.app.execute("select id, status from orders"))
    shop.close()
