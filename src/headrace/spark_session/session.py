"""
The Spark that pipelines run on.

It is either ours, started with our Java and settings and stopped by us, or a session that the user
passed. In both cases pipelines run in two more sessions of the same application, one with settings
for small batches and one for bulk. So a user's settings stay as they are (S7), and no thread
changes a setting while another one plans.

Only this module, `direct` and `jvm` use what classic Spark does not share with Spark Connect.

Work is cancelled by tag, also work that has not begun. Spark only ends the jobs that run under a
tag at that moment: a job that is still being planned, or the next one of the same block, would
continue. So the request is repeated until the block with the tag has ended.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import SparkFailed
from headrace.extras import require
from headrace.spark_session import jvm
from headrace.spark_session.jvm import hush
from headrace.spark_session.settings import BULK, SMALL, session_settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.spark_session.direct import DirectPlans


# --- cancelling by tag ----------------------------------------------------------------------------

_FIRST_SECONDS = 0.05
_MOST_SECONDS = 1.0


class Tags:
    """The tags whose blocks are open. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, list[threading.Event]] = {}

    @contextlib.contextmanager
    def block(self, tag: str) -> Iterator[None]:
        """Keep the tag open inside this context."""
        left = threading.Event()
        with self._lock:
            self._open.setdefault(tag, []).append(left)
        try:
            yield
        finally:
            left.set()
            with self._lock:
                self._open[tag].remove(left)
                if not self._open[tag]:
                    del self._open[tag]

    def cancel(self, tag: str, end: Callable[[str], object]) -> None:
        """Call `end` with the tag, now and again until its open blocks have ended."""
        with self._lock:
            blocks = list(self._open.get(tag, ()))
        if blocks:
            thread = threading.Thread(
                target=_until_left, args=(blocks, tag, end), name=f"cancel {tag}", daemon=True
            )
            thread.start()


def _until_left(blocks: list[threading.Event], tag: str, end: Callable[[str], object]) -> None:
    wait = _FIRST_SECONDS
    for left in blocks:
        while not left.is_set():
            # If Spark is gone, its jobs have ended, and the threads waiting for them get an error.
            with contextlib.suppress(Exception):
                end(tag)
            left.wait(wait)
            wait = min(_MOST_SECONDS, wait * 1.5)


# --- the session ----------------------------------------------------------------------------------

SMALL_ROWS = 5_000
"""Up to this size, a batch runs without generated code, which would take longer to compile."""

_BY_NAME = frozenset(
    {
        "Alias",
        "MultiAlias",
        "UnresolvedAttribute",
        "UnresolvedNamedLambdaVariable",
        "UnresolvedRegex",
        "UnresolvedStar",
        "UnresolvedStarExceptOrReplace",
        "UnresolvedStarWithColumns",
    }
)
"""Nodes of a parsed expression whose meaning depends on the available columns."""


@dataclass(frozen=True, slots=True)
class SparkInfo:
    """The running Spark, for status output."""

    version: str
    master: str
    app_id: str
    jobs: int
    tasks: int
    last_job_ms: float
    plan: str
    """The last batch's physical plan in one line: names of operators, no values."""

    ui: str | None
    jobs_only: str = ""
    """Why this Spark computes small batches by jobs, too; empty if it need not, as far as known."""


@dataclass(frozen=True, slots=True)
class PreparedExpressions:
    """Expressions in the JVM, ready to be used."""

    sequence: Any
    texts: bool


class Spark:
    """
    A Spark session and the two that pipelines run in.

    Safe to use from several threads. `stop` ends only what was started here.
    """

    def __init__(self, session: SparkSession, running: jvm.SharedJvm | None = None) -> None:
        # Imported here: this module can be read without PySpark.
        from headrace.spark_session.direct import DirectPlans

        self.session = session
        self._running = running
        self.small = _new_session(session, session_settings(SMALL))
        self.bulk = _new_session(session, session_settings(BULK))
        self.last_job_ms = 0.0
        self.direct: DirectPlans | None = DirectPlans(session, self.small)
        """Computes small batches without jobs; None if this Spark cannot."""
        self._open = Tags()
        self._last: DataFrame | None = None
        self._described: tuple[DataFrame | None, str] = (None, "")

    @classmethod
    def bring(cls, session: SparkSession) -> Spark:
        """Use a session that the user created; it is neither changed nor stopped (S7)."""
        hush()
        if type(session).__module__.startswith("pyspark.sql.connect."):
            from headrace.spark_session.connect import ConnectSpark

            return ConnectSpark(session)
        if not hasattr(session, "_jsparkSession"):
            raise SparkFailed(
                f"The session must be a SparkSession, not {type(session).__name__}",
                remedy="Pass a SparkSession, or none: then the engine starts one.",
            )
        return cls(session)

    @property
    def own(self) -> bool:
        """Whether `stop` ends Spark: true only if we started it."""
        return self._running is not None

    @property
    def alive(self) -> bool:
        """Whether Spark runs: false if its JVM has ended, or it was stopped."""
        running = self._running
        if running is not None:
            return running.alive
        return jvm.reachable(self.session.sparkContext)

    def fit_for(self, row_count: int) -> SparkSession:
        """Return the session for a batch of this size."""
        return self.small if row_count <= SMALL_ROWS else self.bulk

    def another(self, settings: Mapping[str, str]) -> SparkSession:
        """Return a new session for bulk with additional settings, for a single writer."""
        # Four tasks for each core: with Spark's 200 on two cores, a small join takes twice as long.
        tasks = str(4 * self.session.sparkContext.defaultParallelism)
        bulk = {**session_settings(BULK), "spark.sql.shuffle.partitions": tasks}
        return _new_session(self.session, {**bulk, **settings})

    def setting(self, name: str) -> str | None:
        """Return a setting that Spark was started with; None if it is not set."""
        return self.session.conf.get(name, None)

    def describe_job(self, text: str) -> None:
        """Describe the jobs that this thread starts next; the text must not contain values."""
        self.session.sparkContext.setJobDescription(text)

    def prepared(self, expressions: Sequence[str | Column]) -> PreparedExpressions:
        """Send expressions to the JVM once, for use by every batch."""
        from pyspark.sql import functions as F

        jvm = self.session.sparkContext._jvm
        assert jvm is not None
        to_seq = jvm.PythonUtils.toSeq
        if all(isinstance(expression, str) for expression in expressions):
            return PreparedExpressions(to_seq(list(expressions)), texts=True)
        columns = [F.expr(each) if isinstance(each, str) else each for each in expressions]
        return PreparedExpressions(to_seq([column._jc for column in columns]), texts=False)

    def select(self, frame: DataFrame, chosen: PreparedExpressions) -> DataFrame:
        """Return a frame with these expressions, in one round trip."""
        from pyspark.sql.classic.dataframe import DataFrame as Classic

        made = frame._jdf.selectExpr if chosen.texts else frame._jdf.select
        return Classic(made(chosen.sequence), frame.sparkSession)

    def collect(self, frame: DataFrame) -> pa.Table:
        """Run the frame's job and return its rows, in no particular order."""
        self._last = frame
        began = time.perf_counter()
        rows = frame.toArrow()
        self.last_job_ms = (time.perf_counter() - began) * 1000
        return rows

    def empty(self, schema: StructType) -> DataFrame:
        """Return a frame without rows, to analyse expressions with."""
        jvm = self.session.sparkContext._jvm
        assert jvm is not None
        described = self.small._jsparkSession.parseDataType(schema.json())
        rows = getattr(jvm, "java.util.ArrayList")()
        from pyspark.sql.classic.dataframe import DataFrame as Classic

        return Classic(self.small._jsparkSession.createDataFrame(rows, described), self.small)

    def analysed(self, frame: DataFrame) -> str:
        """Return the frame's analysed plan as JSON, with a class name in every node."""
        return str(frame._jdf.queryExecution().analyzed().toJSON())

    def parsed(self, text: str) -> object:
        """Return the parsed text, before any name is resolved."""
        return self.small._jsparkSession.sessionState().sqlParser().parseExpression(text)

    def attributes(self, tree: Any) -> Iterator[tuple[str, int | None, int | None, str]]:
        """Yield what a parsed tree resolves by name: class, start, end, first part of the name."""
        kind = str(tree.getClass().getSimpleName())
        if kind in _BY_NAME:
            start, stop = tree.origin().startIndex(), tree.origin().stopIndex()
            name = str(tree.nameParts().head()) if kind == "UnresolvedAttribute" else ""
            both = start.isDefined() and stop.isDefined()
            yield kind, start.get() if both else None, stop.get() + 1 if both else None, name
        children = tree.children()
        for at in range(children.size()):
            yield from self.attributes(children.apply(at))

    def deterministic(self, frame: DataFrame) -> bool:
        """Whether Spark considers the frame deterministic."""
        return bool(frame._jdf.queryExecution().analyzed().deterministic())

    def tried(self, column: Column) -> Column | None:
        """Return the column with null if its expression raises; None if Spark cannot do that."""
        from pyspark.sql.classic.column import Column as Classic

        jvm = self.session.sparkContext._jvm
        assert jvm is not None
        utils = getattr(getattr(jvm, "org.apache.spark.sql.classic.ExpressionUtils$"), "MODULE$")
        tried = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(utils.expression(column._jc))
        return Classic(utils.column(tried))

    def one_by_one(self, frame: DataFrame) -> Iterator[tuple[tuple[int, int], DataFrame]]:
        """
        Yield each row of segments as commit and ordinal, and as a frame of its own.

        Planning such a frame computes it, on the driver and without a job. Yields nothing if
        Spark cannot do that.
        """
        from pyspark.errors import PySparkException
        from pyspark.sql.classic.dataframe import DataFrame as Classic

        try:
            rows, schema = frame._jdf.collectAsList(), frame._jdf.schema()
        except PySparkException as error:
            # Java has no value for every date and time, for example for infinity.
            if error.getCondition() != "EXPRESSION_DECODING_FAILED":
                raise
            return
        session = frame.sparkSession
        for at in range(rows.size()):
            row, alone = rows.get(at), rows.subList(at, at + 1)
            made = session._jsparkSession.createDataFrame(alone, schema)
            yield (int(row.getLong(1)), int(row.getInt(2))), Classic(made, session)

    def plan(self, frame: DataFrame) -> None:
        """Plan a frame; Java's exceptions are raised unchanged."""
        from py4j import protocol

        # Not with the method itself: PySpark would convert the error, which takes about three
        # hundred calls to the JVM.
        method = frame._jdf.queryExecution().executedPlan
        client = method.gateway_client
        answer = client.send_command(
            f"{protocol.CALL_COMMAND_NAME}{method.command_header}{protocol.END_COMMAND_PART}"
        )
        protocol.get_return_value(answer, client, method.target_id, method.name)

    @contextlib.contextmanager
    def tagged(self, tag: str) -> Iterator[None]:
        """Tag the jobs that this thread starts inside this context, so that `cancel` ends them."""
        from py4j.protocol import Py4JError

        context = self.session.sparkContext
        with self._open.block(tag):
            context.addJobTag(tag)
            try:
                yield
            finally:
                # A JVM that died meanwhile has no tags.
                with contextlib.suppress(Py4JError, OSError):
                    context.removeJobTag(tag)

    def cancel(self, tag: str) -> None:
        """
        End the jobs of a `tagged` block, from any thread, and return at once.

        Jobs that the block starts later are ended too, until the block ends. Without such a
        block it does nothing.
        """
        self._open.cancel(tag, self.session.sparkContext.cancelJobsWithTag)

    def counted(self, tag: str) -> tuple[int, int, int]:
        """Return how many jobs and tasks ran under a tag recently, and how many tasks failed."""
        scala = self.session.sparkContext._jsc.sc()
        store = scala.statusStore()
        found = [store.job(job) for job in scala.statusTracker().getJobIdsForTag(tag)]
        tasks = sum(int(job.numCompletedTasks()) for job in found)
        return len(found), tasks, sum(int(job.numFailedTasks()) for job in found)

    def executors(self) -> tuple[int, int] | None:
        """Return the number of executors, without the driver, and of their cores; or None."""
        found = self.session.sparkContext._jsc.sc().statusStore().executorList(True)
        each = [found.apply(at) for at in range(found.size())]
        cores = [int(one.totalCores()) for one in each if str(one.id()) != "driver"]
        return len(cores), sum(cores)

    def explain(self, frame: DataFrame) -> str:
        """Return the frame's physical plan; after it has run, the plan that ran."""
        utils = self.session.sparkContext._jvm.PythonSQLUtils  # type: ignore[union-attr]
        return str(utils.explainString(frame._jdf.queryExecution(), "formatted"))

    def info(self) -> SparkInfo:
        """Return version, counts and last plan, as Spark itself counts."""
        context = self.session.sparkContext
        store = context._jsc.sc().statusStore()
        executors = store.executorList(True)
        return SparkInfo(
            version=self.session.version,
            master=str(context.master),
            app_id=context.applicationId,
            jobs=int(store.appSummary().numCompletedJobs()),
            tasks=sum(int(executors.apply(at).totalTasks()) for at in range(executors.size())),
            last_job_ms=self.last_job_ms,
            plan=self._plan(),
            ui=context.uiWebUrl,
            jobs_only=self.direct.reason if self.direct is not None else "",
        )

    def stop(self) -> None:
        """Stop Spark if it is ours and has no other user; safe to call twice."""
        running, self._running = self._running, None
        if running is not None:
            jvm.release(running)

    def _plan(self) -> str:
        """Return the operators of the last job's plan, from the files to the result."""
        frame, text = self._last, self._described[1]
        if frame is None or self._described[0] is frame:
            return text
        names = []
        node = frame._jdf.queryExecution().executedPlan()
        while True:
            # Its children are inside; the final plan is what ran.
            if node.nodeName().startswith("AdaptiveSparkPlan"):
                node = node.executedPlan()
            names.append(str(node.nodeName()).strip())
            children = node.children()
            if children.size() == 0:
                break
            node = children.apply(0)
        hidden = ("WholeStageCodegen", "InputAdapter", "ColumnarToRow", "ResultQueryStage")
        text = " → ".join(name for name in reversed(names) if not name.startswith(hidden))
        self._described = (frame, text)
        return text


def start_session(
    data: str | os.PathLike[str] | None = None,
    *,
    conf: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    ui: bool = False,
    events: bool = False,
) -> Spark:
    """
    Return a Spark of ours; start it if none runs in this process.

    A process has one Spark. If ours is running, it is shared, and ends with its last user. If it
    died, a new one is started. If the user's is running, it is used as if it had been passed.
    Logs are written to `data`; without it, to a temporary folder. `ui` turns on Spark's own
    pages, on loopback, and `events` its event logs, in `data`: both only have an effect if Spark
    is started here. Raises `NotInstalled`, `NoJava`, `SparkFailed`.
    """
    require("spark", "A Spark session")
    found = jvm.acquire(data, conf or {}, environ, ui=ui, events=events)
    if not isinstance(found, jvm.SharedJvm):
        return Spark.bring(found)
    try:
        return Spark(found.session, found)
    except BaseException:
        jvm.release(found)
        raise


def spark(data: str | os.PathLike[str] | None = None, **conf: str) -> SparkSession:
    """
    Return a SparkSession with Headrace's choice of Java and its settings.

    Use it to look at the log, or for your own work in the process of an engine, whose Spark it
    then is. `spark(**{"spark.driver.memory": "4g"})` overrides a setting if Spark is started
    here. It ends with the process.
    """
    return start_session(data, conf=conf).session


def _new_session(session: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Return a session with its own settings, in the same application."""
    fresh = session.newSession()
    for name, value in settings.items():
        fresh.conf.set(name, value)
    return fresh
