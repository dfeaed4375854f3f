"""
PostgreSQL as a source: its slot, its publication, its stream and its tables.

Like all of `capture` it knows the log and nothing after it. psycopg may be imported here, and
outside of this package only by `embedded` and the demo.

Begin with `source`: it implements the contract of `capture/source.py` and puts all other parts
together. A change passes through `stream`, `decode` and `toast`, in this order.

```
 definition  a source as a user describes it: a call in Python, or a configuration
 options     its options as plain values: table names, settings, passwords
 connection  connections with fixed session settings, statements, the meaning of errors
 server/     what is read from the server's catalogue, and what is set up on the server
 position    where reading stands in the write-ahead log, and on which branch of it
 stream/     the replication stream, put together to whole commits
 decode/     messages of pgoutput to columns of Arrow
 toast/      large values that the server does not send again
 copy/       baselines: a table's rows under one snapshot
 source      the source itself
```
"""
