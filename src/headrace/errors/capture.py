"""Errors of sources, and of what reads them."""

from __future__ import annotations

from headrace.errors.base import HeadraceError


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
