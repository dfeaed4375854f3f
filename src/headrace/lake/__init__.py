"""
Tables of a lake as targets: `hr.table("lake.orders", format="delta", mode="merge")`.

```
 Batch ─▶ net changes by key ─▶ a frame ─▶ one commit of the table's own ─▶ position
 baseline ─▶ staged Parquet ─▶ with what changed since ─▶ one commit that replaces the table
```

Each batch is one commit of the table, and the batch's position stands in that very commit:
so what the table shows and how far it is cannot differ, whatever dies in between. The commit
has a number, one above the last, which only one writer can get (R24). `rows` and `sql`
are pure, and so are the names and notes in `history`; `formats` says what a format can do and
what Spark needs for it; `delta`, `iceberg` and `parquet` are the formats, and another one is
another such module.
"""
