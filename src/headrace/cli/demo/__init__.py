"""
`headrace demo`: a shop whose changes are captured and shown live.

It may import what `cli` may. That includes `embedded` for a PostgreSQL server, and psycopg and
sqlite3 for the shop's own statements. The pipeline is written as a user would write it. The shop's
writer is a separate process, and `goods` knows nothing of Headrace, like any application.

The engine runs as in `headrace run`, and is shown as in `headrace top`. `status`, `top`, `query`
and `watch` with `--data headrace-demo` work while the demo runs.

```
 command        the verb: options, the choice of a view, the exit code, the pipeline
 session        one run: shop, engine, writer, view, and the comparison of source and target
 view           a run as lines of text or JSON, and as a live view on a terminal
 shops          the shop in either database, and the writer, which keeps changing it
 goods          what is bought and how orders change: plain statements for any database
 sqlite_shop    the shop as a SQLite file; run as a module, its writer
 postgres_shop  the shop in the demo's own PostgreSQL server; run as a module, its writer
```
"""
