"""Whoever has to wait for transactions of others says for whom, and can be called off."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import psycopg
import pytest

from headrace.capture.postgres.definition import postgres
from headrace.capture.postgres.server.slot import Older, wait_reason
from headrace.cli.demo.view import waiting_text
from headrace.engine.engine import Engine
from headrace.errors import SlotTimeout
from headrace.pipeline.definition import Pipeline
from headrace.targets.memory import memory
from tests.interfaces.snapshots import STARTING
from tests.postgres.followed import FollowedOrders
from tests.postgres.servers import Database, wait_until
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience

PATIENCE = patience()
SECRET = "a value that nobody may see"

How = Literal["process", "thread"]
NIGHTLY = pytest.mark.nightly
IN_PROCESS = pytest.mark.parametrize("how", ["process", pytest.param("thread", marks=NIGHTLY)])
IN_THREAD = pytest.mark.parametrize("how", [pytest.param("process", marks=NIGHTLY), "thread"])
"""Where the recorder runs: one way for each test, of which every run has both."""


class Waiting(FollowedOrders):
    """Orders that are followed, and sessions that others wait for."""

    def writer(self, key: int) -> psycopg.Connection[object]:
        """Return a session with a transaction that has a number, and has written `SECRET`."""
        session = self.database.connect(autocommit=False, application_name="night job")
        session.execute(f"insert into orders values ({key}, '{SECRET}')".encode())
        return session


@pytest.fixture
def waiting(database: Database, tmp_path: Path) -> Iterator[Waiting]:
    yield Waiting(database, tmp_path / "data", rows=20)


def await_waiting(engine: Engine) -> str:
    """Wait until the source waits for somebody by name, and return what it says."""

    def named() -> str:
        info = engine.source_info("shop")
        return info.reason if info.state == "waiting" and "user" in info.reason else ""

    return wait_until(named, PATIENCE, what="the source to say whom it waits for")


@pytest.mark.meets("R17", "PG-05", "H1")
@IN_THREAD
def test_a_first_start_says_whom_it_waits_for_and_goes_on_when_he_is_done(
    waiting: Waiting, how: How
) -> None:
    session = waiting.writer(100)
    with waiting.engine(how) as engine:
        reason = await_waiting(engine)
        assert f"pid {session.info.backend_pid} of user postgres (night job)" in reason
        assert "open for" in reason and "since" in reason and "UTC" in reason
        assert not engine.is_ready()
        assert not engine.await_ready(0.1)
        session.commit()
        assert engine.await_ready(PATIENCE)
        wait_until(waiting.equal, PATIENCE)
        info = engine.source_info("shop")
        assert (info.state, info.reason, info.restarts) == ("streaming", "", 0)
    logs = b"".join(path.read_bytes() for path in (waiting.data / "logs").iterdir())
    assert b"waiting" in logs
    assert SECRET not in reason and SECRET.encode() not in logs
    assert logs.count(b'"waiting"') + logs.count(b"state=waiting") <= 2  # not once for each look


@pytest.mark.meets("R17")
def test_a_prepared_transaction_is_named_as_what_it_is(waiting: Waiting) -> None:
    waiting.database.execute(
        f"begin; insert into orders values (7000, '{SECRET}'); prepare transaction 'left over'"
    )
    with waiting.engine() as engine:
        assert "the prepared transaction 'left over' of user postgres" in await_waiting(engine)
        waiting.database.execute("commit prepared 'left over'")
        assert engine.await_ready(PATIENCE)
        wait_until(waiting.equal, PATIENCE)


@pytest.mark.meets("R17")
@IN_PROCESS
def test_a_stop_is_obeyed_while_it_waits_and_leaves_no_slot(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch, how: How
) -> None:
    kill, killed = subprocess.Popen.kill, list[int]()

    def killing(child: subprocess.Popen[bytes]) -> None:
        killed.append(child.pid)
        kill(child)

    monkeypatch.setattr(subprocess.Popen, "kill", killing)
    session = waiting.writer(100)
    engine = waiting.engine(how, shutdown_timeout=2 * PATIENCE)
    engine.start()
    await_waiting(engine)
    engine.stop()
    # It went by itself, while that transaction was open, and nobody's patience came to an end.
    assert killed == []
    assert not any(thread.name.startswith("headrace-recorder") for thread in threading.enumerate())
    assert waiting.slots() == []
    session.commit()
    with waiting.engine(how) as engine:
        assert engine.await_ready(PATIENCE)
        wait_until(waiting.equal, PATIENCE)


@pytest.mark.meets("R17")
@IN_THREAD
def test_a_wait_that_takes_too_long_ends_with_an_error_and_a_remedy(
    waiting: Waiting, how: How
) -> None:
    session = waiting.writer(100)
    with waiting.engine(how, create_slot_timeout=1.0) as engine:
        assert not engine.await_ready(PATIENCE)
        info = engine.source_info("shop")
        assert info.state == "failed"
        assert isinstance(info.error, SlotTimeout)
        assert "create_slot_timeout" in info.error.remedy
        assert info.reason
        assert waiting.slots() == []
        session.commit()
        assert engine.reset_source("shop", timeout=PATIENCE)
        assert engine.source_info("shop").error is None
        assert waiting.equal()


@pytest.mark.meets("R17", "ENG-53")
def test_a_reset_is_obeyed_while_it_waits(waiting: Waiting) -> None:
    session = waiting.writer(100)
    with waiting.engine() as engine:
        await_waiting(engine)
        assert not engine.reset_source("shop")
        wait_until(lambda: engine.source_info("shop").state != "waiting", PATIENCE)
        await_waiting(engine)
        session.commit()
        assert engine.await_ready(PATIENCE)
        assert waiting.equal()


@pytest.mark.meets("R13")
def test_a_copy_says_which_writer_it_waits_for(waiting: Waiting) -> None:
    with waiting.engine() as engine:
        assert engine.await_ready(PATIENCE)
    waiting.database.execute("create table late (id bigint primary key, note text)")
    session = waiting.database.connect(autocommit=False, application_name="night job")
    session.execute(f"insert into late values (1, '{SECRET}')".encode())
    late = memory()
    source = postgres(waiting.database.dsn, name="shop")
    engine = Engine(
        Pipeline(source, "orders", waiting.orders, name="orders"),
        Pipeline(source, "late", late, name="late"),
        data=waiting.data,
        runner=ArrowRunner(),
        recorder="thread",
    )
    with engine:

        def waits() -> str:
            return "".join(copy.waits for copy in engine.source_info("shop").copies)

        text = wait_until(waits, PATIENCE, what="the copy to say whom it waits for")
        assert f"pid {session.info.backend_pid} of user postgres (night job)" in text
        assert SECRET not in text
        assert engine.source_info("shop").state == "streaming"
        session.commit()
        assert engine.await_ready(PATIENCE)
        assert waits() == ""
        assert [row["id"] for row in late.all()] == [1]


def older(**facts: object) -> Older:
    known: dict[str, object] = {
        "pid": 4711,
        "user": "app",
        "application": "",
        "database": "shop",
        "age": 0.5,
        "query_age": None,
        "gid": None,
        "blocks": True,
    }
    return Older(**{**known, **facts})  # type: ignore[arg-type]


@pytest.mark.meets("R17")
@pytest.mark.parametrize(
    ("age", "said"), [(0.4, "0 s"), (59, "59 s"), (60, "1 min"), (7300, "2 h"), (200_000, "2 d")]
)
def test_an_age_is_said_coarsely(age: float, said: str) -> None:
    assert f", open for {said}, since 20" in wait_reason("It waits for", [older(age=age)])


def test_what_may_not_be_known_is_left_out() -> None:
    hidden = older(user=None, age=None)
    assert wait_reason("It waits for", [hidden]) == "It waits for pid 4711"
    assert wait_reason("It waits for", [hidden, hidden]) == "It waits for pid 4711, and 1 more"
    assert wait_reason("It waits for", []) == "It waits for open transactions"


def test_the_demo_says_whom_its_source_waits_for() -> None:
    reason = "The new slot is waiting for pid 4711"
    shown = {**STARTING, "source_state": "waiting", "source_reason": reason}
    assert waiting_text(shown) == reason
    assert "4711" not in waiting_text({**shown, "source_state": "streaming"})
