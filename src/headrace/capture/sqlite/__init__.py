"""
Capture from SQLite by triggers that write into one log table beside the data.

`Capture` is the library: a handler, batches of records, no Spark and no JVM. The engine reads the
same log through `source`. Both know the log table; only `source`, `copy` and what they use know
Headrace's change log. The names below are the public interface of the library.

Begin with `triggers`, which says what is put into the user's database, then read `source`.

```
 definition  a SQLite source in a configuration
 database    connections, errors, our names in a database, places in its log
 tables      the user's tables: their columns, whether they can be captured exactly, their rows
 triggers    the log table and the triggers, their set-up and removal
 resume      the place to read on from, and whether changes are missing there
 watch       detection of commits by other processes, and how a capture waits for them
 arrow_rows  rows as SQLite returns them, made into Arrow
 copy        a baseline in chunks along the key, while the application writes (R43)
 source      a SQLite database as a source of the engine
 library/    `Capture`: the same log without an engine
```
"""

from headrace.capture.sqlite.library.capture import Capture, TornDown
from headrace.capture.sqlite.library.records import CaptureBatch as Batch
from headrace.capture.sqlite.library.records import Record
from headrace.capture.sqlite.watch import Combined, External, FileWatch
from headrace.capture.sqlite.watch import PollInterval as Interval

__all__ = [
    "Batch",
    "Capture",
    "Combined",
    "External",
    "FileWatch",
    "Interval",
    "Record",
    "TornDown",
]
