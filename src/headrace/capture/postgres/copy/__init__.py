"""
Baselines of PostgreSQL's tables: snapshots, page ranges, binary COPY.

It knows the server's catalogue, the decoding of values and the log's schemas, and imports neither
the recorder, which requests a baseline, nor Spark, which may read its ranges.

Begin with the docstring of `snapshot`: it defines the positions F and H and the snapshot S, which
decide which changes belong to a baseline, and the other modules rely on them.

```
 snapshot  the snapshot that all rows are read under, kept alive as long as it is needed
 ranges    a table cut into ranges of pages, and the checks that none was rewritten
 plan      a baseline as ranges that any process may read, and a copy that may have to wait
 reader    reads rows by COPY in binary format, and splits them column by column
```
"""
