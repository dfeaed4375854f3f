"""
What every source and every target must do, as tests.

Derive from a suite, say how your part is made, and let pytest collect it:

    class TestMySource(SourceContract):
        @pytest.fixture(autouse=True)
        def _made(self, tmp_path):
            self.harness = MyHarness(tmp_path)

The table of all suites is `things`: `id`, a whole number and the key, and `name`, a text.
The suite of targets is in `target_contract`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Protocol

from headrace.capture.source import Baselines, Copy, Source
from headrace.changelog.change import Changes, Op
from headrace.errors import TableRefused
from headrace.testing.target_contract import TargetContract, TargetHarness, batch
from headrace.testing.things import TABLE, THINGS, State, Step

__all__ = [
    "TABLE",
    "THINGS",
    "ReadsTables",
    "SourceContract",
    "SourceHarness",
    "State",
    "Step",
    "TargetContract",
    "TargetHarness",
    "batch",
    "read_all",
    "replay",
]

LONG = 5.0
"""For waits that end early when all is well."""


class ReadsTables(Source, Baselines, Protocol):
    """A source with baselines."""


class SourceHarness(Protocol):
    """How a suite drives a source and the database behind it."""

    def make(self) -> ReadsTables:
        """Return a source for the same database, also a second one after a restart."""
        ...

    def commit(self, steps: Sequence[Step]) -> None:
        """Do these in one transaction."""
        ...

    def truth(self) -> State:
        """Return what the table holds."""
        ...

    def all_read(self, upto: int) -> bool:
        """Whether commit `upto` is the last one so far; sources that push take a moment."""
        ...


def replay(state: State, changes: Sequence[Changes], after: int = -1) -> State:
    """Apply changes above commit `after`, as a target that keeps one row a key does."""
    for read in changes:
        for table in read.tables:
            for row in table.rows.to_pylist():
                if row["_commit"] > after:
                    _apply(state, row)
    return state


def _apply(state: State, row: dict[str, dict[str, object] | None]) -> None:
    before, after = row["before"], row["after"]
    if before is not None:
        state.pop(int(str(before["id"])), None)
    if after is not None:
        name = after["name"]
        state[int(str(after["id"]))] = None if name is None else str(name)


def read_all(source: Source, most: int = 1000) -> list[Changes]:
    """Read until there is no more."""
    found = []
    while (changes := source.read(most, 0)) is not None:
        found.append(changes)
    return found


class SourceContract:
    """The contract of `Source` and `Baselines`."""

    harness: SourceHarness
    splits_commits = True
    """Whether a commit of more changes than are asked for comes in parts."""

    _reached = 0

    def _opened(self, after: str | None = None) -> ReadsTables:
        source = self.harness.make()
        source.describe([TABLE])
        self._reached = source.open(after).commit
        return source

    def _read(self, source: Source, most: int = 1000) -> list[Changes]:
        """Read what was committed so far; heartbeats are left out."""
        found: list[Changes] = []
        until = time.monotonic() + LONG
        while True:
            there = self.harness.all_read(self._reached)
            changes = source.read(most, 0 if there else 0.05)
            if changes is not None:
                found.append(changes)
                self._reached = changes.upto.commit
            elif there:
                return [changes for changes in found if changes.tables or not changes.ends]
            else:
                assert time.monotonic() < until, "what was committed did not come"

    def test_a_table_is_described_with_its_key(self) -> None:
        schema = self.harness.make().describe([TABLE])[TABLE]
        assert schema.names == ("id", "name")
        assert schema.key == ("id",)
        assert self.harness.make().check([TABLE]) == []

    def test_a_missing_table_is_refused_by_name(self) -> None:
        (problem,) = self.harness.make().check(["no such table"])
        assert isinstance(problem, TableRefused)
        assert problem.facts["table"] == "no such table"
        try:
            self.harness.make().describe(["no such table"])
        except TableRefused:
            return
        raise AssertionError("describe took a table that is not there")

    def test_reading_begins_at_the_end_unless_told_otherwise(self) -> None:
        self._opened().close()
        self.harness.commit([("insert", 1, "old")])
        source = self._opened()
        assert replay({}, self._read(source)) == {}
        source.close()

    def test_changes_come_in_order_with_both_images(self) -> None:
        source = self._opened()
        self.harness.commit([("insert", 1, "a"), ("update", 1, "b"), ("delete", 1, None)])
        rows = [
            row
            for changes in self._read(source)
            for table in changes.tables
            for row in table.rows.to_pylist()
        ]
        assert [row["_op"] for row in rows] == [Op.INSERT, Op.UPDATE, Op.DELETE]
        assert [(row["before"] or {}).get("name") for row in rows] == [None, "a", "b"]
        assert [(row["after"] or {}).get("name") for row in rows] == ["a", "b", None]
        places = [(row["_commit"], row["_ordinal"]) for row in rows]
        assert places == sorted(set(places))
        source.close()

    def test_rows_come_in_the_shape_of_a_segment(self) -> None:
        source = self._opened()
        self.harness.commit([("insert", 1, "a")])
        (changes,) = self._read(source)
        (table,) = changes.tables
        assert table.rows.schema.equals(table.schema.segment)
        source.close()

    def test_a_commit_read_in_parts_says_where_it_ends(self) -> None:
        source = self._opened()
        self.harness.commit([("insert", number, "x") for number in range(10)])
        parts = self._read(source, most=3)
        assert (len(parts) > 1) == self.splits_commits
        assert [part.ends for part in parts] == [False] * (len(parts) - 1) + [True]
        assert replay({}, parts) == self.harness.truth()
        source.close()

    def test_the_same_changes_come_again_after_a_restart(self) -> None:
        source = self._opened()
        self.harness.commit([("insert", 1, "a")])
        (first,) = self._read(source)
        self.harness.commit([("update", 1, "b"), ("insert", 2, "c")])
        self.harness.commit([("delete", 2, None)])
        before = _rows(self._read(source))
        source.close()
        again = self._opened(str(first.upto))
        assert _rows(self._read(again)) == before
        again.close()

    def test_a_restart_goes_on_in_the_same_lineage_at_the_same_place(self) -> None:
        source = self._opened()
        self.harness.commit([("insert", 1, "a")])
        (changes,) = self._read(source)
        source.close()
        again = self.harness.make()
        again.describe([TABLE])
        at = again.open(str(changes.upto))
        assert str(at) == str(changes.upto)
        assert at.lineage == changes.upto.lineage
        self._reached = at.commit
        assert self._read(again) == []
        again.close()

    def test_without_changes_a_read_returns_at_once_or_after_its_wait(self) -> None:
        source = self._opened()
        self._read(source)
        assert not _rows([read for wait in (0, 0.01) if (read := source.read(10, wait))])
        source.close()

    def test_a_commit_ends_the_wait_of_a_read(self) -> None:
        source = self._opened()
        self._read(source)
        timer = threading.Timer(0.05, self.harness.commit, ([("insert", 1, "a")],))
        timer.start()
        assert source.read(10, LONG) is not None
        timer.join()
        source.close()

    def test_wake_ends_the_wait_of_a_read_from_another_thread(self) -> None:
        source = self._opened()
        self._read(source)
        done = threading.Event()

        def read() -> None:
            source.read(10, 60)
            done.set()

        reader = threading.Thread(target=read)
        reader.start()
        source.wake()
        assert done.wait(LONG)
        reader.join()
        source.close()

    def test_closing_is_allowed_at_any_time_and_twice(self) -> None:
        source = self.harness.make()
        source.close()
        source = self._opened()
        source.close()
        source.close()

    def test_what_follows_an_acknowledgement_is_kept(self) -> None:
        source = self._opened()
        self.harness.commit([("insert", 1, "a")])
        (first,) = self._read(source)
        self.harness.commit([("insert", 2, "b")])
        source.acknowledge(str(first.upto))
        source.read(10, 0)
        source.close()
        again = self._opened(str(first.upto))
        assert replay({}, self._read(again)) == {2: "b"}
        again.close()

    def test_a_baseline_and_the_changes_after_it_make_the_table(self) -> None:
        self._opened().close()
        self.harness.commit([("insert", number, "old") for number in range(50)])
        source = self._opened()
        copy = source.baseline(TABLE)
        rows, seen = _copied(copy, lambda: self.harness.commit([("update", 49, "late")]))
        assert seen[0] <= seen[1]
        self.harness.commit([("delete", 3, None), ("insert", 100, "new")])
        assert replay(rows, self._read(source), after=seen[0]) == self.harness.truth()
        source.close()

    def test_an_empty_table_has_an_empty_baseline(self) -> None:
        source = self._opened()
        rows, (first, last) = _copied(source.baseline(TABLE), lambda: None)
        assert rows == {}
        assert first == last
        source.close()

    def test_lag_is_nothing_once_all_is_read(self) -> None:
        source = self._opened()
        self.harness.commit([("insert", 1, "a"), ("insert", 2, "b")])
        assert source.lag().changes in (2, None)
        self._read(source)
        assert source.lag().changes in (0, None)
        source.close()


def _rows(reads: Sequence[Changes]) -> list[object]:
    return [row for read in reads for table in read.tables for row in table.rows.to_pylist()]


def _copied(copy: Copy, between: object) -> tuple[State, tuple[int, int]]:
    rows: State = {}
    for piece in copy:
        assert piece.schema.equals(copy.schema.arrow)
        rows.update(
            zip(piece.column("id").to_pylist(), piece.column("name").to_pylist(), strict=True)
        )
        if callable(between):
            between()
    copy.close()
    return rows, (copy.first, copy.last)
