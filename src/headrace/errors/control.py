"""Errors of the engine and its configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from headrace.errors.base import HeadraceError


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
