"""
The change log: the only input of every later stage.

It may import `errors`, `config` and `storage`. It knows no source, no target and no Spark; clock
and disk are passed as arguments, so that all of it runs in the simulation.

Begin with `position` and `change`, the two values that every stage shares, then read `writer` and
`reader`.

```
 position     the position of a change in its source's history: epoch, commit, ordinal
 values       the one mapping of a source's values to Arrow, and to values at the edge (S6)
 values_json  values as JSON, which can be read back with their column's type
 schema       a table's columns, types and key, and how one schema follows another
 change       changes on their way from a source into the log, as complete commits
 segment      the Parquet files that hold changes, and their description in the index
 entries      the entries of the index, as they are on disk
 index        numbered entries, one file each, with checkpoints to load them fast
 history      the state of a log: the sum of its entries
 writer       the one writer: appends changes, writes baselines, stops if there is another writer
 reader       the next batch after a position, baselines, and waiting for new entries
 ranges       a part of the log, from one position or time to another
 retention    pruning of what no reader needs, and the leases of named readers (R27)
 compaction   merges small flushes, and folds changes into a baseline (R27, R19)
```
"""
