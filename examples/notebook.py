"""
A database's changes in a streaming query, cell by cell, as in a notebook.

No Kafka, no jar, nothing to register. Run it as it is, or cell by cell (`# %%`).
"""

# %% A shop: any SQLite file will do, and with `hr.postgres("postgresql://…")` any PostgreSQL.
import sqlite3
import time

import headrace as hr

shop = sqlite3.connect("shop.db", isolation_level=None)
shop.execute("pragma journal_mode = wal")
shop.execute("create table orders (id integer primary key, customer text, total integer)")
shop.executemany(
    "insert into orders values (?, ?, ?)", [(n, f"customer {n % 7}", n * 3) for n in range(1, 101)]
)

# %% Record its table: the current rows, then every change. This needs no Spark.
recording = hr.record(hr.sqlite("shop.db"), "orders")
recording.await_ready(timeout=120)

# %% A streaming query on it. It works the same in your own session.
from pyspark.sql import DataFrame  # noqa: E402  # here, as in a notebook
from pyspark.sql import functions as F  # noqa: E402

spark = hr.spark()
changes = (
    spark.readStream.format("headrace")
    .option("log", "headrace-data")
    .option("table", "orders")
    .option("startingPosition", "baseline")
    .load()
)
changes.printSchema()

# %% What to do with each batch: here, maintain a copy of the table, by key.
copy: dict[int, int] = {}


def take(batch: DataFrame, number: int) -> None:
    """Apply a batch of changes to the copy."""
    # A key that moved is a delete and an insert at one position, in this order.
    rows = batch.orderBy("_position", F.col("_change_type") != "delete").collect()
    for row in rows:
        if row["_change_type"] == "delete":
            copy.pop(row["id"], None)
        else:
            copy[row["id"]] = row["total"]
    print(f"batch {number}: {len(rows)} changes, {len(copy)} rows now")


def caught_up() -> None:
    """Read all recorded changes and return; the checkpoint says where to continue."""
    query = (
        changes.writeStream.foreachBatch(take)
        .option("checkpointLocation", "checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


caught_up()

# %% The shop goes on, and so does the query.
before = recording.source_info("shop").end
shop.execute("update orders set total = total + 1 where id <= 10")
shop.execute("delete from orders where id % 10 = 0")
shop.execute("update orders set id = 1000 where id = 99")

while recording.source_info("shop").end.commit < before.commit + 21:
    time.sleep(0.1)  # until 10 updates, 10 deletes and a key are in the log
caught_up()

# %% Proof.
truth = dict(shop.execute("select id, total from orders"))
print(f"copy = source: {'yes' if copy == truth else 'NO'}, {len(truth)} rows compared")

# %%
recording.stop()
spark.stop()
