"""
Where reading begins: the decision before every START_REPLICATION (R2).

A server never refuses a wrong place to start from. Below what was confirmed it silently
moves forward, above the end of its log it silently skips all that comes before. So the
place is worked out here, from what the log has and what the server says, and there are
four outcomes: reading goes on at the log's end; changes are gone (a gap); the server no
longer has what the log holds (it was rewound); or this is another database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from headrace.capture.postgres.place import Place, lsn_text
from headrace.capture.postgres.slots import Identity, Slot, SlotState, Switch, state
from headrace.errors import OtherDatabase, SlotBusy, SlotRefused


class Reason(StrEnum):
    """Why every table is read anew; each a code that is shown and logged."""

    FIRST = "capture.first_start"
    EPHEMERAL = "capture.ephemeral"
    ALWAYS = "capture.always_baseline"
    GAP = "capture.gap"
    """The slot was moved on beyond the log's end: what lies between is gone."""

    REWOUND = "capture.rewound"
    """The log has commits that the server no longer has."""

    ABSENT = "capture.slot_absent"
    LOST = "capture.slot_lost"
    CONFLICTING = "capture.slot_conflicting"
    INVALIDATED = "capture.slot_invalidated"


_GONE = {
    SlotState.ABSENT: Reason.ABSENT,
    SlotState.LOST: Reason.LOST,
    SlotState.CONFLICTING: Reason.CONFLICTING,
    SlotState.INVALIDATED: Reason.INVALIDATED,
}


@dataclass(frozen=True, slots=True)
class Resume:
    """The slot has everything after `at`: the log's end, on the server's timeline."""

    at: Place


@dataclass(frozen=True, slots=True)
class Begin:
    """A new slot is made and every table baselined (H1)."""

    reason: Reason
    branch: int
    """Of the places to come; one more than the log's where the server was rewound."""

    drop: bool
    """Whether the slot that is there has to go first."""


def decide(
    after: Place | None,
    server: Identity,
    slot: Slot | None,
    history: Sequence[Switch] = (),
    *,
    ephemeral: bool = False,
    always_baseline: bool = False,
    intended: bool = False,
    other: bool = False,
) -> Resume | Begin:
    """
    Say how reading goes on after `after`, the log's end; None where the log has no start.

    `history` is that of the server's timeline; it is looked at only where the log's end is
    on another one. `intended`: the log says that the slot is one we were making when we
    died. `always_baseline` is for the first start of a process, not for its reconnects.
    `other`: the server was asked, and its history is not the log's, however long it is.

    Raises `OtherDatabase`, `SlotRefused` where the slot is somebody else's, and `SlotBusy`.
    """
    check_database(after, server)
    rewound = after is not None and (other or _rewound(after, server, history))
    branch = 0 if after is None else after.branch + rewound
    if ephemeral:
        # A slot of that name is not ours to drop: a temporary one ends with its reader.
        reason = Reason.FIRST if after is None else Reason.EPHEMERAL
        return Begin(Reason.REWOUND if rewound else reason, branch, drop=False)
    found = state(slot, server.database)
    refuse(slot, found)
    drop = slot is not None
    if after is None:
        if slot is not None and not intended:
            raise unknown(slot)
        return Begin(Reason.FIRST, branch, drop)
    if rewound:
        return Begin(Reason.REWOUND, branch, drop)
    if slot is None or found in _GONE:
        return Begin(_GONE[found], branch, drop)
    if slot.confirmed is None or slot.confirmed > after.lsn:
        return Begin(Reason.GAP, branch, drop)
    if always_baseline:
        return Begin(Reason.ALWAYS, branch, drop)
    return Resume(replace(after, timeline=server.timeline))


def check_database(after: Place | None, server: Identity) -> None:
    """Raise `OtherDatabase` where the log that ends at `after` is not of this one."""
    if after is not None and (after.system, after.database) != (server.system, server.database):
        raise OtherDatabase(
            "Server is not the one the log was recorded from",
            recorded=f"{after.system}/{after.database}",
            found=f"{server.system}/{server.database}",
        )


def _rewound(after: Place, server: Identity, history: Sequence[Switch]) -> bool:
    """Whether the log holds commits that the server does not have."""
    if after.lsn > server.flushed:
        return True
    if after.timeline == server.timeline:
        return False
    ends = {switch.timeline: switch.at for switch in history}
    # A timeline the server never was on shares at most its beginning with ours.
    return after.timeline not in ends or ends[after.timeline] < after.lsn


def refuse(slot: Slot | None, found: SlotState) -> None:
    """Raise where a slot is not ours to read or drop, or is being read."""
    if slot is None:
        return
    match found:
        case SlotState.OTHER_PLUGIN:
            raise SlotRefused(
                "Slot is of another plugin", slot=slot.name, plugin=slot.plugin or "physical"
            )
        case SlotState.OTHER_DATABASE:
            raise SlotRefused(
                "Slot is of another database", slot=slot.name, database=slot.database_name
            )
        case SlotState.BUSY:
            raise SlotBusy("Somebody reads from the slot", slot=slot.name, pid=slot.reader)


def unknown(slot: Slot) -> SlotRefused:
    """Return that there is a slot which nothing says is ours."""
    confirmed = None if slot.confirmed is None else lsn_text(slot.confirmed)
    return SlotRefused(
        "A slot of that name is there, and the log knows nothing of it",
        slot=slot.name,
        confirmed=confirmed,
        remedy="Name another slot for this source; or, if nobody needs it any more, run"
        f" SELECT pg_drop_replication_slot('{slot.name}').",
    )
