"""
Segments: the files that hold changes, and their description in the index.

A segment holds the changes of one table and one schema in one flush, in position order,
as Parquet that is written for speed and read once or twice: no compression, no
dictionaries, no statistics, one row group. The segments of a baseline have the same
columns, with the row in `after` and no positions: its rows belong to the baseline (R20).
Their time is when the copy began; that of a row which was folded is its last change's.

A segment's name alone is never trusted: its size and checksum are in the index.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from headrace.changelog.change import Op
from headrace.changelog.entries import FORMAT, File
from headrace.changelog.schema import CAPTURED, TableSchema
from headrace.errors import CorruptSegment, UnknownFormat
from headrace.storage.disk import Buffer
from headrace.storage.files import Files

_FORMAT_KEY = b"headrace.format"


def segment_bytes(rows: pa.Table) -> pa.Buffer:
    """Return `rows` as the bytes of a segment."""
    return parquet_bytes(rows, {}, compression="none")


def parquet_bytes(rows: pa.Table, facts: dict[bytes, bytes], *, compression: str) -> pa.Buffer:
    """Return `rows` as a Parquet file with `facts` and our format number in its metadata."""
    stream = pa.BufferOutputStream()
    with pq.ParquetWriter(
        stream,
        rows.schema,
        compression=compression,
        use_dictionary=False,
        write_statistics=False,
        # More rows at a time than by default saves some percent of the time.
        write_batch_size=8192,
        # A reader of only some columns has no other checksum for their bytes.
        write_page_checksum=True,
        # The index holds the schema; a copy in each small file would double its size.
        store_schema=False,
    ) as writer:
        writer.add_key_value_metadata({_FORMAT_KEY: b"%d" % FORMAT, **facts})
        writer.write_table(rows, row_group_size=max(1, rows.num_rows))
    return stream.getvalue()


def parquet_rows(data: Buffer) -> tuple[pa.Table, dict[bytes, bytes]]:
    """Read what `parquet_bytes` wrote; raises `UnknownFormat`, or Arrow's error if malformed."""
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        facts: dict[bytes, bytes] = file.metadata.metadata or {}
        number = facts.get(_FORMAT_KEY, b"none")
        if number != b"%d" % FORMAT:
            raise UnknownFormat(
                "File has an unknown format", format=number.decode(errors="replace")
            )
        return file.read(), facts


def describe(
    name: str, table: str, schema_id: int, schema: TableSchema, rows: pa.Table, data: Buffer
) -> File:
    """Return the index's description of the segment `data` that holds `rows`."""
    operations = rows.column("_op")
    counts = np.bincount(operations.to_numpy(), minlength=len(Op))
    return File(
        name=name,
        table=table,
        schema=schema_id,
        rows=rows.num_rows,
        bytes=memoryview(data).nbytes,
        checksum=checksum(data),
        inserts=int(counts[Op.INSERT]),
        updates=int(counts[Op.UPDATE]),
        deletes=int(counts[Op.DELETE]),
        truncates=int(counts[Op.TRUNCATE]),
        key_changes=_key_changes(schema, rows) if counts[Op.UPDATE] else 0,
        unsent=rows.num_rows - rows.column("_unsent").null_count,
        marked=rows.num_rows - rows.column("_exact").null_count,
    )


def _key_changes(schema: TableSchema, rows: pa.Table) -> int:
    """Count the updates whose key differs between the images; those without both do not count."""
    updates = rows.select(["before", "after"]).filter(pc.equal(rows["_op"], int(Op.UPDATE)))
    changed = pa.scalar(False)
    for name in schema.key:
        # By index: a name with a dot would be read as a path.
        index = schema.names.index(name)
        old, new = (pc.struct_field(updates[side], index) for side in ("before", "after"))
        changed = pc.or_(changed, _differs(old, new))
    both = pc.and_(updates["before"].is_valid(), updates["after"].is_valid())
    return int(pc.sum(pc.and_(both, changed).cast(pa.int64())).as_py() or 0)


def _differs(old: pa.ChunkedArray, new: pa.ChunkedArray) -> pa.ChunkedArray:
    """Compare two columns, nulls as values, and structs by their parts, which Arrow cannot."""
    if pa.types.is_struct(old.type):
        differs = pc.xor(old.is_null(), new.is_null())
        for part in range(old.type.num_fields):
            differs = pc.or_(
                differs, _differs(pc.struct_field(old, part), pc.struct_field(new, part))
            )
        return differs
    # The comparison is null if either side is: then they differ unless both are null.
    return pc.coalesce(pc.not_equal(old, new), pc.xor(old.is_null(), new.is_null()))


def checksum(data: Buffer) -> str:
    """Return the checksum of a file's bytes, in the index's format."""
    return f"xxh3:{xxhash.xxh3_64_hexdigest(memoryview(data))}"


def read_segment(files: Files, file: File, schema: TableSchema) -> pa.Table:
    """
    Return a segment's rows with the columns of `schema.segment`, after checking its bytes.

    `files` is rooted at the segments folder, to which a `File`'s name is relative.
    """
    return read_stored(files, file, schema).select(schema.segment.names)


def read_stored(files: Files, file: File, schema: TableSchema) -> pa.Table:
    """Return a segment's rows with the columns of `schema.stored`, to be written again."""
    return _rows(files, file, schema, _verified(files, file))


def read_several(files: Files, several: Sequence[File], schema: TableSchema) -> list[pa.Table]:
    """Return the rows of segments of one schema, as `read_stored` does."""
    found = files.read_many([file.name for file in several])
    return [
        _rows(files, file, schema, _checked(files, file, data))
        for file, data in zip(several, found, strict=True)
    ]


def _rows(files: Files, file: File, schema: TableSchema, data: bytes) -> pa.Table:
    try:
        rows, _ = parquet_rows(data)
        if CAPTURED.name not in rows.column_names:
            rows = rows.append_column(CAPTURED, pa.nulls(rows.num_rows, CAPTURED.type))
        return rows.cast(schema.stored)
    except UnknownFormat as error:
        error.facts = {"file": files.path(file.name), **error.facts}
        raise
    except (pa.ArrowException, ValueError, OSError) as error:
        raise CorruptSegment("Segment cannot be read", file=files.path(file.name)) from error


def verify(files: Files, file: File) -> None:
    """Check a segment's size and checksum; `CorruptSegment` names the file."""
    _verified(files, file)


def _verified(files: Files, file: File) -> bytes:
    try:
        data = files.read(file.name)
    except FileNotFoundError:
        data = None
    return _checked(files, file, data)


def _checked(files: Files, file: File, data: bytes | None) -> bytes:
    path = files.path(file.name)
    if data is None:
        raise CorruptSegment("Segment is missing", file=path)
    if len(data) != file.bytes:
        raise CorruptSegment(
            "Segment does not have the size in the index",
            file=path,
            size=len(data),
            was=file.bytes,
        )
    if checksum(data) != file.checksum:
        raise CorruptSegment("Segment does not match its checksum", file=path)
    return data
