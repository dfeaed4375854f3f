"""A source is reset on a real server: slot and publication go, and reading begins anew."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from headrace.capture.postgres.definition import postgres
from headrace.capture.postgres.position import LsnPosition
from headrace.capture.postgres.server import slot as slots
from headrace.capture.postgres.source import PostgresSource
from headrace.capture.source import reader_of
from headrace.changelog.reader import LogReader
from headrace.embedded.postgres import PostgresServer
from headrace.errors import OtherDatabase, SlotRefused
from headrace.storage import killpoints
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from tests.postgres.followed import FollowedOrders
from tests.postgres.servers import Database, fresh_database, wait_until
from tests.support.patience import patience

PATIENCE = patience()


class Followed(FollowedOrders):
    """Orders that are followed, and what is left of them on the server and in the log."""

    def reader(self) -> PostgresSource:
        """Return the source as the engine's recorder has it."""
        spec = postgres(self.database.dsn, name="shop").spec
        return PostgresSource(spec, reader_of("shop", self.data))

    def await_equal(self) -> None:
        wait_until(self.equal, PATIENCE, what="the target to equal the source")

    def publications(self) -> list[int]:
        return [oid for (oid,) in self.database.rows("select oid from pg_publication")]

    def gaps(self) -> list[str]:
        log = LogReader.open(Files(RealDisk(), str(self.data)), "shop")
        return [] if log.gap is None else [log.gap.reason]


@pytest.fixture
def followed(database: Database, tmp_path: Path) -> Iterator[Followed]:
    yield Followed(database, tmp_path / "data")


@pytest.mark.meets("ENG-53", "R1", "H1", "R35")
@pytest.mark.parametrize(
    ("drop_publication", "how"),
    [
        (False, "process"),
        (True, "thread"),
        pytest.param(False, "thread", marks=pytest.mark.nightly),
        pytest.param(True, "process", marks=pytest.mark.nightly),
    ],
)
def test_a_reset_source_is_copied_again_and_followed_on(
    followed: Followed, how: str, drop_publication: bool
) -> None:
    with followed.engine(how) as engine:
        assert engine.await_ready(PATIENCE)
        before, (published,) = engine.source_info("shop").end, followed.publications()
        followed.database.execute("delete from orders where id <= 5")
        assert engine.reset_source("shop", drop_publication, timeout=PATIENCE)
        after = engine.source_info("shop").end
        assert (after.epoch, after.commit > before.commit) == (before.epoch, True)
        assert engine.pipeline_info("orders").tables[0].baseline == 2
        assert (followed.publications() == [published]) is not drop_publication
        assert len(followed.publications()) == len(followed.slots()) == 1
        followed.database.execute("update orders set note = 'later' where id % 2 = 0")
        followed.await_equal()
        assert engine.source_info("shop").restarts == 0
    assert followed.gaps() == ["gap"]


@pytest.mark.meets("ENG-53", "R2")
def test_nothing_is_lost_of_what_is_written_during_resets(followed: Followed) -> None:
    ended = threading.Event()

    def write() -> None:
        connection = followed.database.connect()
        for key in range(1000, 100_000):
            if ended.is_set():
                return
            connection.execute("insert into orders values (%s, 'busy')", (key,))
            connection.execute("update orders set note = 'seen' where id = %s", (key - 3,))

    writer = threading.Thread(target=write)
    with followed.engine() as engine:
        assert engine.await_ready(PATIENCE)
        writer.start()
        try:
            for drop_publication in (False, True, False):
                assert engine.reset_source("shop", drop_publication, timeout=PATIENCE)
        finally:
            ended.set()
            writer.join()
        followed.await_equal()
        assert engine.pipeline_info("orders").tables[0].baseline == 4


@pytest.mark.meets("ENG-53", "PG-03")
def test_an_ephemeral_source_is_reset_too(followed: Followed) -> None:
    with followed.engine(slot="ephemeral") as engine:
        assert engine.await_ready(PATIENCE)
        assert engine.reset_source("shop", timeout=PATIENCE)
        assert engine.pipeline_info("orders").tables[0].baseline == 2
        followed.database.execute("insert into orders values (100, 'later')")
        followed.await_equal()


@pytest.mark.meets("ENG-53", "R35", "PG-19")
def test_a_source_whose_slot_was_dropped_can_be_reset(followed: Followed) -> None:
    with followed.engine() as engine:
        assert engine.await_ready(PATIENCE)
    (slot,) = followed.slots()
    followed.database.execute("select pg_drop_replication_slot(%s)", slot)
    followed.database.execute("update orders set note = 'unseen'")
    followed.reader().reset(None, drop_publication=True)
    assert followed.publications() == []
    with followed.engine() as engine:
        assert engine.reset_source("shop", timeout=PATIENCE)
        assert followed.equal()
        assert followed.slots() == [slot]


@pytest.mark.meets("ENG-53", "R35", "PG-19")
@pytest.mark.parametrize(
    "own_server",
    [{"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}],
    indirect=True,
)
def test_a_source_whose_slot_the_server_gave_up_can_be_reset(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    with fresh_database(own_server) as database:
        followed = Followed(database, tmp_path / "data")
        with followed.engine() as engine:
            assert engine.await_ready(PATIENCE)
        database.execute("update orders set note = 'unseen'")
        for _ in range(4):
            database.rows("select pg_switch_wal()")
            database.execute("create table x (); drop table x")
        database.execute("checkpoint")
        connection = database.connect()
        found = slots.find(connection, followed.slots()[0])
        assert found is not None and found.wal_status == "lost"
        followed.reader().reset(None, drop_publication=False)
        assert followed.slots() == []
        with followed.engine() as engine:
            assert engine.await_ready(PATIENCE)
            followed.await_equal()


class Died(BaseException):
    """What a kill looks like from inside: nothing after it happens."""


@pytest.mark.meets("ENG-53", "R2", "H4")
@pytest.mark.parametrize(
    ("point", "drop_publication"),
    [
        (killpoints.SLOT_DROPPED, True),
        pytest.param(killpoints.PUBLICATION_DROPPED, True, marks=pytest.mark.ci),
        pytest.param(killpoints.PUBLICATION_ENSURED, False, marks=pytest.mark.nightly),
        (killpoints.SLOT_CREATED, False),
        pytest.param(killpoints.LOG_BEGUN, True, marks=pytest.mark.ci),
        pytest.param(killpoints.BASELINE_CHUNK, False, marks=pytest.mark.nightly),
        pytest.param(killpoints.BASELINE_FINISHED, True, marks=pytest.mark.ci),
    ],
)
def test_a_recorder_killed_in_the_middle_of_a_reset_does_it_again(
    followed: Followed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    drop_publication: bool,
) -> None:
    with followed.engine("process") as engine:
        assert engine.await_ready(PATIENCE)
    token = tmp_path / "token"
    token.touch()
    monkeypatch.setenv("HEADRACE_KILL_POINT", point)
    monkeypatch.setenv("HEADRACE_KILL_ONCE", str(token))
    with followed.engine("process") as engine:
        assert engine.await_ready(PATIENCE)
        assert token.exists()  # nobody has come by so far
        followed.database.execute("delete from orders where id <= 5")
        assert engine.reset_source("shop", drop_publication, timeout=PATIENCE)
        assert not token.exists()
        assert engine.source_info("shop").restarts == 1
        followed.database.execute("update orders set note = 'later' where id % 2 = 0")
        followed.await_equal()


@pytest.mark.meets("ENG-53", "R2", "H4")
@pytest.mark.parametrize(
    ("steps", "drop_publication"),
    [
        ("before", False),
        ("slot", True),
        ("all", True),
        pytest.param("before", True, marks=pytest.mark.nightly),
        pytest.param("slot", False, marks=pytest.mark.nightly),
        pytest.param("all", False, marks=pytest.mark.nightly),
    ],
)
def test_an_engine_that_dies_in_the_middle_of_a_reset_is_right_after_its_next_start(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, steps: str, drop_publication: bool
) -> None:
    with followed.engine() as engine:
        assert engine.await_ready(PATIENCE)
    followed.database.execute("delete from orders where id <= 5")

    def die(*_: object, **__: object) -> None:
        raise Died

    if steps == "before":
        monkeypatch.setattr(slots, "drop", die)
    elif steps == "slot":
        monkeypatch.setattr(killpoints, "reach", die)
    try:
        followed.reader().reset(None, drop_publication=drop_publication)
    except Died:
        assert steps != "all"
    monkeypatch.undo()
    followed.database.execute("update orders set note = 'between' where id % 3 = 0")
    with followed.engine() as engine:
        assert engine.await_ready(PATIENCE)
        followed.await_equal()
        # Nothing was removed: reading simply goes on.
        copied = 1 if steps == "before" else 2
        assert engine.pipeline_info("orders").tables[0].baseline == copied
        followed.database.execute("insert into orders values (100, 'later')")
        followed.await_equal()


@pytest.mark.meets("ENG-53", "R2")
def test_a_slot_that_is_somebody_elses_is_not_dropped(followed: Followed) -> None:
    database = followed.database
    database.execute("select pg_create_logical_replication_slot('theirs', 'pgoutput')")
    for _ in range(2):
        with followed.engine(slot_name="theirs") as engine:
            assert not engine.await_ready(PATIENCE)
            assert isinstance(engine.source_info("shop").error, SlotRefused)
            assert not engine.reset_source("shop", timeout=PATIENCE)
            assert isinstance(engine.source_info("shop").error, SlotRefused)
            assert followed.slots() == ["theirs"]


@pytest.mark.meets("ENG-53", "R2")
def test_another_server_at_the_same_address_is_not_touched(followed: Followed) -> None:
    with followed.engine() as engine:
        assert engine.await_ready(PATIENCE)
    (slot,) = followed.slots()
    elsewhere = str(LsnPosition("4711", 5, 0, 1, 0))
    with pytest.raises(OtherDatabase):
        followed.reader().reset(elsewhere, drop_publication=True)
    assert followed.slots() == [slot]
    assert len(followed.publications()) == 1


@pytest.mark.meets("ENG-53")
def test_a_publication_that_is_somebody_elses_stays(followed: Followed) -> None:
    followed.database.execute("create publication theirs for table orders")
    source = partial(followed.engine, publication="theirs", create_publication=False)
    with source() as engine:
        assert engine.await_ready(PATIENCE)
        published = followed.publications()
        assert engine.reset_source("shop", True, timeout=PATIENCE)
        assert followed.publications() == published
