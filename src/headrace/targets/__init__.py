"""
Targets: where changes are delivered.

It may import `errors`, `config`, `storage`, `changelog`, `observe` and `tables`. It knows neither
sources nor Spark: a target gets rows in position order, and the position that its `write` returns
is the only thing that moves a pipeline's progress (invariant 2). Lake tables need Spark and are in
`lake`.

Begin with `target`, the contract, then read `memory`.

```
 target      the contract between a pipeline and its target, and its optional protocols
 definition  the memory target in a configuration
 memory      tables in the engine's memory, readable from any thread
 row_target  the base class of a user's own target, called with one row at a time
 files       targets for replays: lines of JSON, or Parquet files
```
"""
