"""A target that keeps every change is not given again what its baseline held already."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.changelog.change import Change, Changes, Op, TableChanges, as_segment
from headrace.changelog.reader import LogWriter
from headrace.pipeline.definition import Pipeline
from headrace.runtime.pipeline_run import IDLE, PipelineRun
from headrace.testing.source import MemoryPosition
from tests.control.stepping import Stepping
from tests.control.test_frames import FrameRunner, Taking, fails

SEEN = "100:110:103"


class Window:
    """A log in which a baseline of some rows reaches over commits that follow its F."""

    def __init__(self) -> None:
        self.world = Stepping()
        self.target = Taking()
        self.first = self._log().end.commit
        self.last = self.first
        self.schema = self.world.source.describe(["orders"])["orders"]

    def commit(self, op: Op, xid: int, key: int = 0, status: str = "new") -> None:
        """Record one change: a commit, and a flush, of its own."""
        self.last += 1
        row = {"id": key, "status": status}
        change = Change(op, self.last, 0, 0, xid=xid, after=None if op is Op.TRUNCATE else row)
        changes = TableChanges(self.schema, as_segment(self.schema, [change]))
        self._log().append(Changes([changes], MemoryPosition(1, self.last)))
        self._log().flush()

    def baseline(self, *rows: tuple[int, str], snapshot: str = SEEN) -> None:
        """Finish a baseline of what the snapshot saw, from F to H."""
        writer = self._log().baseline(self.schema)
        found = [{"id": key, "status": status} for key, status in rows]
        writer.write(pa.Table.from_pylist(found, schema=self.schema.arrow))
        writer.finish(self.first, self.last, snapshot)

    def started(self) -> PipelineRun:
        """Begin a life of the engine."""
        runner = FrameRunner(self.world.disk, fails)
        return self.world.run(Pipeline(self.world.source, "orders", self.target), runner)

    def run(self) -> PipelineRun:
        """Live until there is nothing more to give."""
        run = self.started()
        while run.step() != IDLE:
            pass
        return run

    @property
    def given(self) -> list[list[int]]:
        return [rows for _, rows in self.target.given if rows]

    def _log(self) -> LogWriter:
        log = self.world.recorder._log
        assert log is not None
        return log


@pytest.mark.meets("R11")
def test_what_the_snapshot_saw_between_f_and_h_is_given_once() -> None:
    window = Window()
    window.commit(Op.INSERT, xid=99, key=1)
    window.commit(Op.INSERT, xid=103, key=2)
    window.commit(Op.INSERT, xid=105, key=3)
    window.commit(Op.INSERT, xid=110, key=4)
    window.baseline((1, "new"), (3, "new"))
    # Behind H all are given, whatever their ids: none of them can have been seen.
    window.commit(Op.INSERT, xid=104, key=5)
    window.run()
    assert window.given == [[1, 3], [2, 4, 5]]


@pytest.mark.meets("R11", "R25")
def test_who_comes_back_within_the_window_leaves_out_the_same() -> None:
    window = Window()
    window.commit(Op.INSERT, xid=99, key=1)
    window.commit(Op.INSERT, xid=103, key=2)
    window.commit(Op.INSERT, xid=105, key=3)
    window.baseline((1, "new"), (3, "new"))
    run = window.started()
    while not window.target.given:
        run.step()
    window.target.failures = 1
    while window.target.failures:
        run.step()
    # A newer baseline, taken for somebody else, is not the one that this target had.
    window.commit(Op.INSERT, xid=120, key=6)
    window.first = window.last - 1
    window.baseline((1, "new"), (2, "new"), (3, "new"), snapshot="104:130:120")
    window.run()
    assert window.given == [[1, 3], [2], [2], [6]]


@pytest.mark.meets("R11", "R23d", "R30")
def test_a_truncate_that_the_snapshot_saw_neither_empties_the_rows_nor_ends_their_letters() -> None:
    window = Window()
    window.commit(Op.INSERT, xid=99, key=1)
    window.commit(Op.TRUNCATE, xid=100)
    window.commit(Op.INSERT, xid=101, key=2, status="bad")
    window.commit(Op.INSERT, xid=103, key=3)
    window.baseline((2, "bad"), (4, "new"))
    window.commit(Op.UPDATE, xid=111, key=2, status="good")
    run = window.run()
    assert window.given == [[4], [3]]
    kinds = [(letter.kind, letter.baseline) for letter in run.delivery.dead_letters.all()]
    assert kinds == [("failed", 1), ("behind", None)]
