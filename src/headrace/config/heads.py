"""
What values come to while they are looked up, and how far that may go.

Limits hold for what no configuration needs: text can be written whose values contain each
other a thousand times over, or lead from one to the next for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

from headrace.config.tree import Node, Place
from headrace.config.written import Field, Joined, Layer, Listed, Plain, Section, Substitution
from headrace.errors import ConfigText, ConfigUnresolved

DEPTH = 64
"""How deep a result may be nested."""

FRAMES = 500
"""
How many calls deep values may be looked up, each for the one before: the interpreter's stack is
finite. It is enough for the deepest nesting, and for some seventy substitutions in a row.
"""

LARGEST = 3_000_000
"""Values in a result, each place counted where it appears; a long text counts for more."""

STEPS = 5_000_000
AGAIN = 100
"""What a value costs that cannot be kept: in a knot of circles they are looked up for ever."""

TEXT_UNIT = 64


@dataclass(frozen=True, slots=True)
class View:
    """An object whose fields are not looked up yet."""

    fields: dict[str, Field]
    place: Place
    hides: bool = False
    """Whether it came after a value that is no object: then it merges with nothing below."""


@dataclass(frozen=True, slots=True)
class Items:
    """A list, whole."""

    nodes: list[Result]
    place: Place


@dataclass(frozen=True, slots=True)
class Result:
    """A value, whole, with how deep it is and how much it comes to."""

    node: Node
    depth: int
    weight: int


Head: TypeAlias = Plain | View | Items | None
"""What a value is, without an object's fields; None where nothing is there."""


class Limits:
    """Counts what looking up comes to, and ends it with an error that says where."""

    def __init__(self, root: Section) -> None:
        self.root = root
        self.frames = 0
        self.steps = 0
        self.latest: Substitution | Joined | None = None
        """What was looked up last: where a limit is reached, it is not far."""

    def sized(self, node: Node, parts: list[Result]) -> Result:
        """Return a list or object with its size; raise where it is too large or too deep."""
        depth = 1 + max((part.depth for part in parts), default=0)
        weight = 1 + sum(part.weight for part in parts)
        if depth > DEPTH + 1 or weight > LARGEST:
            raise self.too_much()
        return Result(node, depth, weight)

    def deeper(self, field: Field, frames: int) -> None:
        """Count calls, and raise where they are too many."""
        self.frames += frames
        if self.frames > FRAMES:
            raise self.trouble(
                field,
                "Too many substitutions lead from one to the next",
                "Refer to the last value directly.",
            )

    def step(self, cost: int = 0) -> None:
        """Count work: substitutions can be written that would take for ever."""
        self.steps += 1 + cost
        if self.steps > STEPS:
            raise self.too_much()

    def too_much(self) -> ConfigText:
        return self.error(
            self.latest,
            "Substitutions make the configuration too large or too deep",
            "Refer to values less often, or to parts of them only.",
        )

    def trouble(self, field: Field, sentence: str, remedy: str) -> ConfigText:
        """Return an error about a field, at a substitution in it."""
        return self.error(_substitution_in(field) or self.latest, sentence, remedy)

    def error(self, at: Substitution | Joined | None, sentence: str, remedy: str) -> ConfigText:
        if at is None:
            place = self.root.place
            return ConfigUnresolved(f"{place}: {sentence}", remedy=remedy, place=str(place))
        return at.source.error(at.offset, sentence, remedy, ConfigUnresolved)


def may_be_object(layer: Layer) -> bool:
    """Whether it is not known before it is looked up that it is something else."""
    while isinstance(layer, Field):
        layer = layer.layers[-1 if layer.count < 0 else layer.count - 1]
    parts = layer.parts if isinstance(layer, Joined) else (layer,)
    return not any(isinstance(part, Plain | Listed) for part in parts)


def are_views(parts: list[Plain | View | Items]) -> TypeGuard[list[View]]:
    """Whether all of them are objects."""
    return all(isinstance(part, View) for part in parts)


def are_items(parts: list[Plain | View | Items]) -> TypeGuard[list[Items]]:
    """Whether all of them are lists."""
    return all(isinstance(part, Items) for part in parts)


def _substitution_in(field: Field) -> Substitution | Joined | None:
    """Return the first one in the topmost of the field's values that has any."""
    waiting = list(field.layers)
    while waiting:
        value = waiting.pop()
        if isinstance(value, Substitution | Joined):
            return value
        if isinstance(value, Listed):
            waiting.extend(reversed(value.items))
    return None
