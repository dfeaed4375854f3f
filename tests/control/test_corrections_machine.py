"""
Random changes, failures, pauses, reloads, edits, replays and restarts, against a model.

The model is what the guide says of dead letters: a change that fails holds its row; a replay
applies what waits for a row, in order, up to the first that fails again; an edit does so with
another value; a reload counts the source's rows again; a restart changes nothing.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace.deadletters.letter import DeadLetter
from headrace.pipeline.definition import DeadLetters, Pipeline
from headrace.targets.memory import memory
from tests.support.arrow_runner import ArrowRunner, Row
from tests.support.shop import PATIENCE, Market
from tests.support.tiers import examples

KEYS = st.integers(1, 4)
BAD = ("bad", "worse")
STATUSES = st.sampled_from(("new", "paid", "sent", *BAD))

GONE = None
"""The status of a deleted row."""


class Runner(ArrowRunner):
    """Cannot compute rows with the statuses that are not repaired yet."""

    def __init__(self) -> None:
        self.bad = set(BAD)
        super().__init__(fails=self._why)

    def _why(self, pipeline: Pipeline, row: Row) -> str | None:
        return "DIVIDE_BY_ZERO" if row["status"] in self.bad else None


class Corrected(RuleBasedStateMachine):
    """One pipeline into memory, and what its rows and dead letters must be."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.market = Market(Path(self.folder.name), rows=2)
        self.runner = Runner()
        self.target = memory()
        pipeline = self.market.pipeline(self.target, on_error=DeadLetters(max_per_batch=1000))
        self.engine = self.market.engine(pipeline, runner=self.runner)
        self.markers = 0
        self.paused = False
        self.rows: dict[int, str] = {}
        self.waiting: dict[int, list[str | None]] = {}
        """By key, the statuses of its dead letters."""
        self.unseen: list[tuple[int, str | None]] = []
        """Changes during a pause."""

    @initialize()
    def start(self) -> None:
        self.engine.start()
        assert self.engine.await_ready(PATIENCE)
        self._copied()

    def teardown(self) -> None:
        self.engine.stop()
        self.folder.cleanup()

    # --- what happens -----------------------------------------------------------------------------

    @rule(key=KEYS, status=STATUSES)
    def put(self, key: int, status: str) -> None:
        self.market.put("orders", key, status)
        self._changed(key, status)

    @rule(key=KEYS)
    def delete(self, key: int) -> None:
        if key in self.market.truth():
            self.market.source.emit_delete("orders", key)
            self._changed(key, GONE)

    @rule(status=st.sampled_from(BAD))
    def repair(self, status: str) -> None:
        self._sync()
        self.runner.bad.discard(status)

    @precondition(lambda self: self.waiting and not self.paused)
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.waiting)))
        outcomes = self.engine.replay_dead_letters(
            "orders", position=self._first(key).position, key=[key], timeout=PATIENCE
        )
        assert [each.outcome for each in outcomes] == self._apply(key)

    @precondition(lambda self: self.waiting and not self.paused)
    @rule()
    def replay_all(self) -> None:
        self.engine.replay_dead_letters("orders", timeout=PATIENCE)
        for key in list(self.waiting):
            self._apply(key)

    @precondition(lambda self: self.waiting and not self.paused)
    @rule(data=st.data(), status=STATUSES)
    def edit(self, data: st.DataObject, status: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.waiting)))
        outcomes = self.engine.edit_dead_letter(
            "orders", self._first(key).position, {"status": status}, key=[key], timeout=PATIENCE
        )
        self.waiting[key][0] = status
        assert [each.outcome for each in outcomes] == self._apply(key)

    @precondition(lambda self: not self.paused)
    @rule()
    def reload(self) -> None:
        assert self.engine.reload("shop", "orders", timeout=PATIENCE)
        self._copied()

    @precondition(lambda self: not self.paused)
    @rule()
    def pause(self) -> None:
        self._sync()
        self.engine.pause("orders")
        self.paused = True

    @precondition(lambda self: self.paused)
    @rule()
    def resume(self) -> None:
        self.engine.resume("orders")
        self.paused = False
        unseen, self.unseen = self.unseen, []
        for key, status in unseen:
            self._computed(key, status)
        self._sync()

    @precondition(lambda self: not self.paused)
    @rule()
    def restart(self) -> None:
        self._sync()
        self.engine.stop()
        self.engine.start()
        assert self.engine.await_ready(PATIENCE)

    # --- what must be -----------------------------------------------------------------------------

    @invariant()
    def rows_and_dead_letters_are_the_model_s(self) -> None:
        self._sync()
        if self.paused:
            return
        assert {row["id"]: row["status"] for row in self.target.all()} == self.rows
        found: dict[object, list[Any]] = {}
        for each in self.engine.dead_letters("orders"):
            after = each.after
            found.setdefault(each.key[0], []).append(GONE if after is None else after["status"])
        assert found == self.waiting

    # --- the model --------------------------------------------------------------------------------

    def _changed(self, key: int, status: str | None) -> None:
        if self.paused:
            self.unseen.append((key, status))
        else:
            self._computed(key, status)

    def _computed(self, key: int, status: str | None) -> None:
        if key in self.waiting or status in self.runner.bad:
            self.waiting.setdefault(key, []).append(status)
        else:
            self._set(key, status)

    def _set(self, key: int, status: str | None) -> None:
        if status is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = status

    def _apply(self, key: int) -> list[str]:
        """Apply what waits for a row; return the outcome of each."""
        waiting = self.waiting.pop(key)
        outcomes: list[str] = []
        while waiting and waiting[0] not in self.runner.bad:
            self._set(key, waiting.pop(0))
            outcomes.append("applied")
        if waiting:
            self.waiting[key] = waiting
            # They are computed together: each that cannot be says so itself.
            outcomes += ["failed" if each in self.runner.bad else "waiting" for each in waiting]
        return outcomes

    def _copied(self) -> None:
        truth = {key: str(row["status"]) for key, row in self.market.truth().items()}
        self.rows = {k: status for k, status in truth.items() if status not in self.runner.bad}
        self.waiting = {k: [status] for k, status in truth.items() if status in self.runner.bad}

    def _first(self, key: int) -> DeadLetter:
        self._sync()
        return next(each for each in self.engine.dead_letters("orders") if each.key == (key,))

    def _sync(self) -> None:
        """Wait until everything that was emitted has been applied."""
        if not self.paused:
            self.markers += 1
            self.market.source.emit_marker(str(self.markers))
            assert self.engine.await_marker("shop", str(self.markers), PATIENCE)


@pytest.mark.slow
@pytest.mark.meets("ACC-16", "ENG-47")
def test_rows_and_dead_letters_are_the_model_s_whatever_happens() -> None:
    run_state_machine_as_test(Corrected, settings=examples(15, stateful_step_count=25))
