"""
Commands to a running engine, from other processes of the same user.

It is above `engine` and may import every package below that; only `cli` and the server on the
network may import it. Begin with `handlers`: it has every verb, with plain values in and out. The
other modules transport a request to it and the answer back:

```
 client       the client of a running engine, over the local socket or the network
 address      an engine's address on the network, connections to it, and why one failed
 connect      the Connect protocol as bytes: paths, JSON messages, envelopes, errors
 server       HTTP/1.1 over a unix socket, one thread for each connection; the path of the socket
 handlers     the verbs: requests and answers as plain values, without a transport
 messages     the status of an engine, as plain values for JSON
 table_reads  rows and changes of a pipeline's target, and their values as JSON
 methods      every call of the services on the network: path, messages, role
 services     the front door for those calls: bytes in and out, without a transport
```

Every transport mounts the same verbs, so that no verb is limited to one transport. The messages of
the services on the network are in `headrace.v1`, generated from `proto/`.
"""
