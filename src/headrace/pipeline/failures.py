"""
From Spark's errors to ours.

Spark names each error by a condition and an SQLSTATE. The standard's class 22, data
exception, is exactly what a row is to blame for; anything else that goes wrong while a
job runs is the job's. Spark's own text holds the row's values, so of it only the
condition passes on (invariant 6 needs the error, nobody needs the value in a log).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import AnalysisException, ParseException, PySparkException

from headrace.errors import BadExpression, HeadraceError, JobFailed, RowFailed
from headrace.pipeline.quiet import quietly

_IN_TEXT = re.compile(r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z][A-Z0-9_]*)*)\]")
_STATE_IN_TEXT = re.compile(r"SQLSTATE: ([0-9A-Z]{5})")
_DATA_EXCEPTION = "22"
_RAISED_BY_EXPRESSION = "USER_RAISED_EXCEPTION"


@contextlib.contextmanager
def running(**facts: Any) -> Iterator[None]:
    """Run a job; what Spark raises becomes `RowFailed` or `JobFailed`, with these facts."""
    try:
        with quietly():
            yield
    except PySparkException as error:
        raise _of_job(*_named(error), **facts) from None
    except Py4JNetworkError as error:
        raise JobFailed(
            "Spark's JVM does not answer", error=type(error).__name__, **facts
        ) from None
    except Py4JError as error:
        text = str(error)
        raise _of_job(_first(_IN_TEXT, text), _first(_STATE_IN_TEXT, text), **facts) from None


@contextlib.contextmanager
def analysing(place: str) -> Iterator[None]:
    """Analyse an expression; what Spark refuses becomes `BadExpression`, naming its place."""
    try:
        with quietly():
            yield
    except PySparkException as error:
        raise bad_expression(place, error) from None
    except Py4JError as error:
        condition = _first(_IN_TEXT, str(error)) or type(error).__name__
        raise BadExpression(f"{place}: Spark cannot analyse it", condition=condition) from None


def bad_expression(place: str, error: PySparkException) -> BadExpression:
    """Return our error for an expression that Spark refused, in one line."""
    condition, _ = _named(error)
    parameters = error.getMessageParameters() or {}
    if condition and condition.startswith("UNRESOLVED_COLUMN"):
        name = str(parameters.get("objectName", "")).replace("`", "")
        near = str(parameters.get("proposal", "")).replace("`", "")
        hint = f"; did you mean {near}" if near else ""
        return BadExpression(f"{place} names no column {name}{hint}", condition=condition)
    if isinstance(error, ParseException):
        near = str(parameters.get("error", "")).strip("'")
        return BadExpression(f"{place} is not SQL, near {near or 'its end'}", condition=condition)
    told = "cannot be analysed" if isinstance(error, AnalysisException) else "is refused"
    return BadExpression(f"{place} {told}: {_sentence(error)}", condition=condition)


def _of_job(condition: str | None, state: str | None, **facts: Any) -> HeadraceError:
    blames_a_row = condition == _RAISED_BY_EXPRESSION or (state or "").startswith(_DATA_EXCEPTION)
    if blames_a_row:
        return RowFailed("A row cannot be computed", condition=condition, **facts)
    return JobFailed("A Spark job failed", condition=condition or "unknown", **facts)


def _named(error: PySparkException) -> tuple[str | None, str | None]:
    """Return condition and SQLSTATE; from the text where only the text arrived."""
    condition, state = error.getCondition(), error.getSqlState()
    if condition is None or state is None:
        text = str(error)
        condition = condition or _first(_IN_TEXT, text)
        state = state or _first(_STATE_IN_TEXT, text)
    return condition, state


def _sentence(error: PySparkException) -> str:
    """Return the first line of Spark's text, without its condition and SQLSTATE."""
    line = _IN_TEXT.sub("", str(error), count=1).strip().split("\n")[0]
    return line.split(" SQLSTATE:")[0].rstrip(". ")


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[1] if match else None
