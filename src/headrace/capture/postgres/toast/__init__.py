"""
Large values that the server does not send again.

PostgreSQL leaves a large value out of an update that did not change it. If the table's replica
identity is not FULL, nothing else in the stream has the value, so it is taken from a store (R21).
The package knows decoded changes, the catalogue and the snapshot of a baseline.

Begin with `unchanged_values`, which completes the changes; it takes the values from `store`.

```
 unchanged_values  completes changes with the values that the server left out
 store             versions of those values by table and key, each with its commit
```

The store is a cache that a baseline fills again, but its values must be exact, also when changes
are read a second time after a crash.
"""
