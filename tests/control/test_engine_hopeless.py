"""Waiting ends when it is of no use."""

from pathlib import Path

import pytest

from headrace.changelog.reader import LogReader
from headrace.engine.engine import Engine
from headrace.errors import SourceRefused
from headrace.pipeline.definition import Pipeline
from headrace.storage.files import Files
from headrace.storage.simulation import SimulatedDisk
from headrace.targets.memory import memory
from headrace.testing import MemorySource
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, await_that


def test_nobody_waits_for_a_recorder_that_stopped_for_good(tmp_path: Path) -> None:
    source = MemorySource("shop")
    source.set_schema("orders", {"id": "int64"}, ["id"])
    source.inject_error(SourceRefused("Somebody must look"), at="open")
    pipeline = Pipeline(source, "orders", memory())
    engine = Engine(pipeline, data=tmp_path, runner=ArrowRunner(), recorder="thread")
    with engine:
        assert not engine.await_ready(timeout=None), "waits for ever, if it waits"
        (shop,) = engine.sources()
        assert shop.state == "failed"
        assert shop.error is not None
        assert shop.error.code == "capture.refused"


@pytest.mark.parametrize("how", [{}, {"source": "shop"}], ids=["all", "source"])
@pytest.mark.parametrize("recorded_only", [False, True])
def test_a_source_that_stopped_for_good_is_read_again_when_it_is_resumed(
    how: dict[str, str], recorded_only: bool, tmp_path: Path
) -> None:
    source = MemorySource("shop")
    source.set_schema("orders", {"id": "int64"}, ["id"])
    source.inject_error(SourceRefused("Somebody must look"), at="open", times=2)
    pipelines = [] if recorded_only else [Pipeline(source, "orders", memory())]
    with Engine(
        *pipelines,
        records=[(source, ["orders"])],
        data=tmp_path,
        runner=ArrowRunner(),
        recorder="thread",
    ) as engine:
        assert not engine.await_ready(PATIENCE)
        if pipelines:
            # One pipeline among others: its source is not its own to begin again.
            engine.resume("orders")
            assert engine.source_info("shop").state == "failed"
        # What was not mended stops it once more, and is told once more.
        engine.resume(**how)
        assert await_that(engine, lambda: engine.source_info("shop").state == "failed")
        engine.resume(**how)
        assert engine.await_ready(PATIENCE)
        assert engine.source_info("shop").error is None
        before = engine.source_info("shop").restarts
        engine.resume(**how)
        assert engine.source_info("shop").restarts == before, "one at work is left alone"


def test_an_interrupt_just_before_the_wait_is_not_missed() -> None:
    log = LogReader.open(Files(SimulatedDisk(), "/data"), "shop")
    log.interrupt()
    assert not log.wait(0, None, unless=lambda: True)
