"""
`headrace demo`: a shop, its changes, and where they go, to look at.

It may import what `cli` may: here that includes `embedded` for a PostgreSQL server, and psycopg and
sqlite3 for the shop's own statements. The pipeline is written as a user would write it. The shop's
writer is a process of its own, and `goods` knows nothing of Headrace, as an application would not.

The engine runs as that of `headrace run` does, and is shown as `headrace top` shows it. `status`,
`top`, `query` and `watch` with `--data headrace-demo` work while the demo runs.

```
 command        the verb: options, the choice of a view, the exit code, the pipeline
 session        one run: shop, engine, writer, view, and the comparison of both ends
 view           a run as lines of text and of JSON, and as a picture on a terminal
 shops          the shop in either database, and the writer, which keeps changing it
 goods          what is bought and how orders change: plain statements for any database
 sqlite_shop    the shop as a SQLite file; run as a module, its writer
 postgres_shop  the shop in a PostgreSQL server of the demo's own; run as a module, its writer
```
"""
