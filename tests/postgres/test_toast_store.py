"""The store of TOAST values by itself: versions, and what is left of them after a crash."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from headrace.capture.postgres.toast.store import (
    UNKNOWN,
    Cell,
    RowVersion,
    StoredColumns,
    ToastStore,
)
from headrace.changelog.schema import Column
from headrace.changelog.values import ValueType
from headrace.errors import SourceUnreachable
from tests.support.tiers import examples

TEXT = ValueType("text")
SHAPE = StoredColumns(
    (Column("id", ValueType("int64"), 1),), (Column("a", TEXT, 2), Column("b", TEXT, 3))
)
CAP = 1 << 30


def row(text: str) -> tuple[Cell, ...]:
    return text.encode(), None


def begun(path: Path, first: int = 10, last: int = 10, lineage: str = "pg/1/1") -> ToastStore:
    """Return a store whose one table is full, and empty."""
    store = ToastStore(path, CAP)
    store.resume(lineage, first, {})
    store.begin("orders", SHAPE, first, last)
    store.finish("orders")
    return store


def reopened(
    path: Path, at: int, *, lineage: str = "pg/1/1", shape: StoredColumns = SHAPE
) -> ToastStore:
    store = ToastStore(path, CAP)
    store.resume(lineage, at, {"orders": shape})
    return store


# --- against a model ---------------------------------------------------------------------------

KEYS = [b"\x00a", b"\x00b", b"\x00c"]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(KEYS), st.integers(0, 9)),
        st.tuples(st.just("delete"), st.sampled_from(KEYS), st.just(0)),
        st.tuples(st.just("truncate"), st.just(b""), st.just(0)),
        st.tuples(st.just("commit"), st.just(b""), st.integers(1, 3)),
        st.tuples(st.just("sync"), st.just(b""), st.integers(0, 4)),
        st.tuples(st.just("crash"), st.just(b""), st.integers(0, 4)),
    ),
    max_size=40,
)


class Model:
    """A store and what it should say, at every commit that a log may end at."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = begun(path)
        self.at = 10
        self.now: dict[bytes, int] = {}
        self.ends: dict[int, dict[bytes, int]] = {10: {}}
        self.synced = 10
        self.written: dict[bytes, RowVersion] = {}

    def do(self, what: str, key: bytes, number: int) -> None:
        getattr(self, what)(key, number)

    def write(self, key: bytes, number: int) -> None:
        self.now[key] = number
        self.written[key] = RowVersion(self.at + 1, row(str(number)))

    def delete(self, key: bytes, _: int) -> None:
        self.now.pop(key, None)
        self.written[key] = RowVersion(self.at + 1, None)

    def truncate(self, _key: bytes, _: int) -> None:
        self.now = {}
        self.written = {}
        self.store.truncate("orders", self.at + 1)

    def commit(self, _key: bytes, number: int) -> None:
        self.store.write("orders", self.written)
        self.written = {}
        self.store.prune(self.synced)
        self.at += number
        self.store.commit(self.at)
        self.ends[self.at] = dict(self.now)

    def sync(self, _key: bytes, back: int) -> None:
        ends = sorted(self.ends)
        self.synced = max(self.synced, ends[-1 - min(back, len(ends) - 1)])

    def crash(self, _key: bytes, back: int) -> None:
        """Die, with a log that ends at any commit it may have come to."""
        self.store.close()
        ends = [end for end in sorted(self.ends) if end >= self.synced]
        self.at = self.synced = ends[-1 - min(back, len(ends) - 1)]
        self.now = dict(self.ends[self.at])
        self.ends = {end: rows for end, rows in self.ends.items() if end <= self.at}
        self.written = {}
        self.store = reopened(self.path, self.at)
        assert self.store.states == {"orders": "full"}

    def check(self) -> None:
        for key in KEYS:
            fresh = self.written.get(key) or self.store.newest("orders", key)
            found = None if fresh is None or fresh.row is None else fresh.row
            expected = row(str(self.now[key])) if key in self.now else None
            assert found == expected


@pytest.mark.meets("R21", "R6")
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_a_store_says_what_was_true_wherever_the_log_ends(
    tmp_path_factory: Any, done: list[tuple[str, bytes, int]]
) -> None:
    model = Model(tmp_path_factory.mktemp("toast") / "store.sqlite")
    try:
        for what, key, number in done:
            model.do(what, key, number)
            model.check()
    finally:
        model.store.close()


@pytest.mark.meets("R21")
def test_of_a_key_only_the_newest_version_stays_once_the_log_has_it(tmp_path: Path) -> None:
    store = begun(tmp_path / "store.sqlite")
    for at in range(11, 16):
        store.write("orders", {b"\x00a": RowVersion(at, row(str(at)))})
        store.commit(at)
    store.write("orders", {b"\x00b": RowVersion(16, row("gone soon"))})
    store.write("orders", {b"\x00b": RowVersion(17, None)})
    store.prune(17)
    store.commit(17)
    with sqlite3.connect(tmp_path / "store.sqlite") as look:
        assert look.execute("select key, at from t1").fetchall() == [(b"\x00a", 15)]
    look.close()
    store.close()


# --- when it is of no use ----------------------------------------------------------------------


@pytest.mark.meets("R21")
@pytest.mark.parametrize("left", [b"", b"no database at all" * 400])
def test_a_store_that_is_missing_or_damaged_begins_anew(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "store.sqlite"
    store = begun(path)
    store.write("orders", {b"\x00a": RowVersion(11, row("x"))})
    store.commit(11)
    store.close()
    path.write_bytes(left)
    assert reopened(path, 11).states == {}


@pytest.mark.meets("R21", "R1")
def test_a_store_of_another_lineage_or_behind_the_log_has_nothing(tmp_path: Path) -> None:
    begun(tmp_path / "one").close()
    assert reopened(tmp_path / "one", 10, lineage="pg/1/1/1").states == {}
    begun(tmp_path / "two").close()
    assert reopened(tmp_path / "two", 11).states == {}


@pytest.mark.meets("R21", "R11")
def test_a_table_whose_copy_the_log_has_not_come_to_the_end_of_has_nothing(tmp_path: Path) -> None:
    store = begun(tmp_path / "store", first=10, last=20)
    store.commit(19)
    store.close()
    assert reopened(tmp_path / "store", 19).states == {}


@pytest.mark.meets("R21")
def test_a_table_that_was_being_filled_has_nothing(tmp_path: Path) -> None:
    store = begun(tmp_path / "store")
    store.begin("orders", SHAPE, 10, 10)
    store.put("orders", [(b"\x00a", row("x"))])
    store.commit(12)
    store.close()
    assert reopened(tmp_path / "store", 12).states == {}


@pytest.mark.meets("R31")
def test_who_had_the_store_before_cannot_write_any_more(tmp_path: Path) -> None:
    before = begun(tmp_path / "store")
    after = reopened(tmp_path / "store", 10)
    with pytest.raises(SourceUnreachable):
        before.write("orders", {b"\x00a": RowVersion(11, row("late"))})
    assert after.newest("orders", b"\x00a") is None
    before.close()
    after.close()


# --- columns and room --------------------------------------------------------------------------


@pytest.mark.meets("R21", "R23b")
def test_a_column_that_was_added_has_what_older_rows_have_in_it(tmp_path: Path) -> None:
    store = begun(tmp_path / "store")
    store.put("orders", [(b"\x00a", row("x"))])
    store.commit(11)
    store.close()
    added = Column("c", TEXT, 4, missing="it's new")
    wider = StoredColumns(SHAPE.key, (*SHAPE.columns, added))
    store = reopened(tmp_path / "store", 11, shape=wider)
    assert store.newest("orders", b"\x00a") == RowVersion(10, (b"x", None, b"it's new"))
    store.close()
    other = StoredColumns(SHAPE.key, (Column("a", ValueType("bytes"), 2), SHAPE.columns[1]))
    assert reopened(tmp_path / "store", 11, shape=other).states == {}


@pytest.mark.meets("R21")
def test_a_store_beyond_its_cap_gives_up_its_largest_table_and_remembers_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store"
    store = ToastStore(path, 200_000)
    store.resume("pg/1/1", 10, {})
    for name in ("small", "large"):
        store.begin(name, SHAPE, 10, 10)
        store.finish(name)
    store.put("small", [(b"\x00a", row("x"))])
    assert store.shrink() == []
    store.put("large", [(bytes([each]), row("x" * 10_000)) for each in range(40)])
    assert store.shrink() == ["large"]
    assert store.bytes < 200_000
    store.commit(11)
    store.close()
    shapes = {"small": SHAPE, "large": SHAPE}
    store = ToastStore(path, 200_000)
    store.resume("pg/1/1", 11, shapes)
    assert store.states == {"small": "full", "large": "over"}
    store.close()
    store = ToastStore(path, CAP)
    store.resume("pg/1/1", 11, shapes)
    assert store.states == {"small": "full"}
    store.close()


def test_every_kind_of_cell_comes_back_as_it_was(tmp_path: Path) -> None:
    store = begun(tmp_path / "store")
    cells: tuple[Cell, ...] = (b"\x00\xff", "1e999'", None, UNKNOWN, b"")
    for number, cell in enumerate(cells):
        store.write("orders", {bytes([number]): RowVersion(11, (cell, None))})
        found = store.newest("orders", bytes([number]))
        assert found is not None
        assert found.row == (cell, None)
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o600
    store.close()


@pytest.mark.meets("R21", "R23d")
def test_what_a_commit_wrote_before_its_truncate_is_gone_and_what_it_wrote_after_is_not(
    tmp_path: Path,
) -> None:
    store = begun(tmp_path / "store")
    store.write(
        "orders", {b"\x00a": RowVersion(11, row("before")), b"\x00b": RowVersion(11, row("b"))}
    )
    store.truncate("orders", 11)
    store.write("orders", {b"\x00a": RowVersion(11, row("after"))})
    store.commit(11)
    assert store.newest("orders", b"\x00a") == RowVersion(11, row("after"))
    assert store.newest("orders", b"\x00b") is None
    store.close()


def test_the_folders_it_makes_are_their_owners_alone(tmp_path: Path) -> None:
    begun(tmp_path / "scratch" / "toast" / "shop.db")
    for folder in ("scratch", "scratch/toast"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700
