"""What the engine has copied is finished as soon as the recorder hears of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from headrace.capture.baselines import BaselineRequests
from headrace.capture.messages import CopyDone, Report


def test_a_copy_that_is_told_of_is_not_kept_waiting_by_reading() -> None:
    told: list[Report] = []
    source = SimpleNamespace(traits=SimpleNamespace(copy_rows_per_s=None, shares=True))
    copies = BaselineRequests(cast(Any, source), told.append, lambda: 0.0)
    assert not copies.pressing

    copies.copied(CopyDone("orders", "stem", ()))

    assert copies.pressing, "reading waits for changes, and the copy with it"
    copies.advance(cast(Any, None), lambda: None)
    assert not copies.pressing, "what waits for the log to come to its end is no work"
