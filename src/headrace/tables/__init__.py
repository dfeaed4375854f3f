"""
Rows of one table at one position, with indexes; Arrow inside; no I/O, no Spark.

It may import `errors`, `config`, `storage` and `changelog`, of which it uses positions, schemas and
values. One thread writes a table, any number read it, and neither waits for the other. The names
imported below are what most other packages use.

Begin with `table`, then read `version`, which is what every read looks at.

```
 keys        keys and index values as canonical bytes, and their hashes
 columns     rows in column buffers that only ever grow, and the readers of their values
 hash_index  the hash tables that find rows by key, and the secondary indexes
 store       the rows of a table, as the one thread that writes sees them
 version     a table at one position: made once, never changed (invariant 7)
 table       `Table`: rows by key and by index, with the newest version
 changes     changes of a table as readers see them, made when they are read
```
"""

from headrace.tables.changes import RowChanges, TableChange
from headrace.tables.columns import Row
from headrace.tables.table import Table

__all__ = ["Row", "RowChanges", "Table", "TableChange"]
