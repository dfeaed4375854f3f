"""`format("headrace")` on Spark: what is found without Spark, and what only Spark does."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

import headrace as hr
from headrace.changelog.change import Change, Op
from headrace.changelog.values import Interval
from headrace.errors import code_in
from headrace.spark_session.session import Spark
from headrace.spark_source.source import HAS_LIMITS
from tests.changelog.log_making import insert, table, truncate
from tests.pipeline.reading.made_log import MadeLog
from tests.pipeline.reading.test_where import PREDICATES, with_rows
from tests.support.shop import PATIENCE, Shop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark


@pytest.fixture
def session(spark: Spark) -> Iterator[SparkSession]:
    """Return a session whose settings are nobody else's."""
    made = spark.session.newSession()
    yield made
    for query in made.streams.active:
        query.stop()


@pytest.fixture
def log(tmp_path: Path) -> MadeLog:
    return with_rows(tmp_path)


def read(session: SparkSession, log: MadeLog, **options: object) -> DataFrame:
    given = {"log": str(log.data), "table": "orders", "wait": "0s"}
    given |= {name: str(value) for name, value in options.items()}
    return session.read.format("headrace").options(**given).load()


def follow(session: SparkSession, log: MadeLog, **options: object) -> DataFrame:
    given = {"log": str(log.data), "table": "orders", "wait": "0s"}
    given |= {name: str(value) for name, value in options.items()}
    return session.readStream.format("headrace").options(**given).load()


def ids(frame: DataFrame) -> list[int]:
    return sorted(row["id"] for row in frame.select("id").collect())


def test_values_of_every_kind_arrive_as_they_are(session: SparkSession, tmp_path: Path) -> None:
    kinds = {
        "id": "int64",
        "key": "uuid",
        "span": "interval",
        "clock": "time",
        "mixed": "variant",
        "price": "decimal(20,4)",
        "free": "numeric",
        "day": "date",
        "at": "timestamptz",
        "local": "timestamp",
        "blob": "bytes",
        "doc": "json",
        "yes": "boolean",
        "small": "int16",
    }
    row = {
        "id": 1,
        "key": UUID(int=5),
        "span": Interval(1, 2, 3),
        "clock": time(1, 2, 3),
        "mixed": "text",
        "price": Decimal("1.5000"),
        "free": Decimal("1e50"),
        "day": date(2026, 1, 1),
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "local": datetime(2026, 1, 1),
        "blob": b"\x00",
        "doc": "{}",
        "yes": True,
        "small": -1,
    }
    made = MadeLog(tmp_path)
    made.flush(Change(Op.INSERT, 1, 0, 1000, after=row), schema=table("orders", **kinds))
    frame = read(session, made)
    assert frame.toArrow().to_pylist() == made.read()
    types = dict(frame.dtypes)
    assert (types["at"], types["local"]) == ("timestamp", "timestamp_ntz")
    assert (types["key"], types["price"]) == ("binary", "decimal(20,4)")


def test_where_leaves_what_sparks_own_filter_leaves(session: SparkSession, log: MadeLog) -> None:
    session.conf.set("spark.sql.session.timeZone", "UTC")
    texts = list(PREDICATES)
    columns = [f"coalesce({text}, false) as p{n}" for n, text in enumerate(texts)]
    rows = read(session, log).selectExpr("id", *columns).collect()
    for number, text in enumerate(texts):
        wanted = sorted(row["id"] for row in rows if row[f"p{number}"])
        assert wanted == PREDICATES[text], text
    assert ids(read(session, log, where="price >= 10", columns="id,price")) == [2, 4]


@pytest.mark.meets("S11")
def test_sql_needs_nothing_but_the_name(session: SparkSession, log: MadeLog) -> None:
    options = f"using headrace options (log '{log.data}', table 'orders', wait '0s')"
    session.sql(f"create temporary view changes {options}")
    assert ids(session.sql("select * from changes where id > 5")) == [6, 7]


def test_a_table_of_a_catalog_whose_options_spark_keeps_to_itself_tells_what_to_do(
    session: SparkSession, log: MadeLog
) -> None:
    name = f"changes_{id(log)}"
    session.sql(f"create table {name} using headrace options (log '{log.data}', table 'orders')")
    try:
        assert ids(session.table(name)) == [1, 2, 3, 4, 5, 6, 7]
    except AnalysisException as error:
        assert "create temporary view" in str(error)
    finally:
        session.sql(f"drop table {name}")


def test_an_error_arrives_with_its_code_its_message_and_what_to_do(
    session: SparkSession, log: MadeLog
) -> None:
    with pytest.raises(AnalysisException) as caught:
        read(session, log, endingversoin=5)
    text = str(caught.value)
    assert code_in(text) == "config.unknown_key"
    assert "Did you mean endingVersion?" in text
    assert "Traceback" not in text


class Sink:
    """Gathers what a query gives to its function."""

    def __init__(self, folder: Path) -> None:
        self.batches: dict[int, list[Any]] = {}
        self._checkpoint = str(folder / "checkpoint")

    @property
    def newest(self) -> list[Any]:
        return self.batches[max(self.batches)]

    def take(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = [(row["id"], row["_change_type"]) for row in frame.collect()]

    def start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        writing = frame.writeStream.foreachBatch(self.take)
        writing = writing.option("checkpointLocation", self._checkpoint)
        return (writing.trigger(**trigger) if trigger else writing).start()


@pytest.mark.meets("S11")
def test_a_query_goes_on_from_its_checkpoint_and_ends_at_a_truncate(
    session: SparkSession, tmp_path: Path
) -> None:
    log, sink = MadeLog(tmp_path), Sink(tmp_path)
    for commit in range(1, 6):
        log.flush(insert(commit))
    limit = {"maxRowsPerBatch": 2} if HAS_LIMITS else {}
    query = sink.start(follow(session, log, reader="me", **limit))
    query.processAllAvailable()
    assert [len(rows) for rows in sink.batches.values()] == ([2, 2, 1] if HAS_LIMITS else [5])
    query.stop()
    log.flush(insert(6))
    query = sink.start(follow(session, log, **limit), availableNow=True)
    assert query.awaitTermination(int(PATIENCE) * 4)
    assert sink.newest == [(6, "insert")]
    log.flush(insert(7))
    log.flush(truncate(8))
    query = sink.start(follow(session, log))
    with pytest.raises(StreamingQueryException) as caught:
        query.processAllAvailable()
    assert code_in(str(caught.value)) == "pipeline.truncated"
    assert "onTruncate=row" in str(caught.value)
    assert sink.newest == [(7, "insert")]
    query = sink.start(follow(session, log, onTruncate="row"), availableNow=True)
    assert query.awaitTermination(int(PATIENCE) * 4)
    assert sink.newest == [(None, "truncate")]


def test_a_second_query_under_a_name_is_refused_and_the_first_goes_on(
    session: SparkSession, tmp_path: Path
) -> None:
    log = MadeLog(tmp_path)
    log.flush(insert(1))
    first, second = Sink(tmp_path / "first"), Sink(tmp_path / "second")
    query = first.start(follow(session, log, reader="me"))
    query.processAllAvailable()
    other = second.start(follow(session, log, reader="me"))
    with pytest.raises(StreamingQueryException) as caught:
        other.processAllAvailable()
    assert code_in(str(caught.value)) == "changelog.reader_taken"
    assert "a reader name of its own" in str(caught.value)
    log.flush(insert(2))
    query.processAllAvailable()
    assert first.newest == [(2, "insert")]
    query.stop()
    # Its process may still be about to end.
    other = second.start(
        follow(session, log, reader="me", wait=f"{PATIENCE:.0f}s"), availableNow=True
    )
    assert other.awaitTermination(int(PATIENCE) * 4)
    assert second.newest == [(1, "insert"), (2, "insert")]


def test_a_recorder_in_one_cell_and_a_stream_on_it_in_the_next(
    session: SparkSession, tmp_path: Path
) -> None:
    shop = Shop(tmp_path)
    engine = hr.record(shop.source(), ["orders"], data=shop.data)
    try:
        changes = (
            session.readStream.format("headrace")
            .option("log", str(shop.data))
            .option("table", "orders")
            .option("startingPosition", "baseline")
            .load()
        )
        query = changes.writeStream.format("memory").queryName("seen").start()
        # Once the baseline is there, everything that was there is seen.
        assert engine.await_ready(PATIENCE)
        query.processAllAvailable()
        assert ids(session.table("seen")) == list(range(1, 11))
        shop.insert(range(20, 25))
        end = shop.captured()
        assert engine._state.readiness.wait_for(
            lambda: engine.source_info("shop").end.commit >= end, PATIENCE
        )
        query.processAllAvailable()
        assert ids(session.table("seen")) == [*range(1, 11), *range(20, 25)]
        query.stop()
    finally:
        engine.stop()
        shop.close()
