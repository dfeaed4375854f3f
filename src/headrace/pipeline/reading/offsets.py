"""
How far a query is: what Spark keeps in its checkpoint.

An offset is a position: everything at or before it was given. While a baseline is given it
also says which one, and how many of its rows; and as long as changes may lie in a baseline's
window (R11), which one that was. It carries the lineage, so that a checkpoint of a log that
is gone is told from one of the log that took its place (R1). Spark keeps where each batch ends,
but not where the first one begins; the first end says that too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.changelog.position import ORIGIN, Position
from headrace.errors import BadPosition


@dataclass(frozen=True, slots=True)
class Offset:
    """A place in the log, and in a baseline."""

    position: Position
    baseline: int | None = None
    """The baseline that the query began with; 0: the newest, once there is one."""

    given: int | None = None
    """How many of its rows were given; None: all."""

    lineage: str = ""
    since: Position | None = None
    """Where the query began, in the offset that its first batch ends at: nobody else keeps it."""

    @property
    def waits(self) -> bool:
        """Whether it is not decided yet which baseline it begins with."""
        return self.baseline == 0

    @property
    def in_baseline(self) -> bool:
        """Whether rows of a baseline are still to come."""
        return self.waits or self.given is not None

    def as_json(self) -> dict[str, Any]:
        """Return what Spark keeps."""
        found: dict[str, Any] = {"position": str(self.position)}
        if self.baseline is not None:
            found["baseline"] = self.baseline
        if self.given is not None:
            found["given"] = self.given
        if self.lineage:
            found["lineage"] = self.lineage
        if self.since is not None:
            found["since"] = str(self.since)
        return found

    @classmethod
    def parse(cls, kept: Mapping[str, Any]) -> Offset:
        """Read back what `as_json` gave; anything else is `BadPosition`."""
        try:
            baseline, given, since = (kept.get(name) for name in ("baseline", "given", "since"))
            return cls(
                Position.parse(str(kept["position"])),
                None if baseline is None else int(baseline),
                None if given is None else int(given),
                str(kept.get("lineage", "")),
                None if since is None else Position.parse(str(since)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadPosition(
                "The checkpoint holds an offset of another source",
                remedy="Give the query a checkpoint folder of its own.",
            ) from error


NEWEST_BASELINE = Offset(ORIGIN, baseline=0)
"""Before the newest baseline, whichever that will be."""
