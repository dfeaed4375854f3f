"""
Changes in the envelope of Debezium's events, as its documentation describes it.

A line is the `payload` of an event's value, as the JSON converter writes it without schemas.

| field | |
|---|---|
| `before` | the row before the event; null for `c`; only the key if the log has no more |
| `after` | the row after it; null for `d` |
| `source` | `version` (ours), `connector`, `name` (the source's id), `ts_ms` `ts_us` `ts_ns` (of the commit), `snapshot` (false), `db`, `schema`, `table`, `txId`, `lsn`, `xmin` (null); and our own `position` |
| `op` | `c` create, `u` update, `d` delete, `t` truncate |
| `ts_ms` `ts_us` `ts_ns` | when the event was created, which is when it was read from the log |

A truncate has neither `before` nor `after`. An update that changes the key is a `d` of the old
row and a `c` of the new one. `lsn` is the commit's number in the source, for PostgreSQL the end
LSN of the transaction. All changes of a transaction have the same; `position` distinguishes them.

Values are those of `decimal.handling.mode=string` (`NAN`, `POSITIVE_INFINITY`,
`NEGATIVE_INFINITY` for special values), `binary.handling.mode=base64`,
`time.precision.mode=adaptive_time_microseconds` and `interval.handling.mode=string`: dates are
days and timestamps microseconds since 1970, times microseconds since midnight; timestamptz and
timetz are text in GMT; intervals are `P1Y2M3DT4H5M6.78S`. Infinite timestamps are the numbers
that its documentation names. Integers have every digit; special floats are `"NaN"`, `"Infinity"`
and `"-Infinity"`. A value that was not sent is `"__debezium_unavailable_value"`; a value that its
column cannot represent is its exact text.
"""  # noqa: E501 - a table

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from headrace.capture.table_selection import split_table_name
from headrace.changelog.change import Op
from headrace.changelog.position import Position
from headrace.changelog.ranges import ChangeSlice
from headrace.changelog.values import (
    MICROS_PER_DAY,
    BeyondDate,
    BeyondTime,
    BeyondTimestamp,
    Interval,
    OffsetTime,
    ValueType,
    exact_text,
)
from headrace.changelog.values_json import Image, JsonForm, images, plain

UNAVAILABLE = "__debezium_unavailable_value"
POSITIVE_INFINITY, NEGATIVE_INFINITY = 9223372036825200000, -9223372036832400000
"""The values of infinite timestamps, from Debezium's documentation."""

_CONNECTORS = {"pg": "postgresql"}
_SPECIAL = {"NaN": "NAN", "Infinity": "POSITIVE_INFINITY", "-Infinity": "NEGATIVE_INFINITY"}
_EPOCH = datetime(1970, 1, 1)
_DAY_ZERO = date(1970, 1, 1)
_MICRO = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Envelopes:
    """Creates the events of one table."""

    source: str
    """The id of the source."""

    lineage: str
    database: str
    version: str
    now: Callable[[], int]
    """Microseconds since 1970."""

    def events(self, piece: ChangeSlice) -> Iterator[list[dict[str, Any]]]:
        """Yield the events of each change: one, or two if the key changed."""
        rows, schema = piece.rows, piece.schema
        instants = rows.column("_time").cast("int64").to_pylist()
        for commit, ordinal, op, instant, xid, before, after in zip(
            rows.column("_commit").to_pylist(),
            rows.column("_ordinal").to_pylist(),
            rows.column("_op").to_pylist(),
            instants,
            rows.column("_xid").to_pylist(),
            images(rows, schema, "before", FORM),
            images(rows, schema, "after", FORM),
            strict=True,
        ):
            about = self._about(piece, Position(piece.epoch, commit, ordinal), instant, xid)
            yield [
                {**rows_of, "source": about, "op": code, **_times(self.now())}
                for code, rows_of in _events(op, before, after, schema.key)
            ]

    def _about(
        self, piece: ChangeSlice, position: Position, instant: int | None, xid: int | None
    ) -> dict[str, Any]:
        kind = self.lineage.partition("/")[0]
        namespace, table = "", piece.schema.table
        if kind == "pg":
            namespace, table = split_table_name(table)
        return {
            "version": self.version,
            "connector": _CONNECTORS.get(kind, kind),
            "name": self.source,
            **_times(instant),
            "snapshot": False,
            "db": self.database,
            "schema": namespace,
            "table": table,
            "txId": xid,
            "lsn": position.commit,
            "xmin": None,
            "position": str(position),
        }


def values(kind: ValueType, found: Sequence[object]) -> list[Any]:
    """Return a column's values as Debezium writes them."""
    make = _MADE.get(kind.kind)
    if make is None:
        return plain(kind, found)
    return [None if value is None else make(value) for value in found]


FORM = JsonForm(values, outside=str, unsent=UNAVAILABLE)


def _events(
    op: int, before: Image | None, after: Image | None, key: Sequence[str]
) -> list[tuple[str, dict[str, Any]]]:
    match op:
        case Op.INSERT:
            return [("c", {"before": None, "after": after})]
        case Op.DELETE:
            return [("d", {"before": before, "after": None})]
        case Op.TRUNCATE:
            return [("t", {})]
    if before and after and any(before.get(name) != after.get(name) for name in key):
        return [
            ("d", {"before": before, "after": None}),
            ("c", {"before": None, "after": after}),
        ]
    return [("u", {"before": before, "after": after})]


def _times(micros: int | None) -> dict[str, int | None]:
    if micros is None:
        return {"ts_ms": None, "ts_us": None, "ts_ns": None}
    return {"ts_ms": micros // 1000, "ts_us": micros, "ts_ns": micros * 1000}


def _number(value: Any) -> str:
    text = exact_text(value)
    return _SPECIAL.get(text, text)


def _days(value: Any) -> int:
    return value.days if isinstance(value, BeyondDate) else (value - _DAY_ZERO).days


def _micros(value: Any) -> int:
    if isinstance(value, BeyondTimestamp):
        if value.infinite:
            return POSITIVE_INFINITY if value.micros > 0 else NEGATIVE_INFINITY
        return value.micros
    return int((value - _EPOCH) // _MICRO)


def _zoned(value: Any) -> str:
    if isinstance(value, BeyondTimestamp):
        return str(value)
    text = value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    return f"{text}Z"


def _of_day(value: Any) -> int:
    if isinstance(value, BeyondTime):
        return value.micros
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return int(seconds * 1_000_000 + value.microsecond)


def _zoned_time(value: OffsetTime) -> str:
    micros = (value.micros - value.offset * 1_000_000) % MICROS_PER_DAY
    seconds, fraction = divmod(micros, 1_000_000)
    clock = time(seconds // 3600, seconds // 60 % 60, seconds % 60, fraction)
    return f"{clock.isoformat(timespec='microseconds')}Z"


def _duration(value: Interval) -> str:
    """Return the interval in ISO 8601; months, days and time each have their own sign."""
    if str(value).endswith("infinity"):
        return str(value)
    years, months = _parted(value.months, 12)
    hours, rest = _parted(value.micros, 3_600_000_000)
    minutes, micros = _parted(rest, 60_000_000)
    seconds = format(Decimal(micros).scaleb(-6).normalize(), "f")
    return f"P{years}Y{months}M{value.days}DT{hours}H{minutes}M{seconds}S"


def _parted(number: int, size: int) -> tuple[int, int]:
    """Divide towards zero, so that both parts have the number's sign."""
    whole, rest = divmod(abs(number), size)
    return (whole, rest) if number >= 0 else (-whole, -rest)


_MADE: Mapping[str, Callable[[Any], object]] = {
    "decimal": _number,
    "numeric": _number,
    "date": _days,
    "timestamp": _micros,
    "timestamptz": _zoned,
    "time": _of_day,
    "timetz": _zoned_time,
    "interval": _duration,
}
"""Kinds that are missing here are converted by `plain`."""
