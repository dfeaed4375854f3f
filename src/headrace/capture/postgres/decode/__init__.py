"""
From pgoutput's messages to columns of Arrow.

It knows bytes, the catalogue's description of columns, and the log's schemas and values. It reads
from no connection: `stream` hands it buffers of whole messages, `copy` hands it binary fields.

Begin with `pgoutput`, which says what the messages are, then read `rows`: most are changes.

```
 pgoutput   kinds of messages, readers of those that are few, layouts of rows
 relations  the relations that the server has described, and the changes that refer to them
 rows       changes found in messages a column at a time, and made a segment of the log
 text       columns of text values, as the stream sends them
 binary     columns of binary values, as a copy sends them
```

`text` and `binary` have the same result for the same value: a row that was copied and a row that
was streamed must not differ (R18).
"""
