"""
Tables of a lake as targets: `hr.table("lake.orders", format="delta", mode="merge")`.

```
 Batch ─▶ net changes by key ─▶ a frame ─▶ one commit of the table's own ─▶ position
 baseline ─▶ staged Parquet ─▶ with what changed since ─▶ one commit that replaces the table
```

Each batch is one commit of the table, and the batch's position stands in that very commit: so what
the table shows and how far it is cannot differ, whatever dies in between. The commit has a number,
one above the last, which only one writer can get (R24).

It may import `pipeline`, `deadletters`, `spark_source` and what is below them. No other package
imports it: it is one target among others, by the protocols of `targets.target`. Begin with
`target`, then read `table`, the writer of one table.

```
 definition   a table of a lake in a configuration
 formats      what a format can do, and what Spark needs for it, known before a start
 target       the target: its modes `merge`, `append` and `history`, and its tables
 rows         the rows of a commit, as Arrow makes them of a batch; pure
 sql          the SQL of a commit; pure, nothing is run there
 parts        rows that executors prepare: a part a task, and a receipt of it
 staged_load  a baseline staged in files, and the commit that makes them the table
 table        one table and its writer: one commit a batch, read back if its outcome is unknown
 delta        the format Delta; another format is another such module
 iceberg      the format Iceberg
 parquet      plain Parquet: every change as a row, a file a batch
 history      a table's location, its commits, and whether it is as it was left
 memory       which commit of ours was the last, remembered between two lives of a target
```

The names and notes in `history` are pure too.
"""
