"""
Resolution of a configuration: substitutions looked up, layers merged.

A substitution means the final value of its path, wherever that is set. Where looking it up
comes back to the value it stands in, it means what the key had before: so `path = ${path} [x]`
adds to a list. Only what is asked for is looked up, so that an object may refer to itself
as long as no value contains itself.

A value that was found by such looking back holds only while the outer value is being looked up;
it is kept only where nothing further out had a part in it.

Limits apply to what no configuration needs: text can be written whose values contain each other
a thousand times over, or lead from one to the next forever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeGuard

from headrace.config.text import (
    Below,
    Blank,
    Concatenation,
    Field,
    Layer,
    ListValue,
    Node,
    ObjectValue,
    PathOfKeys,
    Plain,
    SourceLocation,
    Substitution,
    is_text,
)
from headrace.errors import ConfigText, ConfigUnresolved

# --- intermediate values, and limits --------------------------------------------------------------

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
class UnresolvedObject:
    """An object whose fields are not looked up yet."""

    fields: dict[str, Field]
    place: SourceLocation
    hides: bool = False
    """Whether it came after a value that is no object: then it merges with nothing below."""


@dataclass(frozen=True, slots=True)
class Items:
    """A list, whole."""

    nodes: list[ResolvedValue]
    place: SourceLocation


@dataclass(frozen=True, slots=True)
class ResolvedValue:
    """A value, whole, with how deep it is and how much it comes to."""

    node: Node
    depth: int
    weight: int


Head: TypeAlias = Plain | UnresolvedObject | Items | None
"""What a value is, without an object's fields; None where nothing is there."""


class Limits:
    """Counts what looking up comes to, and ends it with an error that says where."""

    def __init__(self, root: ObjectValue) -> None:
        self.root = root
        self.frames = 0
        self.steps = 0
        self.latest: Substitution | Concatenation | None = None
        """What was looked up last: where a limit is reached, it is not far."""

    def sized(self, node: Node, parts: list[ResolvedValue]) -> ResolvedValue:
        """Return a list or object with its size; raise where it is too large or too deep."""
        depth = 1 + max((part.depth for part in parts), default=0)
        weight = 1 + sum(part.weight for part in parts)
        if depth > DEPTH + 1 or weight > LARGEST:
            raise self.too_much()
        return ResolvedValue(node, depth, weight)

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

    def error(
        self, at: Substitution | Concatenation | None, sentence: str, remedy: str
    ) -> ConfigText:
        if at is None:
            place = self.root.place
            return ConfigUnresolved(f"{place}: {sentence}", remedy=remedy, place=str(place))
        return at.source.error(at.offset, sentence, remedy, ConfigUnresolved)


def may_be_object(layer: Layer) -> bool:
    """Whether it is not known before it is looked up that it is something else."""
    while isinstance(layer, Field):
        layer = layer.layers[-1 if layer.count < 0 else layer.count - 1]
    parts = layer.parts if isinstance(layer, Concatenation) else (layer,)
    return not any(isinstance(part, Plain | ListValue) for part in parts)


def are_views(parts: list[Plain | UnresolvedObject | Items]) -> TypeGuard[list[UnresolvedObject]]:
    """Whether all of them are objects."""
    return all(isinstance(part, UnresolvedObject) for part in parts)


def are_items(parts: list[Plain | UnresolvedObject | Items]) -> TypeGuard[list[Items]]:
    """Whether all of them are lists."""
    return all(isinstance(part, Items) for part in parts)


def _substitution_in(field: Field) -> Substitution | Concatenation | None:
    """Return the first one in the topmost of the field's values that has any."""
    waiting = list(field.layers)
    while waiting:
        value = waiting.pop()
        if isinstance(value, Substitution | Concatenation):
            return value
        if isinstance(value, ListValue):
            waiting.extend(reversed(value.items))
    return None


# --- the lookup -----------------------------------------------------------------------------------

_NEVER = 1 << 30

ENVIRONMENT = "environment variable"


def resolved(root: ObjectValue, environment: Mapping[str, str]) -> Node:
    """Return the configuration with all its substitutions looked up."""
    resolver = _Resolver(root, environment)
    found = resolver.whole(UnresolvedObject(root.fields, root.place))
    assert found is not None, "an object is there, if an empty one"
    return found.node


class _Resolver(Limits):
    def __init__(self, root: ObjectValue, environment: Mapping[str, str]) -> None:
        super().__init__(root)
        self.environment = environment
        self.busy = 0
        """How many fields are being looked up, each for the one before."""

        self.outermost = _NEVER
        """The outermost of those that somebody looked back at."""

        self.circled = False
        """Whether looking up ended where it began, with nothing below."""

    # -- fields ---------------------------------------------------------------------------

    def result(self, field: Field) -> ResolvedValue | None:
        """Return the value of a field, whole; None where it has none."""
        if field.result is not None:
            return field.result if isinstance(field.result, ResolvedValue) else None
        if field.resolving:
            raise self.trouble(field, "A value contains itself", "Refer to a part of it only.")
        before, self.outermost = self.outermost, _NEVER
        field.resolving = True
        self.deeper(field, 2)
        try:
            found = self.whole(self.head(field))
        finally:
            field.resolving = False
            self.frames -= 2
        if self.outermost >= self.busy:
            field.result = found or _MISSING
        else:
            self.step(AGAIN)
        self.outermost = min(before, self.outermost)
        return found

    def head(self, field: Field) -> Head:
        """Return what a field is, its layers merged from the top as far as they matter."""
        if field.head is not None:
            return field.head if isinstance(field.head, Plain | UnresolvedObject | Items) else None
        before, self.outermost = self.outermost, _NEVER
        views: list[UnresolvedObject] = []
        found: Head = None
        count = len(field.layers) if field.count < 0 else field.count
        self.deeper(field, 3)
        hides = False
        for index in range(count - 1, -1, -1):
            # What is hidden may also be what cannot be looked up.
            hides = bool(views) and not may_be_object(field.layers[index])
            found = None if hides else self.layer(field, index)
            if isinstance(found, UnresolvedObject):
                views.append(found)
                hides = found.hides
            elif found is not None:
                hides = True
            if hides:
                break
        self.frames -= 3
        if views:
            found = self.merged(views[::-1], hides=hides)
        if self.outermost >= self.busy:
            field.head = found or _MISSING
        else:
            self.step(AGAIN)
        self.outermost = min(before, self.outermost)
        return found

    def layer(self, field: Field, index: int) -> Head:
        """Return what one layer of a field is, while the field counts as being looked up."""
        value = field.layers[index]
        if isinstance(value, Plain):
            return value
        if isinstance(value, ObjectValue):
            return UnresolvedObject(value.fields, value.place)
        # Whoever comes back to the field from here means what is below this layer.
        outer, field.busy = field.busy, index
        level, self.busy = self.busy, self.busy + 1
        field_level, field.level = field.level, level
        try:
            return self.evaluated(value, field, index)
        finally:
            field.busy, field.level = outer, field_level
            self.busy = level
            if self.outermost == level:
                self.outermost = _NEVER

    def merged(self, views: list[UnresolvedObject], *, hides: bool = False) -> UnresolvedObject:
        """Return objects as one; of a key that several have, the last is on top."""
        for index in range(len(views) - 1, -1, -1):
            if views[index].hides:
                views, hides = views[index:], True
                break
        if len(views) == 1:
            return views[0] if views[0].hides == hides else replace(views[0], hides=hides)
        fields: dict[str, list[Field]] = {}
        for view in views:
            self.step(len(view.fields))
            for key, field in view.fields.items():
                fields.setdefault(key, []).append(field)
        return UnresolvedObject(
            {key: same[0] if len(same) == 1 else Field([*same]) for key, same in fields.items()},
            views[-1].place,
            hides,
        )

    # -- values ---------------------------------------------------------------------------

    def evaluated(self, value: Layer, field: Field, index: int) -> Head:
        """Return what a value in a layer of `field` is."""
        self.step()
        match value:
            case Plain():
                return value
            case ObjectValue():
                return UnresolvedObject(value.fields, value.place)
            case Field():
                return self.head(value)
            case Substitution():
                return self.substituted(value)
            case ListValue():
                results = []
                for item in value.items:
                    if (result := self.result(Field([item]))) is not None:
                        results.append(result)
                return Items(results, value.place)
            case Below():
                return self.head(self.looked_back(field))
            case Concatenation():
                return self.joined(value, field, index)

    def substituted(self, value: Substitution) -> Head:
        """Return the value at the path, or else of the environment variable of that name."""
        self.latest = value
        self.frames += 2
        self.circled = False
        found = None
        if value.prefix:
            found = self.looked_up((*value.prefix, *value.path))
        if found is None:
            found = self.looked_up(value.path)
        self.frames -= 2
        if found is not None:
            return found
        name = ".".join(value.path)
        if (given := self.environment.get(name)) is not None:
            if not is_text(given):
                raise value.source.error(
                    value.offset,
                    f"The environment variable {_shown(name)} is not UTF-8",
                    "Set it to text.",
                    ConfigUnresolved,
                )
            return Plain(given, given, SourceLocation(f"{ENVIRONMENT} {name}"))
        if value.optional:
            return None
        if self.circled:
            raise value.source.error(
                value.offset,
                f"Looking up {_shown(name)} leads back to this place",
                "Break the circle, or give the key a value before.",
                ConfigUnresolved,
            )
        variable = f"set the environment variable {name}, " if name.isidentifier() else ""
        raise value.source.error(
            value.offset,
            f"There is no value for {_shown(name)}",
            f"Define it, {variable}or write ${{?…}} where it may be missing.",
            ConfigUnresolved,
        )

    def looked_up(self, path: PathOfKeys) -> Head:
        """Return what is at a path; None where nothing is, or nothing but the one who asks."""
        fields = self.root.fields
        found: Head = None
        for key in path:
            field = fields.get(key)
            if field is None:
                return None
            found = self.head(self.looked_back(field) if field.busy >= 0 else field)
            fields = found.fields if isinstance(found, UnresolvedObject) else {}
        return found

    def looked_back(self, field: Field) -> Field:
        """Return a field as it was before the layer that is being looked up."""
        level = field.level
        while field.busy >= 0:
            level = field.level
            field = field.below(field.busy)
        self.outermost = min(self.outermost, level)
        self.circled = self.circled or field.count == 0
        return field

    def joined(self, value: Concatenation, field: Field, index: int) -> Head:
        """Return what values side by side come to: a text, a list or an object."""
        parts: list[Plain | UnresolvedObject | Items | Blank] = []
        self.frames += 2
        for part in value.parts:
            found = part if isinstance(part, Blank) else self.evaluated(part, field, index)
            if found is not None:
                parts.append(found)
        self.frames -= 2
        told = [part for part in parts if not isinstance(part, Blank)]
        if len(told) == len(parts) == 1:
            return told[0]
        if not parts:
            return None
        if told and are_views(told):
            return self.merged(told)
        if told and are_items(told):
            nodes = [node for items in told for node in items.nodes]
            self.step(len(nodes))
            return Items(nodes, value.place)
        return self.text(value, parts)

    def text(
        self, value: Concatenation, parts: list[Plain | UnresolvedObject | Items | Blank]
    ) -> Plain:
        """Return parts as one text."""
        pieces = []
        for part in parts:
            if not isinstance(part, Plain | Blank):
                raise value.source.error(
                    value.offset,
                    "Values of different kinds stand side by side",
                    "Join text with text, lists with lists, objects with objects.",
                    ConfigUnresolved,
                )
            pieces.append(part.text)
        text = "".join(pieces)
        self.latest = value
        self.step(len(text) // TEXT_UNIT)
        return Plain(text, text, value.place)

    def whole(self, found: Head) -> ResolvedValue | None:
        """Return a value with all that is in it."""
        self.step()
        match found:
            case None:
                return None
            case Plain():
                weight = 1 + (len(found.text) // TEXT_UNIT)
                return ResolvedValue(Node(found.value, found.place), 0, weight)
            case Items():
                return self.sized(
                    Node([item.node for item in found.nodes], found.place), found.nodes
                )
            case UnresolvedObject():
                kept: dict[str, ResolvedValue] = {}
                for key, field in found.fields.items():
                    if (result := self.result(field)) is not None:
                        kept[key] = result
                node = Node({key: result.node for key, result in kept.items()}, found.place)
                return self.sized(node, list(kept.values()))


_MISSING = object()
"""Stands for None where None means that nobody looked yet."""


def _shown(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:59]}…"
