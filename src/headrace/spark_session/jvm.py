"""
The one Spark that a process can have: its JVM, its session, and how they end.

PySpark keeps its JVM, its context and its default session in class attributes, so that a process
can only have one. This module starts it, shares it among its users, and ends it with the last user.
If it died, PySpark's state is reset, so that the next start works as the first one did.

The JVM is our child process. PySpark would start it through a shell script that shares our
terminal. Instead, Spark's own launcher only prints the command. We remove the one option that a
slim Java does not know, write all output to a file, and start the JVM in its own process session,
so that Ctrl-C reaches us and does not end the JVM while we use it. The JVM reads its standard input
to the end, so that it ends when we do, however we end.

Loggers of PySpark and py4j are kept off the user's terminal. PySpark prints every error it raises,
with the row's values, through its own loggers; py4j warns through Python's last-resort handler.
Both would spoil a terminal, and the former would put values into logs. Errors of a user's own
session are printed as usual.

Long because everything that changes PySpark's process-wide state is in this one module.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.util
import logging
import os
import shutil
import signal
import string
import struct
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import SparkFailed
from headrace.spark_session import class_archive
from headrace.spark_session.java import VECTOR_MODULE, Java, find_java
from headrace.spark_session.settings import (
    JAVA_OPTIONS,
    PACKAGES,
    application_settings,
    event_settings,
    is_local,
    ui_settings,
)
from headrace.storage.permissions import make_private_folder, open_private

if TYPE_CHECKING:
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession


# --- the JVM as a child process -------------------------------------------------------------------

START_SECONDS = 90.0
FETCH_SECONDS = 600.0
"""For a JVM that downloads jars before it listens, which depends on the network."""

_UNRESOLVED = (b"unresolved dependency", b"UNRESOLVED DEPENDENCIES", b"download failed")
"""What Ivy prints if it cannot download a jar."""


_MIRROR = (
    "set it in spark.jars.repositories or spark.jars.ivySettings, or give the jars in spark.jars."
)

STOP_SECONDS = 10.0
_POLL_SECONDS = 0.01
_PLAIN = frozenset(string.ascii_letters + string.digits + "._-/,;@%+*()[]{}$<>|~^&?'\"")
_LONGEST_FOLDER = 60
"""Spark creates sockets there with names of 42 characters; a socket's path has at most 104."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A running JVM, and how to connect to it."""

    process: subprocess.Popen[bytes]
    """Kept as long as the JVM is needed: the JVM ends when this pipe is closed."""

    port: int
    secret: str
    output: Path
    """The file with the JVM's output."""

    folder: Path
    """Its temporary files: a killed JVM cannot remove them itself."""

    def stop(self) -> None:
        """Let the JVM end, kill it if it does not, and remove its temporary files."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # It is the leader of its own process group, which has the Python workers, too.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def launch(
    java: Java,
    spark_home: Path,
    settings: Mapping[str, str],
    environ: Mapping[str, str],
    logs: Path,
    meanwhile: Callable[[], object] = lambda: None,
) -> Machine:
    """
    Start a JVM with Spark's gateway and return it when it listens.

    `meanwhile` is called while it starts: importing PySpark takes a while, too.
    """
    make_private_folder(logs)
    output = logs / "spark.out"
    own = {
        **environ,
        "JAVA_HOME": java.home,
        "SPARK_HOME": str(spark_home),
        "SPARK_SCALA_VERSION": _scala_version(spark_home),
        "SPARK_CONNECT_MODE": "0",
    }
    folder = Path(tempfile.mkdtemp(prefix="headrace-"))
    gateway_file = folder / "gateway"
    if len(os.fsencode(folder)) <= _LONGEST_FOLDER and " " not in str(folder):
        # First, so that the same option of a user comes later and takes precedence.
        options = f"-Djava.io.tmpdir={folder} {settings.get(JAVA_OPTIONS, '')}"
        settings = {**settings, JAVA_OPTIONS: options}
    try:
        written = folder / "settings.properties"
        with open_private(written) as file:
            file.write(properties(settings))
        command = command_line(java, _ask_launcher(java, spark_home, written, own, output))
        inner = {
            **workers_from_folder(own, spark_home, settings),
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(gateway_file),
        }
        # First, as above.
        quick = [command[0], *class_archive.options(java, spark_home, settings), *command[1:]]
        packages = settings.get(PACKAGES, "")
        try:
            process, port, secret = _begin(quick, inner, gateway_file, output, packages, meanwhile)
        except SparkFailed as error:
            # If a signal ended it, the archive may be damaged: it is mapped without a check.
            if quick == command or int(str(error.facts.get("code", 0))) >= 0:
                raise
            process, port, secret = _begin(
                command, inner, gateway_file, output, packages, meanwhile
            )
            class_archive.discard(java, spark_home)
        # The JVM has read it. It may contain secrets, so it is removed as soon as possible.
        written.unlink()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Machine(process, port, secret, output, folder)


def _begin(
    command: list[str],
    environ: Mapping[str, str],
    gateway_file: Path,
    output: Path,
    packages: str,
    meanwhile: Callable[[], object],
) -> tuple[subprocess.Popen[bytes], int, str]:
    """Start the JVM and return it with its port and secret; kill it if it reports none."""
    with open_private(output) as lines:
        process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=lines,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        meanwhile()
        return process, *_await_gateway(process, gateway_file, output, packages)
    except BaseException:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        raise


def command_line(java: Java, answer: bytes) -> list[str]:
    """Return the command in the launcher's `answer`, adapted to this Java."""
    # Messages of the launcher come first, then a line with only a NUL.
    _, mark, rest = answer.partition(b"\0\n")
    command = [os.fsdecode(word) for word in rest.split(b"\0")[:-1]]
    if not mark or not command:
        raise SparkFailed("Spark's launcher returned no command", java=java.executable)
    if not java.has_vector:
        command = [word for word in command if word != f"--add-modules={VECTOR_MODULE}"]
    return command


def workers_from_folder(
    environ: Mapping[str, str], spark_home: Path, settings: Mapping[str, str]
) -> dict[str, str]:
    """
    Return the JVM's environment, in which Python workers import the installed PySpark.

    With SPARK_HOME, Spark puts a zip of PySpark before everything else. A zip has no bytecode: a
    worker then takes a second of CPU to start instead of a fifth, and the worker of a streaming
    source is given up after ten seconds. Only for workers that run this same Python.
    """
    packages = Path(sysconfig.get_path("purelib"))
    python = settings.get("spark.pyspark.python")
    here = (
        settings.get("spark.master", "").startswith("local")
        and python == environ.get("PYSPARK_PYTHON", python) == sys.executable
        and environ.get("PYSPARK_DRIVER_PYTHON", python) == python
        and spark_home == packages / "pyspark"
        and (packages / "py4j").is_dir()
    )
    if not here:
        return dict(environ)
    kept = {name: value for name, value in environ.items() if name != "SPARK_HOME"}
    # The only other thing that a driver reads from that folder.
    return {"SPARK_CONF_DIR": str(spark_home / "conf"), **kept}


def properties(settings: Mapping[str, str]) -> bytes:
    """Return settings as a Java properties file, in ASCII."""
    return "".join(
        f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items()
    ).encode("ascii")


def _escaped(text: str) -> str:
    """Return a name or value without special characters, which are written as their numbers."""
    # In units of UTF-16: a character above 65,535 is written as two.
    units = struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass"))
    return "".join(
        chr(unit) if unit < 128 and chr(unit) in _PLAIN else f"\\u{unit:04x}" for (unit,) in units
    )


def _ask_launcher(
    java: Java,
    spark_home: Path,
    settings: Path,
    environ: Mapping[str, str],
    output: Path,
) -> bytes:
    """
    Return the command that Spark's launcher would run.

    The options come from the launcher and never from a list of ours: they differ by Spark's
    version, and without one of them Java 25 hangs forever. Settings are in a file, because some
    are secrets, and every user of the machine can read command lines.
    """
    with open_private(output) as lines:
        done = subprocess.run(
            [
                java.executable,
                "-Xmx128m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-cp",
                f"{spark_home / 'jars'}/*",
                "org.apache.spark.launcher.Main",
                "org.apache.spark.deploy.SparkSubmit",
                *("--properties-file", str(settings)),
                # Otherwise they would be left out, because a file is given.
                "--load-spark-defaults",
                "pyspark-shell",
            ],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=lines,
            check=False,
        )
    if done.returncode:
        raise SparkFailed(
            "Spark's launcher failed",
            code=done.returncode,
            log=output,
        )
    return done.stdout


def _await_gateway(
    process: subprocess.Popen[bytes], gateway_file: Path, output: Path, packages: str
) -> tuple[int, str]:
    """Wait for the file that the JVM creates, and return its port and secret."""
    patience = FETCH_SECONDS if packages else START_SECONDS
    deadline = time.monotonic() + patience
    while not gateway_file.exists():
        if process.poll() is not None:
            if packages and any(each in output.read_bytes() for each in _UNRESOLVED):
                raise _not_fetched(packages, output)
            raise SparkFailed(
                "The JVM ended while it was starting",
                code=process.returncode,
                log=output,
            )
        if time.monotonic() > deadline:
            raise _silent(packages, patience, output)
        time.sleep(_POLL_SECONDS)
    data = gateway_file.read_bytes()
    port, length = struct.unpack_from(">ii", data)
    return port, data[8 : 8 + length].decode()


def _silent(packages: str, seconds: float, output: Path) -> SparkFailed:
    """Return the error for a JVM that does not answer; it may be downloading jars."""
    if not packages:
        return SparkFailed("The JVM did not answer", seconds=int(seconds), log=output)
    return SparkFailed(
        "The JVM did not answer while it downloaded jars",
        remedy="See the log for its progress, and start again: jars that are complete are kept. If"
        f" you need a mirror, {_MIRROR}",
        packages=packages,
        seconds=int(seconds),
        log=output,
    )


def _not_fetched(packages: str, output: Path) -> SparkFailed:
    """Return the error for a JVM that could not download its jars, and ended."""
    return SparkFailed(
        "Jars that Spark needs could not be downloaded",
        remedy="Start once with a network connection: the jars are kept for later. If you need a"
        f" mirror, {_MIRROR}",
        packages=packages,
        log=output,
    )


def _scala_version(spark_home: Path) -> str:
    """Return 2.13 from the name of a jar: otherwise the launcher looks for a source tree."""
    for jar in spark_home.glob("jars/spark-launcher_*.jar"):
        return jar.name.removeprefix("spark-launcher_").split("-")[0]
    raise SparkFailed(
        "PySpark has no jars",
        remedy="Install the package pyspark again, or set SPARK_HOME to a Spark distribution.",
        folder=spark_home / "jars",
    )


# --- loggers of PySpark and py4j ------------------------------------------------------------------

_NOISY = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


class _Quiet(logging.Filter):
    """Drops what PySpark would print about errors in our own calls."""

    def __init__(self) -> None:
        super().__init__()
        self.ours = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(self.ours, "depth", 0)


_quiet = _Quiet()


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Run calls to Spark whose errors we report, so that PySpark does not print them."""
    _quiet.ours.depth = getattr(_quiet.ours, "depth", 0) + 1
    try:
        yield
    finally:
        _quiet.ours.depth -= 1


def hush() -> None:
    """Import PySpark, and keep its loggers off the terminal."""
    # All of it, which takes a while: this is called while a JVM starts.
    import pyspark.sql  # noqa: F401
    from py4j import java_gateway
    from pyspark.logger import PySparkLogger

    for name in _NOISY:
        PySparkLogger.getLogger(name).addFilter(_quiet)
    logger = logging.getLogger("py4j")
    # Without a handler of its own, Python prints its warnings to standard error.
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    # py4j logs a lost connection to the root logger, with a function that also sets up logging
    # for the whole process. py4j's own logger has methods with the same names.
    java_gateway.logging = logger


# --- the one Spark, and its users -----------------------------------------------------------------

_ATTEMPTS = 2
"""Attempts to start a JVM: a busy machine was once seen to lose the first connection."""

_GONE = "gone"
"""The id of objects of a dead JVM; no JVM uses it."""


class SharedJvm:
    """A JVM of ours with its session, shared by `users`."""

    def __init__(
        self, session: SparkSession, machine: Machine, scratch: Path | None, path: list[str]
    ) -> None:
        self.session = session
        self.machine = machine
        self.scratch = scratch
        self.path = path
        """What PySpark added to Python's search path: a folder of this JVM."""

        self.users = 0

    @property
    def alive(self) -> bool:
        """Whether the process runs and its Spark was not stopped."""
        return self.machine.process.poll() is None and _answers(self.session.sparkContext)


_lock = threading.RLock()
running: SharedJvm | None = None


def acquire(
    data: str | os.PathLike[str] | None,
    conf: Mapping[str, str],
    environ: Mapping[str, str] | None,
    *,
    ui: bool = False,
    events: bool = False,
) -> SharedJvm | SparkSession:
    """
    Add a user to the Spark of this process and return it; start it if none runs.

    If other code in the process has started one, return its session instead.
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


def release(mine: SharedJvm) -> None:
    """Remove a user; the last one ends Spark."""
    global running
    with _lock:
        mine.users -= 1
        # If it died, it may have been replaced meanwhile, and the new one must not be ended.
        if mine is running and mine.users <= 0:
            _end(mine)
            running = None


def reachable(context: SparkContext) -> bool:
    """Whether the JVM of a context runs that other code started."""
    # PySpark has the process if it started the JVM itself.
    process = getattr(context._gateway, "proc", None)
    return (process is None or process.poll() is None) and _answers(context)


def spark_home() -> Path:
    """Return the folder of PySpark's own jars, without importing it."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise SparkFailed("PySpark is not installed", remedy="Install the package pyspark.")
    folder = Path(found.origin).parent
    if not (folder / "jars").is_dir() and "SPARK_HOME" in os.environ:
        # A PySpark inside a Spark distribution has its jars there.
        return Path(os.environ["SPARK_HOME"])
    return folder


def _answers(context: SparkContext) -> bool:
    """Whether Spark runs: one round trip, a fraction of a millisecond."""
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
) -> SharedJvm:
    try:
        return _start_in(data, conf, environ, ui=ui, events=events)
    except OSError as error:
        raise SparkFailed(
            "Spark did not start, because a file could not be written",
            remedy="Check the disk, and the permissions of the folder.",
            path=error.filename,
            why=error.strerror,
        ) from error


def _start_in(
    data: str | os.PathLike[str] | None,
    conf: Mapping[str, str],
    environ: Mapping[str, str],
    *,
    ui: bool,
    events: bool,
) -> SharedJvm:
    scratch = None
    if data is None:
        scratch = Path(tempfile.mkdtemp(prefix="headrace-spark-"))
    folder = scratch or Path(data).absolute()  # type: ignore[arg-type]
    asked = (ui_settings() if ui else {}) | (event_settings() if events else {})
    # Spark's own launcher adds these to the settings.
    options = environ.get("SPARK_SUBMIT_OPTS", "")
    settings = application_settings(folder, os.cpu_count() or 1, {**asked, **conf}, options)
    # Spark starts Python workers with this path; the one on PATH may be another Python.
    settings.setdefault("spark.pyspark.python", environ.get("PYSPARK_PYTHON", sys.executable))
    own = dict(environ)
    # To find Python data sources, Spark itself only uses the environment.
    own.setdefault("PYSPARK_DRIVER_PYTHON", own.get("PYSPARK_PYTHON", sys.executable))
    if is_local(settings["spark.master"]):
        # Without it, Spark listens on all interfaces of the machine.
        own.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    elif ui:
        raise SparkFailed(
            "spark_ui is only for a local Spark: on a cluster, its pages would be open to the whole"
            " network",
            remedy="Turn it off, or set spark.ui.enabled yourself in spark_conf.",
        )
    if settings["spark.eventLog.enabled"] == "true" and "spark.eventLog.dir" not in conf:
        # Event logs contain plans, and with them the literals of filters.
        Path(settings["spark.eventLog.dir"]).mkdir(0o700, parents=True, exist_ok=True)
    if "spark.sql.warehouse.dir" not in conf:
        # Spark would create it for everyone to read.
        make_private_folder(Path(settings["spark.sql.warehouse.dir"]))
    java = find_java(environ)
    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        machine = launch(java, spark_home(), settings, own, folder / "logs", hush)
        before = list(sys.path)
        try:
            session = _connect(machine, settings)
        except Exception as error:  # noqa: BLE001  # PySpark must forget this JVM in any case.
            failure = error
            _forget()
            machine.stop()
        else:
            added = [path for path in sys.path if path not in before]
            return SharedJvm(session, machine, scratch, added)
    raise SparkFailed(
        "Spark did not start",
        error=type(failure).__name__,
        log=folder / "logs",
    ) from failure


def _connect(machine: Machine, settings: Mapping[str, str]) -> SparkSession:
    """Pass our JVM to PySpark, as one that is already running."""
    # Imported here: it takes a while, and the JVM starts meanwhile.
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
    """Return the session of a running Spark that other code started in this process."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is None:
        return None
    if reachable(context):
        return SparkSession(context)
    # It is dead, and PySpark would return it forever.
    _forget()
    return None


def _end(ended: SharedJvm) -> None:
    # No warning if the JVM has ended already: it was to be ended.
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
    Remove the ids of the JVM's objects that Python still has.

    Otherwise a column or frame that is still in use would refer to an object of the next JVM with
    the same id, and a pipeline would silently compute something else.
    """
    from py4j.java_gateway import JavaObject

    for each in gc.get_objects():
        if issubclass(type(each), JavaObject) and each._gateway_client is client:
            each._target_id = _GONE


@atexit.register
def _at_exit() -> None:
    """Stop our Spark cleanly if the process ends without having stopped it."""
    global running
    with _lock:
        if running is not None:
            _end(running)
            running = None


@contextlib.contextmanager
def _environment(given: Mapping[str, str]) -> Iterator[None]:
    """Set these variables temporarily: PySpark only reads them from the environment."""
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
    """Keep the process's own handler of Ctrl-C, which PySpark would replace."""
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
    """Return the highest transaction number of an application in a Delta table; not in SQL."""
    jvm: Any = session._jvm
    tables, own = jvm.io.delta.tables.DeltaTable, session._jsparkSession
    table = tables.forPath(own, path) if name is None else tables.forName(own, name)
    # Its history was read just before, so this snapshot is current.
    found = table.deltaLog().unsafeVolatileSnapshot().transactions().get(application)
    return int(found.get()) if found.isDefined() else 0


def iceberg_table(session: SparkSession, name: str) -> Any:
    """Return Iceberg's own table object, as it is now; it has more than SQL shows."""
    jvm: Any = session._jvm
    # At its first use, a catalog is created with the settings of the active session.
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
    return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, name)
