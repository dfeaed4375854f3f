"""
Capture: from a source into the change log, with one recorder for each source.

It may import `errors`, `config`, `storage`, `changelog`, `observe` and `tables`. It does not know
Spark, pipelines or targets: what it writes to the log is all that later stages see.

Begin with `source`, the contract that every source implements, then read `recorder`, the loop that
calls it.

```
 source           the contract between a source and the recorder that reads it
 registry         the kinds of sources, and how one is built in its own process
 waker            a wait that another thread or a signal handler can end
 table_selection  which tables are captured: those named, and those that patterns match
 postgres/        PostgreSQL as a source
 sqlite/          SQLite as a source, and as a library without an engine
 recorder         the step machine that reads a source and is the only writer of its log
 baselines        the baselines a recorder was asked for: waiting, being copied, finished
 log_maintenance  pruning, compaction and folding of the log, in small pieces between two reads
 messages         the messages between engine and recorder: length-prefixed JSON
 process          supervision of a recorder, in its own process or on a thread
```
"""
