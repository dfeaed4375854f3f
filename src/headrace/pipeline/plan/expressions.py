"""
A user's expressions: analysed by Spark, checked, and bound to an image.

An expression uses the plain names of the table's columns, but a change has two images, and both
have all columns. So a text is bound by inserting the image's name before each column, at the
offsets that Spark's own parser reports. A `Column` has no text; its plan brings one image after the
other into scope instead.

A batch that is computed again must give the same rows (R23g), so everything that is not
deterministic is refused when the pipeline is prepared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from headrace.errors import BadExpression, BadFrame
from headrace.pipeline.sql import quoted
from headrace.pipeline.steps import Expression
from headrace.spark_session.errors import analysing
from headrace.spark_session.session import Spark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


_REFUSED = {
    "a sub-query": re.compile(r"^(.*Subquery.*|Exists|ListQuery|OuterReference)$"),
    "an aggregate": re.compile(r"^(AggregateExpression|Aggregate)$"),
    "a window function": re.compile(r"^(WindowExpression|Window)$"),
    "a function that returns several rows": re.compile(r"^(Generate|GeneratorOuter)$"),
    "the clock or the session": re.compile(r"^(Current(?!Row).*|Now|LocalTimestamp.*)$"),
    "a random number": re.compile(r"^(Rand|Randn|RandStr|Shuffle|Uniform|Uuid)$"),
    "the position of a row in the job": re.compile(
        r"^(MonotonicallyIncreasingID|SparkPartitionID|InputFile(Name|BlockStart|BlockLength))$"
    ),
}
"""Classes of the analysed plan that are not deterministic, or need more than one row."""

_VARIES = ("the clock or the session", "a random number", "the position of a row in the job")
"""Those that are not deterministic: a frame must not use them either."""

_MOMENT = r"\s*(now|today|tomorrow|yesterday)\b[^']*"
_TYPED_MOMENT = re.compile(rf"\b(date|timestamp(_ntz|_ltz)?)\s*'{_MOMENT}'", re.IGNORECASE)
_MOMENT_TEXT = re.compile(_MOMENT, re.IGNORECASE)
_MAKES_MOMENTS = re.compile(r"^Cast$|Date|Timestamp")
"""Spark reads these words as the current time if they become a date or timestamp."""


@dataclass(frozen=True, slots=True)
class AnalysedExpression:
    """An expression that Spark accepts and that is deterministic."""

    expression: Expression
    type: DataType
    bindings: tuple[tuple[int, int, str], ...] | None
    """Start, stop and column of each name in its text; None if it cannot be bound as text."""

    def over(self, columns: Mapping[str, str]) -> str:
        """Return the text with each column replaced by its SQL in `columns`."""
        assert isinstance(self.expression, str)
        assert self.bindings is not None
        parts, at = [], 0
        for start, stop, name in self.bindings:
            parts += [self.expression[at:start], columns[name]]
            at = stop
        return "(" + "".join([*parts, self.expression[at:]]) + "\n)"

    @property
    def names(self) -> frozenset[str] | None:
        """The columns that it reads; None if that is not known."""
        return None if self.bindings is None else frozenset(name for *_, name in self.bindings)


def as_column(expression: Expression) -> Column:
    """Return the expression as a column over the columns in scope."""
    # With a line break, because the text may end in a comment.
    return F.expr(f"({expression}\n)") if isinstance(expression, str) else expression


def analyse(
    spark: Spark, frame: DataFrame, expression: Expression, label: str
) -> AnalysedExpression:
    """Return the expression analysed over the columns of `frame`, or raise `BadExpression`."""
    bindings = None
    if isinstance(expression, str):
        with analysing(label):
            columns = set(frame.columns)
            bindings = tuple(sorted(_bindings(spark, expression, columns, label)))
    with analysing(label):
        made = frame.select(as_column(expression).alias("x"))
        plan = spark.analysed(made)
        same = spark.deterministic(made)
        type_ = made.schema["x"].dataType
    _refuse(plan, expression, label)
    if not same:
        raise BadExpression(f"{label} is not deterministic")
    if bindings is not None and any(name == "" for *_, name in bindings):
        bindings = None
    return AnalysedExpression(expression, type_, bindings)


def must_be_boolean(analysed: AnalysedExpression, label: str) -> AnalysedExpression:
    """Return the expression if its type is boolean, otherwise raise `BadExpression`."""
    if not isinstance(analysed.type, BooleanType):
        found = analysed.type.simpleString()
        raise BadExpression(
            f"{label} has the type {found}; a condition must be true or false", type=found
        )
    return analysed


def must_repeat(spark: Spark, frame: DataFrame, label: str) -> None:
    """Raise `BadFrame` for a frame that is not deterministic."""
    nodes = list(_nodes(json.loads(spark.analysed(frame))))
    for at, (kind, node) in enumerate(nodes):
        for what in _VARIES:
            if _REFUSED[what].search(kind):
                raise BadFrame(f"{label} uses {what}, {kind}", remedy=_REPEAT, kind=kind)
        # The argument of a cast follows its cast directly.
        text = str(node.get("value", "")) if node.get("dataType") == "string" else ""
        moment = _MOMENT_TEXT.fullmatch(text) if kind == "Literal" else None
        if moment and at and _MAKES_MOMENTS.search(nodes[at - 1][0]):
            raise BadFrame(f"{label} uses the current time, '{moment[1]}'", remedy=_REPEAT)
    if not spark.deterministic(frame):
        raise BadFrame(f"{label} is not deterministic", remedy=_REPEAT)


_REPEAT = "Use the time of the change, _time, and no random numbers: a batch may be computed again."


def _bindings(
    spark: Spark, text: str, columns: set[str], label: str
) -> Iterator[tuple[int, int, str]]:
    """
    Yield the columns that the text names: start, stop and the name.

    An empty name stands for something that cannot be bound as text: a star, or the variable of
    a lambda, which may hide a column.
    """
    for kind, start, stop, name in spark.attributes(spark.parsed(text)):
        if kind in ("Alias", "MultiAlias"):
            raise BadExpression(f"{label} has an alias; remove AS")
        if kind != "UnresolvedAttribute" or name not in columns or start is None or stop is None:
            yield 0, 0, ""
            continue
        # In a path such as price.d, only the first part is the column.
        head = quoted(name) if text.startswith("`", start) else name
        if text[start : start + len(head)] != head:
            yield 0, 0, ""
            continue
        yield start, start + len(head), name


def _refuse(plan: str, expression: Expression, label: str) -> None:
    """Raise `BadExpression` for an expression that is not deterministic or needs more rows."""
    found = list(_nodes(json.loads(plan)))
    for kind, node in found:
        for what, pattern in _REFUSED.items():
            if pattern.search(kind):
                raise BadExpression(f"{label} uses {what}, {kind}", kind=kind)
        if kind == "Literal" and node.get("dataType") == "string":
            moment = _MOMENT_TEXT.fullmatch(str(node.get("value", "")))
            made = next((other for other, _ in found if _MAKES_MOMENTS.search(other)), None)
            if moment and made:
                raise BadExpression(f"{label} uses the current time, '{moment[1]}'", kind=made)
    if isinstance(expression, str) and (match := _TYPED_MOMENT.search(expression)):
        raise BadExpression(f"{label} uses the current time, '{match[3]}'", kind="Literal")


def _nodes(tree: object) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield class and fields of every node in the plan's JSON, at any depth."""
    if isinstance(tree, dict):
        if isinstance(tree.get("class"), str):
            yield tree["class"].rsplit(".", 1)[-1].rstrip("$"), tree
        for value in tree.values():
            yield from _nodes(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _nodes(value)
