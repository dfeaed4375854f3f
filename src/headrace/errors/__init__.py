"""
Everything this package raises on purpose.

* HeadraceError
  + StorageError             bytes could not be kept or read back
    - StorageFull              no room left
    - AlreadyStored            somebody else created the file first
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
    - SlotBusy                 somebody reads from it: tried again
    - SlotTimeout              older transactions did not end in time
    - StillRunning, RunTwice   a capture has one run, and is left alone during it
    - SchemaChanged            a table has other columns than it was recorded with
    - BadMessage               bytes that are no message
    - OtherDatabase            the source is not the one the log was recorded from
    - RecorderFailed           the recorder stopped on something it cannot mend
  + TableError               rows of a table in memory
    - NoKey, NullKey, UnknownIndex, NotUnique, UnknownTable, FellBehind
  + PipelineError            a batch on Spark
    - UnknownColumn, BadExpression, BadTransform
    - UnsentColumn             a step reads what a change may come without
    - BadFunction, BadFrame    the user's own code gives what it may not
    - ColumnsChanged           a table has other columns, and the pipeline stops then
    - Truncated                a table was emptied, and its reader is told
    - RowFailed                a row that cannot be computed
    - TooManyFailed            more such rows in a batch, or more keys, than were allowed
    - CorruptLetters           a file of dead letters is not as it was written
    - JobFailed                Spark failed, and no row is to blame
    - JobCancelled             somebody ended the job: pause, stop or a time limit
    - SparkGone                the JVM is dead
    - NoJava, SparkFailed
    - BadCluster               executors cannot read the log, or have other versions
    - CannotPack               an environment that cannot be given to executors
    - BadTable, TableTaken     a table of a lake that cannot be kept so, or is another's
  + TargetError              a target could not take a batch
    - FunctionFailed           the user's function for a batch raised
    - UnknownValue             a value that did not change was not sent, and is not known here
  + ControlError             the engine
    - Locked                   another engine holds the data directory
    - Fenced                   another engine took over
    - BadDataDirectory, BadName, NotRunning
    - NoEngine                 nobody takes commands for a data directory
    - Outdated                 what was agreed to is not what would happen any more
    - UnknownPipeline, BadRequest
    - ChangesMissing           the log has a gap, and this pipeline takes no baseline
    - SetAside                 it held back more than its source has room for
    - InvalidConfiguration     every error of a configuration, together
  + SettingError             a value of a configuration
    - UnknownKey, MissingKey, WrongType, WrongValue
    - UnknownPart, BadPart     a type nobody provides, or one that cannot be used
    - Unused                   a part that nothing uses: a warning
    - InlineSecret, NoSecret   a password written out, and a reference that leads nowhere
    - ConfigText               the text of a configuration: ConfigSyntax, ConfigUnresolved,
                               ConfigUnreadable

Spark carries no exception out of a worker. Class and attributes are lost, and only
the text arrives, inside an error of Spark's own. So the text of our errors begins
with their code, and `code_in` finds it again.
"""

from __future__ import annotations

from headrace.errors.base import (
    HeadraceError,
    all_errors,
    code_in,
)
from headrace.errors.capture import (
    BadMessage,
    CaptureError,
    NoIdentity,
    NoRoom,
    NotPermitted,
    OtherDatabase,
    PublicationRefused,
    RecorderFailed,
    RunTwice,
    SchemaChanged,
    ServerRefused,
    SlotBusy,
    SlotRefused,
    SlotTimeout,
    SourceRefused,
    SourceUnreachable,
    StillRunning,
    TableRefused,
)
from headrace.errors.config import (
    ConfigSyntax,
    ConfigText,
    ConfigUnreadable,
    ConfigUnresolved,
)
from headrace.errors.control import (
    BadDataDirectory,
    BadName,
    BadRequest,
    ChangesMissing,
    ControlError,
    Fenced,
    InvalidConfiguration,
    Locked,
    NoEngine,
    NotRunning,
    Outdated,
    SetAside,
    UnknownPipeline,
)
from headrace.errors.pipeline import (
    BadCluster,
    BadExpression,
    BadFrame,
    BadFunction,
    BadTable,
    BadTransform,
    CannotPack,
    ColumnsChanged,
    CorruptLetters,
    FellBehind,
    FunctionFailed,
    JobCancelled,
    JobFailed,
    NoJava,
    NoKey,
    NotUnique,
    NullKey,
    PipelineError,
    RowFailed,
    SparkFailed,
    SparkGone,
    TableError,
    TableTaken,
    TargetError,
    TooManyFailed,
    Truncated,
    UnknownColumn,
    UnknownIndex,
    UnknownTable,
    UnknownValue,
    UnsentColumn,
)
from headrace.errors.settings import (
    BadPart,
    InlineSecret,
    MissingKey,
    NoSecret,
    SettingError,
    UnknownKey,
    UnknownPart,
    Unused,
    WrongType,
    WrongValue,
)
from headrace.errors.stored import (
    AlreadyStored,
    BadPosition,
    BadSchema,
    BadValue,
    ChangeLogError,
    CorruptIndex,
    CorruptSegment,
    LostLog,
    OtherSource,
    PositionExpired,
    ReaderTaken,
    StorageError,
    StorageFull,
    UnknownFormat,
    UnsafeStorage,
)

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
