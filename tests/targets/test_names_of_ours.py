"""Columns of the row that have the names of ours in a batch: every target keeps them apart."""

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from headrace.changelog.position import ORIGIN, Position
from headrace.tables import Row
from headrace.targets.files import JsonLines
from headrace.targets.memory import memory
from headrace.targets.row_target import RowTarget
from headrace.targets.target import Batch, Target
from headrace.testing import ScriptedTarget
from tests.tables.build import DELETE, INSERT, UPDATE, baseline, changes, row_columns, table_schema

OURS = ("_op", "_commit", "_ordinal", "_time")
NAMED = table_schema(id="int64", **dict.fromkeys(OURS, "text"))


def row(key: int, text: str) -> dict[str, object]:
    return {"id": key, **dict.fromkeys(OURS, text)}


ROWS = [row(1, "a"), row(2, "b")]
STEPS: list[tuple[int, Position, Mapping[str, object]]] = [
    (INSERT, Position(1, 1, 0), row(3, "c")),
    (UPDATE, Position(1, 2, 0), row(1, "d")),
    (DELETE, Position(1, 3, 0), {"id": 2}),
]
AFTER = [row(1, "d"), row(3, "c")]


def batch_of_changes() -> Batch:
    # Not a dict: names come twice.
    ours = changes(table_schema(id="int64"), STEPS).select(list(OURS))
    own = row_columns(NAMED, [values for _, _, values in STEPS])
    rows = pa.table([*ours.columns, *own.values()], names=[*OURS, *own])
    return Batch("1", 1, Position(1, 1), Position(1, 3), {"orders": rows}, {})


def applied(target: Target) -> None:
    target.check({"orders": NAMED})
    target.open({"orders": NAMED}, {"orders": ORIGIN})
    loading = target.load("orders", 1)
    loading.write(baseline(NAMED, ROWS))
    loading.switch(Position(1, 0))
    target.write(batch_of_changes())


class Kept(RowTarget):
    """Keeps rows in a dict."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, object]] = {}

    def on_baseline_row(self, row: Row) -> None:
        self.on_insert(row)

    def on_insert(self, row: Row) -> None:
        self.rows[row.get_int("id")] = dict(row)

    def on_update(self, row: Row, identity: Row) -> None:
        self.on_insert(row)

    def on_delete(self, identity: Row) -> None:
        del self.rows[identity.get_int("id")]

    def on_truncate(self) -> None:
        self.rows.clear()


def test_a_table_in_memory_has_them() -> None:
    target = memory(indexes={"by_op": ["_op"]}, lookup=["_time"])
    applied(target)
    assert sorted(map(dict, target.all()), key=lambda each: str(each["id"])) == AFTER
    assert [dict(each) for each in target.lookup_all("by_op", "d")] == [row(1, "d")]
    assert target.lookup("c") is not None


def test_a_target_of_rows_gets_them() -> None:
    target = Kept()
    applied(target)
    assert sorted(target.rows.values(), key=lambda each: str(each["id"])) == AFTER


def test_a_scripted_target_has_them() -> None:
    target = ScriptedTarget()
    applied(target)
    assert sorted(target.rows("orders").values(), key=lambda each: str(each["id"])) == AFTER


def test_lines_of_json_have_them(tmp_path: Path) -> None:
    target = JsonLines(tmp_path / "lines.json")
    with closing(target):
        applied(target)
    lines = [json.loads(line) for line in (tmp_path / "lines.json").read_text().splitlines()]
    assert [line["row"] for line in lines] == [*ROWS, row(3, "c"), row(1, "d"), {"id": 2}]
    assert [line["op"] for line in lines[2:]] == ["insert", "update", "delete"]
