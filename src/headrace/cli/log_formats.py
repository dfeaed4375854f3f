"""
Changes of the log as lines of JSON, and as one Parquet file.

A line of JSON is `{"position": …, "table": …, "op": "update", "time": …, "xid": …,
"before": {…}, "after": {…}, "unsent": []}`: the op is `insert`, `update`, `delete` or `truncate`;
`time` is the time of the commit, in UTC; `xid` is the transaction id of the source, or null; an
image that does not exist is null. `headrace.changelog.values_json` defines the form of values. A
column that the source did not send is missing from its image and named in `unsent`. If the source
sends only the key of the row before, `before` has only the key columns.

Columns of the Parquet file: `position` and `op` as text, `time` (timestamp, UTC), `xid`, `unsent`
(names of the columns that the source did not send), `exact` (texts of values that their columns
cannot represent, by column; for the row before, under `before.` and the name), `before` and
`after` (structs). If the columns of the table changed within the range, the file has all of them;
they are null in changes that did not have them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.changelog.change import Op
from headrace.changelog.entries import Gap
from headrace.changelog.position import Position
from headrace.changelog.ranges import ChangeSlice, Span, flushes
from headrace.changelog.reader import LogReader
from headrace.changelog.schema import TableSchema
from headrace.changelog.values import ValueType
from headrace.changelog.values_json import images, plain, unsent
from headrace.cli.errors import opened_output, refuse_taken
from headrace.errors import BadSchema
from headrace.storage.permissions import not_written

# --- lines of JSON --------------------------------------------------------------------------------

_INSTANT = ValueType("timestamptz")
_OPS = [op.name.lower() for op in Op]


def change_objects(piece: ChangeSlice) -> Iterator[dict[str, Any]]:
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
    """Return an object as a line of JSON, with its newline."""
    return _ENCODER.encode(value) + b"\n"


_ENCODER = msgspec.json.Encoder()


# --- a Parquet file -------------------------------------------------------------------------------

_META = (
    pa.field("position", pa.string()),
    pa.field("op", pa.string()),
    pa.field("time", pa.timestamp("us", "UTC")),
    pa.field("xid", pa.int64()),
    pa.field("unsent", pa.list_(pa.string())),
    pa.field("exact", pa.map_(pa.string(), pa.string())),
)


def write_parquet(
    output: Path,
    log: LogReader,
    table: str,
    part: Span,
    pieces: Iterator[ChangeSlice],
    *,
    force: bool,
) -> int:
    """
    Write the changes and return how many there are.

    The file appears when it is complete: if reading fails, no file of that name is left, because a
    Parquet file that ends early looks like a complete one.
    """
    image = _image(log, table, part)
    schema = pa.schema([*_META, pa.field("before", image), pa.field("after", image)])
    temporary = output.with_name(f"{output.name}.{os.getpid()}.tmp")
    count = 0
    try:
        with (
            opened_output(temporary, force=True) as stream,
            pq.ParquetWriter(stream, schema, compression="zstd") as writer,
        ):
            for piece in pieces:
                writer.write_table(_shaped(piece, schema))
                count += piece.rows.num_rows
        # Checked again: reading takes time, and the file may have been created meanwhile.
        refuse_taken(output, force=force)
        try:
            temporary.replace(output)
        except OSError as error:
            raise not_written(output, error) from error
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _image(log: LogReader, table: str, part: Span) -> pa.StructType:
    """Return the columns that the table has in this range, in order of appearance."""
    seen: dict[int, TableSchema] = {}
    for found in flushes(log, [table], part):
        if not isinstance(found, Gap):
            for file in found.files:
                seen.setdefault(file.schema, log.schema(table, file.schema))
    fields: dict[str, pa.Field] = {}
    for _, schema in sorted(seen.items()):
        for field in schema.arrow:
            known = fields.setdefault(field.name, field)
            if known.type != field.type:
                raise BadSchema(
                    f"Column {field.name} of {table} changes its type within this range",
                    remedy="Export the ranges before and after the change to separate files with"
                    " --to and --from, or export JSON.",
                    table=table,
                    column=field.name,
                )
    return pa.struct(list(fields.values()) or list(log.schema(table).arrow))


def _shaped(piece: ChangeSlice, schema: pa.Schema) -> pa.Table:
    rows = piece.rows
    positions = zip(rows["_commit"].to_pylist(), rows["_ordinal"].to_pylist(), strict=True)
    arrays = [
        pa.array([str(Position(piece.epoch, *position)) for position in positions], pa.string()),
        pa.array([_OPS[op] for op in rows["_op"].to_pylist()], pa.string()),
        rows["_time"],
        rows["_xid"],
        pa.array(unsent(rows, piece.schema), _META[4].type),
        pa.array(_exact(piece), _META[5].type),
        *(_struct(piece, side, schema.field(side).type) for side in ("before", "after")),
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _exact(piece: ChangeSlice) -> list[list[tuple[str, str]] | None]:
    names: dict[int, str] = {}
    for column in piece.schema.columns:
        names |= {column.field: column.name, -column.field: f"before.{column.name}"}
    exact: list[list[tuple[int, str]] | None] = piece.rows["_exact"].to_pylist()
    return [
        None if not each else [(names[number], text) for number, text in each if number in names]
        for each in exact
    ]


def _struct(piece: ChangeSlice, side: str, image: pa.StructType) -> Any:
    """Return one image of the changes, with all columns of the range."""
    column = piece.rows[side].combine_chunks()
    names = piece.schema.names
    children = [
        # By index: a name with a dot in it would be taken for a path.
        pc.struct_field(column, names.index(field.name))
        if field.name in names
        else pa.nulls(len(column), field.type)
        for field in image
    ]
    if isinstance(column, pa.ChunkedArray):  # of no rows
        return pa.array([], image)
    return pa.StructArray.from_arrays(children, fields=list(image), mask=column.is_null())
