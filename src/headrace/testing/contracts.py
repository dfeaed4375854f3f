"""
The contracts of sources, targets and stores of dead letters, as tests.

Derive a class from `SourceContract`, `TargetContract` or `RecordsContract`, set its `harness`,
which creates your source, target or records, and let pytest collect the class:

    class TestMySource(SourceContract):
        @pytest.fixture(autouse=True)
        def _made(self, tmp_path):
            self.harness = MyHarness(tmp_path)

The suites of sources and targets use the table `things`, with the columns `id`, an integer and the
key, and `name`, a text. Set `beside` or `several_tables` to False to skip the tests of what a
target cannot do.

Long because each contract is one class, from which suites derive as a whole.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Protocol

import pyarrow as pa

from headrace.capture.source import Baselines, Copy, Source
from headrace.changelog.change import Changes, Op
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import AlreadyStored, HeadraceError, TableRefused
from headrace.storage.records import Records
from headrace.targets.target import Batch, ListsLoaded, ListsRows, Loading, Target
from headrace.testing.source import TABLE, THINGS, State, Step

__all__ = [
    "TABLE",
    "THINGS",
    "ReadsTables",
    "RecordsContract",
    "RecordsHarness",
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


# --- the contract of targets ----------------------------------------------------------------------


class TargetHarness(Protocol):
    """What you implement so that `TargetContract` can test a target."""

    def make(self) -> Target:
        """Return a new target; if it is durable, it finds what an earlier one has stored."""
        ...

    def rows(self, target: Target, table: TableName = TABLE) -> State:
        """Return the rows of a table as readers of the target see them."""
        ...


Change = tuple[Op, int, int, str | None]
"""Operation, commit, key and name."""

OTHER = "others"
"""A second table with the same columns."""


def changes(rows: Sequence[Change]) -> pa.Table:
    """Return the rows of one table for a batch, in the given order."""
    return pa.table(
        {
            "_op": pa.array([int(op) for op, *_ in rows], pa.int8()),
            "_commit": pa.array([commit for _, commit, *_ in rows], pa.int64()),
            "_ordinal": pa.array([0] * len(rows), pa.int32()),
            "_time": pa.array([0] * len(rows), pa.timestamp("us", "UTC")),
            "id": pa.array([key for *_, key, _ in rows], pa.int64()),
            "name": pa.array([name for *_, name in rows], pa.string()),
        }
    )


def batch(
    rows: Sequence[Change],
    last: int,
    *,
    first: int = 1,
    truncate: int | None = None,
    others: Sequence[Change] | None = None,
) -> Batch:
    """Return a batch with changes of `things` and, if given, of `others`."""
    tables = {TABLE: changes(rows)}
    if others is not None:
        tables[OTHER] = changes(others)
    return Batch(
        id=f"{first}-{last}",
        epoch=1,
        first=Position(1, first),
        last=Position(1, last),
        tables=tables,
        truncates={} if truncate is None else {TABLE: Position(1, truncate)},
    )


def loaded(state: State) -> pa.Table:
    """Return rows of a baseline."""
    return pa.table({"id": list(state), "name": list(state.values())}, schema=THINGS.arrow)


class TargetContract:
    """The tests of the contract of `Target`."""

    harness: TargetHarness

    beside: ClassVar[bool] = True
    """Whether a reload is staged while the live table stays visible until the switch."""

    several_tables: ClassVar[bool] = True
    """Whether one target accepts several tables."""

    def _opened(self) -> Target:
        target = self.harness.make()
        target.check({TABLE: THINGS})
        target.open({TABLE: THINGS}, {TABLE: ORIGIN})
        target.load(TABLE, 1).switch(Position(1, 0))
        return target

    def _with_two(self) -> Target:
        tables = {TABLE: THINGS, OTHER: TableSchema(OTHER, THINGS.columns, THINGS.key)}
        target = self.harness.make()
        target.check(tables)
        target.open(tables, dict.fromkeys(tables, ORIGIN))
        for name in tables:
            target.load(name, 1).switch(Position(1, 0))
        return target

    def test_a_table_without_a_key_is_refused(self) -> None:
        target = self.harness.make()
        if not target.traits.keyed:
            return
        try:
            target.check({TABLE: TableSchema(TABLE, THINGS.columns)})
        except HeadraceError:
            return
        raise AssertionError("check() of a keyed target accepted a table without a key")

    def test_a_batch_is_applied_and_its_position_returned(self) -> None:
        target = self._opened()
        rows = [(Op.INSERT, 1, 1, "a"), (Op.INSERT, 2, 2, "b"), (Op.UPDATE, 3, 1, "c")]
        assert target.write(batch(rows, 3)) == Position(1, 3)
        assert self.harness.rows(target) == {1: "c", 2: "b"}
        target.close()

    def test_a_batch_that_comes_again_changes_nothing(self) -> None:
        target = self._opened()
        first = batch([(Op.INSERT, 1, 1, "a"), (Op.INSERT, 2, 2, "b")], 2)
        target.write(first)
        target.write(batch([(Op.DELETE, 3, 1, None), (Op.UPDATE, 4, 2, "c")], 4, first=3))
        assert target.write(first) == Position(1, 4)
        assert self.harness.rows(target) == {2: "c"}
        target.close()

    def test_of_a_longer_batch_only_what_is_new_counts(self) -> None:
        target = self._opened()
        target.write(batch([(Op.INSERT, 1, 1, "a"), (Op.DELETE, 2, 1, None)], 2))
        longer = [(Op.INSERT, 1, 1, "a"), (Op.DELETE, 2, 1, None), (Op.INSERT, 3, 3, "c")]
        assert target.write(batch(longer, 3)) == Position(1, 3)
        assert self.harness.rows(target) == {3: "c"}
        target.close()

    def test_an_empty_batch_moves_the_position_only(self) -> None:
        target = self._opened()
        target.write(batch([(Op.INSERT, 1, 1, "a")], 1))
        assert target.write(batch([], 7, first=2)) == Position(1, 7)
        assert self.harness.rows(target) == {1: "a"}
        target.close()

    def test_a_key_change_is_a_delete_and_an_insert_of_one_position(self) -> None:
        target = self._opened()
        target.write(batch([(Op.INSERT, 1, 1, "a")], 1))
        target.write(batch([(Op.DELETE, 2, 1, None), (Op.UPDATE, 2, 2, "a")], 2, first=2))
        assert self.harness.rows(target) == {2: "a"}
        target.close()

    def test_the_last_change_of_a_key_within_a_batch_wins(self) -> None:
        target = self._opened()
        rows = [
            (Op.INSERT, 1, 1, "a"),
            (Op.DELETE, 2, 1, None),
            (Op.INSERT, 3, 1, "b"),
            (Op.INSERT, 4, 2, "c"),
            (Op.DELETE, 5, 2, None),
        ]
        target.write(batch(rows, 5))
        assert self.harness.rows(target) == {1: "b"}
        target.close()

    def test_deleting_what_is_not_there_is_no_error(self) -> None:
        target = self._opened()
        target.write(batch([(Op.DELETE, 1, 9, None)], 1))
        assert self.harness.rows(target) == {}
        target.close()

    def test_a_truncate_removes_what_was_there_before_it(self) -> None:
        target = self._opened()
        target.write(batch([(Op.INSERT, 1, 1, "a"), (Op.INSERT, 2, 2, "b")], 2))
        target.write(batch([(Op.INSERT, 4, 3, "c")], 4, first=3, truncate=3))
        assert self.harness.rows(target) == {3: "c"}
        target.close()

    def test_a_truncate_that_comes_again_removes_nothing(self) -> None:
        target = self._opened()
        emptied = batch([], 1, truncate=1)
        target.write(emptied)
        target.write(batch([(Op.INSERT, 2, 1, "a")], 2, first=2))
        target.write(emptied)
        assert self.harness.rows(target) == {1: "a"}
        target.close()

    def test_loaded_rows_take_the_place_of_the_table_at_the_switch(self) -> None:
        target = self._opened()
        target.write(batch([(Op.INSERT, 1, 1, "old")], 1))
        loading = target.load(TABLE, 2)
        loading.write(loaded({2: "loaded"}))
        if self.beside:
            assert self.harness.rows(target) == {1: "old"}
        loading.switch(Position(1, 5))
        assert self.harness.rows(target) == {2: "loaded"}
        target.write(batch([(Op.INSERT, 5, 3, "seen"), (Op.INSERT, 6, 4, "new")], 6, first=5))
        assert self.harness.rows(target) == {2: "loaded", 4: "new"}
        target.close()

    def test_changes_are_caught_up_with_before_the_switch(self) -> None:
        target = self._opened()
        loading: Loading = target.load(TABLE, 2)
        loading.write(loaded({1: "a", 2: "b"}))
        loading.write(loaded({3: "c"}))
        rows = [(Op.DELETE, 4, 1, None), (Op.UPDATE, 5, 2, "later"), (Op.INSERT, 6, 4, "d")]
        loading.catch_up(batch(rows, 6, first=4))
        loading.catch_up(batch([], 7, first=7))
        loading.catch_up(batch([*rows, (Op.DELETE, 8, 3, None)], 8, first=4))
        if self.beside:
            assert self.harness.rows(target) == {}
        loading.switch(Position(1, 8))
        assert self.harness.rows(target) == {2: "later", 4: "d"}
        assert target.write(batch([(Op.INSERT, 8, 3, "x")], 8, first=8)) == Position(1, 8)
        assert self.harness.rows(target) == {2: "later", 4: "d"}
        target.close()

    def test_rows_that_may_expire_are_listed_as_written_and_as_loaded(self) -> None:
        target = self._opened()
        if not isinstance(target, ListsRows):
            return
        target.write(batch([(Op.INSERT, 1, 1, "a"), (Op.INSERT, 2, 2, "b")], 2))
        assert target.columns_shown(TABLE) == THINGS
        loading = target.load(TABLE, 2)
        assert isinstance(loading, ListsLoaded)
        loading.write(loaded({3: "c", 4: "d"}))
        loading.catch_up(batch([(Op.DELETE, 3, 4, None)], 3, first=3))
        listed = target.list_rows(TABLE, ["name", "id"]).to_pydict()
        assert sorted(listed["id"]) == [1, 2]
        assert sorted(listed["name"]) == ["a", "b"]
        assert loading.list_rows(["id"]).to_pydict() == {"id": [3]}
        target.close()

    def test_a_key_change_is_caught_up_with(self) -> None:
        target = self._opened()
        loading = target.load(TABLE, 2)
        loading.write(loaded({1: "a", 2: "b"}))
        loading.catch_up(batch([(Op.DELETE, 2, 1, None), (Op.UPDATE, 2, 7, "a")], 2, first=2))
        loading.switch(Position(1, 2))
        assert self.harness.rows(target) == {2: "b", 7: "a"}
        target.close()

    def test_a_truncate_is_caught_up_with(self) -> None:
        target = self._opened()
        loading = target.load(TABLE, 2)
        loading.write(loaded({1: "a", 2: "b"}))
        loading.catch_up(batch([(Op.INSERT, 4, 3, "c")], 4, first=2, truncate=3))
        loading.switch(Position(1, 4))
        assert self.harness.rows(target) == {3: "c"}
        target.close()

    def test_a_load_of_nothing_is_an_empty_table(self) -> None:
        target = self._opened()
        target.write(batch([(Op.INSERT, 1, 1, "a")], 1))
        target.load(TABLE, 2).switch(Position(1, 4))
        assert self.harness.rows(target) == {}
        target.close()

    def test_the_live_table_goes_on_while_another_is_loaded(self) -> None:
        if not self.beside:
            return
        target = self._opened()
        target.write(batch([(Op.INSERT, 1, 1, "a")], 1))
        loading = target.load(TABLE, 2)
        loading.write(loaded({1: "loaded"}))
        assert target.write(batch([(Op.INSERT, 2, 2, "live")], 2, first=2)) == Position(1, 2)
        assert self.harness.rows(target) == {1: "a", 2: "live"}
        loading.catch_up(batch([(Op.INSERT, 2, 3, "caught up")], 2, first=2))
        assert target.write(batch([(Op.UPDATE, 3, 1, "b")], 3, first=3)) == Position(1, 3)
        assert self.harness.rows(target) == {1: "b", 2: "live"}
        loading.catch_up(batch([], 3, first=3))
        loading.switch(Position(1, 3))
        assert self.harness.rows(target) == {1: "loaded", 3: "caught up"}
        target.close()

    def test_a_table_is_loaded_twice_in_a_row(self) -> None:
        target = self._opened()
        for at in (1, 2):
            loading = target.load(TABLE, at + 1)
            loading.write(loaded({at: "loaded"}))
            loading.switch(Position(1, at))
            assert self.harness.rows(target) == {at: "loaded"}
        target.close()

    def test_a_second_load_takes_the_place_of_the_first(self) -> None:
        target = self._opened()
        target.load(TABLE, 2).write(loaded({1: "first"}))
        second = target.load(TABLE, 3)
        second.write(loaded({2: "second"}))
        second.switch(Position(1, 1))
        assert self.harness.rows(target) == {2: "second"}
        target.close()

    def test_a_discarded_load_leaves_the_table_alone(self) -> None:
        target = self._opened()
        target.write(batch([(Op.INSERT, 1, 1, "a")], 1))
        loading = target.load(TABLE, 2)
        if self.beside:
            loading.write(loaded({2: "b"}))
            loading.catch_up(batch([(Op.INSERT, 2, 3, "c")], 2, first=2))
        loading.discard()
        assert self.harness.rows(target) == {1: "a"}
        target.write(batch([(Op.INSERT, 2, 3, "d")], 2, first=2))
        assert self.harness.rows(target) == {1: "a", 3: "d"}
        target.load(TABLE, 3).switch(Position(1, 3))
        assert self.harness.rows(target) == {}
        target.close()

    def test_the_tables_of_a_batch_are_taken_together(self) -> None:
        if not self.several_tables:
            return
        target = self._with_two()
        both = batch([(Op.INSERT, 1, 1, "a")], 2, others=[(Op.INSERT, 2, 1, "b")])
        assert target.write(both) == Position(1, 2)
        assert self.harness.rows(target) == {1: "a"}
        assert self.harness.rows(target, OTHER) == {1: "b"}
        emptied = batch([], 4, first=3, truncate=3, others=[(Op.UPDATE, 4, 1, "c")])
        assert target.write(emptied) == Position(1, 4)
        assert self.harness.rows(target) == {}
        assert self.harness.rows(target, OTHER) == {1: "c"}
        target.close()

    def test_a_table_that_is_not_in_a_batch_stays_where_it_is(self) -> None:
        if not self.several_tables:
            return
        target = self._with_two()
        target.write(batch([(Op.INSERT, 5, 1, "a")], 5))
        late = batch([(Op.INSERT, 2, 9, "seen")], 5, others=[(Op.INSERT, 2, 1, "b")])
        assert target.write(late) == Position(1, 5)
        assert self.harness.rows(target) == {1: "a"}
        assert self.harness.rows(target, OTHER) == {1: "b"}
        target.close()

    def test_a_load_of_one_table_leaves_the_other_alone(self) -> None:
        if not self.several_tables:
            return
        target = self._with_two()
        target.write(batch([(Op.INSERT, 1, 1, "a")], 1, others=[(Op.INSERT, 1, 1, "b")]))
        loading, other = target.load(TABLE, 2), target.load(OTHER, 2)
        loading.write(loaded({2: "loaded"}))
        other.write(loaded({2: "other"}))
        loading.switch(Position(1, 1))
        assert self.harness.rows(target) == {2: "loaded"}
        assert self.harness.rows(target, OTHER) == {1: "b"}
        other.switch(Position(1, 1))
        assert self.harness.rows(target, OTHER) == {2: "other"}
        target.close()

    def test_a_durable_target_finds_its_rows_again(self) -> None:
        target = self._opened()
        target.write(batch([(Op.INSERT, 1, 1, "a")], 1))
        target.close()
        if not target.traits.durable:
            return
        again = self.harness.make()
        again.open({TABLE: THINGS}, {TABLE: Position(1, 1)})
        assert self.harness.rows(again) == {1: "a"}
        assert again.write(batch([(Op.INSERT, 1, 1, "other")], 1)) == Position(1, 1)
        assert self.harness.rows(again) == {1: "a"}
        again.close()


# --- the contract of sources ----------------------------------------------------------------------

LONG = 5.0
"""The limit of waits that end early if the source is correct."""


class ReadsTables(Source, Baselines, Protocol):
    """A source with baselines."""


_CLOCKS_DIFFER = 0.1
"""Seconds by which a database's clock and ours may differ, with the precision of both."""

_PATIENCE = 60.0


class SourceHarness(Protocol):
    """What you implement so that `SourceContract` can test a source and its database."""

    def make(self) -> ReadsTables:
        """Return a new source for the same database; called again to simulate a restart."""
        ...

    def commit(self, steps: Sequence[Step]) -> None:
        """Execute these steps in one transaction."""
        ...

    def truth(self) -> State:
        """Return the rows of the table `things`, read from the database itself."""
        ...

    def all_read(self, upto: int) -> bool:
        """Whether commit `upto` is the last one so far; some sources receive it with a delay."""
        ...


def replay(state: State, changes: Sequence[Changes], after: int = -1) -> State:
    """Apply changes after commit `after`, as a target with one row for each key does."""
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
    """Read until nothing is left, and return all changes."""
    found = []
    while (changes := source.read(most, 0)) is not None:
        found.append(changes)
    return found


class SourceContract:
    """The tests of the contracts of `Source` and `Baselines`."""

    harness: SourceHarness
    splits_commits = True
    """Whether a commit with more changes than requested is returned in parts."""

    _reached = 0

    def _opened(self, after: str | None = None) -> ReadsTables:
        source = self.harness.make()
        source.describe([TABLE])
        self._reached = source.open(after).commit
        return source

    def _read(self, source: Source, most: int = 1000) -> list[Changes]:
        """Read everything committed so far, without heartbeats."""
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
                assert time.monotonic() < until, "read() did not return a commit"

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
        raise AssertionError("describe() accepted a table that does not exist")

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
        positions = [(row["_commit"], row["_ordinal"]) for row in rows]
        assert positions == sorted(set(positions))
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

    def test_what_was_committed_counts_as_read_only_once_it_was(self) -> None:
        source = self._opened()
        if source.traits.measures_lag:
            self.harness.commit([("insert", 1, "a")])
            committed = time.monotonic()
            passed = 0.0
            while passed < 2 * _CLOCKS_DIFFER:
                passed, age = time.monotonic() - committed, source.lag().age
                assert age is None or age > passed - _CLOCKS_DIFFER
            self._read(source)
            until = time.monotonic() + _PATIENCE
            while (age := source.lag().age) is None or age > time.monotonic() - committed:
                assert time.monotonic() < until, "what was read never counts as read"
                source.read(100, 0.05)
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


# --- the contract of stores of dead letters -------------------------------------------------------


class RecordsHarness(Protocol):
    """What you implement so that `RecordsContract` can test where records are kept."""

    def make(self, name: str) -> Records:
        """
        Return the records of an owner; none at first.

        Called again with the same name it returns another object for the same records, as after a
        restart, or in another process; one that is volatile returns the same object.
        """
        ...


class RecordsContract:
    """The tests of the contract of `Records`."""

    harness: RecordsHarness

    def test_reading_what_is_empty_finds_nothing(self) -> None:
        records = self.harness.make("orders")
        assert records.numbers() == []
        assert self._read(records, 1) is None
        records.remove([1, 2])
        assert records.numbers() == []

    def test_a_record_is_read_back_as_it_was_created(self) -> None:
        content = {1: b"", 2: b"\x00\xff\r\n", 3: b"three" * 50_000, 0xFFFFFFFFFFFF: b"last"}
        records = self.harness.make("orders")
        for number, data in content.items():
            records.create(number, data)
        for each in (records, self.harness.make("orders")):
            each.settle()
            assert each.numbers() == list(content)
            assert {number: self._read(each, number) for number in content} == content

    def test_a_number_is_created_once_and_keeps_its_first_bytes(self) -> None:
        one, other = self.harness.make("orders"), self.harness.make("orders")
        one.create(1, b"first")
        for late in (one, other):
            try:
                late.create(1, b"second")
            except AlreadyStored:
                continue
            raise AssertionError("create() of a number that exists did not raise AlreadyStored")
        assert self._read(other, 1) == b"first"
        assert one.numbers() == [1]

    def test_of_many_who_create_one_number_at_once_one_does(self) -> None:
        def create(writer: int) -> bool:
            try:
                self.harness.make("orders").create(1, str(writer).encode())
            except AlreadyStored:
                return False
            return True

        with ThreadPoolExecutor(8) as threads:
            done = list(threads.map(create, range(8)))
        assert done.count(True) == 1
        assert self._read(self.harness.make("orders"), 1) == str(done.index(True)).encode()

    def test_what_is_removed_is_gone_and_its_number_can_be_created(self) -> None:
        records = self.harness.make("orders")
        for number in (1, 2, 3):
            records.create(number, b"old")
        records.remove([1, 3, 4])
        assert self.harness.make("orders").numbers() == [2]
        assert self._read(records, 1) is None
        records.create(1, b"new")
        assert self._read(self.harness.make("orders"), 1) == b"new"

    def test_owners_have_records_of_their_own(self) -> None:
        orders, other = self.harness.make("orders"), self.harness.make("orders2")
        orders.create(1, b"orders")
        assert other.numbers() == []
        other.create(1, b"other")
        other.remove([1])
        assert self._read(orders, 1) == b"orders"
        assert orders.numbers() == [1]

    def test_a_path_says_which_record_it_is(self) -> None:
        records = self.harness.make("orders")
        assert records.path(1) != records.path(2)

    def _read(self, records: Records, number: int) -> bytes | None:
        try:
            return records.read(number)
        except FileNotFoundError:
            return None
