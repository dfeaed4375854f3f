"""A changed configuration: what it would do, and doing it to an engine at work."""

from __future__ import annotations

import pytest

from headrace.config.hocon import parse
from headrace.engine.apply_config import apply, planned
from headrace.engine.from_config import EngineConfig, configured
from headrace.errors import InvalidConfiguration
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Shop, await_seen

SECRET = "swordfish"
ORDERS = "pipelines.orders { source = shop, tables = [orders], target { type = indexed-memory } }"


def of(*lines: str) -> EngineConfig:
    return configured(parse("\n".join(lines), "headrace.conf"))


def told(before: EngineConfig, after: EngineConfig) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(step.kind, step.what, step.why) for step in planned(before, after).steps]


SHOP = 'sources.shop { type = sqlite, path = "shop.db" }'


def test_nothing_changed_is_nothing_to_do() -> None:
    written_out = ORDERS.replace("source = shop", "source = shop, mode = baseline_then_changes")
    assert planned(of(SHOP, ORDERS), of("# a comment", ORDERS, SHOP)).empty
    assert planned(of(SHOP, ORDERS), of(SHOP, written_out)).empty


def test_what_comes_goes_and_becomes_another_is_told_with_the_keys() -> None:
    before = of(SHOP, ORDERS, ORDERS.replace("pipelines.orders", "pipelines.gone"))
    after = of(
        SHOP.replace("shop.db", "other.db"),
        ORDERS.replace("[orders]", "[orders, customers]"),
        ORDERS.replace("pipelines.orders", "pipelines.new"),
        "spark.master = local",
    )
    assert told(before, after) == [
        ("change", "sources.shop", ("path",)),
        ("drop", "pipelines.gone", ()),
        ("add", "pipelines.new", ()),
        ("change", "pipelines.orders", ("tables[1]",)),
        ("later", "spark.master", ()),
    ]
    plan = planned(before, after)
    assert (plan.add, plan.drop) == (("new", "orders"), ("gone", "orders"))
    assert plan.sources == ("shop",)


def test_another_password_is_a_change_and_is_not_shown() -> None:
    server = 'sources.pg { type = postgres, connection = "postgresql://u:%s@h/d" }'
    pipeline = ORDERS.replace("source = shop", "source = pg")
    before, after = of(server % SECRET, pipeline), of(server % f"{SECRET}2", pipeline)
    plan = planned(before, after)
    assert [(step.kind, step.why) for step in plan.steps] == [("change", ("connection",))]
    assert SECRET not in repr(plan)


@pytest.mark.process
def test_a_plan_is_carried_out_while_the_engine_works(shop: Shop) -> None:
    source = f'sources.shop {{ type = sqlite, path = "{shop.path}" }}'
    data = f'data = "{shop.data}"'
    before = of(data, source, ORDERS)
    paid = "filters = [{ type = field-equals, field = status, value = open }]"
    after = of(
        'data = "/elsewhere"',
        source,
        ORDERS,
        ORDERS.replace("pipelines.orders", "pipelines.open").replace("target", f"{paid}, target"),
    )
    with before.engine(runner=ArrowRunner()) as engine:
        assert engine.await_ready(PATIENCE)
        first = engine.target("orders")
        apply(engine, planned(before, after), after)
        assert engine.await_ready(PATIENCE)
        assert engine.target("orders") is first, "went on untouched"
        shop.insert(range(100, 102), status="open")
        assert await_seen(lambda: engine.pipeline_info("open").tables[0].rows == 2)
        assert told(after, after) == []
        [later] = planned(after, after, started=before).steps
        assert (later.kind, later.what) == ("later", "data")
        wrong = of(data, source, ORDERS, ORDERS.replace("orders", "nothing"))
        with pytest.raises(InvalidConfiguration):
            apply(engine, planned(after, wrong), wrong)
        assert {each.name for each in engine.pipelines()} == {"orders", "open"}
        assert engine.is_ready()
