"""
The table `orders`, kept equal to the one in the shop's database by AUTO CDC.

Spark merges the changes; Headrace has recorded them. `_position` orders them as they were
committed and is never null, which is what AUTO CDC wants of `sequence_by`.
"""

from __future__ import annotations

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

# Absolute: the Spark that reads it need not have been started in this folder.
LOG = Path(__file__).resolve().parents[1] / "headrace-data" / "log" / "shop"


@dp.temporary_view
def orders_changes() -> DataFrame:
    """Every change of `orders`, from its baseline on."""
    changes = SparkSession.active().readStream.format("headrace")
    changes = changes.option("log", str(LOG)).option("table", "orders")
    return changes.option("startingPosition", "baseline").load()


dp.create_streaming_table("orders")
dp.create_auto_cdc_flow(
    target="orders",
    source="orders_changes",
    keys=["id"],
    sequence_by="_position",
    apply_as_deletes="_change_type = 'delete'",
    except_column_list=["_change_type", "_commit_version", "_commit_timestamp", "_position"],
)
