"""What happens by itself is told once, with names: in the status and in the log file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.api.messages import source_fields
from headrace.capture.postgres.definition import postgres
from headrace.engine.engine import Engine
from headrace.pipeline.definition import Pipeline
from headrace.runtime.info import Notice
from headrace.targets.memory import IndexedMemory, memory
from tests.postgres.servers import Database, wait_until
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience

PATIENCE = patience()


class Followed:
    """Two tables, and an engine that follows them into memory and writes a log file."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.folder = folder
        self.target: IndexedMemory = memory()
        for table in ("orders", "items"):
            database.execute(f"create table {table} (id bigint primary key, value text)")
            database.execute(f"insert into {table} values (1, 'x')")

    def engine(self) -> Engine:
        self.target = memory()
        source = postgres(self.database.dsn, name="shop")
        pipeline = Pipeline(source, tables=["orders", "items"], target=self.target, name="all")
        data = self.folder / "data"
        return Engine(pipeline, data=data, runner=ArrowRunner(), recorder="thread")

    def drop_slot(self) -> str:
        """Drop the slot, in one go with what reads from it; return its name."""
        name = str(self.database.value("select slot_name from pg_replication_slots"))
        self.database.execute(
            "do $$ declare one record; begin for one in select * from pg_replication_slots"
            " where database = current_database() loop"
            " perform pg_terminate_backend(one.active_pid, 10000);"
            " perform pg_drop_replication_slot(one.slot_name); end loop; end $$"
        )
        return name

    def logged(self) -> list[str]:
        """Return the warnings of the source in the log file."""
        lines = (self.folder / "data" / "logs" / "headrace.log").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        return [line["problem"] for line in found if line["event"] == "source warning"]


@pytest.fixture
def followed(database: Database, tmp_path: Path) -> Followed:
    return Followed(database, tmp_path)


def noticed(engine: Engine, code: str) -> Notice:
    def found() -> list[Notice]:
        notices = engine.source_info("shop").notices
        return [each for each in notices if each.problem.code == code]

    [notice] = wait_until(found, PATIENCE, what=code)
    return notice


@pytest.mark.meets("R2", "R35")
@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
def test_a_slot_that_was_dropped_is_told_with_all_names(followed: Followed, running: bool) -> None:
    with followed.engine() as engine:
        assert engine.await_ready(PATIENCE)
        assert engine.source_info("shop").notices == ()
        if running:
            name = followed.drop_slot()
            notice = noticed(engine, "capture.history_lost")
    if not running:
        name = followed.drop_slot()
        with followed.engine() as engine:
            notice = noticed(engine, "capture.history_lost")
            assert engine.await_ready(PATIENCE)
    told = notice.problem
    assert f"replication slot {name} does not exist any more" in told.message
    assert "may be missing from the log" in told.message
    assert "every table is copied again: items, orders" in told.message
    assert str(told.facts["end"]) in told.message
    assert str(told.facts["begins"]) in told.message
    [line] = followed.logged()
    assert told.message in line
    assert all(f"{fact}={value}" in line for fact, value in told.facts.items())
    [shown] = source_fields(engine.source_info("shop"))["notices"]
    assert (shown["message"], shown["number"]) == (told.message, 1)
    assert shown["facts"].keys() == told.facts.keys()


@pytest.mark.meets("R23b")
def test_a_table_that_is_copied_again_is_told_with_the_reason(followed: Followed) -> None:
    with followed.engine() as engine:
        assert engine.await_ready(PATIENCE)
        followed.database.execute("alter table items alter id type int")
        notice = noticed(engine, "capture.copied_again")
        assert notice.problem.message == "Table items is copied again: its columns were altered"
        assert engine.await_ready(PATIENCE)
        assert len(followed.logged()) == 1


@pytest.mark.meets("R2")
def test_a_reset_that_was_asked_for_is_told_as_such(followed: Followed) -> None:
    with followed.engine() as engine:
        assert engine.await_ready(PATIENCE)
        engine.reset_source("shop")
        notice = noticed(engine, "capture.history_lost")
        assert notice.problem.message.startswith("A reset was requested. Changes between")
