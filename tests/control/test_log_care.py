"""What a log is kept for: pins of pipelines, baselines and readers; and what if it is full."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path

import pytest

import headrace as hr
from headrace.capture import log_maintenance
from headrace.changelog import compaction
from headrace.changelog import compaction as folding
from headrace.changelog.entries import Baseline
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.retention import NamedReader, leases
from headrace.engine.engine import Engine
from headrace.errors import ChangeLogError, NotRunning, PositionExpired, WrongValue
from headrace.pipeline.definition import Pipeline
from headrace.runtime import retention
from headrace.runtime.info import LogOptions
from headrace.runtime.target_load import is_newer
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.targets.memory import memory
from headrace.testing.target import ScriptedTarget, TargetDisk
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience
from tests.support.shop import Market, await_that

NOTHING = hr.log(keep=0, lease=0)


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(log_maintenance, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(log_maintenance, "FOLD_SECONDS", 0.02)
    monkeypatch.setattr(log_maintenance, "DELETE_SECONDS", 0.02)
    monkeypatch.setattr(folding, "LEAST_BYTES", 1)
    monkeypatch.setattr(folding, "SHARE", 1_000_000)
    monkeypatch.setattr(compaction, "LEAST_FLUSHES", 3)


def engine(market: Market, *pipelines: Pipeline, log: LogOptions = NOTHING) -> Engine:
    return Engine(*pipelines, data=market.data, runner=ArrowRunner(), recorder="thread", log=log)


def scripted(market: Market, disk: TargetDisk, name: str = "kept") -> Pipeline:
    return market.pipeline(ScriptedTarget(disk), name=name)


def fill(market: Market, running: Engine, count: int = 20, first: int = 1) -> None:
    """Make so many changes, each with a flush of its own."""
    for number in range(first, first + count):
        market.put("orders", number % 30 + 1, version=number)
        assert market.recorded(running)


def floor(running: Engine) -> Position:
    return running.log_info("shop").floor


def pins(running: Engine) -> set[tuple[str, str]]:
    return {(pin.kind, pin.whose) for pin in running.log_info("shop").pins}


@pytest.mark.meets("R19", "R27")
@pytest.mark.slow
def test_the_log_of_a_volatile_target_is_folded_and_pruned_and_still_rebuilds_it(
    market: Market,
) -> None:
    target = memory()
    with engine(market, market.pipeline(target, name="live")) as running:
        assert running.await_ready(patience())
        assert pins(running) >= {("baseline", "orders"), ("progress", "live/orders")}
        for first in (1, 21, 41):
            before = floor(running)
            fill(market, running, first=first)
            assert await_that(running, lambda before=before: floor(running) > before)  # type: ignore[misc]
        info = running.log_info("shop")
        assert info.flushes < 40
        assert info.baselines <= 2
    usable = market.log().usable_baseline("orders")
    assert usable is not None
    assert usable.copy == 1
    again = memory()
    with engine(market, market.pipeline(again, name="live")) as running:
        assert running.await_ready(patience())
        rows = {row["id"]: dict(row) for row in again.all()}
        assert rows == market.truth()
    # It was not copied again for that.
    newest = market.log().usable_baseline("orders")
    assert newest is not None
    assert newest.copy == 1


@pytest.mark.meets("R19")
@pytest.mark.parametrize(
    ("number", "copy", "than", "newer"),
    [
        (3, 0, 3, False),
        (3, 0, 2, True),
        (6, 3, 3, False),
        (6, 3, 5, False),
        (6, 3, 6, False),
        (6, 3, 2, True),
        (2, 0, 9, True),
    ],
)
def test_a_folded_baseline_is_as_old_as_its_copy(
    number: int, copy: int, than: int, newer: bool
) -> None:
    baseline = Baseline(
        entry=9,
        writer="w",
        term=1,
        epoch=1,
        table="orders",
        baseline=number,
        first="",
        last="",
        rows=0,
        files=(),
        copy=copy,
    )
    assert is_newer(baseline, than) == newer


@pytest.mark.meets("R27")
def test_a_paused_pipeline_holds_the_log_until_it_goes_on(market: Market) -> None:
    disk = TargetDisk()
    with engine(market, scripted(market, disk)) as running:
        assert running.await_ready(patience())
        running.pause("kept")
        at = running.pipeline_info("kept").position
        fill(market, running, 3)
        info = running.log_info("shop")
        assert info.floor <= at
        assert info.pinned_by == "progress kept/orders"
        assert not running.is_ready()
        running.resume("kept")
        end = market.source.position.commit
        assert await_that(running, lambda: floor(running) >= Position(1, end - 1))
    assert {key[0]: row for key, row in ScriptedTarget(disk).rows("orders").items()} == (
        market.truth()
    )


@pytest.mark.meets("R27")
def test_keep_holds_the_log_for_a_time(market: Market) -> None:
    with engine(market, scripted(market, TargetDisk()), log=hr.log(keep="1h", lease=0)) as running:
        assert running.await_ready(patience())
        fill(market, running)
        info = running.log_info("shop")
        assert info.pinned_by == "keep 3600s"
        assert info.rows == 20
        assert info.oldest is not None
        assert info.newest is not None
        assert info.oldest <= info.newest <= time.time() + 1


@pytest.mark.meets("R28")
def test_a_full_log_stops_reading_names_the_pin_and_goes_on_when_there_is_room(
    market: Market,
) -> None:
    with engine(
        market, scripted(market, TargetDisk()), log=hr.log(keep=0, lease=0, cap=80_000)
    ) as running:
        assert running.await_ready(patience())
        running.pause("kept")
        number = 0
        while running.source_info("shop").state != "full":
            number += 1
            market.put("orders", number % 30 + 1, status="long" * 2_000, version=number)
            assert await_that(
                running,
                lambda: (
                    running.source_info("shop").end.commit >= market.source.position.commit
                    or running.source_info("shop").state == "full"
                ),
            )
            assert number < 200
        [notice] = running.source_info("shop").notices
        assert notice.problem.code == "changelog.filling"
        assert notice.problem.facts["pinned_by"] == "kept/orders"
        assert notice.problem.message.endswith("bytes, kept for progress kept/orders")
        lines = (market.data / "logs" / "headrace.log").read_text().splitlines()
        assert len([line for line in lines if "changelog.filling" in line]) == 1
        info = running.log_info("shop")
        assert info.percent is not None
        assert 85 < info.percent < 120
        assert info.pinned_by == "progress kept/orders"
        assert "bytes" in running.source_info("shop").reason
        for more in range(5):
            market.put("orders", more + 1, version=1_000)
        running.resume("kept")
        assert market.recorded(running)
        assert running.await_ready(patience())
        assert running.source_info("shop").state == "streaming"


@pytest.mark.meets("R27")
def test_a_pipeline_that_was_away_for_longer_than_the_log_reaches_is_loaded_anew(
    market: Market,
) -> None:
    disk, other = TargetDisk(), TargetDisk()
    both = [("kept", disk), ("other", other)]
    with engine(market, *(scripted(market, kept, name) for name, kept in both)) as running:
        assert running.await_ready(patience())
    with engine(market, scripted(market, other, "other")) as running:
        assert running.await_ready(patience())
        fill(market, running)
        end = market.source.position.commit
        assert await_that(running, lambda: floor(running) >= Position(1, end - 1))
    with engine(market, *(scripted(market, kept, name) for name, kept in both)) as running:
        assert running.await_ready(patience())
        assert {t.baseline for t in running.pipeline_info("kept").tables} != {1}
    assert {key[0]: row for key, row in ScriptedTarget(disk).rows("orders").items()} == (
        market.truth()
    )


@pytest.mark.meets("R27")
@pytest.mark.slow
def test_a_named_reader_holds_the_log_for_its_lease_and_is_told_when_that_is_over(
    market: Market,
) -> None:
    files = Files(RealDisk(), str(market.data))
    now = [time.time()]
    reader = NamedReader(files, "shop", "nightly.report", 3600, lambda: now[0])
    with engine(market, scripted(market, TargetDisk())) as running:
        assert running.await_ready(patience())
        at = running.source_info("shop").end
        reader.hold(at, market.log())
        fill(market, running)
        assert ("reader", "nightly.report") in pins(running)
        assert floor(running) <= at
        log = market.log()
        batch = log.next_batch("orders", at, 1_000, most_files=1_000)
        assert batch is not None
        assert batch.rows == 20
        # It says where it has come to, and later nothing any more.
        reader.hold(batch.last, log)
        assert await_that(running, lambda: floor(running) > at)
        with pytest.raises(PositionExpired):
            log.refresh() and log.next_batch("orders", at, 1)
        with pytest.raises(PositionExpired):
            reader.hold(at, log)
        assert leases(files, "shop", now[0]) == []
        now[0] -= 7200
        reader.hold(log.end, log)
        fill(market, running, first=100)
        end = market.source.position.commit
        assert await_that(running, lambda: floor(running) >= Position(1, end - 1))
        assert leases(files, "shop", now[0] + 7200) == []
        assert leases(files, "shop", now[0] + 200_000) == []
        assert files.list("log/shop/readers") == []
        reader.release()


@pytest.mark.meets("R27")
def test_a_part_that_is_read_beside_the_pipelines_is_kept_meanwhile(market: Market) -> None:
    with engine(market, scripted(market, TargetDisk())) as running:
        assert running.await_ready(patience())
        at = running.source_info("shop").end
        log = running._state.recordings["shop"].log
        with log.holds.hold("replay of kept", at, [1]):
            fill(market, running)
            assert ("reader", "replay of kept") in pins(running)
            assert floor(running) <= at
            assert 1 in log._history.tables["orders"].baselines
        assert await_that(running, lambda: floor(running) > at)


def test_a_readers_name_fits_a_file(tmp_path: Path) -> None:
    for name in ("", "../x", "a b", "x" * 101):
        with pytest.raises(ChangeLogError):
            NamedReader(Files(RealDisk(), str(tmp_path)), "shop", name, 1, time.time)


@pytest.mark.meets("R19")
def test_what_is_only_recorded_keeps_its_baseline(market: Market) -> None:
    running = Engine(
        data=market.data, records=[(market.source, ["orders"])], recorder="thread", log=NOTHING
    )
    with running:
        assert running.await_ready(patience())
        fill(market, running, 3)
        assert ("baseline", "orders") in pins(running)
        more = count(4)

        def pruned() -> bool:
            # The newest flush always stays, and the three may have been merged into one.
            fill(market, running, 1, first=next(more))
            return floor(running) > ORIGIN

        assert await_that(running, pruned)
    assert market.log().usable_baseline("orders") is not None


def test_amounts_are_numbers_or_texts_with_a_unit() -> None:
    found = hr.log(keep="7d", cap="1.5GB", lease="90s")
    assert (found.keep, found.cap, found.lease) == (7 * 86_400, 1_500_000_000, 90)
    assert hr.log(keep=5, cap=10).keep == 5
    assert hr.log() == LogOptions()
    for wrong in ({"keep": "7"}, {"keep": "7 weeks"}, {"cap": "10 gb"}, {"keep": -1}):
        with pytest.raises(WrongValue):
            hr.log(**wrong)


def test_the_log_of_a_source_is_told_while_the_engine_runs(market: Market) -> None:
    running = engine(market, scripted(market, TargetDisk()))
    with pytest.raises(NotRunning):
        running.log_info("shop")
    with running, pytest.raises(NotRunning):
        running.log_info("nothing")
