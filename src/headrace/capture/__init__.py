"""
Capture: from a source into the change log, one recorder a source.

It may import `errors`, `config`, `storage`, `changelog`, `observe` and `tables`. It knows nothing
of Spark, pipelines or targets: what it writes to the log is all that later stages see.

Begin with `source`, the contract that every source implements, then read `recorder`, the loop that
calls it.

```
 source           the contract between a source and the recorder that reads it
 registry         the kinds of sources, and how one is built in a process of its own
 waker            a wait that another thread or a signal handler can end
 table_selection  which tables are captured: those named, and those that patterns match
 postgres/        PostgreSQL as a source
 sqlite/          SQLite as a source, and as a library without an engine
 recorder         the step machine that reads a source and is the only writer of its log
 baselines        the baselines a recorder was asked for: waiting, being copied, finished
 log_maintenance  pruning, compaction and folding of the log, a piece between two reads
 messages         what engine and recorder send each other: length-prefixed JSON
 process          supervision of a recorder, in a process of its own or on a thread
```
"""
