"""Errors of bytes on disk: storage, and the change log in it."""

from __future__ import annotations

from headrace.errors.base import HeadraceError


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
