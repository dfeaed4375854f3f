"""
A target of your own, as a package: every change of a table as a line of a JSON file.

Once it is installed, a configuration can say `target { type = json-lines, path = paid.jsonl }`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import headrace as hr
from headrace.config.schema import Boolean, FilePath, Key


class JsonLines(hr.RowTarget):
    """Every change as a line of a JSON file, each exactly once."""

    config_keys = (
        Key("path", FilePath("paid.jsonl"), "The file.", required=True),
        Key("sync", Boolean(), "Whether each batch is forced to the disk.", default=True),
    )

    def __init__(self, *, path: Path, sync: bool) -> None:
        self.path = path
        self.sync = sync
        self.last = ""

    def is_durable(self) -> bool:
        return True

    def on_init(self, table: str, columns: Sequence[object]) -> None:
        self.path.touch()
        # A crash may have cut the last line in two; the batch it belongs to comes again.
        whole = [line for line in self.path.read_text().splitlines(True) if line.endswith("\n")]
        self.path.write_text("".join(whole))
        self.last = json.loads(whole[-1])["at"] if whole else ""
        self.file = self.path.open("a")

    def on_baseline_row(self, row: Mapping[str, object]) -> None:
        self.add("baseline", row)

    def on_baseline_complete(self) -> None:
        self.on_batch_complete()

    def on_insert(self, row: Mapping[str, object]) -> None:
        self.add("insert", row)

    def on_update(self, row: Mapping[str, object], identity: Mapping[str, object]) -> None:
        self.add("update", row)

    def on_delete(self, identity: Mapping[str, object]) -> None:
        self.add("delete", identity)

    def on_truncate(self) -> None:
        self.file.truncate(0)
        self.last = ""

    def on_batch_complete(self) -> None:
        self.file.flush()
        if self.sync:
            os.fsync(self.file.fileno())

    def on_close(self) -> None:
        self.file.close()

    def add(self, op: str, row: Mapping[str, object]) -> None:
        """Write a line, unless an earlier life has: positions sort as their text does."""
        at = str(self.position)
        if op == "baseline" or at > self.last:
            self.file.write(json.dumps({"at": at, "op": op, "row": dict(row)}) + "\n")
