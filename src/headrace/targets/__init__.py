"""
Targets: where changes are brought to.

It may import `errors`, `config`, `storage`, `changelog`, `observe` and `tables`. It knows neither
sources nor Spark: a target is given rows in position order, and what its `write` returns is the
only thing that moves a pipeline's progress (invariant 2). Tables of a lake need Spark and are in
`lake`.

Begin with `target`, the contract, then read `memory`.

```
 target      the contract between a pipeline and its target, and all that a target may do besides
 definition  the memory target in a configuration
 memory      tables in the engine's own memory, to read from any thread
 row_target  targets of a user's own, called with one row at a time
 files       targets for replays: lines of JSON, or Parquet files
```
"""
