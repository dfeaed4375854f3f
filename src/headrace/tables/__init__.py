"""
Rows of one table at one position, with indexes; Arrow inside; no I/O, no Spark.

Imports `errors`, `config`, `storage` and `changelog`, for positions, schemas and values. One thread
writes a table, any number read it, and neither waits for the other. Most other packages use only
the names imported below.

Begin with `table`, then read `version`, which is what every read looks at.

```
 keys        keys and index values as canonical bytes, and their hashes
 columns     rows in append-only column buffers, and the readers of their values
 hash_index  the hash tables that find rows by key, and the secondary indexes
 store       the rows of a table, as the one thread that writes sees them
 version     a table at one position: made once, never changed (invariant 7)
 table       `Table`: rows by key and by index, with the newest version
 changes     changes of a table as readers see them, built on access
```
"""

from headrace.tables.changes import RowChanges, TableChange
from headrace.tables.columns import Row
from headrace.tables.table import Table

__all__ = ["Row", "RowChanges", "Table", "TableChange"]
