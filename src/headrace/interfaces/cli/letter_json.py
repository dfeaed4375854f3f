"""
Dead letters as JSON, from which every value can be made again.

Null, true and false, text, whole numbers up to 2^53 either way and finite floats stand for
themselves; a float always has a point or an exponent. Everything else is an object that says
what it is: `{"kind": "decimal", "value": "1.50"}`.

| kind | value |
|---|---|
| `int` | the digits, as text: beyond 2^53 |
| `float` | `nan`, `inf` or `-inf` |
| `decimal` | its text, with every digit |
| `bytes` | base64 |
| `text_bytes` | base64 of a text that is not UTF-8 |
| `uuid` | its text |
| `date`, `timestamp`, `timestamptz`, `time` | ISO 8601; of those that Python cannot say, PostgreSQL's text, and `days` or `micros` since 1970 or midnight |
| `timetz` | the text, `micros` since midnight and `offset` in seconds |
| `interval` | the text, `months`, `days` and `micros` |
| `struct` | an object: a row within a row |
| `other` | the text, of what an expression made |
"""  # noqa: E501 - a table

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.changelog.beyond import (
    BeyondDate,
    BeyondTime,
    BeyondTimestamp,
    Interval,
    OffsetTime,
)
from headrace.changelog.exact import exact_text, text_bytes

if TYPE_CHECKING:
    from headrace.pipeline.letter import DeadLetter

_EXACT = 2**53
"""Up to here every reader of JSON takes a number as it is written."""


def letter_line(letter: DeadLetter, **more: object) -> str:
    """Return a letter as a line of JSON, with what else there is to say."""
    return json.dumps({**letter_object(letter), **more}, ensure_ascii=False, allow_nan=False)


def letter_object(letter: DeadLetter) -> dict[str, Any]:
    """Return a letter as plain values."""
    return {
        "pipeline": letter.pipeline,
        "table": letter.table,
        "position": str(letter.position),
        "lineage": letter.lineage,
        "baseline": letter.baseline,
        "op": letter.op,
        "kind": letter.kind,
        "code": letter.code,
        "facts": dict(letter.facts),
        "key": [value_object(value) for value in letter.key],
        "before": _image(letter.before),
        "after": _image(letter.after),
        "time": letter.time.isoformat() if letter.time else None,
        "parked": letter.parked.isoformat(),
        "superseded": letter.superseded,
    }


def value_object(value: object) -> object:
    """Return one value in the form above."""
    match value:
        case None | bool():
            return value
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                return _kind("text_bytes", _base64(text_bytes(value)))
            return value
        case int():
            return value if -_EXACT <= value <= _EXACT else _kind("int", exact_text(value))
        case float():
            return value if math.isfinite(value) else _kind("float", str(value))
        case Decimal():
            return _kind("decimal", str(value))
        case bytes():
            return _kind("bytes", _base64(value))
        case UUID():
            return _kind("uuid", str(value))
        case list() | tuple():
            return [value_object(each) for each in value]
        case Mapping():
            inside = {str(name): value_object(each) for name, each in value.items()}
            return _kind("struct", inside)
    return _instant(value)


def _instant(value: object) -> object:
    match value:
        case datetime():
            return _kind("timestamptz" if value.tzinfo else "timestamp", value.isoformat())
        case date():
            return _kind("date", value.isoformat())
        case time():
            return _kind("time", value.isoformat())
        case BeyondDate(days):
            return _kind("date", str(value), days=days)
        case BeyondTimestamp(micros, utc):
            return _kind("timestamptz" if utc else "timestamp", str(value), micros=micros)
        case BeyondTime(micros):
            return _kind("time", str(value), micros=micros)
        case OffsetTime(micros, offset):
            return _kind("timetz", str(value), micros=micros, offset=offset)
        case Interval(months, days, micros):
            return _kind("interval", str(value), months=months, days=days, micros=micros)
    return _kind("other", str(value))


def _image(image: Mapping[str, object] | None) -> dict[str, object] | None:
    if image is None:
        return None
    return {name: value_object(value) for name, value in image.items()}


def _kind(kind: str, value: object, **more: object) -> dict[str, object]:
    return {"kind": kind, "value": value, **more}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
