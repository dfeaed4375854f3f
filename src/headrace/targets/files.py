"""
Targets for replays, which write every change to files: as lines of JSON, or as Parquet.

They keep every change instead of one row for each key. The rows of the baseline come first, as
inserts without a position; then each change with its position. A delete has only its key, a key
change is two changes with one position, and a truncate has no row, as in `foreach_batch`.
"""

from __future__ import annotations

import sys
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.changelog.change import Op
from headrace.changelog.position import Position
from headrace.changelog.schema import BATCH_META, TableName, TableSchema
from headrace.changelog.values import ValueType
from headrace.changelog.values_json import plain, row_values
from headrace.errors import BadTransform, StorageError, TargetError, UnknownPart
from headrace.storage.permissions import (
    create_output,
    make_private_folder,
    not_written,
    open_private,
)
from headrace.targets.target import BaselineId, Batch, Target, TargetTraits

_INSTANT = ValueType("timestamptz")

_OPS = [op.name.lower() for op in Op]


class _Written(ABC):
    """What both have in common: tables are distinguished by name, and cannot be read back."""

    type: str

    def __init__(self) -> None:
        self.rows = 0
        self._schemas: dict[TableName, TableSchema] = {}

    @property
    def traits(self) -> TargetTraits:
        return TargetTraits(type=self.type, durable=False, keyed=False)

    def check(self, tables: Mapping[TableName, TableSchema]) -> None:  # noqa: B027 - lines take any
        """Accept any table, unless an implementation overrides this."""

    def open(
        self, tables: Mapping[TableName, TableSchema], at: Mapping[TableName, Position]
    ) -> None:
        self._schemas = dict(tables)

    def load(self, table: TableName, baseline: BaselineId) -> _Loading:
        return _Loading(self, table, baseline)

    def write(self, batch: Batch) -> Position:
        self._changes(batch)
        self.rows += sum(rows.num_rows for rows in batch.tables.values())
        return batch.last

    def row_count(self, table: TableName) -> int | None:
        return None

    def close(self) -> None:  # noqa: B027 - files are closed as they are written
        """Do nothing: no file stays open between two batches."""

    @abstractmethod
    def _baseline(self, table: TableName, baseline: BaselineId, rows: pa.Table) -> None:
        """Write rows of a baseline."""

    @abstractmethod
    def _changes(self, batch: Batch) -> None:
        """Write the changes and the truncates of a batch."""


class _Loading:
    """Writes the rows of a baseline at once, because nothing reads the files meanwhile."""

    def __init__(self, target: _Written, table: TableName, baseline: BaselineId) -> None:
        self._target = target
        self._table = table
        self._number = baseline

    def write(self, rows: pa.Table) -> None:
        self._target._baseline(self._table, self._number, rows)
        self._target.rows += rows.num_rows

    def catch_up(self, batch: Batch) -> None:
        self._target.write(batch)

    def switch(self, at: Position) -> None:
        """Do nothing: the rows are already written."""

    def discard(self) -> None:
        """Do nothing: written rows stay, and the caller reports the failure."""


class JsonLines(_Written):
    """
    Writes each row to a stream as a line of JSON, in position order over all tables.

    `{"table": …, "op": "insert", "position": …, "time": …, "baseline": null, "row": {…}}`; a
    row of a baseline has the baseline's number, and neither position nor time. Values are
    written as `headrace.changelog.values_json` defines.
    """

    type = "json-lines"

    def __init__(self, stream: IO[bytes] | Path, *, replace: bool = False) -> None:
        """A file is created when the replay begins. With `replace` it may overwrite another."""
        super().__init__()
        self._output = stream
        self._replace = replace
        self._stream: IO[bytes] | None = None

    def open(
        self, tables: Mapping[TableName, TableSchema], at: Mapping[TableName, Position]
    ) -> None:
        super().open(tables, at)
        if not isinstance(self._output, Path):
            self._stream = self._output
            return
        self._stream = create_output(self._output, replace=self._replace)

    def close(self) -> None:
        if isinstance(self._output, Path) and self._stream is not None:
            self._stream.close()

    def _baseline(self, table: TableName, baseline: BaselineId, rows: pa.Table) -> None:
        self._put(
            {
                "table": table,
                "op": "insert",
                "position": None,
                "time": None,
                "baseline": baseline,
                "row": row,
            }
            for row in row_values(rows, self._schemas[table].columns)
        )

    def _changes(self, batch: Batch) -> None:
        found = [
            line
            for table, rows in batch.tables.items()
            for line in self._lines(table, rows, batch.epoch)
        ]
        found += [
            (at, {"table": table, "op": "truncate", "time": None, "row": None})
            for table, at in batch.truncates.items()
        ]
        # Stable: the delete of an old key stays before the row of its new one.
        found.sort(key=lambda each: each[0])
        self._put(
            {
                "table": line["table"],
                "op": line["op"],
                "position": str(at),
                "time": line["time"],
                "baseline": None,
                "row": line["row"],
            }
            for at, line in found
        )

    def _lines(
        self, table: TableName, rows: pa.Table, epoch: int
    ) -> Iterator[tuple[Position, dict[str, Any]]]:
        schema = self._schemas[table]
        ops, commits, ordinals = (rows.column(at).to_pylist() for at in range(3))
        times = plain(_INSTANT, _INSTANT.from_arrow(rows.column(3)))
        values = row_values(rows.select(list(range(BATCH_META, rows.num_columns))), schema.columns)
        for op, commit, ordinal, time, row in zip(
            ops, commits, ordinals, times, values, strict=True
        ):
            if op == Op.DELETE and schema.key:
                row = {name: row[name] for name in schema.key}
            yield (
                Position(epoch, commit, ordinal),
                {"table": table, "op": _OPS[op], "time": time, "row": row},
            )

    def _put(self, lines: Iterator[dict[str, Any]]) -> None:
        assert self._stream is not None, "open must be called first"
        try:
            self._stream.write(b"".join(_ENCODER.encode(line) + b"\n" for line in lines))
            self._stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StorageError("The lines cannot be written", why=str(error)) from error


class ParquetFolder(_Written):
    """
    Writes the rows of each table to a folder, one file for each batch, ordered by name.

    Files are `orders/baseline-000001.parquet`, then `orders/changes-<last position>.parquet`.
    Columns are the row's, then `_op` (text), `_position` (text), `_commit`, `_ordinal` and
    `_time`.
    """

    type = "parquet-folder"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self._pieces: dict[TableName, int] = {}

    def check(self, tables: Mapping[TableName, TableSchema]) -> None:
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise TargetError(
                "The output folder is not empty",
                remedy="Use an empty folder, or one that does not exist yet.",
                folder=str(self.folder),
            )
        for schema in tables.values():
            if taken := sorted({field.name for field in _TAIL} & set(schema.names)):
                raise BadTransform(
                    "A column has a name that Headrace uses itself",
                    remedy="Rename the column: transforms=[rename(…)].",
                    table=schema.table,
                    columns=taken,
                )

    def _baseline(self, table: TableName, baseline: BaselineId, rows: pa.Table) -> None:
        number = self._pieces[table] = self._pieces.get(table, 0) + 1
        tail = [pa.nulls(rows.num_rows, field.type) for field in _TAIL]
        tail[0] = pa.repeat(pa.scalar("insert"), rows.num_rows)
        self._store(table, f"baseline-{number:06}", rows, tail)

    def _changes(self, batch: Batch) -> None:
        for table, rows in batch.tables.items():
            at = batch.truncates.get(table)
            schema = self._schemas[table]
            if at is not None:
                nulls = [pa.nulls(1, field.type) for field in schema.arrow]
                emptied = pa.Table.from_arrays(nulls, schema=schema.arrow)
                tail = [["truncate"], [str(at)], [at.commit], [at.ordinal], [None]]
                self._store(table, f"changes-{at}-truncate", emptied, tail)
            if rows.num_rows:
                own = rows.select(list(range(BATCH_META, rows.num_columns)))
                positions = zip(*(rows.column(at).to_pylist() for at in (1, 2)), strict=True)
                tail = [
                    [_OPS[op] for op in rows.column(0).to_pylist()],
                    [str(Position(batch.epoch, *location)) for location in positions],
                    *(rows.column(at) for at in (1, 2, 3)),
                ]
                self._store(table, f"changes-{batch.last}", own, tail)

    def _store(self, table: TableName, stem: str, rows: pa.Table, tail: list[Any]) -> None:
        ends = [
            each if isinstance(each, pa.ChunkedArray | pa.Array) else pa.array(each, field.type)
            for each, field in zip(tail, _TAIL, strict=True)
        ]
        schema = pa.schema([*self._schemas[table].arrow, *_TAIL])
        made = pa.Table.from_arrays([*rows.columns, *ends], schema=schema)
        folder = self.folder / urllib.parse.quote(table, safe="")
        path = folder / f"{stem}.parquet"
        temporary = path.with_suffix(".tmp")
        try:
            make_private_folder(folder)
            with open_private(temporary) as stream:
                pq.write_table(made, stream, compression="zstd")
            temporary.replace(path)
        except OSError as error:
            raise not_written(path, error) from error


_TAIL: Final = (
    pa.field("_op", pa.string()),
    pa.field("_position", pa.string()),
    pa.field("_commit", pa.int64()),
    pa.field("_ordinal", pa.int32()),
    pa.field("_time", pa.timestamp("us", "UTC")),
)
_ENCODER = msgspec.json.Encoder()


def target_named(text: str, *, replace: bool = False) -> Target:
    """
    Return the target for a text: `memory`, `parquet:DIR`, `jsonl:FILE`.

    If the file exists, the replay is refused, unless `replace` is true.
    """
    from headrace.targets.memory import memory

    kind, _, location = text.partition(":")
    if text == "memory":
        return memory()
    if kind == "parquet" and location:
        return ParquetFolder(Path(location).expanduser())
    if kind == "jsonl" and location:
        stream = sys.stdout.buffer if location == "-" else Path(location).expanduser()
        return JsonLines(stream, replace=replace)
    raise UnknownPart(
        "Unknown target for a replay",
        remedy="Use memory, parquet:DIR, jsonl:FILE, or jsonl:- for stdout.",
        # Only the first part: the text may be a URL with a password.
        target=kind,
    )
