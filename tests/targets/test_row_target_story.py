"""A target of rows whose hooks raise at any time, under an engine that tries again."""

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from headrace.changelog.change import Op
from headrace.changelog.position import Position
from headrace.errors import FunctionFailed
from headrace.targets.target import Batch
from headrace.testing.contracts import TABLE, State, batch, loaded
from tests.targets.test_row_target import Names, opened


class Step(NamedTuple):
    op: Op
    key: int
    name: str | None = None


class Unsteady(Names):
    """Raises now and then, before anything happened."""

    def __init__(self, chance: random.Random, *, durable: bool) -> None:
        super().__init__(durable=durable)
        self.chance = chance
        self.steady = True

    def tell(self, *what: object) -> None:
        if not self.steady and self.chance.random() < 0.1:
            raise OSError("not now")
        self.hooks_called.append((what[0], self.position))

    def on_batch_complete(self) -> None:
        self.tell("batch complete")


class Story:
    """Commits, and an engine that brings them to a target whatever it raises."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.target = Unsteady(self.chance, durable=seed % 2 == 1)
        self.commits: list[list[Step]] = []
        self.states: list[State] = [{}]
        opened(self.target)
        self.target.steady = False

    def commit(self) -> None:
        state = dict(self.states[-1])
        key = self.chance.randrange(6)
        name = f"{len(self.commits)}"
        kind = self.chance.choice(("put", "put", "delete", "move"))
        if kind == "put":
            done = [Step(Op.UPDATE if key in state else Op.INSERT, key, name)]
            state[key] = name
        elif kind == "move" and key in state and key + 10 not in state:
            done = [Step(Op.DELETE, key), Step(Op.UPDATE, key + 10, name)]
            del state[key]
            state[key + 10] = name
        else:
            key += self.chance.choice((0, 10))
            done = [Step(Op.DELETE, key)]
            state.pop(key, None)
        self.commits.append(done)
        self.states.append(state)

    def batch(self, start: int, stop: int) -> Batch:
        rows = [
            (op, at + 1, key, name)
            for at in range(start, stop)
            for op, key, name in self.commits[at]
        ]
        return batch(rows, stop, first=start + 1)

    def try_until_done(self, do: Callable[[Batch], object], rows: Batch) -> None:
        while True:
            try:
                do(rows)
            except FunctionFailed:
                continue
            return

    def follow(self, at: int, upto: int) -> None:
        self.try_until_done(self.target.write, self.batch(at, upto))

    def load(self, number: int, live: int | None) -> int:
        """Load the table, while the live one goes on if there is one; return where it is."""
        while True:
            loading = self.target.load(TABLE, number)
            try:
                first = self.chance.randint(0, len(self.commits))
                loading.write(loaded(self.states[first]))
                at = self.chance.randint(0, first)
                while at < len(self.commits):
                    stop = self.chance.randint(at + 1, len(self.commits))
                    self.try_until_done(loading.catch_up, self.batch(at, stop))
                    at = stop
                    if live is not None and live < len(self.commits):
                        self.follow(live, len(self.commits))
                        live = len(self.commits)
                loading.switch(Position(1, at))
            except FunctionFailed:
                loading.discard()
            else:
                return at


@pytest.mark.meets("invariant 4", "R25")
@pytest.mark.parametrize("seed", range(40))
def test_whatever_hooks_raise_each_change_is_taken_once(seed: int) -> None:
    story = Story(seed)
    for _ in range(story.chance.randrange(8)):
        story.commit()
    at = story.load(1, None)
    for number in range(2, 30):
        for _ in range(story.chance.randrange(5)):
            story.commit()
        if story.chance.random() < 0.2:
            at = story.load(number, at)
        elif at < len(story.commits):
            stop = story.chance.randint(at + 1, len(story.commits))
            story.follow(at, stop)
            at = stop
        assert story.target.names == story.states[at]
    hooks_called: list[Position] = []
    for what, position in story.target.hooks_called:
        assert isinstance(position, Position)
        if what == "truncate":
            hooks_called.clear()
        if what in ("insert", "update", "delete"):
            hooks_called.append(position)
            assert hooks_called == sorted(set(hooks_called))
