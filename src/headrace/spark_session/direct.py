"""
Small batches without a Spark job: the optimised plan's own expressions, called in the driver's JVM.

A job costs tens of milliseconds, of which the expressions of a small batch are a few percent. If
the optimised plan of a frame is only filters and projections of single rows, deterministic, these
expressions can be called directly, with what Spark's own operators call them by in a task:
`Predicate`, `UnsafeProjection` and `ArrowWriter`. Everything else needs a job.

`DirectEvaluator.java`, next to this module, does that. It is compiled when it is first needed, by
the Janino compiler that Spark ships for its own generated code, so there is no jar of ours. The
expressions are evaluated as in the session for small batches, which is interpreted.

Batches go over a socket in the file system, one for each plan. py4j sends bytes as base64, and a
call with more than a packet waits for the other side's delayed acknowledgement. Python listens, the
JVM connects, and the socket's file is removed at once. A request is a length and a stream of Arrow.
An answer is a status, two lengths, a stream of Arrow and a text: one line for each row that raised,
with its number and the causes of the error. The text has classes and conditions, never values.

Java cannot stop a thread, so a call that does not end is abandoned. A call has all the time it
needs while it gets from row to row, and a JVM that does not answer at all is waited for, as with a
job.

Parts of it are internal to Spark (`InternalRow`, `BasePredicate`, `UnsafeProjection`,
`ArrowWriter`, `ConvertToLocalRelation`). So it is checked with a few known rows before it is used;
if that fails, all batches are computed by jobs.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.errors import EvaluationTimeout, JobCancelled
from headrace.observe.logs import logger
from headrace.spark_session.errors import Cause
from headrace.spark_session.jvm import quietly

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_log = logger(__name__)

STUCK_SECONDS = 30.0
"""A call that is at the same row after twice this time is abandoned."""

_ANSWER_SECONDS = 5.0
"""How long the JVM may take to say at which row a call is."""

_CONNECT_SECONDS = 30.0
_SOURCE = Path(__file__).with_name("DirectEvaluator.java")
_CLASS = "DirectEvaluator"
_PACKAGE = "package headrace.direct;"
_REQUEST = struct.Struct(">i")
_ANSWER = struct.Struct(">iii")
_COMPUTED = 0


# --- one plan -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RaisedRow:
    """A row whose expressions raised: its number in the input, and the causes, outermost first."""

    row: int
    causes: tuple[Cause, ...]


@dataclass(frozen=True, slots=True)
class EvaluatedRows:
    """The rows that a plan makes of its input, in the order of the input."""

    rows: pa.Table
    raised: tuple[RaisedRow, ...]
    """The rows that raised; they are not in `rows`."""


class Evaluator(Protocol):
    """
    Computes small batches by one plan, without a job.

    *Threads*: one at a time; `cancel` from any. *After a cancelled or abandoned call*, it cannot be
    used again.
    """

    @property
    def schema(self) -> StructType:
        """The columns of its input."""
        ...

    @property
    def plan(self) -> str:
        """The optimised plan that it computes."""
        ...

    @property
    def usable(self) -> bool:
        """Whether it can be called: false once it was closed, or a call did not end."""
        ...

    def evaluate(self, rows: pa.Table) -> EvaluatedRows | None:
        """
        Return the rows of a batch; None if they need a job: something other than a row failed.

        Raises `EvaluationTimeout`, with the number of the `row`, if a row takes too long, and
        `JobCancelled` after a `cancel`. Raises `ConnectionError` if the JVM is gone.
        """
        ...

    def cancel(self) -> None:
        """End a call that is waited for; without one, do nothing."""
        ...

    def close(self) -> None:
        """Release what it has in the JVM."""
        ...


class SocketEvaluator:
    """The `Evaluator` at the other end of a socket."""

    def __init__(
        self,
        connection: socket.socket,
        schema: StructType,
        at_row: Callable[[], int],
        plan: Callable[[], str],
        stuck_seconds: float | None = None,
    ) -> None:
        """`at_row` asks the JVM for the number of the row that it computes."""
        self.schema = schema
        self._connection = connection
        self._at_row = at_row
        self._plan = plan
        self._stuck_seconds = STUCK_SECONDS if stuck_seconds is None else stuck_seconds
        self._lock = threading.Lock()
        self._busy = False
        self._cancelled = False
        # A pipeline that nobody closes must not leave a thread in the JVM.
        self._close = weakref.finalize(self, connection.close)
        self._close.atexit = False

    @property
    def plan(self) -> str:
        return self._plan()

    @property
    def usable(self) -> bool:
        return self._close.alive

    def evaluate(self, rows: pa.Table) -> EvaluatedRows | None:
        with self._lock:
            if self._cancelled:
                raise JobCancelled("A direct batch was cancelled")
            self._busy = True
        try:
            return self._called(_stream_of(rows))
        except BaseException as error:
            # What the other side sends next would be the answer to this call.
            self.close()
            if self._cancelled and isinstance(error, OSError):
                raise JobCancelled("A direct batch was cancelled") from None
            raise
        finally:
            with self._lock:
                self._busy = False

    def cancel(self) -> None:
        with self._lock:
            if not self._busy:
                return
            self._cancelled = True
            with contextlib.suppress(OSError):
                # Wakes the thread that waits; `close` would not.
                self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._close()

    def _called(self, given: pa.Buffer) -> EvaluatedRows | None:
        # While a frozen JVM takes nothing, there is nothing to abandon yet.
        self._connection.settimeout(None)
        self._connection.sendall(_REQUEST.pack(given.size))
        self._connection.sendall(given)
        self._connection.settimeout(self._stuck_seconds)
        status, made_size, text_size = _ANSWER.unpack(self._received(_ANSWER.size))
        made, text = self._received(made_size), self._received(text_size)
        if status != _COMPUTED:
            causes = next(_lines(text, numbered=False)).causes
            _log.warning("batch needs a job", error=causes[0].kind, condition=causes[-1].condition)
            return None
        with pa.ipc.open_stream(made) as stream:
            return EvaluatedRows(stream.read_all(), tuple(_lines(text, numbered=True)))

    def _received(self, count: int) -> bytearray:
        data = bytearray(count)
        view, at, row = memoryview(data), 0, None
        while at < count:
            try:
                got = self._connection.recv_into(view[at:])
            except TimeoutError:
                found = self._row_now()
                if found is not None and found == row:
                    raise EvaluationTimeout(
                        "A row takes too long to be computed",
                        row=row,
                        seconds=round(self._stuck_seconds),
                    ) from None
                row = found
                continue
            if not got:
                raise ConnectionResetError("The JVM closed the socket")
            at += got
        return data

    def _row_now(self) -> int | None:
        """Return the row that the JVM computes; None if it does not answer."""
        found: list[int] = []

        def ask() -> None:
            with contextlib.suppress(Exception):
                found.append(self._at_row())

        thread = threading.Thread(target=ask, name="headrace direct row", daemon=True)
        thread.start()
        thread.join(_ANSWER_SECONDS)
        return found[0] if found else None


def _stream_of(rows: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return sink.getvalue()


def _lines(text: bytearray, *, numbered: bool) -> Iterator[RaisedRow]:
    for line in text.decode().splitlines():
        fields = line.split("\t")
        row = int(fields.pop(0)) if numbered else -1
        causes = (each.split("|") for each in fields)
        yield RaisedRow(row, tuple(Cause(kind, name or None, state or None)
                                   for kind, name, state in causes))  # fmt: skip


# --- all plans of one Spark -----------------------------------------------------------------------


class DirectPlans:
    """
    Makes evaluators in the JVM of a classic Spark; safe to use from several threads.

    The first one is made after the check. `reason` says why there are none.
    """

    def __init__(self, session: SparkSession, small: SparkSession) -> None:
        self.reason = ""
        """Why all batches need a job; empty if they do not."""
        self._session = session
        self._small = small
        self._lock = threading.Lock()
        self._class: Any = None

    def source(self, schema: StructType) -> DataFrame:
        """Return a frame without rows, which the optimizer treats as if it had some."""
        from pyspark.sql.classic.dataframe import DataFrame as Classic

        jsession = self._small._jsparkSession
        described = jsession.parseDataType(schema.json())
        # Not a list of rows: of that, the optimizer would see that it is empty.
        rows = self._session.sparkContext._jsc.emptyRDD()
        return Classic(jsession.createDataFrame(rows, described), self._small)

    def evaluator(self, frame: DataFrame, schema: StructType) -> Evaluator | None:
        """Return what computes a frame over a `source` of this schema; None if it needs jobs."""
        if not self._works():
            return None
        try:
            with quietly():
                return self._made(frame, schema)
        except (PySparkException, Py4JError) as error:
            # If the JVM is gone, the job that comes instead says so.
            _log.failed("a plan is computed by jobs", error)
            return None

    def _works(self) -> bool:
        with self._lock:
            if self._class is None and not self.reason:
                try:
                    with quietly():
                        self._class = self._compiled()
                        self._check()
                except Exception as error:  # noqa: BLE001 - internals may be missing in any way
                    self.reason = f"the check at the start failed: {type(error).__name__}"
                    _log.failed("small batches are computed by jobs", error)
        return not self.reason

    def _compiled(self) -> Any:
        jvm = self._jvm
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
        # A package of its own: py4j keeps the methods of classes by name, and in a JVM with several
        # sessions would call those of another compilation.
        package = f"headrace.direct_{secrets.token_hex(8)}"
        text = _SOURCE.read_text()
        assert _PACKAGE in text
        compiler.cook(text.replace(_PACKAGE, f"package {package};"))
        return compiler.getClassLoader().loadClass(f"{package}.{_CLASS}")

    def _check(self) -> None:
        """Compute a few rows whose result is known; raise if that is not what comes back."""
        from pyspark.sql import types as t

        image = t.StructType(
            [t.StructField("n", t.IntegerType()), t.StructField("s", t.StringType())]
        )
        schema = t.StructType([t.StructField("id", t.LongType()), t.StructField("r", image)])
        frame = self.source(schema).selectExpr("id", "100 div r.n as q", "upper(r.s) as u")
        made = self._made(frame.where("id <> 3"), schema)
        assert made is not None, "the plan is not direct"
        try:
            given = [(1, (7, "a")), (2, (0, "b")), (3, (1, "c")), (4, None), (5, (-3, None))]
            rows = [{"id": id, "r": r and dict(zip("ns", r, strict=True))} for id, r in given]
            types = [("n", pa.int32()), ("s", pa.string())]
            found = made.evaluate(
                pa.Table.from_pylist(rows, pa.schema([("id", pa.int64()), ("r", pa.struct(types))]))
            )
        finally:
            made.close()
        assert found is not None, "the rows need a job"
        assert [tuple(row.values()) for row in found.rows.to_pylist()] == [
            (1, 14, "A"),
            (4, None, None),
            (5, -33, None),
        ], "the rows differ"
        raised = [(each.row, each.causes[-1].condition) for each in found.raised]
        assert raised == [(1, "DIVIDE_BY_ZERO")], "the errors differ"

    def _made(self, frame: DataFrame, schema: StructType) -> Evaluator | None:
        optimised = frame._jdf.queryExecution().optimizedPlan()
        if (operators := self._operators(optimised)) is None:
            return None
        stages = self._stages(*operators)
        arguments = self._gateway.new_array(self._jvm.java.lang.Object, 3)
        arguments[0], arguments[1] = self._small._jsparkSession, stages.toArray()
        arguments[2] = optimised.schema()
        handle = self._class.getDeclaredConstructors()[0].newInstance(arguments)
        return SocketEvaluator(_connected(handle.connect), schema, handle.row, optimised.toString)

    def _operators(self, optimised: Any) -> tuple[Any, list[tuple[str, Any]]] | None:
        """Return the leaf and the operators above it, lowest first; None if a job is needed."""
        rule = _scala(self._jvm, "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation")
        if not optimised.deterministic():
            return None
        operators: list[tuple[str, Any]] = []
        node = optimised
        while (kind := str(node.getClass().getSimpleName())) != "LogicalRDD":
            if kind not in ("Project", "Filter"):
                return None
            expressions = node.expressions()
            # What Spark's own rule for rows on the driver refuses, such as Python functions.
            if any(
                rule.hasUnevaluableExpr(expressions.apply(at)) for at in range(expressions.size())
            ):
                return None
            operators.insert(0, (kind, node))
            node = node.child()
        return node, operators

    def _stages(self, leaf: Any, operators: list[tuple[str, Any]]) -> Any:
        """Return a predicate or a projection for each operator, as Spark makes them in a task."""
        catalyst = "org.apache.spark.sql.catalyst.expressions"
        projection = _scala(self._jvm, f"{catalyst}.UnsafeProjection")
        predicate = _scala(self._jvm, f"{catalyst}.Predicate")
        sessions = self._jvm.org.apache.spark.sql.classic.SparkSession
        stages, output = self._jvm.java.util.ArrayList(), leaf.output()
        before = sessions.getActiveSession()
        # Whether they are interpreted is a setting of the session that is active in this thread.
        sessions.setActiveSession(self._small._jsparkSession)
        try:
            for kind, operator in operators:
                if kind == "Filter":
                    made = predicate.create(operator.condition(), output)
                else:
                    made = projection.create(operator.projectList(), output)
                    output = operator.output()
                made.initialize(0)
                stages.add(made)
        finally:
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()
        return stages

    @property
    def _jvm(self) -> Any:
        return self._session.sparkContext._jvm

    @property
    def _gateway(self) -> Any:
        return self._session.sparkContext._gateway


def _connected(connect: Callable[[str], None]) -> socket.socket:
    """Return our end of a socket that the JVM has connected to; only we can open its file."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-") as folder,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        path = f"{folder}/direct"
        listener.bind(path)
        listener.listen(1)
        listener.settimeout(_CONNECT_SECONDS)
        connect(path)
        connection, _ = listener.accept()
        return connection


def _scala(jvm: Any, name: str) -> Any:
    """Return Scala's object of that name."""
    return getattr(getattr(jvm, f"{name}$"), "MODULE$")
