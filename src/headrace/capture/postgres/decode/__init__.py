"""
Decodes the messages of pgoutput into Arrow columns.

It knows bytes, the catalogue's description of columns, and the log's schemas and values. It does
not read from a connection: `stream` passes it buffers of complete messages, `copy` binary fields.

Begin with `pgoutput`, which defines the messages, then read `rows`: most messages are changes.

```
 pgoutput   kinds of messages, readers of the rare ones, layouts of rows
 relations  the relations that the server has described, and the changes that refer to them
 rows       finds the values of changes, a column at a time, and builds segments of the log
 text       columns of text values, as the stream sends them
 binary     columns of binary values, as a copy sends them
```

`text` and `binary` have the same result for the same value: a copied row and a streamed row must
not differ (R18).
"""
