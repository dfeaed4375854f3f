"""
Rows of a table as it was, in the columns that it has now.

A plan is made for the newest schema of its table. Segments that were written before the table
was altered are lifted to it as they are read: columns are known by their ids, so one that got
another name is found, one that is gone is left out, and one that was not there yet has what
the source says older rows have in it (R23b).
"""

from __future__ import annotations

from headrace.changelog.schema import Column, TableSchema
from headrace.pipeline.literals import quoted, text_literal
from headrace.pipeline.shapes import spark_type


def same_columns(one: TableSchema, other: TableSchema) -> bool:
    """Whether rows of the one can be read as rows of the other without lifting them."""
    return [(c.field, c.name, c.type) for c in one.columns] == [
        (c.field, c.name, c.type) for c in other.columns
    ]


def lifted(image: str, old: TableSchema, new: TableSchema) -> str:
    """Return SQL for an image of the old schema as a struct of the new one; null stays null."""
    written = {column.field: column for column in old.columns}
    fields = ", ".join(
        f"{text_literal(column.name)}, {_value(image, written.get(column.field), column)}"
        for column in new.columns
    )
    return f"case when {image} is not null then named_struct({fields}) end"


def _value(image: str, old: Column | None, new: Column) -> str:
    type = spark_type(new.type.arrow).simpleString()
    if old is None:
        missing = "null" if new.missing is None else text_literal(new.missing)
        return f"cast({missing} as {type})"
    value = f"{image}.{quoted(old.name)}"
    return value if old.type.arrow == new.type.arrow else f"cast({value} as {type})"
