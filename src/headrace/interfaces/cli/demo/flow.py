"""The demo's pipeline, as a user would write it."""

from __future__ import annotations

from collections.abc import Callable

import headrace as hr
from headrace.interfaces.cli.demo.parts import DemoEngine, Orders
from headrace.interfaces.cli.demo.session import INDEX, SOURCE, TABLE
from headrace.interfaces.cli.demo.shop import Shop


def build(
    shop: Shop, on_step: Callable[[str], None], *, spark_ui: bool = False
) -> tuple[DemoEngine, Orders]:
    """Return an engine over the shop, not yet started, and the target it fills."""
    orders = hr.memory(indexes={INDEX: ["customer_id"]})
    pipeline = hr.Pipeline(
        shop.source(SOURCE),
        TABLE,
        orders,
        filters=[hr.where("status <> 'cancelled'")],
        transforms=[hr.derive(total_cents="qty * price_cents"), hr.drop("card_number")],
    )
    engine = hr.Engine(pipeline, data=str(shop.folder), on_step=on_step, spark_ui=spark_ui)
    return engine, orders
