"""
Which columns a change may come without, because nobody keeps what the server does not send (R21).

An update does not send a value that is kept out of its row and did not change. It comes all the
same where the old row is sent whole, or where the store of TOAST values has it. With the store
off, steps of a pipeline must not read such a column; what the store has to give up over its cap
is not known before, and stops a pipeline when it comes to that.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from headrace.capture.postgres.catalog import CatalogColumn, CatalogTable, schema_of
from headrace.capture.postgres.options import Options
from headrace.capture.postgres.types import value_type
from headrace.changelog.schema import TableSchema

_CHARACTERS = (1042, 1043)
"""char and varchar; their modifier is the number of characters and 4 more."""

_MOST_CHARACTERS = 5
_MOST_DIGITS = 28
"""So many take 24 bytes at most, and no value of so few is ever kept elsewhere."""


def described(table: CatalogTable, options: Options) -> TableSchema:
    """Return a table's schema as the log has it, with what its changes may come without."""
    schema = schema_of(table, options.asked_of(table.name).columns or None)
    if not (lacking := unsent_columns(table, options)):
        return schema
    columns = (
        replace(column, may_be_unsent=True) if column.name in lacking else column
        for column in schema.columns
    )
    return replace(schema, columns=tuple(columns))


def unsent_columns(table: CatalogTable, options: Options) -> tuple[str, ...]:
    """Return the columns that an update may come without, and nobody here can complete."""
    if options.toast_store or "update" not in options.publish:
        return ()
    if all(each.identity == "f" for each in (table, *table.leaves)):
        return ()
    if table.leaves and not any(leaf.toasted for leaf in table.leaves):
        return ()
    asked = options.asked_of(table.name).columns
    return tuple(
        column.name
        for column in table.columns
        # The server sends what it has of a key with the old row, however it is stored.
        if column.toastable
        and column.name not in table.key
        and (not asked or column.name in asked)
        and not _short(column)
    )


def _short(column: CatalogColumn) -> bool:
    """Whether no value of the column is long enough to be kept elsewhere."""
    if column.type in _CHARACTERS:
        return 4 <= column.modifier <= 4 + _MOST_CHARACTERS
    kind = value_type(column.type, column.modifier).arrow
    return bool(pa.types.is_decimal(kind) and kind.precision <= _MOST_DIGITS)
