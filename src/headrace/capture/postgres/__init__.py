"""
PostgreSQL as a source: its slot, its publication, its stream and its tables.

Like all of `capture`, it knows the log and nothing after it. psycopg may be imported here; outside
of this package only `embedded` and the demo import it.

Begin with `source`: it implements the contract of `capture/source.py` and connects all other
parts. A change passes through `stream`, `decode` and `toast`, in this order.

```
 definition  a source as a user defines it: a call in Python, or a configuration
 options     its options as plain values: table names, settings, passwords
 connection  connections with fixed session settings, statements, the meaning of errors
 server/     what is read from the server's catalog, and what is set up on the server
 position    a position in the write-ahead log, and on which branch of it
 stream/     the replication stream, assembled into whole commits
 decode/     messages of pgoutput to columns of Arrow
 toast/      large values that the server does not send again
 copy/       baselines: a table's rows under one snapshot
 source      the source itself
```
"""
