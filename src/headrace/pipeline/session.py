"""
The Spark that pipelines run on.

Either ours, started here with our Java and settings and stopped by us, or a session the
user brought. In both cases pipelines work in two sessions of their own beside it, one set
for small batches and one for bulk, so that a user's settings stay his (S7) and no thread
changes a setting while another one plans.

This is the one module that reaches below what classic Spark and Spark Connect share.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import SparkFailed
from headrace.pipeline.defaults import (
    BULK,
    SMALL,
    application_settings,
    is_local,
    session_settings,
)
from headrace.pipeline.java import find_java
from headrace.pipeline.launch import Machine, launch
from headrace.pipeline.quiet import hush

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

SMALL_ROWS = 5_000
"""Up to here a batch runs without generated code, which would take longer than the batch."""

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
"""Nodes of a parsed expression whose meaning depends on the columns in sight."""

_ATTEMPTS = 2
"""Starts of a JVM: a busy machine was once seen to lose the first connection."""


@dataclass(frozen=True, slots=True)
class SparkInfo:
    """What runs, for people."""

    version: str
    master: str
    app_id: str
    jobs: int
    tasks: int
    last_job_ms: float
    plan: str
    """The last batch's physical plan in one line: names of operators, no values."""

    ui: str | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """Expressions that lie in the JVM, ready to be used."""

    sequence: Any
    texts: bool


class Spark:
    """
    A Spark session and the two that pipelines work in.

    Safe to use from several threads. `stop` ends only what was started here.
    """

    def __init__(self, session: SparkSession, *, own: bool) -> None:
        self.session = session
        self.own = own
        """Whether `stop` ends Spark: true only where we started it."""

        self.small = _beside(session, session_settings(SMALL))
        self.bulk = _beside(session, session_settings(BULK))
        self.last_job_ms = 0.0
        self._last: DataFrame | None = None
        self._described: tuple[DataFrame | None, str] = (None, "")

    @classmethod
    def bring(cls, session: SparkSession) -> Spark:
        """Work beside a session the user made; it is neither changed nor stopped (S7)."""
        hush()
        if not hasattr(session, "_jsparkSession"):
            raise SparkFailed(
                "The session is one of Spark Connect",
                remedy="Bring a classic session, or none: then one is started.",
            )
        return cls(session, own=False)

    def fit_for(self, row_count: int) -> SparkSession:
        """Return the session for a batch of this size."""
        return self.small if row_count <= SMALL_ROWS else self.bulk

    def describe_job(self, text: str) -> None:
        """Name the jobs that this thread starts next; a text of names and positions only."""
        self.session.sparkContext.setJobDescription(text)

    def prepared(self, expressions: Sequence[str | Column]) -> Prepared:
        """Return the expressions as the JVM holds them: sent once, used by every batch."""
        from pyspark.sql import functions as F

        jvm = self.session.sparkContext._jvm
        assert jvm is not None
        to_seq = jvm.PythonUtils.toSeq
        if all(isinstance(expression, str) for expression in expressions):
            return Prepared(to_seq(list(expressions)), texts=True)
        columns = [F.expr(each) if isinstance(each, str) else each for each in expressions]
        return Prepared(to_seq([column._jc for column in columns]), texts=False)

    def select(self, frame: DataFrame, chosen: Prepared) -> DataFrame:
        """Return the frame of these expressions, in one round trip."""
        from pyspark.sql.classic.dataframe import DataFrame as Classic

        made = frame._jdf.selectExpr if chosen.texts else frame._jdf.select
        return Classic(made(chosen.sequence), frame.sparkSession)

    def collect(self, frame: DataFrame) -> pa.Table:
        """Run the frame's job and return its rows, in no order."""
        self._last = frame
        began = time.perf_counter()
        rows = frame.toArrow()
        self.last_job_ms = (time.perf_counter() - began) * 1000
        return rows

    def empty(self, schema: StructType) -> DataFrame:
        """Return a frame without rows, to analyse expressions over."""
        jvm = self.session.sparkContext._jvm
        assert jvm is not None
        described = self.small._jsparkSession.parseDataType(schema.json())
        rows = getattr(jvm, "java.util.ArrayList")()
        from pyspark.sql.classic.dataframe import DataFrame as Classic

        return Classic(self.small._jsparkSession.createDataFrame(rows, described), self.small)

    def analysed(self, frame: DataFrame) -> str:
        """Return the frame's analysed plan as JSON, a class name in every node."""
        return str(frame._jdf.queryExecution().analyzed().toJSON())

    def parsed(self, text: str) -> object:
        """Return the text as Spark's parser sees it, before anything is looked up."""
        return self.small._jsparkSession.sessionState().sqlParser().parseExpression(text)

    def attributes(self, tree: Any) -> Iterator[tuple[str, int | None, int | None, str]]:
        """Yield what in a parsed tree is looked up by name: class, first and end place, head."""
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
        """Whether Spark finds that the frame gives the same rows each time."""
        return bool(frame._jdf.queryExecution().analyzed().deterministic())

    def info(self) -> SparkInfo:
        """Return what runs, counted by Spark itself."""
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
        )

    def stop(self) -> None:
        """End Spark if it is ours and nobody else uses it; safe to call twice."""
        if self.own:
            self.own = False
            _release()

    def _plan(self) -> str:
        """Return the operators of the last job's plan, from the files to the result."""
        frame, text = self._last, self._described[1]
        if frame is None or self._described[0] is frame:
            return text
        names = []
        node = frame._jdf.queryExecution().executedPlan()
        while True:
            # Its children are hidden inside; the plan it settled on is what ran.
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


class _Running:
    """The one Spark of this process: PySpark allows no second."""

    def __init__(self, session: SparkSession, machine: Machine, scratch: Path | None) -> None:
        self.session = session
        self.machine = machine
        self.scratch = scratch
        self.users = 0


_lock = threading.RLock()
_running: _Running | None = None


def start_session(
    data: str | os.PathLike[str] | None = None,
    *,
    conf: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Spark:
    """
    Return a Spark of ours, starting it if none runs in this process.

    A process has one Spark. Where ours runs already it is shared, and ends with its last
    user; where the user's runs, we work beside it as if it had been brought. `data` is
    where logs go; without it they go to a temporary folder. Raises `NoJava`,
    `SparkFailed`.
    """
    global _running
    with _lock:
        if _running is not None and _stopped(_running.session):
            _end(_running)
            _running = None
        if _running is None:
            if (theirs := _active()) is not None:
                return Spark.bring(theirs)
            _running = _start(data, conf or {}, os.environ if environ is None else environ)
        _running.users += 1
        try:
            return Spark(_running.session, own=True)
        except BaseException:
            _release()
            raise


def spark(data: str | os.PathLike[str] | None = None, **conf: str) -> SparkSession:
    """
    Return a SparkSession with Headrace's choice of Java and its settings.

    For looking at the log, or for work of one's own beside an engine in the same process,
    whose Spark it then is. `spark(**{"spark.driver.memory": "4g"})` overrides a setting
    where it is started here. It ends with the process.
    """
    return start_session(data, conf=conf).session


def _start(
    data: str | os.PathLike[str] | None, conf: Mapping[str, str], environ: Mapping[str, str]
) -> _Running:
    scratch = None
    if data is None:
        scratch = Path(tempfile.mkdtemp(prefix="headrace-spark-"))
    folder = scratch or Path(data).absolute()  # type: ignore[arg-type]
    settings = application_settings(folder, os.cpu_count() or 1, conf)
    # Spark runs Python workers by this name; the one on PATH may be another Python.
    settings.setdefault("spark.pyspark.python", environ.get("PYSPARK_PYTHON", sys.executable))
    own = dict(environ)
    if is_local(settings["spark.master"]):
        # Without it Spark listens on every interface of the machine.
        own.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    java = find_java(environ)
    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        machine = launch(java, spark_home(), settings, own, folder / "logs", hush)
        try:
            return _Running(_connect(machine, settings), machine, scratch)
        except Exception as error:  # noqa: BLE001  # Whatever it is, PySpark must forget this JVM.
            failure = error
            _disconnect()
            machine.stop()
    raise SparkFailed(
        "Spark did not start", error=type(failure).__name__, log=folder / "logs"
    ) from failure


def _connect(machine: Machine, settings: Mapping[str, str]) -> SparkSession:
    """Hand our JVM to PySpark, which takes it for one that runs already."""
    # Imported here: it takes a while, and the JVM starts up meanwhile.
    from pyspark.conf import SparkConf
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    given = {
        "PYSPARK_GATEWAY_PORT": str(machine.port),
        "PYSPARK_GATEWAY_SECRET": machine.secret,
        "PYSPARK_PYTHON": settings["spark.pyspark.python"],
    }
    with _environment(given), _signals_kept():
        SparkContext._ensure_initialized()
        conf = SparkConf(loadDefaults=True, _jvm=SparkContext._jvm)
        context = SparkContext(conf=conf)
        return SparkSession(context)


def spark_home() -> Path:
    """Return the folder of PySpark's own jars, without importing it."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise SparkFailed("PySpark is not installed", remedy="Install the package pyspark.")
    folder = Path(found.origin).parent
    if not (folder / "jars").is_dir() and "SPARK_HOME" in os.environ:
        # A PySpark that lies within a Spark distribution has its jars there.
        return Path(os.environ["SPARK_HOME"])
    return folder


def _beside(session: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Return a session with its own settings, in the same application."""
    fresh = session.newSession()
    for name, value in settings.items():
        fresh.conf.set(name, value)
    return fresh


def _active() -> SparkSession | None:
    """Return the session of a Spark that somebody else started in this process."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    return None if context is None else SparkSession(context)


def _stopped(session: SparkSession) -> bool:
    return session.sparkContext._jsc is None


def _release() -> None:
    """One user less; the last one ends Spark."""
    global _running
    with _lock:
        if _running is None:
            return
        _running.users -= 1
        if _running.users <= 0:
            _end(_running)
            _running = None


def _end(running: _Running) -> None:
    # A JVM that is gone already is no reason to warn: it was to go.
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not _stopped(running.session):
            running.session.stop()
    _disconnect()
    running.machine.stop()
    if running.scratch is not None:
        shutil.rmtree(running.scratch, ignore_errors=True)


def _disconnect() -> None:
    """Make PySpark forget its JVM, so that the next start gets a new one."""
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    if gateway is not None:
        with contextlib.suppress(Exception):
            gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


@atexit.register
def _at_exit() -> None:
    """End our Spark in order when the process ends without having stopped it."""
    global _running
    with _lock:
        if _running is not None:
            _end(_running)
            _running = None


@contextlib.contextmanager
def _environment(given: Mapping[str, str]) -> Iterator[None]:
    """Set these variables for a moment: PySpark takes them from nowhere else."""
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep the process's own answer to Ctrl-C: PySpark would put its own in place."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
