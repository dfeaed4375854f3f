"""Readers on many threads while one writes: each read is of one position."""

import random
import sys
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from headrace.changelog.position import ORIGIN, Position
from headrace.tables import TableChange, store
from headrace.targets.memory import IndexedMemory, memory
from headrace.targets.target import Batch
from tests.support.patience import patience
from tests.support.tiers import NIGHTLY
from tests.tables.build import DELETE, INSERT, UPDATE, Step, changes, table_schema

ACCOUNTS = table_schema(("region", "id"), region="text", id="int64", grp="int32", cents="int64")
GROUPS, MEMBERS, CENTS = 8, 12, 1000
COMMITS = 600 if NIGHTLY else 120
ENOUGH = 5
"""Reads by each thread while there was writing, or nothing was tried."""


class Bank:
    """Accounts whose money moves within their group, so that every sum is known."""

    def __init__(self, target: IndexedMemory) -> None:
        self.target = target
        self.random = random.Random(7)
        self.commit = 0
        self.accounts = {
            (f"r{group}", number): [group, CENTS]
            for group in range(GROUPS)
            for number in range(MEMBERS)
        }
        self.write([self.step(INSERT, key) for key in self.accounts])

    def step(self, op: int, key: tuple[str, int]) -> tuple[int, dict[str, object]]:
        group, cents = self.accounts[key]
        return op, {"region": key[0], "id": key[1], "grp": group, "cents": cents}

    def write(self, steps: list[tuple[int, dict[str, object]]]) -> None:
        self.commit += 1
        placed: list[Step] = [
            (op, Position(1, self.commit, at), row) for at, (op, row) in enumerate(steps)
        ]
        last = placed[-1][1]
        rows = {"accounts": changes(ACCOUNTS, placed)}
        self.target.write(Batch(str(self.commit), 1, Position(1, self.commit), last, rows))

    def move(self) -> None:
        """Move money, close accounts and open new ones, in one commit."""
        steps = []
        for _ in range(self.random.randint(1, 5)):
            group = self.random.randrange(GROUPS)
            members = [key for key, (of, _) in self.accounts.items() if of == group]
            one, other = self.random.sample(members, 2)
            cents = self.random.randint(0, 500)
            self.accounts[one][1] -= cents
            self.accounts[other][1] += cents
            steps += [self.step(UPDATE, one), self.step(UPDATE, other)]
            if self.random.random() < 0.3:
                steps.append(self.step(DELETE, one))
                moved = self.accounts.pop(one)
                fresh = (one[0], self.random.choice([one[1], self.random.randrange(10**6)]))
                while fresh in self.accounts:
                    fresh = (one[0], self.random.randrange(10**6))
                self.accounts[fresh] = moved
                steps.append(self.step(INSERT, fresh))
        self.write(steps)


@pytest.fixture
def _switch_often() -> Iterator[None]:
    # Threads take turns every 20 µs instead of 5 ms: more places where one can cut in.
    usual = sys.getswitchinterval()
    sys.setswitchinterval(2e-5)
    yield
    sys.setswitchinterval(usual)


class Readers:
    """Threads that read again and again, until they are stopped or one of them fails."""

    def __init__(self, *reads: Callable[[], None]) -> None:
        self.reads = [0] * len(reads)
        self.failures: list[BaseException] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(at, read), daemon=True)
            for at, read in enumerate(reads)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, at: int, read: Callable[[], None]) -> None:
        try:
            while not self._stop.is_set():
                read()
                self.reads[at] += 1
        except BaseException as error:
            self.failures.append(error)
            raise

    def stop(self) -> None:
        """Stop them; none may have failed, and each must have read often enough."""
        self._stop.set()
        for thread in self._threads:
            thread.join(patience())
        assert not self.failures
        assert min(self.reads) > ENOUGH


def cents(row: object) -> int:
    assert row is not None
    found = row["cents"]  # type: ignore[index]
    assert isinstance(found, int)
    return found


@pytest.mark.meets("invariant 7", "S13")
@pytest.mark.usefixtures("_switch_often")
@pytest.mark.slow
def test_no_reader_ever_sees_two_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_FEW", 300)
    target = memory(indexes={"by_grp": ["grp"]})
    target.open({"accounts": ACCOUNTS}, {"accounts": ORIGIN})
    target.load("accounts", 0).switch(ORIGIN)
    bank = Bank(target)

    def whole_table() -> None:
        rows = list(target.all())
        assert len(rows) == GROUPS * MEMBERS
        assert sum(map(cents, rows)) == GROUPS * MEMBERS * CENTS

    def one_group() -> None:
        rows = target.lookup_all("by_grp", 3)
        assert len(rows) == MEMBERS
        assert sum(map(cents, rows)) == MEMBERS * CENTS

    def known_key() -> None:
        # The first of a region may be closed and opened again, never half.
        row = target.get("r5", 0)
        assert row is None or (row["region"], row["id"], row["grp"]) == ("r5", 0, 5)
        assert target.count() == GROUPS * MEMBERS

    def joining() -> None:
        reader = target.changes(start="rows")
        state: dict[object, int] = {}
        for _ in range(reader.lag):
            replay(state, next(reader))
        # What was there when we joined is whole; later batches may be there in part.
        assert len(state) >= GROUPS * MEMBERS - 1
        reader.close()

    def pages_as_columns() -> None:
        version = target.table("accounts").version()
        after, found = None, []
        while True:
            page = version.page(after, 7)
            found.append(version.arrow(page.rows))
            if (after := page.after) is None:
                break
        rows = pa.concat_tables(found)
        assert rows.num_rows == version.count == GROUPS * MEMBERS
        assert sum(rows["cents"].to_pylist()) == GROUPS * MEMBERS * CENTS
        keys = list(zip(rows["region"].to_pylist(), rows["id"].to_pylist(), strict=True))
        numbers = version.find(keys)
        assert [version.row(at)["cents"] for at in numbers.tolist()] == rows["cents"].to_pylist()

    reader = target.changes(start="rows")
    readers = Readers(whole_table, one_group, known_key, joining, pages_as_columns)
    while (bank.commit < COMMITS or min(readers.reads) <= ENOUGH) and not readers.failures:
        bank.move()
    readers.stop()
    target.close()
    state: dict[object, int] = {}
    for change in reader:
        replay(state, change)
    assert state == {key: found for key, (_, found) in bank.accounts.items()}
    assert {(row["region"], row["id"]): cents(row) for row in target.all()} == state


def replay(state: dict[object, int], change: TableChange) -> None:
    if change.before is not None:
        assert state.pop(change.key) == cents(change.before)
    if change.after is not None:
        assert change.key not in state
        state[change.key] = cents(change.after)


ITEMS = table_schema(id="int64", grp="int32", version="int64")
ROWS, RELOADS = 1000, 50 if NIGHTLY else 10


def versioned(number: int) -> pa.Table:
    """Return a table whose rows all say which load they are of."""
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "grp": pa.array([at % 10 for at in range(ROWS)], pa.int32()),
            "version": pa.array([number] * ROWS, pa.int64()),
        }
    )


@pytest.mark.meets("invariant 7")
@pytest.mark.usefixtures("_switch_often")
@pytest.mark.slow
def test_no_reader_ever_sees_a_reload_half_or_a_table_without_rows() -> None:
    target = memory(indexes={"by_grp": ["grp"]})
    target.open({"items": ITEMS}, {"items": ORIGIN})
    loading = target.load("items", 0)
    loading.write(versioned(0))
    loading.switch(ORIGIN)

    def counted() -> None:
        assert target.count() == ROWS

    def whole_table() -> None:
        rows = [(row["id"], row["version"]) for row in target.all()]
        assert {number for number, _ in rows} == {*range(ROWS)}
        assert len(rows) == ROWS
        assert len({version for _, version in rows}) == 1

    def one_group() -> None:
        rows = target.lookup_all("by_grp", 3)
        assert len(rows) == ROWS // 10
        assert len({row["version"] for row in rows}) == 1

    def one_row() -> None:
        before, row, after = target.position, target.get(7), target.position
        assert row is not None
        assert isinstance(row["version"], int)
        assert before.commit <= row["version"] <= after.commit

    readers = Readers(counted, whole_table, one_group, one_row)
    number = 0
    while (number < RELOADS or min(readers.reads) <= ENOUGH) and not readers.failures:
        number += 1
        loading = target.load("items", number)
        for start in range(0, ROWS, 250):
            # Half of the rows are as they were; the batch below brings them up to date.
            old = start < ROWS // 2
            loading.write(versioned(number - 1 if old else number).slice(start, 250))
        at = Position(1, number)
        late: list[Step] = [
            (UPDATE, at, {"id": row, "grp": row % 10, "version": number})
            for row in range(ROWS // 2)
        ]
        rows = {"items": changes(ITEMS, late)}
        loading.catch_up(Batch(str(number), 1, at, at, rows))
        loading.switch(at)
    readers.stop()
    assert {row["version"] for row in target.all()} == {number}
    target.close()
