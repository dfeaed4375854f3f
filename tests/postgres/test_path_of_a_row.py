"""Which modules a committed row passes on its way into the log."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import pytest

import headrace
from tests.postgres.recording import Recording
from tests.postgres.servers import Database

ROOT = Path(headrace.__path__[0])

PATH = {
    "capture/recorder.py",
    "capture/waker.py",
    "capture/postgres/source.py",
    "capture/postgres/position.py",
    "capture/postgres/stream/stream.py",
    "capture/postgres/stream/wire.py",
    "capture/postgres/stream/transactions.py",
    "capture/postgres/decode/relations.py",
    "capture/postgres/decode/rows.py",
    "capture/postgres/decode/text.py",
}
STORE = {"capture/postgres/toast/unchanged_values.py", "capture/postgres/toast/store.py"}
"""Where a value may be so large that it is not sent again: what was sent is kept."""


@pytest.fixture
def shop(database: Database, recording: Recording) -> Recording:
    database.execute("create table numbers (id bigint primary key, n bigint)")
    database.execute("create table texts (id bigint primary key, body text)")
    return recording


def passed(shop: Recording, statement: str) -> set[str]:
    """Return the modules of capture that are entered until what a statement does is flushed."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            found.add(path.relative_to(ROOT).as_posix())

    log = shop.recorder._log
    assert log is not None
    entry = log.last_entry
    shop.database.execute(statement)
    sys.setprofile(note)
    try:
        shop.until(lambda: log.last_entry > entry)
    finally:
        sys.setprofile(None)
    return {name for name in found if name.startswith("capture/")}


@pytest.mark.parametrize(("table", "modules"), [("numbers", PATH), ("texts", PATH | STORE)])
def test_a_row_passes_what_decodes_it_and_nothing_that_is_not_due(
    shop: Recording, table: str, modules: set[str]
) -> None:
    shop.live(table)
    shop.streaming()
    shop.copy(table)
    walks = [
        passed(shop, f"insert into {table} values ({number}, {number})") for number in range(9)
    ]
    # Not all: the first describes the table, and what is due now and then may be due just then.
    assert modules in walks
