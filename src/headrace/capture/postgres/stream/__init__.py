"""The replication stream: transport, transactions, spilling."""
