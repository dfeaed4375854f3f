"""Ten pipelines of one source: a slow one and a failing one hold nobody back."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import CorruptSegment
from headrace.targets.memory import IndexedMemory, memory
from headrace.testing.target import ScriptedTarget
from tests.support.shop import PATIENCE, Market, await_seen, await_that


@pytest.mark.meets("R8", "R12")
def test_a_slow_and_a_failing_target_hold_back_only_the_acknowledgement(tmp_path: Path) -> None:
    market = Market(tmp_path)
    slow, broken = ScriptedTarget(), ScriptedTarget()
    durable = [ScriptedTarget() for _ in range(4)]
    volatile = [memory() for _ in range(4)]
    targets: dict[str, ScriptedTarget | IndexedMemory] = {"slow": slow, "broken": broken}
    names = [f"kept-{number}" for number in range(4)] + [f"shown-{number}" for number in range(4)]
    targets |= dict(zip(names[:4], durable, strict=True))
    targets |= dict(zip(names[4:], volatile, strict=True))
    engine = market.engine(
        *(market.pipeline(target, name=name) for name, target in targets.items())
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        before = market.source.position.commit
        slow.hold()
        broken.reject(CorruptSegment("Segment is shorter than recorded", file="x.parquet"))
        for key in range(11, 16):
            market.put("orders", key)
            assert await_seen(
                lambda key=key: all(  # type: ignore[misc]
                    targets[name].row_count("orders") == key for name in names
                )
            )
        assert slow.holding.is_set()
        assert await_that(engine, lambda: engine.pipeline_info("broken").state == "failed")
        assert await_that(engine, lambda: all(engine.is_ready(pipeline=name) for name in names))
        assert not engine.is_ready()
        acknowledged = engine.source_info("shop").acknowledged
        assert acknowledged is not None
        assert acknowledged.commit <= before
        slow.release()
        assert await_seen(lambda: len(slow.rows("orders")) == 15)
        assert len(broken.rows("orders")) == 10
        acknowledged = engine.source_info("shop").acknowledged
        assert acknowledged is not None
        assert acknowledged.commit <= before
        engine.resume("broken")
        assert market.source.wait_until_acknowledged(PATIENCE)
        assert engine.await_ready(PATIENCE)
        assert market.log().usable_baseline("orders") is not None
        assert market.source.calls["baseline"] == 1
    for target in (slow, broken, *durable):
        assert len(target.rows("orders")) == 15
        assert target.disk.duplicates() == []


@pytest.mark.meets("R8")
def test_volatile_targets_never_hold_the_acknowledgement_back(tmp_path: Path) -> None:
    market = Market(tmp_path)
    first, second = memory(), memory()
    engine = market.engine(
        market.pipeline(first, name="first"), market.pipeline(second, name="second")
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        engine.pause("second")
        market.put("orders", 11)
        assert market.source.wait_until_acknowledged(PATIENCE)
        assert await_that(engine, lambda: first.count() == 11)
        assert second.count() == 10
