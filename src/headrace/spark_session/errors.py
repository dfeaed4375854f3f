"""
From Spark's errors to ours.

Spark gives each error a condition and an SQLSTATE. In the standard's class 22, data exception, a
row is to blame; any other error of a job is the job's. An error has a chain of causes. The
innermost cause with a condition decides, unless one of the causes is the machine: a lost executor,
a file that cannot be read, no memory left. Then no row is to blame, whatever the others say (S2).

Spark's own text contains values of the row, so only the condition is passed on (invariant 6 needs
the error, and a log must not have values). Nor does the text decide: a row's value could be
"OutOfMemoryError".
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException, ParseException, PySparkException, PythonException

from headrace.errors import (
    BadExpression,
    BadFunction,
    HeadraceError,
    JobCancelled,
    JobFailed,
    RowFailed,
    SparkGone,
)
from headrace.spark_session.jvm import quietly

_IN_TEXT = re.compile(r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z][A-Z0-9_]*)*)\]")
_STAGE_FAILED = re.compile(
    r"Job aborted due to stage failure: [^:]*: Lost task [\d.]+ in stage [\d.]+ \(TID \d+\)"
    r" \([^()]*\): ([\w.$]+)"
    r"(?:: \[([A-Z][A-Z0-9_]*(?:\.[A-Z][A-Z0-9_]*)*)\].*?SQLSTATE: ([0-9A-Z]{5}))?",
    re.DOTALL,
)
"""How Spark's text for a failed stage begins: up to here, it has no values of a row."""

_OF_FUNCTION = re.compile(
    r"^\S*BadResult: \[headrace:pipeline\.bad_function\] ([^\n]*)", re.MULTILINE
)
"""What `executor_calls` raises on an executor: names and counts, no values of a row."""

_DATA_EXCEPTION = "22"
_ALSO_OF_A_ROW = frozenset(
    {
        *("USER_RAISED_EXCEPTION", "DUPLICATED_MAP_KEY", "COLLECTION_SIZE_LIMIT_EXCEEDED"),
        "INVALID_FORMAT",  # a text that to_number cannot read; a wrong format is found before
    }
)
"""Raised only by an expression on a row's values, but with an SQLSTATE of another class."""

_WRAPPERS = frozenset({"TASK_WRITE_FAILED", "WRITING_JOB_ABORTED"})
"""Conditions that only wrap another one."""

_CANCELLED = frozenset({"SPARK_JOB_CANCELLED", "OPERATION_CANCELED", "JOB_CANCELLED"})

_MACHINE = re.compile(
    r"(.*\.)?([A-Za-z]*Error|ExecutorLostFailure|ExecutorDeadException|FetchFailed(Exception)?"
    r"|Task(Killed|ResultLost|KilledException)|UnknownReason|Resubmitted)|java\.(io|nio|net)\..*"
)
"""Java classes, and Spark's names for the end of a task, that mean the machine failed."""

_DEPTH = 20
"""Maximum number of causes: a chain can be circular."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One link of an error's chain: its class, and Spark's names for it if it has any."""

    kind: str
    condition: str | None = None
    state: str | None = None


def is_row_level(causes: Sequence[Cause]) -> bool:
    """Whether a row is to blame for an error with these causes, outermost first."""
    named = [cause for cause in causes if cause.condition]
    if not named or any(_MACHINE.fullmatch(cause.kind) for cause in causes):
        return False
    *outer, inner = named
    return _of_a_row(inner) and all(
        cause.condition in _WRAPPERS or _of_a_row(cause) for cause in outer
    )


@contextlib.contextmanager
def running(**facts: Any) -> Iterator[None]:
    """
    Run a job; translate what Spark raises into our error, with these facts.

    Raises `RowFailed`, `JobCancelled`, `SparkGone`, or `JobFailed` for anything else.
    """
    try:
        with quietly():
            yield
    except (PySparkException, Py4JError) as error:
        raise of_job(error, **facts) from None
    except ConnectionError as error:
        raise _gone(error, **facts) from None


def of_job(error: PySparkException | Py4JError, **facts: Any) -> HeadraceError:
    """Return our error for what a job raised."""
    if isinstance(error, Py4JNetworkError) or _cut_off(error):
        return _gone(error, **facts)
    if (found := bad_function(error, **facts)) is not None:
        return found
    try:
        causes = causes_of(error)
    except (Py4JNetworkError, ConnectionError) as lost:
        return _gone(lost, **facts)
    conditions = [cause.condition for cause in causes if cause.condition]
    condition = conditions[-1] if conditions else "unknown"
    if not _CANCELLED.isdisjoint(conditions):
        return JobCancelled("A Spark job was cancelled", **facts)
    if is_row_level(causes):
        return RowFailed("A row cannot be computed", condition=condition, **facts)
    machine = [cause.kind for cause in causes if _MACHINE.fullmatch(cause.kind)]
    more = {"error": machine[-1].rpartition(".")[2]} if machine else {}
    return JobFailed("A Spark job failed", condition=condition, **more, **facts)


def bad_function(error: Exception, **facts: Any) -> BadFunction | None:
    """Return the error of a user's function that ended the job; None if it was another error."""
    match = _OF_FUNCTION.search(str(error)) if isinstance(error, PythonException) else None
    return None if match is None else BadFunction(match[1].strip(), **facts)


def causes_of(error: PySparkException | Py4JError) -> list[Cause]:
    """Return the chain of an error, outermost first; empty if Java gave no exception."""
    if isinstance(error, Py4JJavaError):
        thrown = error.java_exception
    else:
        thrown = getattr(error, "_origin", None)
    if thrown is None:
        if not isinstance(error, PySparkException):
            return []
        return [Cause(type(error).__name__, error.getCondition(), error.getSqlState())]
    found: list[Cause] = []
    while thrown is not None and len(found) < _DEPTH:
        found.append(
            Cause(
                str(thrown.getClass().getName()),
                _asked(thrown, "getCondition"),
                _asked(thrown, "getSqlState"),
            )
        )
        inner = thrown.getCause()
        if found[-1].condition is None:
            found += stage_failure(str(thrown.getMessage()), caused=inner is not None)
        thrown = inner
    return found


def stage_failure(text: str, *, caused: bool) -> list[Cause]:
    """
    Return the cause that ended the last task, from the text of a failed stage.

    The condition is taken from the text only if the cause itself was not passed on.
    """
    match = _STAGE_FAILED.match(text)
    if match is None:
        return []
    return [Cause(match[1]) if caused else Cause(match[1], match[2], match[3])]


@contextlib.contextmanager
def analysing(what: str) -> Iterator[None]:
    """Analyse an expression; if Spark refuses it, raise `BadExpression`, which names `what`."""
    try:
        with quietly():
            yield
    except PySparkException as error:
        raise bad_expression(what, error) from None
    except Py4JError as error:
        condition = _first(_IN_TEXT, str(error)) or type(error).__name__
        raise BadExpression(f"{what}: Spark cannot analyse it", condition=condition) from None


def bad_expression(what: str, error: PySparkException) -> BadExpression:
    """Return our error for an expression that Spark refused, in one line."""
    condition = error.getCondition()
    parameters = error.getMessageParameters() or {}
    if condition and condition.startswith("UNRESOLVED_COLUMN"):
        name = str(parameters.get("objectName", "")).replace("`", "")
        near = str(parameters.get("proposal", "")).replace("`", "")
        hint = f"; did you mean {near}" if near else ""
        return BadExpression(f"{what} uses an unknown column {name}{hint}", condition=condition)
    if isinstance(error, ParseException):
        near = str(parameters.get("error", "")).strip("'")
        return BadExpression(
            f"{what} is not valid SQL, near {near or 'its end'}", condition=condition
        )
    verb = "cannot be analysed" if isinstance(error, AnalysisException) else "is refused"
    return BadExpression(f"{what} {verb}: {_sentence(error)}", condition=condition)


def _of_a_row(cause: Cause) -> bool:
    condition = (cause.condition or "").partition(".")[0]
    return condition in _ALSO_OF_A_ROW or (cause.state or "").startswith(_DATA_EXCEPTION)


def _cut_off(error: Exception) -> bool:
    """Whether py4j lost its connection in the middle of a call: its text then has no trace."""
    # The type first: for the text of a Java error, py4j asks the JVM for the whole trace.
    if type(error) is not Py4JError:
        return False
    text = str(error)
    return "Trace:" not in text and "while calling" in text


def _gone(error: Exception, **facts: Any) -> SparkGone:
    return SparkGone("Spark's JVM does not answer", error=type(error).__name__, **facts)


def _asked(thrown: Any, what: str) -> str | None:
    """Return the result of a method of a Java error; None if it is not an error of Spark."""
    try:
        answer = getattr(thrown, what)()
    except Py4JNetworkError:
        raise
    except Py4JError:
        return None
    return None if answer is None else str(answer)


def _sentence(error: PySparkException) -> str:
    """Return the first line of Spark's text, without its condition and SQLSTATE."""
    line = _IN_TEXT.sub("", str(error), count=1).strip().split("\n")[0]
    return line.split(" SQLSTATE:")[0].rstrip(". ")


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[1] if match else None
