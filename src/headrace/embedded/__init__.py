"""
Embedded servers for the demo and for tests: no installation, no root, loopback only.

Imports only `errors`, and only `cli` may import it: no part of an engine depends on a server that
was started here. Such a server must not hold important data, because it runs with `fsync = off`.

Begin with `postgres`.

```
 binaries  finds the programs of a PostgreSQL server, and the user to run them
 postgres  a PostgreSQL server, set up for logical replication, from start to stop
```
"""
