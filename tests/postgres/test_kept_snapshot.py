"""The slot's own snapshot: copies may begin under it for a while, and the log is kept as long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from headrace.capture.postgres.copy import snapshot as module
from headrace.capture.postgres.copy.snapshot import FIRST_COPY_SECONDS, HeldSnapshot, Snapshots
from headrace.capture.postgres.options import PostgresOptions
from headrace.capture.postgres.server.slot import CreatedSlot


@pytest.mark.meets("R14", "R27")
def test_a_kept_snapshot_names_its_f_until_no_copy_can_begin_under_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    closed: list[bool] = []
    holder = SimpleNamespace(first=7, alive=True, readers=0, close=lambda: closed.append(True))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(module, "import_snapshot", lambda *args: cast(HeldSnapshot, holder))
    snapshots = Snapshots(cast(PostgresOptions, None))
    assert snapshots.kept_first() is None
    snapshots.keep(cast(CreatedSlot, SimpleNamespace(snapshot="s", consistent=7)))
    assert snapshots.kept_first() == 7
    # While somebody copies under it others may begin, however long that takes.
    holder.readers = 1
    now[0] += 10 * FIRST_COPY_SECONDS
    assert snapshots.kept_first() == 7
    holder.readers = 0
    # Asked for, it is let go of: also while nothing is read, because the log is full.
    assert snapshots.kept_first() is None
    assert snapshots.first() is None
    assert closed == [True]
