"""
Servers of our own, for the demo and for tests: no installation, no root, loopback only.

It may import `errors` alone, and only `cli` may import it: no part of an engine depends on a server
that was started here. Nothing that matters may be kept in such a server, because it does not wait
for the disk.

Begin with `postgres`.

```
 binaries  the programs of a PostgreSQL server: where they are, and which user runs them
 postgres  a PostgreSQL server, set up for logical replication, from start to stop
```
"""
