"""
Columns of PostgreSQL's texts, as the stream sends them, as columns of the log.

The texts are those of a session with R18's settings: ISO dates, UTC, shortest exact
floats, bytea in hex. A text that is none of its type's, and one its column cannot hold, is
null and a misfit with its exact text: data must not be able to stop a recorder (R23f). JSON
is not looked into: its exact text is its value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.capture.postgres.cells import (
    Bytes,
    Cells,
    Mask,
    Reader,
    as_utf8,
    content,
    each,
    mend,
    read,
)
from headrace.capture.postgres.times import (
    parse_date,
    parse_interval,
    parse_time,
    parse_timestamp,
    parse_timestamptz,
    parse_timetz,
    read_dates,
    read_times,
    read_timestamps,
)
from headrace.changelog.exact import exact_text, numeric_text
from headrace.changelog.values import Misfits, ValueType
from headrace.errors import BadSchema

_SURE_DIGITS: Final = {"int16": 4, "int32": 9, "int64": 18}
"""So many digits fit for certain."""

_BOOLEANS: Final = {b"t": True, b"true": True, b"f": False, b"false": False}
_NUMBERS: Final = frozenset({"int16", "int32", "int64", "float32", "float64", "decimal"})
_INTEGER = re.compile(rb"-?[0-9]{1,40}")
_FLOAT = re.compile(rb"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?|-?infinity|nan", re.I)
_FLOAT_SHAPE = r"^-?[0-9]+(\.[0-9]+)?(e[-+][0-9]+)?$"
_NUMERIC_SHAPE = r"^(-?[0-9]+(\.[0-9]+)?|NaN|-?Infinity)$"
_EDGES: Final = pa.array([b"0", b"-0", b"NaN", b"Infinity", b"-Infinity"], pa.binary())
"""What PostgreSQL writes for floats that a too large or too small number would become, too."""

_NIBBLES: Final = np.full(256, 255, np.uint8)
for _digit in range(16):
    _NIBBLES[ord(f"{_digit:x}")] = _NIBBLES[ord(f"{_digit:X}")] = _digit

_YEAR_ONE: Final = -62_135_596_800_000_000
"""Its first microsecond, since 1970. The year before is 1 BC, which Arrow calls 0."""

_UUID_HYPHENS: Final = (8, 13, 18, 23)
_UUID_DIGITS: Final = [place for place in range(36) if place not in _UUID_HYPHENS]


def text_column(type: ValueType, values: pa.Array) -> tuple[pa.Array, Misfits]:
    """
    Return a column of `type`, and the misfits, of PostgreSQL's texts.

    `values` is binary, null for NULL, and may be a slice. Whatever the bytes are, this
    raises nothing.
    """
    if (reader := _READERS.get(type.kind)) is None:
        raise BadSchema("PostgreSQL has no such kind of value", kind=type.kind)
    return read(type, values, reader, _exact)


def _exact(type: ValueType, raw: bytes) -> str:
    text = raw.decode(errors="surrogateescape")
    # A number in a column of numbers needs no quotes to be told from a text.
    number = numeric_text(text) if type.kind in _NUMBERS else None
    return exact_text(text) if number is None else number


def _matching(values: pa.Array, shape: str) -> Mask:
    found: Mask = np.asarray(pc.match_substring_regex(values, shape))
    return found


def _cast(values: pa.Array, good: Mask, type: ValueType) -> pa.Array:
    """Cast what is good, which Arrow must be able to do; the rest is some value."""
    return pc.if_else(pa.array(good), values, b"0").view(pa.utf8()).cast(type.arrow)


# --- numbers ---------------------------------------------------------------------------------


def _digits_only(data: Bytes) -> bool:
    """Whether there are digits, signs and points only: Arrow also takes 0xFFFF for -1."""
    return not len(data) or bool(data.max() <= ord("9"))


def _integers(type: ValueType, values: pa.Array) -> pa.Array:
    if _digits_only(content(values)):
        try:
            return values.view(pa.utf8()).cast(type.arrow)
        except pa.ArrowInvalid:
            pass  # One of them is not a number, or too large; which one is found below.
    good = _matching(values, rf"^-?[0-9]{{1,{_SURE_DIGITS[type.kind]}}}$")
    return mend(_cast(values, good, type), good, values, _parse_integer, type)


def _parse_integer(raw: bytes) -> object:
    return int(raw) if _INTEGER.fullmatch(raw) else None


def _floats(type: ValueType, values: pa.Array) -> pa.Array:
    def parse(raw: bytes) -> object:
        if _FLOAT.fullmatch(raw) is None:
            return None
        number: float = pa.scalar(raw.decode()).cast(type.arrow).as_py()
        digits = raw.lower().split(b"e")[0].strip(b"+-0.")
        lost = (np.isinf(number) and b"inf" not in raw.lower()) or (number == 0 and digits)
        return None if lost else number

    good = np.ones(len(values), np.bool_)
    try:
        quick = as_utf8(values).cast(type.arrow)
    except pa.ArrowInvalid:
        good = _matching(values, _FLOAT_SHAPE)
        quick = _cast(values, good, type)
    else:
        if quick.null_count:
            good = np.asarray(quick.is_valid()).copy()
            quick = quick.fill_null(0)
    numbers = np.asarray(quick)
    doubtful = np.flatnonzero((numbers == 0) | ~np.isfinite(numbers))
    if len(doubtful):
        usual = pc.is_in(values.take(pa.array(doubtful)), value_set=_EDGES)
        # Those that are not good already are read one by one in any case.
        good[doubtful] &= np.asarray(usual)
    return mend(quick, good, values, parse, type)


def _decimals(type: ValueType, values: pa.Array) -> pa.Array:
    def parse(raw: bytes) -> object:
        text = numeric_text(raw.decode(errors="surrogateescape"))
        return None if text is None else Decimal(text)

    # Arrow wraps around, silently, where digits exceed 128 bits: 39 of them can.
    cells = Cells.of(values)
    if _digits_only(cells.data) and (not len(cells.lengths) or cells.lengths.max() <= 38):
        try:
            return values.view(pa.utf8()).cast(type.arrow)
        except pa.ArrowInvalid:
            pass
    whole = max(type.precision - type.scale, 1)
    fraction = rf"(\.[0-9]{{1,{type.scale}}})?" if type.scale else ""
    lead = "0" if type.precision == type.scale else rf"[0-9]{{1,{whole}}}"
    good = _matching(values, rf"^-?{lead}{fraction}$")
    return mend(_cast(values, good, type), good, values, parse, type)


def _numerics(type: ValueType, values: pa.Array) -> pa.Array:
    def parse(raw: bytes) -> object:
        return numeric_text(raw.decode(errors="surrogateescape"))

    good = _matching(values, _NUMERIC_SHAPE)
    if good.all():
        return values.view(pa.utf8())
    return mend(pc.if_else(pa.array(good), values, b"0").view(pa.utf8()), good, values, parse, type)


def _booleans(type: ValueType, values: pa.Array) -> pa.Array:
    cells = Cells.of(values)
    letters = cells.at(0)
    true = letters == ord("t")
    good = (cells.lengths == 1) & (true | (letters == ord("f")))
    return mend(pa.array(true), good, values, _BOOLEANS.get, type)


# --- texts and bytes -------------------------------------------------------------------------


def _texts(type: ValueType, values: pa.Array) -> pa.Array:
    return as_utf8(values)


def _bytes(type: ValueType, values: pa.Array) -> pa.Array:
    cells = Cells.of(values)
    lengths = cells.lengths
    good = (lengths >= 2) & (lengths % 2 == 0)
    good &= (cells.at(0) == ord("\\")) & (cells.at(1) == ord("x"))
    nibbles = _NIBBLES[cells.data]
    # The prefixes go, and so does all of a text that is not hex; what remains are pairs.
    keep = np.ones(len(nibbles), np.bool_)
    keep[cells.starts[good]] = keep[cells.starts[good] + 1] = False
    wrong = np.flatnonzero((nibbles == 255) & keep)
    good[np.searchsorted(cells.starts + lengths, wrong, side="right")] = False
    for row in np.flatnonzero(~good).tolist():
        keep[cells.starts[row] : cells.starts[row] + lengths[row]] = False
    pairs = nibbles[keep]
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.where(good, (lengths - 2) // 2, 0), out=offsets[1:])
    array = pa.Array.from_buffers(
        pa.binary(),
        len(values),
        [None, pa.py_buffer(offsets), pa.py_buffer(pairs[0::2] << 4 | pairs[1::2])],
    )
    return mend(array, good, values, lambda raw: None, type)


def _uuids(type: ValueType, values: pa.Array) -> pa.Array:
    cells = Cells.of(values)
    good = cells.lengths == 36
    regular = values if good.all() else pc.if_else(pa.array(good), values, bytes(36))
    table = Cells.of(regular).data.reshape(len(values), 36)
    for place in _UUID_HYPHENS:
        good &= table[:, place] == ord("-")
    nibbles = _NIBBLES[table[:, _UUID_DIGITS]]
    good &= nibbles.max(axis=1, initial=0) < 16
    content = np.ascontiguousarray(nibbles[:, 0::2] << 4 | nibbles[:, 1::2])
    array = pa.Array.from_buffers(type.arrow, len(values), [None, pa.py_buffer(content)])
    return mend(array, good, values, lambda raw: None, type)


# --- days and hours --------------------------------------------------------------------------


def _dates(type: ValueType, values: pa.Array) -> pa.Array:
    days, good = read_dates(Cells.of(values))
    return mend(pa.array(days).view(type.arrow), good, values, parse_date, type)


def _timestamps(type: ValueType, values: pa.Array) -> pa.Array:
    utc = type.kind == "timestamptz"
    if (quick := _usual_timestamps(type, values, utc=utc)) is not None:
        return quick
    micros, good = read_timestamps(Cells.of(values), utc=utc)
    parse = parse_timestamptz if utc else parse_timestamp
    return mend(pa.array(micros).view(type.arrow), good, values, parse, type)


def _usual_timestamps(type: ValueType, values: pa.Array, *, utc: bool) -> pa.Array | None:
    """Return a column of nothing but what is written for the years 1 to 9999, else None."""
    cells = Cells.of(values)
    zone = 3 if utc else 0
    # Arrow reads days and hours as strictly as we do, but in more shapes than PostgreSQL has.
    if not len(values) or cells.lengths.min() < 19 + zone or (cells.at(10) != ord(" ")).any():
        return None
    ends = cells.lengths - zone
    if utc and (cells.at(ends) != ord("+")).any():
        return None
    try:
        quick = values.view(pa.utf8()).cast(type.arrow)
    except pa.ArrowInvalid:
        return None
    return quick if quick.view(pa.int64()).to_numpy().min() >= _YEAR_ONE else None


def _times(type: ValueType, values: pa.Array) -> pa.Array:
    micros, good = read_times(Cells.of(values))
    return mend(pa.array(micros), good, values, parse_time, type)


def _timetzs(type: ValueType, values: pa.Array) -> pa.Array:
    return each(values, parse_timetz, type)


def _intervals(type: ValueType, values: pa.Array) -> pa.Array:
    return each(values, parse_interval, type)


_READERS: Final[Mapping[str, Reader]] = {
    "int16": _integers,
    "int32": _integers,
    "int64": _integers,
    "float32": _floats,
    "float64": _floats,
    "boolean": _booleans,
    "decimal": _decimals,
    "numeric": _numerics,
    "text": _texts,
    "json": _texts,
    "bytes": _bytes,
    "uuid": _uuids,
    "date": _dates,
    "timestamp": _timestamps,
    "timestamptz": _timestamps,
    "time": _times,
    "timetz": _timetzs,
    "interval": _intervals,
}
