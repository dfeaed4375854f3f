"""The target against a plain dict, over whatever sequence of events hypothesis finds."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
import xxhash
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import TableSchema
from headrace.errors import NotUnique
from headrace.tables import Row, Table, TableChange, store
from headrace.tables.keys import Hash64
from headrace.tables.version import TableVersion
from headrace.targets.memory import ChangeReader, IndexedMemory
from headrace.targets.target import Batch
from tests.support.tiers import examples
from tests.tables.build import DELETE, INSERT, UPDATE, Step, Values, baseline, changes, table_schema

Key = tuple[Any, ...]
State = dict[Key, dict[str, object]]
TRUNCATE = 3


class Source:
    """What happened at the source: commits, and the table's state after each."""

    def __init__(self, key: Sequence[str]) -> None:
        self.key = key
        self.commits: list[list[Step]] = []
        self.states: list[State] = [{}]

    def key_of(self, row: Values) -> Key:
        return tuple(row[name] for name in self.key)

    def commit(self, steps: Sequence[tuple[int, dict[str, object]]]) -> None:
        """Add a commit; an update that is given as a pair shares its position."""
        number = len(self.commits) + 1
        state = dict(self.states[-1])
        placed: list[Step] = []
        for ordinal, (op, row) in enumerate(steps):
            if op == TRUNCATE:
                state.clear()
            elif op == DELETE:
                state.pop(self.key_of(row), None)
            else:
                state[self.key_of(row)] = row
            placed.append((op, Position(1, number, ordinal), row))
        self.commits.append(placed)
        self.states.append(state)

    def change_key(self, old: dict[str, object], new: dict[str, object]) -> None:
        number = len(self.commits) + 1
        at = Position(1, number)
        state = dict(self.states[-1])
        state.pop(self.key_of(old), None)
        state[self.key_of(new)] = new
        self.commits.append([(DELETE, at, old), (INSERT, at, new)])
        self.states.append(state)

    def batch(self, schema: TableSchema, start: int, stop: int) -> Batch:
        """Return the commits from `start` up to `stop` as one batch."""
        steps = [step for commit in self.commits[start:stop] for step in commit]
        last = max((at for at, step in enumerate(steps) if step[0] == TRUNCATE), default=None)
        truncates = {} if last is None else {"orders": steps[last][1]}
        rows = steps if last is None else steps[last + 1 :]
        end = self.commits[stop - 1]
        upto = end[-1][1] if end else Position(1, stop)
        return Batch(
            f"{start}-{stop}",
            1,
            Position(1, start + 1),
            upto,
            {"orders": changes(schema, rows)},
            truncates,
        )


class Replay:
    """A reader of changes, and the table as those changes tell it."""

    def __init__(self, reader: ChangeReader) -> None:
        self.reader = reader
        self.state: State = {}
        self.last = ORIGIN

    def drain(self) -> None:
        while self.reader.lag:
            self.take(next(self.reader))

    def take(self, change: TableChange) -> None:
        assert change.position >= self.last
        self.last = change.position
        known = self.state.get(change.key)
        if change.op == "truncate":
            assert change.before is None
            assert change.after is None
            self.state.clear()
        elif change.op == "insert":
            assert known is None
            assert change.before is None
            assert change.after is not None
            self.state[change.key] = dict(change.after)
        elif change.op == "update":
            assert change.before == known
            assert change.after is not None
            self.state[change.key] = dict(change.after)
        else:
            assert change.op == "delete"
            assert change.before == known
            assert change.after is None
            del self.state[change.key]


class WeakMemory(IndexedMemory):
    """The target with a hash of the test's own choice."""

    hash64: Hash64 = staticmethod(xxhash.xxh64_intdigest)

    def _make(self, schema: TableSchema) -> Table:
        return Table(
            schema,
            indexes=self._indexes,
            lookup=self._lookup,
            key=self._key,
            hash64=self.hash64,
        )


@dataclass
class Listing:
    """Pages of a table that goes on meanwhile."""

    steady: set[Key]
    """The keys that were there all the time."""

    seen: set[Key] = field(default_factory=set)
    after: int | None = None


class TargetMachine(RuleBasedStateMachine):
    """Commits at a source; batches, some of them again; baselines; and readers all along."""

    schema: ClassVar[TableSchema]
    keys: ClassVar[Sequence[Key]]
    hash64: ClassVar[Hash64] = staticmethod(xxhash.xxh64_intdigest)

    def __init__(self) -> None:
        super().__init__()
        self.source = Source(self.schema.key)
        self.target = WeakMemory(
            indexes={"by_group": ["grp"], "by_both": ["grp", "note"]}, lookup=["email"]
        )
        self.target.hash64 = type(self).hash64
        self.applied = 0
        self.shown: State | None = None
        self.replays: list[Replay] = [Replay(self.target.changes())]
        self.held: list[tuple[Iterator[Row], State]] = []
        self.versions: list[tuple[TableVersion, State]] = []
        self.heard: State = {}
        self.listing: Listing | None = None
        self.random = random.Random(0)

    @initialize(seed=st.integers(0, 2**32), early=st.booleans())
    def begin(self, seed: int, early: bool) -> None:
        self.random = random.Random(seed)
        self.target.open({"orders": self.schema}, {"orders": ORIGIN})
        if early:
            self.target.load("orders", 0).switch(ORIGIN)
            self.shown = {}

    def teardown(self) -> None:
        for rows, state in self.held:
            assert self.as_state(rows) == state
        self.target.close()
        for replay in self.replays:
            for change in replay.reader:
                replay.take(change)

    def row(self, key: Key) -> dict[str, object]:
        rest = {
            "grp": self.random.choice([None, 0, 1, 2, 3]),
            "note": self.random.choice([None, "", "a", "ä"]),
            "email": self.random.choice([f"{n}@x" for n in range(30)]),
        }
        return {**dict(zip(self.schema.key, key, strict=True)), **rest}

    def as_state(self, rows: Iterator[Row]) -> State:
        listed = [dict(row) for row in rows]
        state = {self.source.key_of(row): row for row in listed}
        assert len(state) == len(listed)
        return state

    @rule(count=st.integers(1, 6))
    def commit(self, count: int) -> None:
        steps = []
        for _ in range(count):
            op = self.random.choice([INSERT, INSERT, UPDATE, UPDATE, DELETE])
            row = self.row(self.random.choice(self.keys))
            if op == DELETE:
                row = {name: row[name] for name in self.schema.key}
            steps.append((op, row))
        self.source.commit(steps)

    @rule()
    def change_a_key(self) -> None:
        old, new = self.random.sample(list(self.keys), 2)
        self.source.change_key(dict(zip(self.schema.key, old, strict=True)), self.row(new))

    @rule()
    def truncate(self) -> None:
        if self.random.random() < 0.3:
            rows = [(INSERT, self.row(key)) for key in self.random.sample(list(self.keys), 2)]
            self.source.commit([rows[0], (TRUNCATE, {}), rows[1]])

    @rule()
    def write(self) -> None:
        """Write the next commits, and perhaps some that were written before."""
        if not self.source.commits:
            return
        stop = self.random.randint(1, len(self.source.commits))
        start = self.random.randint(0, min(stop - 1, self.applied))
        self.target.write(self.source.batch(self.schema, start, stop))
        self.applied = max(self.applied, stop)
        if self.shown is not None:
            self.shown = self.source.states[self.applied]

    @rule(discard=st.booleans())
    def load(self, discard: bool) -> None:
        """Take a baseline: a mixture of the states from F to H, exact once H is passed."""
        first = self.random.randint(0, len(self.source.commits))
        last = len(self.source.commits)
        mixture = []
        for key in {*self.source.states[first], *self.source.states[last]}:
            state = self.source.states[self.random.randint(first, last)]
            if key in state:
                mixture.append(state[key])
        loading = self.target.load("orders", 1)
        half = len(mixture) // 2
        loading.write(baseline(self.schema, mixture[:half]))
        loading.write(baseline(self.schema, mixture[half:]))
        if discard:
            loading.discard()
            return
        # Catching up may begin before F, and the live table goes on meanwhile.
        start = self.random.randint(0, first)
        while start < last:
            stop = self.random.randint(start + 1, last)
            loading.catch_up(self.source.batch(self.schema, start, stop))
            start = stop
            self.write()
            self.check_what_readers_see()
        at = self.source.commits[last - 1][-1][1] if last else ORIGIN
        loading.switch(at)
        self.applied = last
        self.shown = self.source.states[last]

    @rule()
    def hold(self) -> None:
        """Keep reading an old version while the table goes on."""
        if self.shown is not None:
            self.held.append((self.target.all(), self.shown))
            version = self.target._tables["orders"]._shown
            assert version is not None
            self.versions = [*self.versions[-3:], (version, self.shown)]

    @rule()
    def list_on(self) -> None:
        """Read the next page, of whatever version is there now."""
        if self.shown is None or type(self).hash64 is not xxhash.xxh64_intdigest:
            return  # a reload may exchange the hashes of two keys that share one
        if self.listing is None:
            self.listing = Listing(set(self.shown))
        version = self.version()
        page = version.page(self.listing.after, 2)
        for key in self.as_state(map(version.row, page.rows.tolist())):
            assert key not in self.listing.seen
            self.listing.seen.add(key)
        self.listing.after = page.after
        if page.after is None:
            assert self.listing.steady <= self.listing.seen
            self.listing = None

    @rule(start=st.sampled_from(["now", "rows"]))
    def join(self, start: str) -> None:
        replay = Replay(self.target.changes(start))
        if start == "now" and self.shown is not None:
            replay.state = dict(self.shown)
        self.replays = [*self.replays[:1], *self.replays[-2:], replay]

    @invariant()
    def check_what_readers_see(self) -> None:
        for replay in self.replays:
            replay.drain()
            assert replay.state == (self.shown or {})
        if self.shown is None:
            return
        state = self.shown
        if self.listing is not None:
            self.listing.steady &= set(state)
        assert self.target.count() == len(state)
        assert self.as_state(self.target.all()) == state
        for version, then in [*self.versions, (self.version(), state)]:
            self.check_version(version, then)
        for number in range(30):
            wanted = [row for row in state.values() if row["email"] == f"{number}@x"]
            if len(wanted) > 1:
                with pytest.raises(NotUnique):
                    self.target.lookup(f"{number}@x")
            else:
                assert self.target.lookup(f"{number}@x") == (wanted[0] if wanted else None)

    def version(self) -> TableVersion:
        version = self.target._tables["orders"]._shown
        assert version is not None
        return version

    def check_version(self, version: TableVersion, state: State) -> None:
        for key in self.keys:
            assert version.get(key) == state.get(key)
        for group in (None, 0, 3, 99):
            found = self.as_state(iter(version.lookup(0, (group,))))
            assert found == {k: row for k, row in state.items() if row["grp"] == group}
            for note in (None, "", "ä"):
                both = {
                    k: row for k, row in state.items() if (row["grp"], row["note"]) == (group, note)
                }
                assert self.as_state(iter(version.lookup(1, (group, note)))) == both
        assert self.as_state(version.all()) == state
        numbers = version.find(self.keys)
        rows = [None if number < 0 else dict(version.row(number)) for number in numbers.tolist()]
        assert rows == [state.get(key) for key in self.keys]
        self.check_pages(version, state)

    def check_pages(self, version: TableVersion, state: State) -> None:
        for read in [version.page, version.page_by_key] if version.ordered else [version.page]:
            listed: list[int] = []
            after = None
            while True:
                page = read(after, 3)
                listed += page.rows.tolist()
                if (after := page.after) is None:
                    break
                assert len(page.rows) == 3
            assert self.as_state(map(version.row, listed)) == state
        if version.ordered:
            keys = [self.source.key_of(version.row(number)) for number in listed]
            assert keys == sorted(keys)
        columns = version.arrow(np.array(listed, np.int32)).to_pydict()
        assert columns["email"] == [version.row(number)["email"] for number in listed]


def machine(
    keys: Sequence[Key], hash64: Hash64 = xxhash.xxh64_intdigest, **kinds: str
) -> type[TargetMachine]:
    schema = table_schema(tuple(kinds), **kinds, grp="int32", note="text", email="text")
    fields = {"schema": schema, "keys": keys, "hash64": staticmethod(hash64)}
    return type("Machine", (TargetMachine,), fields)


TEXTS = [(text,) for text in ("", "a", "b", "ab", "ä", "a much longer text than the others")]
PAIRS = [(region, number) for region in ("", "eu", "us") for number in (-1, 0, 1, 2**40)]
TWO_TEXTS = [("a", "bc"), ("ab", "c"), ("", "abc"), ("abc", ""), ("", "")]
MIXED = [(value,) for value in (1, 2.5, "1", b"1", "", b"", -(2**63))]


@pytest.fixture(autouse=True)
def _compact_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_FEW", 6)


@pytest.mark.meets("S13", "R23", "R23d", "invariant 4", "invariant 7")
@pytest.mark.parametrize(
    "checked",
    [
        pytest.param(machine([(n,) for n in (*range(-5, 5), 2**63 - 1)], id="int64"), id="integer"),
        pytest.param(machine(TEXTS, id="text"), id="text"),
        pytest.param(machine(PAIRS, region="text", id="int64"), id="text and integer"),
        pytest.param(machine(TWO_TEXTS, a="text", b="text"), id="two texts"),
        pytest.param(machine(MIXED, id="variant"), id="mixture"),
        pytest.param(
            machine(PAIRS, lambda key: len(key) % 2, region="text", id="int64"), id="weak"
        ),
        pytest.param(machine(TEXTS, lambda _: 2**64 - 1, id="text"), id="one hash for all"),
    ],
)
def test_the_target_is_what_a_dict_would_be_after_any_history(
    checked: type[TargetMachine],
) -> None:
    run_state_machine_as_test(checked, settings=examples(25, stateful_step_count=25))
