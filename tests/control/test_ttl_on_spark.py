"""Rows that expire on real Spark: by a time that an expression computes."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

import headrace as hr
from headrace.spark_session.session import Spark
from tests.support.shop import PATIENCE, Shop, await_seen

pytestmark = pytest.mark.spark


def test_rows_expire_by_an_expression_whose_result_is_a_column(
    tmp_path: Path, spark: Spark
) -> None:
    shop = Shop(tmp_path)
    target = hr.memory()
    times = "case when status = 'old' then timestamp'2020-01-01' else timestamp'2999-01-01' end"
    ttl = hr.TTL("expires_at", times, scan=1)
    pipeline = hr.Pipeline(shop.source(), "orders", target, name="orders", ttl=ttl)
    with hr.Engine(pipeline, data=shop.data, spark=spark.session) as engine:
        assert engine.await_ready(PATIENCE)
        assert target.count() == 10
        row = target.get(3)
        assert row is not None
        until = row["expires_at"]
        assert isinstance(until, datetime)
        assert until.year == 2999
        shop.app.execute("update orders set status = 'old' where id = 3")
        assert await_seen(lambda: target.get(3) is None)
        assert target.count() == 9
