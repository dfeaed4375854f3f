"""
Pipelines on a Spark Connect session.

Such a session is a client: Spark runs elsewhere, and only plans and rows are exchanged. The
parser and the objects of a plan are not available. So expressions are never bound as text but
staged as columns, and what an expression uses is read from the text of its analysed plan. A
failing row is found by bisection, because there is nothing like `tried`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.errors import SparkFailed
from headrace.spark_session.session import PreparedExpressions, Spark, SparkInfo, Tags
from headrace.spark_session.settings import BULK, SMALL, session_settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


_ANSWER_SECONDS = 2.0

_DECIDE_RESULTS = (
    "spark.sql.session.timeZone",
    "spark.sql.caseSensitive",
    "spark.sql.ansi.enabled",
    "spark.sql.timestampType",
    "spark.sql.ansi.doubleQuotedIdentifiers",
)
"""Settings that the user's session must have, if pipelines have to run in it."""

_CLASSES = {
    r"\brand\(": "Rand",
    r"\brandn\(": "Randn",
    r"\brandstr\(": "RandStr",
    r"\bshuffle\(": "Shuffle",
    r"\buniform\(": "Uniform",
    r"\buuid\(": "Uuid",
    r"\bnow\(": "Now",
    r"\blocaltimestamp\(": "LocalTimestamp",
    r"\b(current_(?!row)|session_)\w+\(": "CurrentValue",
    r"\bmonotonically_increasing_id\(": "MonotonicallyIncreasingID",
    r"\bspark_partition_id\(": "SparkPartitionID",
    r"\binput_file_name\(": "InputFileName",
    r"\binput_file_block_start\(": "InputFileBlockStart",
    r"\binput_file_block_length\(": "InputFileBlockLength",
    r"-subquery#|\bexists#|\blist#": "ScalarSubquery",
    r"^[ :+-]*Aggregate \[": "Aggregate",
    r"^[ :+-]*Window \[|\bwindowspecdefinition\(": "WindowExpression",
    r"^[ :+-]*Generate ": "Generate",
}
"""How refused expressions look in the text of a plan, with their class."""

_VARIES = re.compile(
    r"\b(rand|randn|randstr|shuffle|uniform|uuid|monotonically_increasing_id|spark_partition_id"
    r"|input_file_\w+|java_method|reflect|try_reflect)\(",
    re.IGNORECASE,
)
_WORD = r"(?:now|today|tomorrow|yesterday)"
_MOMENT = re.compile(
    rf"\bcast\(({_WORD})(?: [^()#,]*)? as (?:date|timestamp)"
    rf"|\b\w*(?:date|timestamp)\w*\(({_WORD})(?: [^()#,]*)?, ",
    re.IGNORECASE,
)
"""A literal that is converted to a time; a column of that name would have a number after it."""


class ConnectSpark(Spark):
    """
    A Spark Connect session and, if it can be cloned, the two that pipelines run in.

    It is never stopped: only the clones are closed.
    """

    def __init__(self, session: SparkSession) -> None:
        # Not `super().__init__`, which is for a classic session.
        self.session = session
        self._clones: list[SparkSession] = []
        self.small = self._with(session_settings(SMALL))
        self.bulk = self._with(session_settings(BULK))
        self.last_job_ms = 0.0
        self.direct = None
        self._open = Tags()
        self._here = threading.local()
        self._jobs: Counter[str] = Counter()
        # Runs before PySpark's own handler, which would wait for a server that may be gone.
        atexit.register(self._close)

    @property
    def own(self) -> bool:
        return False

    @property
    def alive(self) -> bool:
        client = _client(self.session)
        if client.is_closed:
            return False
        host, _, port = str(client._builder.endpoint).rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
        except (OSError, ValueError):
            return False
        return True

    def describe_job(self, text: str) -> None:
        """Do nothing: a client cannot name the server's jobs."""

    def prepared(self, expressions: Sequence[str | Column]) -> PreparedExpressions:
        from pyspark.sql import functions as F

        if all(isinstance(expression, str) for expression in expressions):
            return PreparedExpressions(tuple(expressions), texts=True)
        columns = [F.expr(each) if isinstance(each, str) else each for each in expressions]
        return PreparedExpressions(tuple(columns), texts=False)

    def select(self, frame: DataFrame, chosen: PreparedExpressions) -> DataFrame:
        if chosen.texts:
            return frame.selectExpr(*chosen.sequence)
        return frame.select(*chosen.sequence)

    def collect(self, frame: DataFrame) -> pa.Table:
        began = time.perf_counter()
        rows = frame.toArrow()
        self.last_job_ms = (time.perf_counter() - began) * 1000
        for tag in {"", *getattr(self._here, "tags", ())}:
            self._jobs[tag] += 1
        return rows

    def empty(self, schema: StructType) -> DataFrame:
        return self.small.createDataFrame([], schema)

    def analysed(self, frame: DataFrame) -> str:
        """Return the classes found in the analysed plan's text, as JSON."""
        return json.dumps(list(_plan_classes(_analysed_text(frame))))

    def deterministic(self, frame: DataFrame) -> bool:
        return _VARIES.search(_analysed_text(frame)) is None

    def parsed(self, text: str) -> object:
        return text

    def attributes(self, tree: Any) -> Iterator[tuple[str, int | None, int | None, str]]:
        """Yield a star: which columns an expression uses is not known here."""
        yield "UnresolvedStar", None, None, ""

    def tried(self, column: Column) -> Column | None:
        return None

    def one_by_one(self, frame: DataFrame) -> Iterator[tuple[tuple[int, int], DataFrame]]:
        return iter(())

    def plan(self, frame: DataFrame) -> None:
        self.analysed(frame)

    @contextlib.contextmanager
    def tagged(self, tag: str) -> Iterator[None]:
        sessions = self._sessions()
        before = getattr(self._here, "tags", ())
        with self._open.block(tag):
            # Tags belong to one thread and one client.
            for session in sessions:
                session.addTag(tag)
            self._here.tags = (*before, tag)
            try:
                yield
            finally:
                self._here.tags = before
                for session in sessions:
                    session.removeTag(tag)

    def cancel(self, tag: str) -> None:
        self._open.cancel(tag, self._interrupt)

    def counted(self, tag: str) -> tuple[int, int, int]:
        """Return the number of jobs collected under a tag; a client knows nothing about tasks."""
        return self._jobs[tag], 0, 0

    def executors(self) -> tuple[int, int] | None:
        """Return None: a client knows nothing about executors."""
        return None

    def explain(self, frame: DataFrame) -> str:
        """Return the frame's physical plan, as it is planned now."""
        return str(_explained(frame, "formatted"))

    def info(self) -> SparkInfo:
        return SparkInfo(
            version=self.session.version,
            master=f"sc://{_client(self.session)._builder.endpoint}",
            app_id=_client(self.session)._session_id,
            jobs=self._jobs[""],
            tasks=0,
            last_job_ms=self.last_job_ms,
            plan="",
            ui=None,
            jobs_only="a client cannot call expressions",
        )

    def stop(self) -> None:
        """Close the clones of the session; safe to call twice."""
        if self._clones and self.alive:
            for clone in self._clones:
                with contextlib.suppress(Exception):
                    _client(clone).release_session()
        self._close()

    def _close(self) -> None:
        # Not `clone.stop()`: with a local server, that would stop the server.
        for clone in self._clones:
            with contextlib.suppress(Exception):
                _client(clone).close()
        self._clones.clear()
        atexit.unregister(self._close)

    def _sessions(self) -> list[SparkSession]:
        return list({id(each): each for each in (self.session, self.small, self.bulk)}.values())

    def _interrupt(self, tag: str) -> None:
        for session in self._sessions():
            session.interruptTag(tag)

    def another(self, settings: Mapping[str, str]) -> SparkSession:
        if not hasattr(self.session, "cloneSession"):
            raise SparkFailed(
                "Lake tables need a session of their own, and this version of Spark Connect cannot"
                " clone yours",
                remedy="Pass a classic SparkSession, or none: then the engine starts one.",
            )
        return self._with({**session_settings(BULK), **settings})

    def _with(self, settings: Mapping[str, str]) -> SparkSession:
        """Return a clone with these settings; the user's session is not changed (S7)."""
        clone = getattr(self.session, "cloneSession", None)
        if clone is None:
            wrong = [
                name for name in _DECIDE_RESULTS if self.session.conf.get(name) != settings[name]
            ]
            if wrong:
                raise SparkFailed(
                    "This version of Spark Connect cannot clone your session, in which"
                    f" {', '.join(wrong)} would change results",
                    remedy="Set "
                    + ", ".join(f"{name}={settings[name]}" for name in wrong)
                    + " in the session that you pass.",
                )
            return self.session
        made: SparkSession = clone()
        self._clones.append(made)
        for name, value in settings.items():
            made.conf.set(name, value)
        return made


def _client(session: SparkSession) -> Any:
    return session.client


def _explained(frame: DataFrame, mode: str) -> Any:
    return frame._explain_string(mode=mode)  # type: ignore[operator]


def _analysed_text(frame: DataFrame) -> str:
    """Return only the analysed plan: in the optimised one, constants are folded."""
    text = str(_explained(frame, "extended"))
    _, _, text = text.partition("== Analyzed Logical Plan ==\n")
    return text.partition("== Optimized Logical Plan ==")[0]


def _plan_classes(text: str) -> Iterator[dict[str, str]]:
    for pattern, kind in _CLASSES.items():
        if re.search(pattern, text, re.IGNORECASE | re.MULTILINE):
            yield {"class": kind}
    for match in _MOMENT.finditer(text):
        yield {"class": "Cast"}
        yield {"class": "Literal", "dataType": "string", "value": match[1] or match[2]}
