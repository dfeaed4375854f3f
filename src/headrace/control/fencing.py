"""
Whether an engine may still bring a source's changes to targets.

The term in the control store keeps two lives of one data directory apart. With the log in a bucket
another engine has another data directory and another term, and only the log itself, which both
write to, tells that it was taken over (R31). Rows of who was taken over from must not go anywhere:
its baselines would put tables back that the other has brought further.
"""

from __future__ import annotations

from headrace.changelog.overtaken import overtaken
from headrace.errors import HeadraceError, LostLog
from headrace.storage.files import Files


class Fence:
    """One source's. Once closed it stays so, until the engine is started again."""

    def __init__(self, source: str = "", files: Files | None = None) -> None:
        """`files` is the data directory; without it, only a recorder tells."""
        self._source = source
        # On a disk, one data directory has one log, and the control store tells as well.
        self._files = None if files is None or files.local else files
        self._why: HeadraceError | None = None
        self.term = 0
        """The term that our recorder writes with."""

    def close(self, why: HeadraceError) -> None:
        """Let nothing pass any more: the log was lost to another writer."""
        self._why = self._why or why

    def look(self) -> None:
        """Raise `LostLog` where it is known that another writer has the log."""
        if (why := self._why) is not None:
            raise LostLog(why.message, remedy=why.remedy, **why.facts)

    def check(self, after: int) -> None:
        """Look, and ask the log itself where it is in a bucket; `after` is our newest entry."""
        self.look()
        files, term = self._files, self.term
        if files is not None and overtaken(files, self._source, after, term):
            self.close(LostLog("A later writer has taken this log", source=self._source, term=term))
            self.look()
