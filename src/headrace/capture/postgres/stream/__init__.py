"""
The replication stream: transport, transactions, spilling.

It knows the replication protocol and the boundaries of transactions, and uses `decode` for the
contents of messages. It knows neither the log's writer nor the recorder.

Begin with `stream`, where `ReplicationStream` puts the transport together, then read
`transactions`, which builds commits from the messages that it returns.

```
 wire          reads messages from a connection, by libpq or directly from the socket
 stream        the stream as complete messages in one buffer, and the status updates to the server
 spill         messages of transactions that have not ended, in memory or in scratch files
 transactions  commits, built from the messages, with the ordinals of their changes
```

A position is known only when its transaction commits (R3), so no change leaves this package
before that.
"""
