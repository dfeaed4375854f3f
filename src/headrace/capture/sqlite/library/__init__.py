"""
The SQLite capture as a separate library that passes records to handlers.

It imports the modules of `capture/sqlite` that deal with the database, and `errors`. It uses
neither the change log nor Arrow nor Spark, so a program that embeds it loads none of them.

Begin with `capture`: its class `Capture` is what a user calls, and its docstring says when a batch
counts as acknowledged.

```
 leases        one process at a time for each reader and table
 readers       the cursors of each reader: in the database, a row for each table
 retention     what the log keeps for readers, and the way back in it
 records       what a handler receives: batches, the records in them, and their JSON
 dead_letters  records that a handler refused, in a file of their own
 run           one run: open, copy, follow, acknowledge, close
 handlers      handlers that come with the library: lines of text, lines of JSON, HTTP
 capture       `Capture`: set-up, `bootstrap`, `cdc`, and removal
```
"""
