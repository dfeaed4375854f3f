"""
What there is to know of a source before, or long after, it is captured.

A problem keeps capture from starting, and every start tells of it. A finding is the rest:
settings with a consequence, and what was left at the source by an engine that is gone.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.capture.source import Recordable

_HOMES = {
    "postgres": "headrace.capture.postgres.findings",
    "sqlite": "headrace.capture.sqlite.findings",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a person should have read once."""

    about: str
    """A setting, a slot, a table."""

    says: str
    remedy: str = ""
    """Empty where it is information only."""


def findings(source: Recordable, tables: Sequence[str], reader: str) -> list[Finding]:
    """
    Return what is worth knowing of a source; `reader` is who this engine is to it.

    A kind of source that has nothing to say has none. Raises what keeps it from being asked.
    """
    home = _HOMES.get(source.spec.kind)
    if home is None:
        return []
    found: list[Finding] = importlib.import_module(home).findings(source, tables, reader)
    return found
