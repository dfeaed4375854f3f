"""
Where the simulation takes hold of the product.

Every kill point calls back here, and a few limits are made small, so that a handful of
rows is enough to cut a commit in parts, spill it, or fill a checkpoint. All of it is put
back at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

from headrace.capture import log_maintenance, recorder
from headrace.capture import recorder as synced
from headrace.changelog import compaction, index, writer
from headrace.changelog import compaction as folding
from headrace.changelog import writer as baseline
from headrace.corrections import journal
from headrace.runtime import retention
from headrace.storage import killpoints

LIMITS: Mapping[str, tuple[ModuleType, str]] = {
    "read_rows": (recorder, "READ_ROWS"),
    "flush_rows": (recorder, "LIMIT_ROWS"),
    "remembered": (synced, "MOST_REMEMBERED"),
    "spill_bytes": (writer, "LIMIT_BYTES"),
    "checkpoint_every": (index, "CHECKPOINT_EVERY"),
    "part_bytes": (baseline, "PART_BYTES"),
    "least_flushes": (compaction, "LEAST_FLUSHES"),
    "work_seconds": (log_maintenance, "LOOK_SECONDS"),
    "fold_seconds": (log_maintenance, "FOLD_SECONDS"),
    "fold_bytes": (folding, "LEAST_BYTES"),
    "fold_rows": (folding, "MOST_ROWS"),
    "fold_share": (folding, "SHARE"),
    "care_seconds": (retention, "LOOK_SECONDS"),
    "journal_notes": (journal, "NOTES"),
}
"""Constants of the product that a seed may make smaller."""

_on_point: Callable[[str], None] | None = None


def _reached(name: str) -> None:
    if _on_point is not None:
        _on_point(name)


@contextmanager
def staged() -> Iterator[None]:
    """Let kill points call back."""
    modules = [
        module
        for name, module in sys.modules.items()
        if name.startswith("headrace.") and getattr(module, "reach", None) is killpoints.reach
    ]
    before = killpoints.reach
    # By name in every module: they import the function, not the module.
    for module in modules:
        module.__dict__["reach"] = _reached
    try:
        yield
    finally:
        for module in modules:
            module.__dict__["reach"] = before


@contextmanager
def played(on_point: Callable[[str], None], limits: Mapping[str, int]) -> Iterator[None]:
    """Send kill points to `on_point`, with these limits, for one seed."""
    global _on_point
    kept = {name: vars(LIMITS[name][0])[LIMITS[name][1]] for name in limits}
    _on_point = on_point
    for name, value in limits.items():
        setattr(*LIMITS[name], value)
    try:
        yield
    finally:
        _on_point = None
        for name, value in kept.items():
            setattr(*LIMITS[name], value)
