"""What a writer looks at before it takes a log, and what it sweeps once the log is its own."""

from __future__ import annotations

from headrace.changelog.history import History
from headrace.errors import LostLog, OtherSource
from headrace.storage.files import Files


def check_taker(history: History, origin: str, term: int, folder: str) -> None:
    """Raise `OtherSource` or `LostLog` where a log is not to be taken by this writer."""
    if kind(history.first_origin) not in ("", kind(origin)):
        raise OtherSource(
            "Log was recorded from another source",
            folder=folder,
            recorded=kind(history.first_origin),
            given=kind(origin),
        )
    if history.term > term:
        raise LostLog(
            "A later writer has taken this log", folder=folder, term=term, later=history.term
        )


def sweep(segments: Files, history: History) -> None:
    """Remove segments that no entry ever named; those that were dropped of late have a lease."""
    leased = {name for _, names in history.retired for name in names}
    segments.remove_many(sorted(set(segments.list("")) - history.names() - leased))


def kind(origin: str) -> str:
    """Return the kind of source in an origin: what stands before the colon."""
    return origin.partition(":")[0]
