"""Waiting ends when it is of no use."""

import time
from pathlib import Path

from headrace.changelog.log import LogReader
from headrace.control.engine import Engine
from headrace.errors import SourceRefused
from headrace.pipeline.definition import Pipeline
from headrace.storage.files import Files
from headrace.storage.simulated import SimulatedDisk
from headrace.targets.memory import memory
from headrace.testing import MemorySource
from tests.support.arrow_runner import ArrowRunner


def test_nobody_waits_for_a_recorder_that_stopped_for_good(tmp_path: Path) -> None:
    source = MemorySource("shop")
    source.set_schema("orders", {"id": "int64"}, ["id"])
    source.inject_error(SourceRefused("Somebody must look"), at="open")
    pipeline = Pipeline(source, "orders", memory())
    engine = Engine(pipeline, data=tmp_path, runner=ArrowRunner(), recorder="thread")
    began = time.monotonic()
    with engine:
        assert not engine.await_ready(timeout=200)
        assert time.monotonic() - began < 100
        (shop,) = engine.sources()
        assert shop.state == "failed"
        assert shop.error is not None
        assert shop.error.code == "capture.refused"


def test_an_interrupt_just_before_the_wait_is_not_missed() -> None:
    log = LogReader.open(Files(SimulatedDisk(), "/data"), "shop")
    log.interrupt()
    assert not log.wait(0, None, unless=lambda: True)
