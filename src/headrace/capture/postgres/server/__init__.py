"""
What is queried from a PostgreSQL server, and what is set up on it.

It knows SQL, the catalog and the replication commands. It creates nothing on the server but a
publication and a slot.

Begin with `catalog`, whose description of a table most others use, then read `start_position`: the
decision before every START_REPLICATION.

```
 catalog         tables to capture and the types of their columns, read without locks
 facts           a server's version and settings, and the user's privileges
 preflight       all problems that prevent an exact capture of a table, with remedies
 publication     which changes of which tables the server sends
 slot            the replication slot, in which the server remembers how far we have read
 start_position  the start position, and what has to be set up before (R2)
 ddl_watch       changes to tables that the stream does not report
 partitions      partitions that were attached, detached, truncated or dropped (R23c)
 wal_usage       how much WAL a server keeps for our slot, may keep (R28), and is not read
 doctor          what users can find out about a database: tables, settings, sample rows
```
"""
