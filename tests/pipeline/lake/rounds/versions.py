"""
Every version that a Delta table ever had, read from its own log without Spark.

A reader of its own: what judges the table shares nothing with what wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq

from headrace.lake.history import APPLICATION, CommitNote, read
from tests.rounds.outcome import RoundFailed
from tests.rounds.source import Row


@dataclass(frozen=True, slots=True)
class Version:
    """What a reader who asks for this version sees."""

    number: int
    operation: str
    note: CommitNote | None
    transaction: int | None
    """The number of an application transaction in this very commit."""

    columns: tuple[str, ...]
    rows: list[Row]


def versions(folder: Path, application: str = APPLICATION) -> Iterator[Version]:
    """Return all versions of a table, the oldest first, with transactions of an application."""
    logs = sorted(path for path in (folder / "_delta_log").glob("*.json") if path.stem.isdecimal())
    files: dict[str, list[Row]] = {}
    columns: tuple[str, ...] = ()
    for number, path in enumerate(logs):
        if int(path.stem) != number:
            raise RoundFailed(f"{folder.name} has no version {number}")
        operation, note, transaction = "", None, None
        for line in path.read_text().splitlines():
            match json.loads(line):
                case {"commitInfo": about}:
                    operation, note = about["operation"], read(about.get("userMetadata"))
                case {"txn": {"appId": app, "version": given}} if app == application:
                    transaction = given
                case {"metaData": {"schemaString": schema}}:
                    columns = tuple(field["name"] for field in json.loads(schema)["fields"])
                case {"add": {"path": name, **more}}:
                    if more.get("deletionVector"):
                        raise RoundFailed("deletion vectors are not read here")
                    files[name] = pq.ParquetFile(folder / unquote(name)).read().to_pylist()
                case {"remove": {"path": name}}:
                    del files[name]
        rows = [
            {name: row.get(name) for name in columns} for each in files.values() for row in each
        ]
        yield Version(number, operation, note, transaction, columns, rows)
