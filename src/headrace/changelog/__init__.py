"""
The change log: what every later stage reads, and nothing else.

It may import `errors`, `config` and `storage`. It knows no source, no target and no Spark; clock
and disk come in by argument, so that all of it runs under simulation.

Begin with `position` and `change`, the two values that every stage shares, then read `writer` and
`reader`.

```
 position     where a change stands in its source's history: epoch, commit, ordinal
 values       the one mapping of a source's values to Arrow, and to values at the edge (S6)
 values_json  values as JSON, from which each can be read back by its column's type
 schema       a table's columns, types and key, and how one schema follows another
 change       changes on their way from a source into the log, as whole commits
 segment      the Parquet files that hold changes, and what the index says of them
 entries      the entries of the index, as they stand on disk
 index        numbered entries, one file each, with checkpoints to load them fast
 history      the state of a log that its entries add up to
 writer       the one writer: it appends changes, writes baselines, refuses other writers
 reader       what follows a position, where a baseline is, when something new is there
 ranges       a part of the log, from one position or time to another
 retention    pruning of what no reader needs, and the leases of named readers (R27)
 compaction   small flushes merged, and changes folded into a baseline (R27, R19)
```
"""
