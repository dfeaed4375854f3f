"""
Deciding a predicate over columns of Arrow, as Spark decides it over rows.

Three-valued, by Kleene: a comparison with null is unknown, and a row passes where the whole is
true. Unlike Arrow, Spark takes NaN for a number above all others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.pipeline.reading.predicates import (
    And,
    Compare,
    Holds,
    In,
    IsNull,
    Not,
    Or,
    Predicate,
)

_COMPARED: Final[Mapping[str, Callable[..., Any]]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


_LIKE: Final = re.compile(r"\\.|.", re.DOTALL)
_ANY: Final = {"%": ".*", "_": "."}


def passing(predicate: Predicate, column: Callable[[str], pa.Array]) -> npt.NDArray[np.bool_]:
    """Return which rows pass; `column` gives a column by its name."""
    found = _decided(predicate, column)
    return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False), np.bool_)


def _decided(predicate: Predicate, column: Callable[[str], pa.Array]) -> pa.Array:
    match predicate:
        case And(parts):
            return _joined(pc.and_kleene, parts, column)
        case Or(parts):
            return _joined(pc.or_kleene, parts, column)
        case Not(of):
            return pc.invert(_decided(of, column))
        case IsNull(name):
            return column(name).is_null()
        case Holds(name):
            return column(name)
        case In(name, values):
            parts = tuple(Compare(name, "=", value) for value in values)
            if _plain(column(name).type):
                return _among(column(name), values)
            return _joined(pc.or_kleene, parts, column)
        case Compare(name, op, value):
            return _compared(column(name), op, value)


def _like(pattern: str) -> str:
    """Return the expression for all texts that are like a pattern, which is one of Spark's."""
    parts = _LIKE.findall(pattern)
    made = (_ANY.get(part) or re.escape(part.removeprefix("\\") or part) for part in parts)
    return rf"\A(?s:{''.join(made)})\z"


def _joined(
    join: Callable[..., Any], parts: tuple[Predicate, ...], column: Callable[[str], pa.Array]
) -> pa.Array:
    found = _decided(parts[0], column)
    for part in parts[1:]:
        found = join(found, _decided(part, column))
    return found


def _plain(shape: pa.DataType) -> bool:
    return bool(pa.types.is_integer(shape) or pa.types.is_string(shape))


def _among(values: pa.Array, wanted: tuple[object, ...]) -> pa.Array:
    found = pc.is_in(values, value_set=pa.array(wanted, values.type))
    # Arrow says that null is not among them; SQL says that nobody knows.
    return pc.if_else(values.is_valid(), found, pa.scalar(None, pa.bool_()))


def _compared(values: pa.Array, op: str, value: object) -> pa.Array:
    if op == "like":
        # Not by `match_like`, which takes a backslash behind a leading % for two.
        return pc.match_substring_regex(values, pattern=_like(str(value)))
    if op == "starts":
        return pc.starts_with(values, pattern=value)
    if op == "ends":
        return pc.ends_with(values, pattern=value)
    if op == "contains":
        return pc.match_substring(values, pattern=value)
    if op == "<=>":
        return pc.fill_null(_compared(values, "=", value), False)
    if pa.types.is_floating(values.type):
        values = values.cast(pa.float64())
        found = _COMPARED[op](values, pa.scalar(value, pa.float64()))
        return pc.or_(found, pc.is_nan(values)) if op in (">", ">=") else found
    if pa.types.is_decimal(values.type):
        # Wide enough for the digits of both, whatever their scales are.
        scale = max(values.type.scale, -Decimal(str(value)).as_tuple().exponent)  # type: ignore[operator]
        wide = pa.decimal256(76, scale)
        return _COMPARED[op](values.cast(wide), pa.scalar(value, wide))
    return _COMPARED[op](values, pa.scalar(value, values.type))
