"""
Capture from SQLite by triggers that write into one log table in the same database.

`Capture` is the library: a handler, batches of records, no Spark and no JVM. The engine reads the
same log through `source`. Both read the log with `capture_log`, and tables with `copy`; only
`source` and `arrow_rows` know Headrace's change log. The names below are the public interface of
the library.

Begin with `triggers`, which describes what is created in the user's database, then read
`capture_log` and `source`.

```
 definition  a SQLite source in a configuration
 database    connections, errors, our names in a database, positions in its log
 tables      the user's tables: their columns, and whether they can be captured exactly
 trigger_sql the text of the triggers of a table
 triggers    the log table and the triggers, their set-up, alteration and removal
 capture_log the readers of the log, the position of each, and the next rows
 copy        the rows of a table in chunks along the key, while the application writes (R43)
 watch       detection of commits by other processes, and how a capture waits for them
 arrow_rows  conversion of SQLite's rows to Arrow; a baseline for the recorder
 source      a SQLite database as a source of the engine
 library/    `Capture`: the same log without an engine
```
"""

from headrace.capture.sqlite.library.capture import Capture, SetUp, TornDown
from headrace.capture.sqlite.library.dead_letters import DeadRecord
from headrace.capture.sqlite.library.records import CaptureBatch as Batch
from headrace.capture.sqlite.library.records import Record
from headrace.capture.sqlite.library.retention import ReaderStatus, Retention
from headrace.capture.sqlite.triggers import alter
from headrace.capture.sqlite.watch import Combined, External, FileWatch
from headrace.capture.sqlite.watch import PollInterval as Interval

__all__ = [
    "Batch",
    "Capture",
    "Combined",
    "DeadRecord",
    "External",
    "FileWatch",
    "Interval",
    "ReaderStatus",
    "Record",
    "Retention",
    "SetUp",
    "TornDown",
    "alter",
]
