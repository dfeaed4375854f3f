"""
Changes as lines of JSON.

`{"position": …, "table": …, "op": "update", "time": …, "xid": …, "before": {…}, "after": {…},
"unsent": []}`: the op is `insert`, `update`, `delete` or `truncate`; `time` is that of the
commit, in UTC; `xid` the source's number of the transaction, or null; an image that there is
not is null. Values stand as `headrace.changelog.plain` says. A column that the source did not
send is not in its image and is named in `unsent`; an image of before that holds the key alone
has the columns of the key alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.changelog.change import Op
from headrace.changelog.plain import images, plain, unsent
from headrace.changelog.position import Position
from headrace.changelog.ranges import Piece
from headrace.changelog.values import ValueType

_INSTANT = ValueType("timestamptz")
_OPS = [op.name.lower() for op in Op]


def change_objects(piece: Piece) -> Iterator[dict[str, Any]]:
    """Yield each change as plain values."""
    rows, schema = piece.rows, piece.schema
    for commit, ordinal, op, time, xid, before, after, lacking in zip(
        rows.column("_commit").to_pylist(),
        rows.column("_ordinal").to_pylist(),
        rows.column("_op").to_pylist(),
        plain(_INSTANT, _INSTANT.from_arrow(rows.column("_time"))),
        rows.column("_xid").to_pylist(),
        images(rows, schema, "before"),
        images(rows, schema, "after"),
        unsent(rows, schema),
        strict=True,
    ):
        yield {
            "position": str(Position(piece.epoch, commit, ordinal)),
            "table": schema.table,
            "op": _OPS[op],
            "time": time,
            "xid": xid,
            "before": before,
            "after": after,
            "unsent": lacking,
        }


def as_line(value: dict[str, Any]) -> bytes:
    """Return an object as a line of JSON, its end included."""
    return _ENCODER.encode(value) + b"\n"


_ENCODER = msgspec.json.Encoder()
