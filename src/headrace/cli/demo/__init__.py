"""
`headrace demo`: a shop, its changes, and where they go, to look at.

It may import what `cli` may: here that includes `embedded` for a PostgreSQL server, and psycopg and
sqlite3 for the shop's own statements. The pipeline is written as a user would write it. The shop's
writer is a process of its own, and `goods` knows nothing of Headrace, as an application would not.

Begin with `model`, the shop and the snapshots as all other modules see them, then `session`.

```
 model          the shop, the frozen values that are shown, and what a run consists of
 goods          what is bought and how orders change: plain statements for any database
 sqlite_shop    the shop as a SQLite file; run as a module, its writer
 postgres_shop  the shop in a PostgreSQL server of the demo's own; run as a module, its writer
 shops          which of the two a demo has, and the writer's loop, which keeps changing it
 session        one run: shop, engine, writer, view, and the comparison of both ends
 lines          snapshots as lines of text and of JSON
 screen         snapshots as one picture on a terminal, redrawn a few times a second
 command        the verb: options, the choice of a view, the exit code, the pipeline
```

`session` makes the snapshots, places the one order that goes wrong on purpose, and at the end says
whether both ends are equal. `lines` and `screen` are pure functions from snapshots to text.
"""
