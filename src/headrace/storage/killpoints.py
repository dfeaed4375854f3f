"""
Named places where a test may kill the process.

A crash test is only as good as the instants it can hit. Each of them is a name here, and
the code that passes it says so with `reach`, which does nothing unless the environment
arms that name: `HEADRACE_KILL_POINT="entry_linked:3"` kills this process, without any
clean-up, the third time it comes by (P2).

A recorder that was killed is started again with the same environment. So that it is not
killed for ever, `HEADRACE_KILL_ONCE` may name a file, the token: whoever comes to the
armed point takes it away first, and dies only if it was there. A test sees by the missing
token that the point was hit.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

SEGMENT_WRITTEN = "segment_written"
"""A flush's segments are synced, its entry does not exist."""

ENTRY_LINKED = "entry_linked"
"""An entry is visible, its folder not synced."""

ENTRY_SYNCED = "entry_synced"
"""An entry is durable, and nobody has been told."""

BEFORE_CHECKPOINT = "before_checkpoint"
"""The entry that owes a checkpoint is durable, the checkpoint not begun."""

LOG_PRUNED = "log_pruned"
"""The entry that drops what nobody needs is durable, and no file is deleted."""

CHANGES_READ = "changes_read"
"""A source gave changes, and nothing of them is on disk."""

BEFORE_ACKNOWLEDGE = "before_acknowledge"
"""Everything is durable, and the source has not been told."""

BASELINE_CHUNK = "baseline_chunk"
"""A part of a baseline is written, the baseline not finished."""

BASELINE_FINISHED = "baseline_finished"
"""A baseline's entry is durable, and nobody has been told."""

BASELINE_LOADED = "baseline_loaded"
"""A target has all rows of a baseline beside its table, and has not switched to them."""

JOB_DONE = "job_done"
"""A batch is computed, and the target has nothing of it."""

TARGET_WRITTEN = "target_written"
"""A target has taken a batch, and the engine has not noted it."""

LETTERS_STORED = "letters_stored"
"""Dead letters are durable, and the target has nothing of the batch."""

INTENT_STORED = "intent_stored"
"""A batch's intent is durable, and it has had no effect."""

EFFECT_DONE = "effect_done"
"""A target without transactions has had its effect, and progress does not say so."""

TABLE_SWITCHED = "table_switched"
"""A loaded table took the place of the old one, and its state is not stored."""

PART_WRITTEN = "part_written"
"""A task has written its part of a batch or of a baseline, and nobody has its receipt."""

TABLE_COMMITTED = "table_committed"
"""A table of a lake has our commit, and its writer does not know."""

COLUMNS_ADDED = "columns_added"
"""A table of a lake has new columns, and no row that has them."""

TABLE_COMPACTED = "table_compacted"
"""A table of a lake has fewer files, and its batch is not told to be written."""

PUBLICATION_ENSURED = "publication_ensured"
"""What a server is to send is settled, and nothing begins there."""

SLOT_DROPPED = "slot_dropped"
"""A source is reset: its slot is gone, and nothing else has been done."""

PUBLICATION_DROPPED = "publication_dropped"
"""A source is reset: its publication is gone as well, and nothing is made anew."""

SLOT_CREATED = "slot_created"
"""A slot is made, and the log has no entry that begins with it."""

LOG_BEGUN = "log_begun"
"""The entry that history begins with is durable, and nothing is read or copied."""

SNAPSHOT_TAKEN = "snapshot_taken"
"""A snapshot for a copy beside the running stream is held, and no row is read under it."""

COPY_PLANNED = "copy_planned"
"""A baseline is planned for others to copy, and they have not been told."""

BASELINE_COPIED = "baseline_copied"
"""All rows of a baseline are copied, and its entry does not exist."""

POINTS = (
    SEGMENT_WRITTEN,
    ENTRY_LINKED,
    ENTRY_SYNCED,
    BEFORE_CHECKPOINT,
    CHANGES_READ,
    BEFORE_ACKNOWLEDGE,
    BASELINE_CHUNK,
    BASELINE_FINISHED,
    BASELINE_LOADED,
    JOB_DONE,
    TARGET_WRITTEN,
    LETTERS_STORED,
    INTENT_STORED,
    EFFECT_DONE,
    TABLE_SWITCHED,
)
"""Those that every source comes by; a crash run counts how often it hit each."""

POSTGRES_POINTS = (
    PUBLICATION_ENSURED,
    SLOT_CREATED,
    LOG_BEGUN,
    SNAPSHOT_TAKEN,
    COPY_PLANNED,
    BASELINE_COPIED,
)
"""The steps of a hand-over between copy and stream; its own rounds count them (H1 to H3)."""

LAKE_POINTS = (PART_WRITTEN, TABLE_COMMITTED, COLUMNS_ADDED, TABLE_COMPACTED)
"""What happens within a table of a lake; its own rounds count them (R24)."""

_armed, _, _nth = os.environ.get("HEADRACE_KILL_POINT", "").partition(":")
_left = int(_nth or 1)
_token = os.environ.get("HEADRACE_KILL_ONCE")


def reach(name: str) -> None:
    """Come by the point `name`: the end of this process where it is armed, otherwise nothing."""
    global _left
    if name != _armed:
        return
    _left -= 1
    if _left == 0 and _token_taken():
        die()


def die() -> None:
    """End this process without any clean-up."""
    os.kill(os.getpid(), signal.SIGKILL)


def _token_taken() -> bool:
    """Whether this process may die: where there is a token, only the one that removed it."""
    if _token is None:
        return True
    try:
        Path(_token).unlink()
    except FileNotFoundError:
        return False
    return True
