"""When a position that moved without a change enters the index (R34)."""

from __future__ import annotations

HEARTBEAT_SECONDS = 10.0
"""So often at most: idle days shall leave few entries."""

HEARTBEAT_BYTES = 16 << 20
"""Unless the source, whose commits are numbered by bytes, could let go of so much at once."""


def due(end: int, moved: int, *, wanted: int, waited: float, counts_bytes: bool) -> bool:
    """
    Whether the log's end is to follow from commit `end` to `moved`, `waited` seconds after it did.

    `wanted` is a commit that somebody waits for the log to come to; 0: nobody does.
    """
    if end < wanted <= moved or waited >= HEARTBEAT_SECONDS:
        return True
    return counts_bytes and moved - end > HEARTBEAT_BYTES
