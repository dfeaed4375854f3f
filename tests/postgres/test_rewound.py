"""
A server whose files were put back to an earlier state, and which has written on since (R2).

Its identity, its timeline and the length of its log tell nothing: only what it has at the
places that our log knows does.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.capture.postgres.definition import postgres
from headrace.capture.postgres.position import LsnPosition, Mark, parse_lsn
from headrace.changelog.reader import LogReader
from headrace.embedded.postgres import PostgresServer
from headrace.engine.engine import Engine
from headrace.pipeline.definition import Pipeline
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.targets.memory import memory
from tests.postgres.servers import Database, fresh_database, wait_until
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience

PATIENCE = patience()


class Shop:
    """A table that lives of the engine follow, on a server that can be put back."""

    def __init__(self, database: Database, server: PostgresServer, data: Path) -> None:
        self.database = database
        self.server = server
        self.data = data
        self._kept = server.folder / "kept"
        database.execute("create table t (id bigint primary key, v text)")
        database.execute("create table noise (id bigserial primary key, pad text)")
        database.execute("insert into t values (1, 'first')")

    def live(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Follow until the target is the table, do something, and follow that, too."""
        rows = memory()
        source = postgres(self.database.dsn, name="shop")
        pipeline = Pipeline(source, "t", rows, name="t")
        with Engine(pipeline, data=self.data, runner=ArrowRunner(), recorder="thread") as engine:
            assert engine.await_ready(PATIENCE)

            def equal() -> bool:
                found = {row["id"]: row["v"] for row in rows.all()}
                return found == dict(self.database.rows("select id, v from t"))

            wait_until(equal, PATIENCE)
            meanwhile()
            wait_until(equal, PATIENCE)

    def keep(self) -> None:
        """Copy the server's files, while it stands still."""
        self.server.stop()
        subprocess.run(["cp", "-a", str(self.server.data), str(self._kept)], check=True)
        self.server.start()

    def put_back(self) -> None:
        self.server.stop()
        shutil.rmtree(self.server.data)
        subprocess.run(["cp", "-a", str(self._kept), str(self.server.data)], check=True)
        self.server.start()

    def fill(self, beyond: int) -> None:
        """Let the server's log grow beyond a place, by nothing of ours."""
        while self.end() <= beyond:
            self.database.execute(
                "insert into noise (pad) select repeat('x', 1000) from generate_series(1, 1000)"
            )

    def end(self) -> int:
        return parse_lsn(self.database.value("select pg_current_wal_flush_lsn()::text"))

    @property
    def log(self) -> LogReader:
        return LogReader.open(Files(RealDisk(), str(self.data)), "shop")


@pytest.fixture
def shop(own_server: PostgresServer, tmp_path: Path) -> Iterator[Shop]:
    with fresh_database(own_server) as database:
        yield Shop(database, own_server, tmp_path / "data")


def insert(shop: Shop, key: int, text: str) -> None:
    shop.database.execute("insert into t values (%s, %s)", key, text)


@pytest.mark.meets("R1", "R2")
def test_a_server_put_back_and_overtaken_by_itself_is_read_anew(shop: Shop) -> None:
    shop.live(lambda: insert(shop, 2, "kept"))
    shop.keep()
    shop.live(lambda: insert(shop, 3, "lost"))
    before = shop.log.end
    shop.put_back()
    # The same statement at the same place: only its time is another.
    insert(shop, 4, "anew")
    shop.fill(before.commit)
    shop.live(lambda: insert(shop, 5, "later"))
    assert shop.log.epoch == 2
    assert dict(shop.database.rows("select id, v from t")).keys() == {1, 2, 4, 5}


@pytest.mark.ci
@pytest.mark.meets("R2", "R34")
def test_what_is_written_anew_where_the_log_knows_of_nothing_is_not_lost(shop: Shop) -> None:
    shop.live(lambda: insert(shop, 2, "kept"))
    shop.keep()
    epoch, far = shop.log.end, shop.log.end.commit + (17 << 20)

    def idle() -> None:
        shop.fill(far)
        wait_until(lambda: shop.log.end.commit >= far, PATIENCE)

    shop.live(idle)
    before = shop.log.end
    assert before.epoch == epoch.epoch == 1
    shop.put_back()
    insert(shop, 4, "anew")
    shop.fill(before.commit)
    shop.live()
    assert shop.log.epoch == 2


@pytest.mark.meets("R2", "R35")
@pytest.mark.parametrize("how", [pytest.param("stop", marks=pytest.mark.ci), "kill"])
def test_a_server_that_only_was_away_goes_on(shop: Shop, how: str) -> None:
    shop.live(lambda: insert(shop, 2, "a"))
    for number in range(3, 6):
        shop.database.execute("insert into noise (pad) values ('x')")
        if how == "stop":
            shop.server.stop()
        else:
            shop.server.kill()
        shop.server.start()
        insert(shop, number, "between")
        shop.database.execute("alter table t add column if not exists later int")
        shop.live(lambda key=number: insert(shop, 10 * key, "in"))  # type: ignore[misc]
    log = shop.log
    assert log.epoch == 1
    assert log.gap is not None
    assert log.gap.reason == "start"


def test_the_place_carries_the_last_commit_and_means_the_same_with_and_without() -> None:
    place = LsnPosition("7", 5, 1, 2, 0x1_0000_0010, Mark(0x1_0000_0000, 740, -12))
    assert str(place) == "7/5/1/2/1/10@1/0:740:-12"
    assert LsnPosition.parse(str(place)).mark == place.mark
    assert LsnPosition.parse("7/5/1/2/1/10") == place
