"""Columns that a target in memory is configured with, against those that it will get."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.config.plugins import Chosen
from headrace.config.schema import Plain, node_of
from headrace.config.text import SourceLocation
from headrace.engine.from_config import configured, wrong_columns
from headrace.pipeline.steps import Drop, Frame, Transform

COLUMNS = (Column("a", ValueType("int64"), 1), Column("b", ValueType("text"), 2))
KEYED = TableSchema("t", COLUMNS, ("a",))
KEYLESS = TableSchema("t", COLUMNS, ())


def target(folder: Path, **values: Plain) -> Chosen:
    tree: Plain = {
        "sources": {"shop": {"type": "sqlite", "path": str(folder / "shop.db")}},
        "pipelines": {
            "p": {"source": "shop", "tables": ["t"], "target": {"type": "memory", **values}}
        },
    }
    chosen: Chosen = configured(node_of(tree, SourceLocation("x.conf", 1, 1))).pipelines["p"][
        "target"
    ]
    return chosen


@pytest.mark.parametrize(
    ("schema", "key", "codes"),
    [
        (KEYED, [], []),
        (KEYED, ["a"], []),
        (KEYED, ["b"], ["tables.failed"]),
        (KEYLESS, ["b"], []),
        (KEYLESS, [], ["tables.no_key"]),
        (KEYLESS, ["c"], ["pipeline.unknown_column"]),
    ],
)
def test_a_key_is_the_tables_own_or_one_that_was_named(
    schema: TableSchema, key: list[str], codes: list[str], tmp_path: Path
) -> None:
    found = wrong_columns(target(tmp_path, key_fields=[*key]), (), schema)
    assert [error.code for error in found] == codes
    assert all(error.facts["table"] == "t" for error in found)
    assert all("key=" not in error.remedy for error in found), "it is said as a file has it"


def test_what_a_frame_makes_is_left_to_the_start(tmp_path: Path) -> None:
    asked = target(tmp_path, lookup_fields=["made"])
    frame: tuple[Transform, ...] = (Frame(lambda rows: rows),)
    assert wrong_columns(asked, frame, KEYED) == []
    assert len(wrong_columns(asked, (Drop(("b",)),), KEYED)) == 1
