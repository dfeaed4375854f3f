"""
A configuration as it was read: plain values, each with the place it came from.

The reader makes it, whoever checks it tells people where a wrong value stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Scalar: TypeAlias = None | bool | int | float | str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was written: in a file, an environment variable, or an option."""

    origin: str
    """A file as it was named, `environment variable X`, or `--set`; empty for a default."""

    line: int = 0
    """From 1; 0 where lines mean nothing."""

    column: int = 0

    def __str__(self) -> str:
        return f"{self.origin}:{self.line}:{self.column}" if self.line else self.origin


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its place: a scalar, a list of nodes, or an object of nodes by key."""

    value: Scalar | list[Node] | dict[str, Node]
    place: Place

    def plain(self) -> Scalar | list[object] | dict[str, object]:
        """Return it without places, as JSON has it."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value
