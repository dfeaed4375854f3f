"""Rows of one table at one position, with indexes; Arrow inside; no I/O, no Spark."""

from headrace.tables.changes import RowChanges, TableChange
from headrace.tables.columns import Row
from headrace.tables.table import Table

__all__ = ["Row", "RowChanges", "Table", "TableChange"]
