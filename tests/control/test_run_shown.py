"""A table built again from the log is shown where its readers left it, not where it began."""

import pytest

from headrace.pipeline.definition import Pipeline
from headrace.runtime.model import TableState
from headrace.runtime.pipeline_run import IDLE
from headrace.targets.memory import memory
from tests.control.stepping import Stepping

FLUSHES = 150
"""More than fit one batch, so that there are moments in between."""


@pytest.mark.meets("R12", "R43")
def test_a_restart_shows_nothing_older_than_the_end_of_the_log() -> None:
    world = Stepping()
    world.take_baseline()
    for number in range(FLUSHES):
        world.put(number)
    target = memory()
    run = world.run(Pipeline(world.source, "orders", target))
    shown = []
    while run.step() != IDLE:
        shown.append((run.state, target.row_count("orders")))
    catching_up = [rows for state, rows in shown if state == TableState.CATCHING_UP]
    assert len(catching_up) > 1, "it took one batch: nothing was proved"
    assert set(catching_up) == {None}
    assert run.ready
    assert target.count() == FLUSHES
