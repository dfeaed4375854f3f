"""The verbs that the console adds to those of the command line."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.api.handlers import ApplyVerb, ControlService
from headrace.api.inspection import EventMemory
from headrace.config.load import load
from headrace.engine.engine import Engine
from headrace.engine.from_config import configured
from headrace.errors import BadRequest, UnknownPipeline
from headrace.observe.events import AttemptFailed, LagUpdated, SourceConnected
from headrace.targets.memory import memory
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Market, await_that


class Seen:
    """A market at work, and the verbs of its engine."""

    def __init__(self, market: Market, engine: Engine) -> None:
        self.market = market
        self.engine = engine
        self.control = ControlService(engine)

    def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.control.unary[verb](fields)
        return found


@pytest.fixture
def seen(tmp_path: Path) -> Iterator[Seen]:
    market = Market(tmp_path)
    target = memory(indexes={"by_status": ["status"]}, lookup=["version"])
    runner = ArrowRunner(fails=lambda _, row: "BROKEN" if row["status"] == "bad" else None)
    with market.engine(market.pipeline(target, name="orders"), runner=runner) as engine:
        assert engine.await_ready(PATIENCE)
        yield Seen(market, engine)


def test_a_table_says_by_what_its_rows_are_found(seen: Seen) -> None:
    (table,) = seen.ask("Tables", pipeline="orders")["tables"]
    assert table == {
        "table": "orders",
        "columns": [
            {"name": "id", "type": "int64"},
            {"name": "status", "type": "text"},
            {"name": "version", "type": "int64"},
        ],
        "key": ["id"],
        "lookup": ["version"],
        "indexes": {"by_status": ["status"]},
    }
    with pytest.raises(UnknownPipeline):
        seen.ask("Tables", pipeline="nobody's")


def test_the_last_batches_come_with_their_times_and_changes(seen: Seen) -> None:
    assert seen.ask("Batches", pipeline="orders")["batches"] == []
    for number in range(3):
        seen.market.put("orders", 1, version=number)
        assert await_that(seen.engine, partial(_has_batches, seen.engine, number + 1))
    found = seen.ask("Batches", pipeline="orders", limit=2)["batches"]
    assert [each["changes"] for each in found] == [1, 1]
    assert found[0]["at"] <= found[1]["at"]
    hops = ("captured_ms", "flushed_ms", "job_ms", "applied_ms")
    assert all(each[hop] >= 0 for each in found for hop in hops)
    for limit in (0, 501):
        with pytest.raises(BadRequest, match="limit"):
            seen.ask("Batches", pipeline="orders", limit=limit)


def _has_batches(engine: Engine, count: int) -> bool:
    return len(engine.recent_batches("orders")) >= count


def test_a_dead_letter_comes_with_both_images(seen: Seen) -> None:
    seen.market.put("orders", 2, status="bad", version=5)
    seen.market.put("orders", 3, status="bad")
    assert await_that(seen.engine, lambda: len(seen.engine.dead_letters()) == 2)
    answer = seen.ask("DeadLetters", pipeline="orders", limit=1)
    (first,) = answer["dead_letters"]
    assert answer["total"] == 2
    assert (first["key"], first["code"], first["op"]) == ([2], "BROKEN", "update")
    assert first["before"] == {"id": 2, "status": "paid", "version": 0}
    assert first["after"] == {"id": 2, "status": "bad", "version": 5}
    (second,) = seen.ask("DeadLetters", after=1)["dead_letters"]
    assert second["key"] == [3]
    assert seen.ask("DeadLetters", table="another") == {"total": 0, "dead_letters": []}
    with pytest.raises(BadRequest, match="negative"):
        seen.ask("DeadLetters", after=-1)
    assert first["key_columns"] == ["id"]
    one = {"pipeline": "orders", "table": "orders", "position": first["position"], "key": [2]}
    with pytest.raises(BadRequest, match="key"):
        seen.ask("PurgeDeadLetters", **one | {"key": [4]})
    planned = seen.ask("PurgeDeadLetters", **one, dry_run=True)
    assert [each["keys"] for each in planned["tables"]] == [1]
    assert seen.ask("PurgeDeadLetters", **one)["done"]
    assert [each["key"] for each in seen.ask("DeadLetters")["dead_letters"]] == [[3]]
    seen.engine.purge_dead_letters("orders")
    assert seen.ask("DeadLetters")["total"] == 0
    assert [each["end"] for each in seen.ask("DeadLetters", ended=True)["dead_letters"]] == [
        "purged",
        "purged",
    ]


def test_one_of_several_rows_of_a_copy_is_named_by_its_key(tmp_path: Path) -> None:
    market = Market(tmp_path)
    bad = {3, 4}
    runner = ArrowRunner(fails=lambda _, row: "BROKEN" if row["id"] in bad else None)
    with market.engine(market.pipeline(memory(), name="orders"), runner=runner) as engine:
        assert engine.await_ready(PATIENCE)
        seen = Seen(market, engine)
        letters = seen.ask("DeadLetters")["dead_letters"]
        assert [each["key"] for each in letters] == [[3], [4]]
        assert letters[0]["position"] == letters[1]["position"]
        bad.clear()
        position = letters[0]["position"]
        answer = seen.ask("ReplayDeadLetters", pipeline="orders", position=position, key=[4])
        assert [each["outcome"] for each in answer["outcomes"]] == ["applied"]
        assert [each["key"] for each in seen.ask("DeadLetters")["dead_letters"]] == [[3]]


def test_events_are_a_stream_from_the_first_request_on(seen: Seen) -> None:
    stream = seen.control.streams["Events"]({})
    messages = iter(stream)
    assert next(messages) == {"newest": 0}
    seen.engine.pause("orders")
    changed = next(each for each in messages if each["event"] == "pipeline_state_changed")
    assert (changed["pipeline"], changed["new"]) == ("orders", "paused")
    later = seen.control.streams["Events"]({"after": changed["number"] - 1})
    assert [*itertools.islice(later, 2)][1] == changed
    stream.close()
    assert list(messages) == []


def test_what_comes_with_every_batch_pushes_out_no_error() -> None:
    events = EventMemory(most=3)
    events.on_event(AttemptFailed("orders", BadRequest("broken"), 1, None, 0.0))
    for number in range(10):
        events.on_event(LagUpdated("shop", number, None, None, 0.0))
    events.on_event(SourceConnected("shop", "sqlite", 0.0))
    found = events.after(0, lambda: True)
    assert [number for number, _ in found] == [1, 9, 10, 11, 12]


def test_the_configuration_is_shown_with_its_origins_and_without_its_secrets(
    seen: Seen, tmp_path: Path
) -> None:
    file = tmp_path / "headrace.conf"
    file.write_text(
        'sources.shop { type = postgresql, connection = "postgresql://me:pa55word@host/shop" }\n'
        "pipelines.orders { source = shop, tables = [orders], target { type = indexed-memory } }\n"
    )
    found = configured(load(file, environment={}, sets=()))
    verb = ApplyVerb(seen.engine, found, lambda: found, file).effective
    answer = verb({})
    assert answer["config"] == str(file)
    settings = {each["key"]: each for each in answer["settings"]}
    assert settings["pipelines.orders.source"]["from"] == f"{file}:2:29"
    assert settings["pipelines.orders.source"]["value"] == "shop"
    assert "pa55word" not in str(answer)
    assert any(each["from"] == "default" for each in answer["settings"])
