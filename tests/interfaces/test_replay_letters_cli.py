"""`headrace dead-letters replay` and `edit`, with a running engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.api.server import serve
from headrace.engine.engine import Engine
from headrace.targets.memory import IndexedMemory, memory
from tests.interfaces.at_work import printed
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Market, await_that


class Bench:
    """An engine with two dead letters, and what they are of."""

    def __init__(self, engine: Engine, orders: IndexedMemory, bad: set[str], data: Path) -> None:
        self.engine = engine
        self.orders = orders
        self.bad = bad
        self.data = data


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    market, orders, bad = Market(tmp_path), memory(), {"bad"}
    runner = ArrowRunner(fails=lambda _, row: "BROKEN" if row["status"] in bad else None)
    with market.engine(market.pipeline(orders), runner=runner) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        market.put("orders", 3, status="bad", version=1)
        assert await_that(engine, lambda: len(engine.dead_letters()) == 2)
        with serve(engine, market.data, service="shop"):
            yield Bench(engine, orders, bad, market.data)


def ran(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    return printed(capsys, "dead-letters", *map(str, arguments))


@pytest.mark.meets("ACC-16")
def test_a_replay_says_what_became_of_each_dead_letter(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = bench.engine.dead_letters()
    code, out, err = ran(capsys, "replay", "orders", "--data", bench.data, "--dry-run")
    assert (code, err) == (1, "")
    assert out.splitlines() == [
        f"✗ orders {each.position}: would fail again: BROKEN" for each in (first, second)
    ]
    bench.bad.clear()
    code, out, _ = ran(
        capsys, "replay", "orders", "--position", first.position, "--data", bench.data
    )
    assert (code, out) == (0, f"✓ orders {first.position}: applied\n")
    code, out, _ = ran(
        capsys,
        *("replay", "orders", "--code", "BROKEN", "--table", "orders", "--before", "-0s"),
        *("--note", "fixed", "--data", bench.data, "--json"),
    )
    answer = json.loads(out)
    assert (code, answer["done"]) == (0, True)
    (outcome,) = answer["outcomes"]
    assert (outcome["position"], outcome["outcome"]) == (str(second.position), "applied")
    assert {row["id"]: row["status"] for row in bench.orders.all()}[2] == "bad"
    assert bench.engine.dead_letters() == ()
    (*_, last) = bench.engine.dead_letters(superseded=True)
    assert last.superseded == "replayed"
    assert last.note.endswith(": fixed")


@pytest.mark.meets("ACC-16")
def test_an_edit_reads_values_by_the_types_of_the_columns(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = bench.engine.dead_letters()
    edit = ("edit", "orders", first.position, "--data", bench.data)
    code, out, err = ran(capsys, *edit, "--value", "version=one")
    assert (code, out) == (2, "")
    assert "not a valid int64" in err
    code, out, _ = ran(capsys, *edit, "--value", "status=ok", "--dry-run")
    assert (code, out) == (0, f"✓ orders {first.position}: would be applied\n")
    assert bench.engine.dead_letters() == (first, second)
    code, out, _ = ran(
        capsys, *edit, "--value", "version=12", "--null", "status", "--table", "orders"
    )
    assert code == 0
    assert dict(bench.orders.get(2) or {}) == {"id": 2, "status": None, "version": 12}
    assert [each.superseded for each in bench.engine.dead_letters(superseded=True)] == [
        "edited",
        None,
    ]
    code, out, err = ran(capsys, *edit, "--value", "status=ok")
    assert code == 1
    assert "No such dead letter waits" in err


def test_an_edit_without_a_value_or_with_a_column_twice_is_refused(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    (first, _) = bench.engine.dead_letters()
    edit = ("edit", "orders", first.position, "--data", bench.data)
    for wrong in ([], ["--value", "status"], ["--value", "status=a", "--null", "status"]):
        code, out, err = ran(capsys, *edit, *wrong)
        assert (code, out) == (2, "")
        assert "--value" in err


def test_an_engine_is_found_by_its_configuration_too(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (first, second) = bench.engine.dead_letters()
    config = tmp_path / "shop.conf"
    config.write_text(f'data = "{bench.data}"\n')
    for options in (["--config", config], ["--set", f"data={bench.data}"]):
        code, out, _ = ran(capsys, "replay", "orders", "--dry-run", *options)
        assert (code, out.count("would fail again")) == (1, 2)
        edit = ("edit", "orders", first.position, "--value", "status=ok", "--dry-run")
        code, out, _ = ran(capsys, *edit, *options, "--json")
        assert (code, json.loads(out)["outcomes"][0]["outcome"]) == (0, "applied")
    code, _, _ = ran(
        capsys,
        *("edit", "orders", second.position, "--value", "status=ok", "--note", "agreed"),
        *("--data", bench.data),
    )
    assert code == 0
    assert bench.engine.dead_letters(superseded=True)[1].note.endswith(": agreed")
