"""
The baselines that a recorder was asked for: which wait, which are copied, which are finished.

One is copied here at a time, a chunk between two reads of changes (R43); those that the engine
copies on Spark go on beside it. Either way a baseline counts once the log has passed its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from functools import partial
from typing import cast

from headrace.capture.copying import Copying
from headrace.capture.pacing import Pacing
from headrace.capture.sharing import Shared, Sharing
from headrace.capture.source import KeepsSnapshot, NotYet, Recordable, Shares
from headrace.capture.wire import (
    BaselineProgress,
    CopyDone,
    CopyFailed,
    Failed,
    Flushed,
    Report,
    Warned,
)
from headrace.changelog.log import BaselineWriter, LogWriter
from headrace.errors import PositionExpired
from headrace.storage import points

TRY_AGAIN_SECONDS = 0.1
"""After a baseline could not begin: what it waits for may take an instant, or hours."""


class Copies:
    """For the recorder's thread alone. `tell` takes what the engine should know."""

    def __init__(
        self, source: Recordable, tell: Callable[[Report], None], clock: Callable[[], float]
    ) -> None:
        self.owed_end = 0
        """The commit that the log has to come to before what is copied counts."""

        self._source = source
        self._tell = tell
        self._wanted: deque[str] = deque()
        self._to_share: set[str] = set()
        """Of the tables wanted, those that the engine will copy."""

        self._copying: Copying | None = None
        self._sharing = Sharing()
        self._told_done = False
        """Whether the engine has copied one that was not looked at since."""

        self._waits = False
        self._clock = clock
        self._try_again = 0.0
        """When those that could not begin are tried again."""

        self._pacing = Pacing(source.traits.copy_rows_per_s)
        self.held = False
        """Whether none is begun now, because the log is full; those under way go on (R28)."""

    @property
    def pressing(self) -> bool:
        """Whether there is something to do at once: a chunk to copy, or a copy to finish."""
        return self._told_done or (self._at_work and not self._resting)

    @property
    def due(self) -> float | None:
        """When the next chunk may be copied; None: that does not depend on the time."""
        return self._not_before if self._at_work and not self._held_back else None

    @property
    def firsts(self) -> list[int]:
        """F of those under way, and of those to come; 0 where one is not known yet."""
        firsts = [shared.planned.first for shared in self._sharing.copies.values()]
        if self._copying is not None:
            firsts.append(self._copying.copy.first)
        if self._source.traits.keeps_snapshot:
            kept = cast(KeepsSnapshot, self._source).kept_first()
            firsts += [] if kept is None else [kept]
        return firsts

    @property
    def _not_before(self) -> float:
        return max(self._pacing.not_before, self._try_again)

    @property
    def _at_work(self) -> bool:
        begins = bool(self._wanted) and not self.held
        return (begins or self._copying is not None) and not self._waits

    @property
    def _resting(self) -> bool:
        return self._held_back or self._clock() < self._not_before

    @property
    def _held_back(self) -> bool:
        """Whether those who copy on Spark have all that a limit allows."""
        return self._pacing.rows_per_s is not None and self._sharing.busy

    def want(self, table: str, *, shared: bool) -> None:
        """Take a baseline of a table, unless that is under way."""
        under_way = self._copying is not None and self._copying.table == table
        if not under_way and table not in self._wanted and table not in self._sharing.copies:
            self._wanted.append(table)
            (self._to_share.add if shared else self._to_share.discard)(table)

    def keep(self, tables: Container[str]) -> None:
        """Forget what is wanted of other tables: they are not captured any more."""
        self._wanted = deque(table for table in self._wanted if table in tables)

    def copied(self, done: CopyDone) -> None:
        """Take what the engine copied."""
        self._sharing.copied(done.table, done.stem, done.files)
        # Once: where the log has not come to its end yet, what comes next decides.
        self._told_done = True

    def failed(self, told: CopyFailed) -> None:
        """Plan anew, or copy here, what the engine could not copy."""
        if (failed := self._sharing.take(told.table, told.stem)) is not None:
            failed.planned.close()
            self.want(told.table, shared=told.shared)

    def advance(self, log: LogWriter, flush: Callable[[], None]) -> None:
        """Do the next piece of work, if there is any; `flush` writes what is pending."""
        self._told_done = False
        for table in self._sharing.lost():
            self.want(table, shared=True)
        for done in self._sharing.done():
            if self._passed(log, flush, done.planned.last):
                points.reach(points.BASELINE_COPIED)
                self._finish(done.table, partial(self._sharing.finish, done), done.writer)
        if self.held and self._copying is not None and not self._copying.copy.first:
            # It waits for others, and nothing could be pruned until it begins.
            self._stop_here()
        if self._copying is None:
            if not self._wanted or self.held or self._clock() < self._try_again:
                return
            table = self._wanted.popleft()
            if self._share(log, table):
                return
            self._copying = Copying(table, self._source, log)
        if self._resting:
            return
        copying = self._copying
        before = copying.rows
        if (rows := copying.chunk()) is not None:
            self._waits = False
            self._pacing.took(rows - before, self._clock())
            points.reach(points.BASELINE_CHUNK)
            copy = copying.copy
            self._tell(
                BaselineProgress(copying.table, rows, expected=copy.expected, waits=copy.waits)
            )
            if copy.waits and not rows and self._wanted:
                # It may wait for hours: others have their turn.
                self._stop_here()
                self._wanted.rotate(-1)
                self._try_again = self._clock() + TRY_AGAIN_SECONDS
            return
        self._waits = not self._passed(log, flush, copying.copy.last)
        if self._waits:
            return
        points.reach(points.BASELINE_COPIED)
        self._finish(copying.table, copying.finish, copying)
        if self._copying is copying:
            self._copying = None

    def give_up(self, table: str) -> None:
        """Begin anew with a table of which nothing copied so far is of use."""
        if table in self._sharing.copies:
            self._sharing.drop(table)
            self.want(table, shared=True)
        elif self._copying is not None and self._copying.table == table:
            self._stop_here()

    def stop(self) -> None:
        """Let go of everything under way: it belongs to one connection, and is wanted again."""
        self._stop_here()
        # Their snapshots end with the source's connections.
        for table in self._sharing.clear():
            self.want(table, shared=True)

    def _stop_here(self) -> None:
        self._waits = False
        if self._copying is not None:
            self._wanted.appendleft(self._copying.table)
            self._copying.discard()
            self._copying = None

    def _passed(self, log: LogWriter, flush: Callable[[], None], last: int) -> bool:
        """
        Whether the log has come to the end of a baseline that is copied.

        Before, its rows may hold commits that a standby, once promoted, never had; once the log
        has come so far, that is noticed (R2).
        """
        if log.end.commit < last:
            flush()
        passed = log.end.commit >= last
        if not passed:
            self.owed_end = max(self.owed_end, last)
        return passed

    def _share(self, log: LogWriter, table: str) -> bool:
        """Let the engine copy a table, if it can and it is worth it."""
        if table not in self._to_share or not self._source.traits.shares:
            return False
        self._to_share.discard(table)
        try:
            planned = cast(Shares, self._source).plan(table)
        except NotYet as why:
            # Others have their turn first, and changes in any case.
            self.want(table, shared=True)
            self._try_again = self._clock() + TRY_AGAIN_SECONDS
            self._tell(BaselineProgress(table, 0, waits=str(why)))
            return True
        if planned is None:
            return False
        shared = Shared(table, planned, log)
        self._sharing.begin(shared)
        points.reach(points.COPY_PLANNED)
        self._tell(shared.report())
        return True

    def _finish(
        self, table: str, finish: Callable[[], int], copied: Copying | BaselineWriter
    ) -> None:
        try:
            entry = finish()
        except PositionExpired as error:
            # Of no use to anybody: what it lacks was pruned meanwhile. It is copied again.
            self._tell(Warned(Failed.of(error, stops=False)))
            self.give_up(table)
            return
        points.reach(points.BASELINE_FINISHED)
        self._tell(Flushed(entry))
        self._tell(BaselineProgress(table, copied.rows, done=True))
