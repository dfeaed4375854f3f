"""
The change log as a Spark data source: `format("headrace")` (S11).

It returns the changes of one table as a DataFrame, for users who write their own queries. No engine
is needed: executors read the files of the log directly, and the driver plans with the log's index
alone. This package may import `pipeline` and what is below it.

Begin with `source`, which Spark calls, then follow a query from `options` to `slices`.

```
 source   the data source `headrace` and its readers, as Spark calls them
 options  the options of a query, checked once, and the log that they point to
 offsets  how far a query is, where it begins, and where its next batch ends
 plan     the changes between two positions, as slices of the log's segments
 where    the option `where`: a condition in SQL, evaluated before rows reach Spark
 slices   reading a slice on an executor: the rows of a frame that one segment holds
 columns  the columns of a frame, and how older segments are converted to them
 leases   named queries, for which the log keeps what they have not read yet (R27)
```
"""
