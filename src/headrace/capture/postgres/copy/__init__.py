"""
Baselines of PostgreSQL's tables: snapshots, page ranges, binary COPY.

It knows the server's catalogue, the decoding of values and the log's schemas, and imports neither
the recorder, which asks for a baseline, nor Spark, which may read its ranges.

Begin with the docstring of `snapshot`: the marks F, S and H that it defines decide which changes
belong to a baseline, and the other modules rely on them.

```
 snapshot  the snapshot that all rows are read under, kept alive as long as it takes
 ranges    a table cut into ranges of pages, and the checks that none was rewritten
 plan      a baseline as ranges that any process may read, and a copy that may have to wait
 reader    rows by COPY in binary format, taken apart column by column
```
"""
