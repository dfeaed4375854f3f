"""Whether a later writer has taken a log, as its index says now, not as it was last read."""

from __future__ import annotations

from headrace.changelog.index import Index
from headrace.errors import PositionExpired
from headrace.storage.files import Files


def overtaken(files: Files, source: str, after: int, term: int) -> bool:
    """
    Return whether an entry beyond `after` is of a higher term than `term`.

    A writer claims the next number as soon as it opens a log, so this is known before its first
    change. Costs two requests where nothing is beyond; `files` is the data directory.
    """
    index = Index(files.within(f"log/{source}/index"))
    index.last = after
    try:
        return any(entry.term > term for entry in index.refresh())
    except PositionExpired:
        # Far behind: what came since is only in a state by now.
        return Index(files.within(f"log/{source}/index")).history().term > term
