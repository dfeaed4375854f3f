"""
The replication stream: transport, transactions, spilling.

It knows the replication protocol and the bounds of transactions, and uses `decode` for what is
inside a message. It knows neither the log's writer nor the recorder.

Begin with `stream`, where `ReplicationStream` puts the transport together, then read
`transactions`, which makes commits of what it gives out.

```
 wire          messages read from a connection, by libpq or straight from the socket
 stream        the stream as whole messages in one buffer, and the reports to the server
 spill         messages of transactions that have not ended, in memory or in scratch files
 transactions  commits, put together from the messages, with the ordinals of their changes
```

A position is known only when its transaction commits (R3), so no change leaves this package before.
"""
