"""
The change log as a source of Spark's own: `format("headrace")` (S11).

A DataFrame of the changes of one table, for people who write their own queries. Nothing here runs
an engine: the log's files are read as they lie, by the executors, and what is decided on the driver
is decided from the log's index alone. It may import `pipeline` and what is below it.

Begin with `source`, which is what Spark calls, then follow a query from `options` to `slices`.

```
 source   what Spark finds by the name `headrace`: the source, and its readers
 options  the options of a query, checked once, and the log that they lead to
 offsets  how far a query is, where it begins, and where it goes on to
 plan     what lies between two places of the log, as slices of its segments
 where    which rows are wanted, in SQL, decided before they reach Spark
 slices   reading a slice on an executor: the rows of a frame that one segment holds
 columns  the columns of a frame, and the form that older segments are brought into
 leases   named queries, for which the log keeps what they have not read yet (R27)
```
"""
