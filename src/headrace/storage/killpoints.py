"""
Named points where a test may kill the process.

A crash test is only as good as the instants it can hit. Each has a name here, and the code calls
`reach` with it, which does nothing unless the environment arms that name:
`HEADRACE_KILL_POINT="entry_linked:3"` kills this process, without any clean-up, the third time
it reaches the point (P2).

A killed recorder is started again with the same environment. So that it is not killed forever,
`HEADRACE_KILL_ONCE` may name a file, the token: the process that reaches the armed point removes
the token first, and dies only if it existed. A missing token shows a test that the point was hit.
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
"""An entry is durable and not reported yet."""

BEFORE_CHECKPOINT = "before_checkpoint"
"""The entry that is due for a checkpoint is durable, the checkpoint not begun."""

LOG_PRUNED = "log_pruned"
"""The entry that drops unneeded segments is durable, and no file is deleted."""

CHANGES_READ = "changes_read"
"""A source returned changes, and none of them is on disk."""

BEFORE_ACKNOWLEDGE = "before_acknowledge"
"""Everything is durable and not acknowledged to the source yet."""

BASELINE_CHUNK = "baseline_chunk"
"""A part of a baseline is written, the baseline not finished."""

BASELINE_FINISHED = "baseline_finished"
"""A baseline's entry is durable and not reported yet."""

BASELINE_LOADED = "baseline_loaded"
"""A target has staged all rows of a baseline, and has not switched to them."""

JOB_DONE = "job_done"
"""A batch is computed, and the target has nothing of it."""

TARGET_WRITTEN = "target_written"
"""A target has written a batch, and progress does not include it."""

DEAD_LETTERS_STORED = "letters_stored"
"""Dead letters are durable, and the target has nothing of the batch."""

CORRECTION_STORED = "correction_stored"
"""A correction is durable, and the dead letters that it applies are not resolved."""

CORRECTION_READY = "correction_ready"
"""The dead letters of a correction are resolved, and the target has nothing of it."""

JOURNAL_CUT = "journal_cut"
"""A checkpoint of a journal of corrections is durable, and what it replaces still exists."""

INTENT_STORED = "intent_stored"
"""A batch's intent is durable, and it has had no effect."""

EFFECT_DONE = "effect_done"
"""A target without transactions has applied a batch, and progress does not include it."""

TABLE_SWITCHED = "table_switched"
"""A loaded table has replaced the old one, and its state is not stored."""

PART_WRITTEN = "part_written"
"""A task has written its part of a batch or baseline, and its receipt is not delivered."""

TABLE_COMMITTED = "table_committed"
"""A lake table has our commit, and the writer has no response yet."""

COLUMNS_ADDED = "columns_added"
"""A lake table has new columns, and no row that has them."""

TABLE_COMPACTED = "table_compacted"
"""A lake table is compacted, and its batch is not reported as written."""

PUBLICATION_ENSURED = "publication_ensured"
"""The publication is ready, and nothing else exists on the server."""

SLOT_DROPPED = "slot_dropped"
"""A source is reset: its slot is dropped, and nothing else is done."""

PUBLICATION_DROPPED = "publication_dropped"
"""A source is reset: its publication is dropped as well, and nothing is recreated."""

SLOT_CREATED = "slot_created"
"""A slot is created, and the log has no entry that begins with it."""

LOG_BEGUN = "log_begun"
"""The entry that history begins with is durable, and nothing is read or copied."""

SNAPSHOT_TAKEN = "snapshot_taken"
"""A snapshot is held for a copy in parallel to the stream, and no row is read under it."""

COPY_PLANNED = "copy_planned"
"""A baseline is planned for executors to copy, and not announced to them."""

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
    DEAD_LETTERS_STORED,
    CORRECTION_STORED,
    CORRECTION_READY,
    JOURNAL_CUT,
    INTENT_STORED,
    EFFECT_DONE,
    TABLE_SWITCHED,
)
"""Points that every source reaches; a crash run counts its hits of each."""

POSTGRES_POINTS = (
    PUBLICATION_ENSURED,
    SLOT_CREATED,
    LOG_BEGUN,
    SNAPSHOT_TAKEN,
    COPY_PLANNED,
    BASELINE_COPIED,
)
"""The steps of the hand-over from copy to stream; separate rounds count them (H1 to H3)."""

LAKE_POINTS = (PART_WRITTEN, TABLE_COMMITTED, COLUMNS_ADDED, TABLE_COMPACTED)
"""Steps within a lake table; separate rounds count them (R24)."""

_armed, _, _nth = os.environ.get("HEADRACE_KILL_POINT", "").partition(":")
_left = int(_nth or 1)
_token = os.environ.get("HEADRACE_KILL_ONCE")


def reach(name: str) -> None:
    """Kill this process if the point `name` is armed; otherwise do nothing."""
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
    """Whether this process may die: if there is a token, only the process that removed it."""
    if _token is None:
        return True
    try:
        Path(_token).unlink()
    except FileNotFoundError:
        return False
    return True
