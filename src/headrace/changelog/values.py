"""
The one value mapping: from a source's value to Arrow, and to a value at the edge (S6).

Each column has one type, whichever path brought its values: baseline or stream. A
`ValueType` says how it lies in a segment, and therefore what Spark sees, because not
everything can be said by the physical type alone; where it cannot, the field carries a
mark under `headrace` in its metadata.

| kind | in the segment | at the edge |
|---|---|---|
| int16 int32 int64, float32 float64, boolean | the same | int, float, bool |
| decimal(p,s), p up to 38 | decimal128 | Decimal |
| numeric | canonical text | Decimal, NaN and infinities too |
| text, json | utf8 | str; json as its exact text |
| bytes, text_bytes | binary | bytes; text_bytes is text that need not be UTF-8 |
| uuid | 16 bytes | UUID |
| date | date32 | date, or BeyondDate |
| timestamp, timestamptz | timestamp(us), with UTC | datetime, or BeyondTimestamp |
| time | int64 microseconds | time, or BeyondTime |
| timetz, interval | structs | OffsetTime, Interval |
| variant | struct of kind and four values | int, float, str or bytes |
| arrow(…) | whatever Spark made | as Arrow gives it |

What a column cannot hold exactly is null there and a misfit with its exact text: never
an approximation (invariant 6), and never an error, since data must not be able to stop a
recorder (R23f). Types are taken at their word: a column of whole numbers does not
take 1.0, for who knows why the source sent it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import pyarrow as pa

from headrace.changelog.exact import exact_text
from headrace.changelog.mapping import EDGES, MARKED, PHYSICAL, SHAPES, Unfit, quickly
from headrace.errors import BadSchema

Misfits: TypeAlias = list[tuple[int, str]]
"""Index and exact text of the values that a column could not hold."""

_TEXT = re.compile(r"([a-z0-9_]+)(?:\((.*)\))?")
MARK = b"headrace"
"""The key of a field's mark; its value is the type's text."""


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of a column, in the log's terms."""

    kind: str
    precision: int = 0
    scale: int = 0
    other: pa.DataType | None = None
    """For the kind `arrow`: a type that a pipeline's expression made."""

    def __post_init__(self) -> None:
        if self.kind == "decimal":
            if not (1 <= self.precision <= 38 and 0 <= self.scale <= self.precision):
                raise BadSchema("No such decimal", precision=self.precision, scale=self.scale)
        elif self.kind not in SHAPES and (self.kind != "arrow" or self.other is None):
            raise BadSchema("No such kind of value", kind=self.kind)

    @property
    def arrow(self) -> pa.DataType:
        """The type of the column in a segment."""
        if self.kind == "decimal":
            return pa.decimal128(self.precision, self.scale)
        return SHAPES[self.kind] if self.other is None else self.other

    def field(self, name: str) -> pa.Field:
        """Return the field of a column called `name`, marked where Arrow's type does not tell."""
        mark = {MARK: str(self).encode()} if self.kind in MARKED else None
        return pa.field(name, self.arrow, metadata=mark)

    def to_arrow(self, values: Sequence[object]) -> tuple[pa.Array, Misfits]:
        """Return the values as a column, None as null; misfits are null as well."""
        # Most columns are of one Python type; one look at the types is all they cost.
        if (array := quickly(self.kind, self.arrow, values)) is not None:
            return array, []
        physical = PHYSICAL.get(self.kind)
        ready: list[object] = []
        misfits: Misfits = []
        for index, value in enumerate(values):
            try:
                fit = None if value is None else self._fit(physical, value)
            except Unfit:
                misfits.append((index, exact_text(value)))
                fit = None
            ready.append(fit)
        return pa.array(ready, self.arrow), misfits

    def _fit(self, physical: Callable[[object], object] | None, value: object) -> object:
        fit = physical(value) if physical else value
        if self.kind in ("decimal", "arrow"):
            # Arrow itself says whether it fits.
            try:
                pa.array([fit], self.arrow)
            except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                raise Unfit from error
        return fit

    def decoder(self) -> Callable[[object], object] | None:
        """
        Return what makes the value at the edge of what Arrow holds; None where it is the same.

        It takes what `as_py` gives, and for dates and times also the stored integer: `as_py`
        fails on an infinity, and is slow on an instant. Nulls are not its business.
        """
        return EDGES.get(self.kind)

    def from_arrow(self, array: pa.Array | pa.ChunkedArray) -> list[object]:
        """Return the values at the edge; what is null there stays None."""
        if self.kind in ("timestamp", "timestamptz"):
            array = array.cast(pa.int64())
        elif self.kind == "date":
            array = array.cast(pa.int32())
        values: list[object] = array.to_pylist()
        if (decode := self.decoder()) is None:
            return values
        return [None if value is None else decode(value) for value in values]

    def __str__(self) -> str:
        if self.kind == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if self.other is None:
            return self.kind
        schema = pa.schema([pa.field("", self.other)]).serialize()
        return f"arrow({base64.b64encode(schema).decode()})"

    @classmethod
    def parse(cls, text: str) -> ValueType:
        """Read back what `str()` wrote; anything else raises `BadSchema`."""
        return _parse(text)

    @classmethod
    def of_arrow(cls, type: pa.DataType) -> ValueType:
        """Return the kind of a column that an expression made: Arrow's type is all there is."""
        if pa.types.is_decimal128(type) and 0 <= type.scale <= type.precision:
            return cls("decimal", type.precision, type.scale)
        for kind, shape in SHAPES.items():
            if kind not in MARKED and shape == type:
                return cls(kind)
        return cls("arrow", other=type)

    @classmethod
    def of_field(cls, field: pa.Field) -> ValueType:
        """Return the type of a field that may carry a mark of ours."""
        mark = (field.metadata or {}).get(MARK)
        return cls.of_arrow(field.type) if mark is None else cls.parse(mark.decode())


@cache
def _parse(text: str) -> ValueType:
    match = _TEXT.fullmatch(text)
    try:
        if match is None:
            raise BadSchema("Text is not a type", text=text)
        kind, inner = match.groups()
        if kind == "decimal":
            precision, scale = (inner or "").split(",")
            return ValueType(kind, int(precision), int(scale))
        if kind == "arrow":
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(inner or "")))
            return ValueType(kind, other=schema.field(0).type)
        if inner is not None:
            raise BadSchema("Text is not a type", text=text)
        return ValueType(kind)
    except (ValueError, pa.ArrowException) as error:
        raise BadSchema("Text is not a type", text=text) from error
