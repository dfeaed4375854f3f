"""
What is asked of a PostgreSQL server, and what is set up on it.

It knows SQL, the catalogue and the replication commands. It installs nothing on the server but a
publication and a slot.

Begin with `catalog`, whose description of a table most others use, then read `start_position`: the
decision before every START_REPLICATION.

```
 catalog         tables to capture and the types of their columns, read without locks
 facts           what a server reports of itself, its settings and our rights
 preflight       everything that keeps a table from being captured exactly, with remedies
 publication     which changes of which tables the server sends
 slot            the replication slot: the server's memory of how far we have read
 start_position  where reading begins, and what has to be done for it (R2)
 ddl_watch       changes to tables that the stream does not report
 partitions      partitions that were attached, detached, emptied or dropped (R23c)
 wal_usage       how much of its log a server keeps for our slot, and how much it may (R28)
 doctor          what can be found out about a database, for people: tables, settings, rows
```
"""
