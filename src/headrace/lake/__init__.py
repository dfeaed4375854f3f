"""
Lake tables as targets: `hr.table("lake.orders", format="delta", mode="merge")`.

```
 Batch ─▶ net changes by key ─▶ a frame ─▶ one commit of the table ─▶ position
 baseline ─▶ staged Parquet ─▶ with the changes since ─▶ one commit that replaces the table
```

Each batch is one commit of the table, and the batch's position is in the same commit. So the rows
and the position of a table cannot differ, whatever crashes in between. Each commit has a number,
one above the last, which only one writer can get (R24).

It may import `pipeline`, `deadletters`, `spark_source` and what is below them. No other package
imports it: it is one target among others, by the protocols of `targets.target`. Begin with
`target`, then read `table`, the writer of one table.

```
 definition   a lake table in a configuration
 formats      what a format can do, and what Spark needs for it, known before the start
 target       the target: its modes `merge`, `append` and `history`, and its tables
 rows         the rows of a commit, made from a batch with Arrow; pure
 sql          the SQL of a commit; pure, runs nothing
 parts        rows that executors prepare: one part for each task, with a receipt
 staged_load  a baseline staged in files, and the commit that makes them the table
 table        one table and its writer: a commit for each batch, read back if its outcome is unknown
 delta        the format Delta; another format is another such module
 iceberg      the format Iceberg
 parquet      plain Parquet: every change as a row, one file for each batch
 history      a table's location, its commits, and whether other writers changed it
 memory       our last commit to each table, stored between two runs of a target
```

The locations and notes in `history` are pure, too.
"""
