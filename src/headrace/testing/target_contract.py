"""
What every target must do, as tests; see `contracts` for how to run them.

A target that says so with `beside` or `several_tables` is excused from what it cannot do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import pyarrow as pa

from headrace.changelog.change import Op
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import HeadraceError
from headrace.targets.target import Batch, Loading, Target
from headrace.testing.things import TABLE, THINGS, State


class TargetHarness(Protocol):
    """How a suite drives a target."""

    def make(self) -> Target:
        """Return the target; after a restart it finds what a durable one keeps."""
        ...

    def rows(self, target: Target, table: TableName = TABLE) -> State:
        """Return what readers of a table of the target see."""
        ...


Change = tuple[Op, int, int, str | None]
"""Operation, commit, key and name."""

OTHER = "others"
"""A second table of the same shape."""


def changes(rows: Sequence[Change]) -> pa.Table:
    """Make the rows of one table in a batch, in the given order."""
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
    """Make a batch of `things`, and of `others` if there are any."""
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
    """Make rows of a baseline."""
    return pa.table({"id": list(state), "name": list(state.values())}, schema=THINGS.arrow)


class TargetContract:
    """The contract of `Target`."""

    harness: TargetHarness

    beside: ClassVar[bool] = True
    """Whether a reload is made beside the live table, and seen at its end only."""

    several_tables: ClassVar[bool] = True
    """Whether one target takes several tables."""

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
        raise AssertionError("a keyed target took a table without a key")

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
