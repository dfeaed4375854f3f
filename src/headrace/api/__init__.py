"""
Commands to a running engine, from other processes of the same user.

It stands above `engine` and may import every package below that; only `cli` may import it. Begin
with `handlers`: each verb is there, with plain values in and out. The rest brings a request to it
and an answer back:

```
 client       how a command reaches a running engine: its end of the local socket
 connect      the Connect protocol as bytes: paths, JSON messages, envelopes, errors
 server       HTTP/1.1 over a unix socket, one thread a connection, and where the socket lies
 handlers     the verbs: what is asked and answered, as plain values, without a transport
 messages     what an engine reports about itself, as plain values for JSON
 table_reads  rows and changes of a pipeline's target, and their values as JSON
```

Every transport mounts the same verbs, so that none is known to one transport only.
"""
