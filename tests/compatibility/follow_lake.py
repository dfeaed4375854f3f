"""An engine of today that follows into tables of Delta which one of before has kept."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import headrace as hr
from tests.compatibility.shop import MODES, Bank
from tests.support.patience import patience

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

NOW = (
    "insert into accounts values (50, 'now', 50)",
    "begin; update accounts set money = money + 1; delete from accounts where id = 6; commit",
    "update accounts set id = 60 where id = 20",
)


class Lake:
    """The tables, as any reader sees them."""

    def __init__(self, bank: Bank, spark: SparkSession) -> None:
        self._bank = bank
        self._spark = spark

    def rows(self, mode: str) -> list[tuple[object, ...]]:
        """Return what a table says the source holds now."""
        frame = self._spark.read.format("delta").load(str(self._bank.lake(mode)))
        if mode == "history":
            frame = frame.where("_valid_to_position is null")
        return [tuple(row) for row in frame.select("id", "owner", "money").orderBy("id").collect()]

    def ended(self) -> set[tuple[object, ...]]:
        """Return what the history says of before."""
        frame = self._spark.read.format("delta").load(str(self._bank.lake("history")))
        return {tuple(row) for row in frame.where("_valid_to_position is not null").collect()}

    def commits(self, mode: str) -> list[Row]:
        """Return the table's commits, the oldest first."""
        found = self._spark.sql(f"describe history delta.`{self._bank.lake(mode)}`").collect()
        return sorted(found, key=lambda commit: int(commit.version))


def main(folder: Path) -> None:
    """Follow, and look at each step."""
    bank = Bank(folder)
    copied = _copies(bank)
    files = {mode: _versions(bank, mode) for mode in MODES}
    # What it holds is older than a day, and should stay.
    with bank.engine(log=hr.log(keep="36500d")) as engine:
        assert engine.await_ready(patience(300)), engine.pipelines()
        lake = Lake(bank, hr.spark())
        _until(lambda: all(lake.rows(mode) == bank.accounts() for mode in MODES))
        ended = lake.ended()
        for statement in NOW:
            bank.app.executescript(statement)
        _until(lambda: all(lake.rows(mode) == bank.accounts() for mode in MODES))
        assert lake.ended() > ended
        for mode in MODES:
            commits = lake.commits(mode)
            since = commits[len(files[mode]) :]
            assert len(since) >= 2
            said = {commit.operation for commit in since}
            assert said <= {"MERGE", "OPTIMIZE"}, (mode, said)
            notes = [commit.userMetadata for commit in commits if commit.userMetadata]
            assert len(set(notes)) == len(notes), (mode, notes)
    assert _copies(bank) == copied, "a table was copied again"
    for mode in MODES:
        now = _versions(bank, mode)
        assert {name: now[name] for name in files[mode]} == files[mode], "a commit was rewritten"
    bank.close()
    print("followed")


def _copies(bank: Bank) -> set[str]:
    segments = (bank.data / "log" / "bank" / "segments").iterdir()
    return {path.name for path in segments if "-b" in path.name}


def _versions(bank: Bank, mode: str) -> dict[str, bytes]:
    log = bank.lake(mode) / "_delta_log"
    return {path.name: path.read_bytes() for path in log.glob("*.json")}


def _until(what: Callable[[], bool]) -> None:
    until = time.monotonic() + patience(300)
    while not what():
        assert time.monotonic() < until, "it does not come"
        threading.Event().wait(0.5)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
