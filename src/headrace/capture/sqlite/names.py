"""
What the things are called that capture makes in the user's database.

A database may have several capture logs side by side, each with triggers, numbers and readers
of its own: one has the names that the engine uses, others are named after their log table.
All of them but such a log table begin with the same prefix, so that they are told apart from
the application's, and a log by the companion that has its name in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.capture.sqlite.database import quoted
from headrace.errors import SourceRefused

PREFIX = "__headrace"
"""How the names of everything begin that we make in the user's database."""

EVENTS = (("insert", 0), ("update", 1), ("delete", 2))
"""What triggers are for, and how a log row says it: the numbers of `changelog.change.Op`."""

INSERT, UPDATE, DELETE = (number for _, number in EVENTS)

_DEFAULT_LOG = f"{PREFIX}_log"
_BARE = re.compile(r"__[a-z0-9_]+")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one capture log and of what belongs to it."""

    log_table: str = _DEFAULT_LOG

    @classmethod
    def of(cls, log_table: str) -> Names:
        """Return the names for a log table that a user chose."""
        lower = log_table.lower()
        if lower == _DEFAULT_LOG:
            return cls()
        if not log_table.strip() or "\0" in log_table or lower.startswith((PREFIX, "sqlite_")):
            raise SourceRefused(
                "Not a usable name for a capture log",
                log_table=log_table,
                remedy=f"Use a name that begins neither with {PREFIX} nor with sqlite_.",
            )
        return cls(log_table)

    @property
    def log(self) -> str:
        """The log table, as SQL text."""
        return _sql(self.log_table)

    @property
    def meta(self) -> str:
        """Format and uuid."""
        return _sql(self.companion("meta"))

    @property
    def tables(self) -> str:
        """The plans: which columns were captured, by number."""
        return _sql(self.companion("tables"))

    @property
    def readers(self) -> str:
        """Who reads, and how far he is."""
        return _sql(self.companion("readers"))

    def companion(self, name: str) -> str:
        """Return the name of a table beside the log."""
        return f"{self._stem}_{name}"

    def trigger(self, plan: int, event: str) -> str:
        """Return the name of the trigger of a plan."""
        return f"{self._stem}_{plan}_{event}"

    def owns(self, trigger: str) -> bool:
        """Whether a trigger writes into this log."""
        return self.plan_of(trigger) is not None

    def plan_of(self, trigger: str) -> int | None:
        """Return the plan that a trigger was made for; None where it is not of this log."""
        events = "|".join(event for event, _ in EVENTS)
        pattern = rf"{re.escape(self._stem)}_(\d+)_({events})"
        match = re.fullmatch(pattern, trigger, re.IGNORECASE)
        return None if match is None else int(match[1])

    @property
    def _stem(self) -> str:
        return PREFIX if self.log_table == _DEFAULT_LOG else f"{PREFIX}_{self.log_table}"


OURS = Names()
"""The names that the engine uses."""


def is_ours(name: str, every: frozenset[str]) -> bool:
    """Whether the table called `name` was made by us; `every` are all names, in lower case."""
    lower = name.lower()
    return lower.startswith(PREFIX) or f"{PREFIX}_{lower}_meta" in every


def _sql(name: str) -> str:
    # Bare where it can be: the text of triggers that were made long ago must stay the same.
    return name if _BARE.fullmatch(name) else quoted(name)
