"""
The one Spark that a process can have.

PySpark keeps its JVM, its context and its default session in class attributes, so there is
room for one. Here it is started, shared among those who use it, ended with its last user,
and forgotten where it died, so that the next start finds PySpark as it was in the beginning.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import SparkFailed
from headrace.pipeline.defaults import (
    application_settings,
    event_settings,
    is_local,
    ui_settings,
)
from headrace.pipeline.java import find_java
from headrace.pipeline.launch import Machine, launch
from headrace.pipeline.quiet import hush

if TYPE_CHECKING:
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

_ATTEMPTS = 2
"""Starts of a JVM: a busy machine was once seen to lose the first connection."""

_GONE = "gone"
"""The name that objects of a dead JVM are given; no JVM gives it out."""


class Running:
    """A JVM of ours with its session, shared by `users`."""

    def __init__(
        self, session: SparkSession, machine: Machine, scratch: Path | None, path: list[str]
    ) -> None:
        self.session = session
        self.machine = machine
        self.scratch = scratch
        self.path = path
        """What PySpark put on Python's search path: a folder of this JVM."""

        self.users = 0

    @property
    def alive(self) -> bool:
        """Whether the process runs and Spark in it was not stopped."""
        return self.machine.process.poll() is None and _answers(self.session.sparkContext)


_lock = threading.RLock()
running: Running | None = None


def acquire(
    data: str | os.PathLike[str] | None,
    conf: Mapping[str, str],
    environ: Mapping[str, str] | None,
    *,
    ui: bool = False,
    events: bool = False,
) -> Running | SparkSession:
    """
    Return the Spark of this process with one user more, starting it where none runs.

    Where somebody else started one, its session is returned instead.
    """
    global running
    with _lock:
        if running is not None and not running.alive:
            _end(running)
            running = None
        if running is None:
            if (theirs := _active()) is not None:
                return theirs
            environ = os.environ if environ is None else environ
            running = _start(data, conf, environ, ui=ui, events=events)
        running.users += 1
        return running


def release(mine: Running) -> None:
    """One user less; the last one ends Spark."""
    global running
    with _lock:
        mine.users -= 1
        # One that died may have been replaced meanwhile, and that is not ours to end.
        if mine is running and mine.users <= 0:
            _end(mine)
            running = None


def reachable(context: SparkContext) -> bool:
    """Whether the JVM of a context that somebody else started runs."""
    # PySpark holds the process where it started one itself.
    process = getattr(context._gateway, "proc", None)
    return (process is None or process.poll() is None) and _answers(context)


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


def _answers(context: SparkContext) -> bool:
    """Whether Spark was not stopped: one round trip, a fraction of a millisecond."""
    from py4j.protocol import Py4JError

    found = context._jsc
    try:
        return found is not None and not found.sc().isStopped()
    except (Py4JError, OSError):
        return False


def _start(
    data: str | os.PathLike[str] | None,
    conf: Mapping[str, str],
    environ: Mapping[str, str],
    *,
    ui: bool,
    events: bool,
) -> Running:
    scratch = None
    if data is None:
        scratch = Path(tempfile.mkdtemp(prefix="headrace-spark-"))
    folder = scratch or Path(data).absolute()  # type: ignore[arg-type]
    asked = (ui_settings() if ui else {}) | (event_settings() if events else {})
    # Spark's own launcher adds these to what settings say.
    options = environ.get("SPARK_SUBMIT_OPTS", "")
    settings = application_settings(folder, os.cpu_count() or 1, {**asked, **conf}, options)
    # Spark runs Python workers by this name; the one on PATH may be another Python.
    settings.setdefault("spark.pyspark.python", environ.get("PYSPARK_PYTHON", sys.executable))
    own = dict(environ)
    # Where Spark itself looks for sources in Python it goes by the environment alone.
    own.setdefault("PYSPARK_DRIVER_PYTHON", own.get("PYSPARK_PYTHON", sys.executable))
    if is_local(settings["spark.master"]):
        # Without it Spark listens on every interface of the machine.
        own.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    elif ui:
        raise SparkFailed(
            "On a cluster, Spark's pages would be open to its whole network",
            remedy="Leave them off, or turn them on yourself with spark_conf.",
        )
    if settings["spark.eventLog.enabled"] == "true" and "spark.eventLog.dir" not in conf:
        # Plans stand in there, and with them the literals of everybody's filters.
        Path(settings["spark.eventLog.dir"]).mkdir(0o700, parents=True, exist_ok=True)
    java = find_java(environ)
    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        machine = launch(java, spark_home(), settings, own, folder / "logs", hush)
        before = list(sys.path)
        try:
            session = _connect(machine, settings)
        except Exception as error:  # noqa: BLE001  # Whatever it is, PySpark must forget this JVM.
            failure = error
            _forget()
            machine.stop()
        else:
            added = [path for path in sys.path if path not in before]
            return Running(session, machine, scratch, added)
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


def _active() -> SparkSession | None:
    """Return the session of a Spark that somebody else started in this process, and that runs."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is None:
        return None
    if reachable(context):
        return SparkSession(context)
    # It is dead, and PySpark would hand it out for ever.
    _forget()
    return None


def _end(ended: Running) -> None:
    # A JVM that is gone already is no reason to warn: it was to go.
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if ended.alive:
            ended.session.stop()
    _forget()
    ended.machine.stop()
    for path in ended.path:
        with contextlib.suppress(ValueError):
            sys.path.remove(path)
    if ended.scratch is not None:
        shutil.rmtree(ended.scratch, ignore_errors=True)


def _forget() -> None:
    """Make PySpark forget its JVM, dead or alive, so that the next start gets a new one."""
    from pyspark import accumulators
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.context import SQLContext

    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    if context is not None:
        context._jsc = None
        server = getattr(context, "_accumulatorServer", None)
        if server is not None:
            with contextlib.suppress(Exception):
                server.shutdown()
            context._accumulatorServer = None  # type: ignore[assignment]
    if gateway is not None:
        # Its callback server and the thread that frees Java objects end here, too.
        with contextlib.suppress(Exception):
            gateway.shutdown()
        _disown(gateway._gateway_client)
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
    SQLContext._instantiatedContext = None
    accumulators._accumulatorRegistry.clear()


def _disown(client: Any) -> None:
    """
    Take their names from what Python still holds of the JVM's objects.

    A column or frame that somebody kept would otherwise pass for whatever object the next
    JVM gives the same number, and a pipeline would compute something else without a word.
    """
    from py4j.java_gateway import JavaObject

    for each in gc.get_objects():
        if issubclass(type(each), JavaObject) and each._gateway_client is client:
            each._target_id = _GONE


@atexit.register
def _at_exit() -> None:
    """End our Spark in order when the process ends without having stopped it."""
    global running
    with _lock:
        if running is not None:
            _end(running)
            running = None


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


def delta_transaction(
    session: SparkSession, application: str, path: str | None, name: str | None
) -> int:
    """Return the highest number of an application's commits to a Delta table; SQL does not tell."""
    jvm: Any = session._jvm
    tables, own = jvm.io.delta.tables.DeltaTable, session._jsparkSession
    table = tables.forPath(own, path) if name is None else tables.forName(own, name)
    # Its history was read just before, so this is not an old one.
    found = table.deltaLog().unsafeVolatileSnapshot().transactions().get(application)
    return int(found.get()) if found.isDefined() else 0


def iceberg_table(session: SparkSession, name: str) -> Any:
    """Return Iceberg's own object of a table, as it is now; SQL does not tell all that it knows."""
    jvm: Any = session._jvm
    # A catalog is made, at its first use, from the settings of the session that is active.
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
    return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, name)
