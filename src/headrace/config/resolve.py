"""
Resolution of a configuration: looks up substitutions and merges layers.

A substitution is the final value of its path, wherever that is set. If the lookup leads back to
the value that contains the substitution, the result is the key's prior value: so
`path = ${path} [x]` appends to a list. Lookups are lazy, so an object may refer to itself as long
as no value contains itself.

A result that used a prior value is valid only while the outer value is being resolved. It is
cached only if no field further out was involved.

Limits stop input that no configuration needs: values can be written that contain each other a
thousand times over, or refer to each other forever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeGuard

from headrace.config.text import (
    Blank,
    Concatenation,
    Field,
    Layer,
    ListValue,
    Node,
    ObjectValue,
    PathOfKeys,
    PriorValue,
    ScalarValue,
    SourceLocation,
    Substitution,
    is_text,
)
from headrace.errors import ConfigText, ConfigUnresolved

# --- intermediate values, and limits --------------------------------------------------------------

DEPTH = 64
"""Maximum nesting of a result."""

FRAMES = 500
"""
Maximum depth of recursive lookups, in calls: the interpreter's stack is finite. It is enough for
the deepest nesting, and for some seventy substitutions in a row.
"""

LARGEST = 3_000_000
"""Maximum number of values in a result, each counted wherever it appears; long text counts more."""

STEPS = 5_000_000
REPEAT_COST = 100
"""Cost of a value that cannot be cached: with tangled cycles, lookups could go on forever."""

TEXT_UNIT = 64


@dataclass(frozen=True, slots=True)
class UnresolvedObject:
    """An object whose fields are not resolved yet."""

    fields: dict[str, Field]
    location: SourceLocation
    hides: bool = False
    """Whether it follows a value that is not an object, and so does not merge with lower layers."""


@dataclass(frozen=True, slots=True)
class Items:
    """A list, fully resolved."""

    nodes: list[ResolvedValue]
    location: SourceLocation


@dataclass(frozen=True, slots=True)
class ResolvedValue:
    """A value, fully resolved, with its depth and its weight."""

    node: Node
    depth: int
    weight: int


Head: TypeAlias = ScalarValue | UnresolvedObject | Items | None
"""A value whose fields, if it is an object, are not resolved yet; None if there is no value."""


class Limits:
    """Counts the work of a resolution, and stops it with an error that has a location."""

    def __init__(self, root: ObjectValue) -> None:
        self.root = root
        self.frames = 0
        self.steps = 0
        self.latest: Substitution | Concatenation | None = None
        """The latest lookup: the best location for an error about a limit."""

    def sized(self, node: Node, parts: list[ResolvedValue]) -> ResolvedValue:
        """Return a list or object with its size; raise if it is too large or too deep."""
        depth = 1 + max((part.depth for part in parts), default=0)
        weight = 1 + sum(part.weight for part in parts)
        if depth > DEPTH + 1 or weight > LARGEST:
            raise self.too_much()
        return ResolvedValue(node, depth, weight)

    def deeper(self, field: Field, frames: int) -> None:
        """Count calls, and raise if there are too many."""
        self.frames += frames
        if self.frames > FRAMES:
            raise self.error_in(
                field,
                "The chain of substitutions is too long",
                "Refer to the last value directly.",
            )

    def step(self, cost: int = 0) -> None:
        """Count work: substitutions can be written that would take forever."""
        self.steps += 1 + cost
        if self.steps > STEPS:
            raise self.too_much()

    def too_much(self) -> ConfigText:
        return self.error(
            self.latest,
            "Substitutions make the configuration too large or too deep",
            "Use fewer substitutions, or refer to smaller parts of values.",
        )

    def error_in(self, field: Field, sentence: str, remedy: str) -> ConfigText:
        """Return an error about a field, located at a substitution in it."""
        return self.error(_substitution_in(field) or self.latest, sentence, remedy)

    def error(
        self, at: Substitution | Concatenation | None, sentence: str, remedy: str
    ) -> ConfigText:
        if at is None:
            location = self.root.location
            return ConfigUnresolved(f"{location}: {sentence}", remedy=remedy, place=str(location))
        return at.source.error(at.offset, sentence, remedy, ConfigUnresolved)


def may_be_object(layer: Layer) -> bool:
    """Whether the layer can be an object, as far as is known before resolving it."""
    while isinstance(layer, Field):
        layer = layer.layers[-1 if layer.count < 0 else layer.count - 1]
    parts = layer.parts if isinstance(layer, Concatenation) else (layer,)
    return not any(isinstance(part, ScalarValue | ListValue) for part in parts)


def are_views(
    parts: list[ScalarValue | UnresolvedObject | Items],
) -> TypeGuard[list[UnresolvedObject]]:
    """Whether all parts are objects."""
    return all(isinstance(part, UnresolvedObject) for part in parts)


def are_items(parts: list[ScalarValue | UnresolvedObject | Items]) -> TypeGuard[list[Items]]:
    """Whether all parts are lists."""
    return all(isinstance(part, Items) for part in parts)


def _substitution_in(field: Field) -> Substitution | Concatenation | None:
    """Return the first substitution in the topmost layer that has one."""
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


def resolve_root(root: ObjectValue, environment: Mapping[str, str]) -> Node:
    """Return the configuration with all substitutions resolved."""
    resolver = _Resolver(root, environment)
    found = resolver.complete(UnresolvedObject(root.fields, root.location))
    assert found is not None, "the root is an object"
    return found.node


class _Resolver(Limits):
    def __init__(self, root: ObjectValue, environment: Mapping[str, str]) -> None:
        super().__init__(root)
        self.environment = environment
        self.busy = 0
        """How many fields are being resolved, each for the previous one."""

        self.outermost = _NEVER
        """The level of the outermost field whose prior value was used."""

        self.circular = False
        """Whether the lookup returned to its start, and the field has no prior value."""

    # -- fields ---------------------------------------------------------------------------

    def result(self, field: Field) -> ResolvedValue | None:
        """Return the fully resolved value of a field; None if it has none."""
        if field.result is not None:
            return field.result if isinstance(field.result, ResolvedValue) else None
        if field.resolving:
            raise self.error_in(field, "A value contains itself", "Refer to a part of it only.")
        before, self.outermost = self.outermost, _NEVER
        field.resolving = True
        self.deeper(field, 2)
        try:
            found = self.complete(self.head(field))
        finally:
            field.resolving = False
            self.frames -= 2
        if self.outermost >= self.busy:
            field.result = found or _MISSING
        else:
            self.step(REPEAT_COST)
        self.outermost = min(before, self.outermost)
        return found

    def head(self, field: Field) -> Head:
        """Return the value of a field, with its layers merged from the top as far as needed."""
        if field.head is not None:
            return (
                field.head
                if isinstance(field.head, ScalarValue | UnresolvedObject | Items)
                else None
            )
        before, self.outermost = self.outermost, _NEVER
        views: list[UnresolvedObject] = []
        found: Head = None
        count = len(field.layers) if field.count < 0 else field.count
        self.deeper(field, 3)
        hides = False
        for index in range(count - 1, -1, -1):
            # A hidden layer is not resolved: its substitutions may have no value.
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
            found = self.merge(views[::-1], hides=hides)
        if self.outermost >= self.busy:
            field.head = found or _MISSING
        else:
            self.step(REPEAT_COST)
        self.outermost = min(before, self.outermost)
        return found

    def layer(self, field: Field, index: int) -> Head:
        """Return the value of one layer; mark the field as being resolved meanwhile."""
        value = field.layers[index]
        if isinstance(value, ScalarValue):
            return value
        if isinstance(value, ObjectValue):
            return UnresolvedObject(value.fields, value.location)
        # A lookup that returns to the field from here gets the layers below this one.
        outer, field.busy = field.busy, index
        level, self.busy = self.busy, self.busy + 1
        field_level, field.level = field.level, level
        try:
            return self.evaluate(value, field, index)
        finally:
            field.busy, field.level = outer, field_level
            self.busy = level
            if self.outermost == level:
                self.outermost = _NEVER

    def merge(self, views: list[UnresolvedObject], *, hides: bool = False) -> UnresolvedObject:
        """Merge objects; for a key that several of them have, the last is on top."""
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
            views[-1].location,
            hides,
        )

    # -- values ---------------------------------------------------------------------------

    def evaluate(self, value: Layer, field: Field, index: int) -> Head:
        """Return the value of an expression in a layer of `field`."""
        self.step()
        match value:
            case ScalarValue():
                return value
            case ObjectValue():
                return UnresolvedObject(value.fields, value.location)
            case Field():
                return self.head(value)
            case Substitution():
                return self.substitute(value)
            case ListValue():
                results = []
                for item in value.items:
                    if (result := self.result(Field([item]))) is not None:
                        results.append(result)
                return Items(results, value.location)
            case PriorValue():
                return self.head(self.look_back(field))
            case Concatenation():
                return self.concatenate(value, field, index)

    def substitute(self, value: Substitution) -> Head:
        """Return the value at the path, or else the environment variable of that name."""
        self.latest = value
        self.frames += 2
        self.circular = False
        found = None
        if value.prefix:
            found = self.look_up((*value.prefix, *value.path))
        if found is None:
            found = self.look_up(value.path)
        self.frames -= 2
        if found is not None:
            return found
        name = ".".join(value.path)
        if (variable := self.environment.get(name)) is not None:
            if not is_text(variable):
                raise value.source.error(
                    value.offset,
                    f"The environment variable {_shown(name)} is not UTF-8",
                    "Set it to UTF-8 text.",
                    ConfigUnresolved,
                )
            return ScalarValue(variable, variable, SourceLocation(f"{ENVIRONMENT} {name}"))
        if value.optional:
            return None
        if self.circular:
            raise value.source.error(
                value.offset,
                f"The lookup of {_shown(name)} leads back to itself",
                "Break the cycle, or set the key before.",
                ConfigUnresolved,
            )
        or_set = f"set the environment variable {name}, " if name.isidentifier() else ""
        raise value.source.error(
            value.offset,
            f"There is no value for {_shown(name)}",
            f"Define it, {or_set}or write ${{?…}} if it may be missing.",
            ConfigUnresolved,
        )

    def look_up(self, path: PathOfKeys) -> Head:
        """Return the value at a path; None if there is none but the one being resolved."""
        fields = self.root.fields
        found: Head = None
        for key in path:
            field = fields.get(key)
            if field is None:
                return None
            found = self.head(self.look_back(field) if field.busy >= 0 else field)
            fields = found.fields if isinstance(found, UnresolvedObject) else {}
        return found

    def look_back(self, field: Field) -> Field:
        """Return a field without the layer that is being resolved and those above it."""
        level = field.level
        while field.busy >= 0:
            level = field.level
            field = field.prior(field.busy)
        self.outermost = min(self.outermost, level)
        self.circular = self.circular or field.count == 0
        return field

    def concatenate(self, value: Concatenation, field: Field, index: int) -> Head:
        """Join values that are side by side into a text, a list or an object."""
        parts: list[ScalarValue | UnresolvedObject | Items | Blank] = []
        self.frames += 2
        for part in value.parts:
            found = part if isinstance(part, Blank) else self.evaluate(part, field, index)
            if found is not None:
                parts.append(found)
        self.frames -= 2
        values = [part for part in parts if not isinstance(part, Blank)]
        if len(values) == len(parts) == 1:
            return values[0]
        if not parts:
            return None
        if values and are_views(values):
            return self.merge(values)
        if values and are_items(values):
            nodes = [node for items in values for node in items.nodes]
            self.step(len(nodes))
            return Items(nodes, value.location)
        return self.text(value, parts)

    def text(
        self, value: Concatenation, parts: list[ScalarValue | UnresolvedObject | Items | Blank]
    ) -> ScalarValue:
        """Join parts into one text."""
        pieces = []
        for part in parts:
            if not isinstance(part, ScalarValue | Blank):
                raise value.source.error(
                    value.offset,
                    "Values of different kinds side by side",
                    "Join text with text, lists with lists, objects with objects.",
                    ConfigUnresolved,
                )
            pieces.append(part.text)
        text = "".join(pieces)
        self.latest = value
        self.step(len(text) // TEXT_UNIT)
        return ScalarValue(text, text, value.location)

    def complete(self, found: Head) -> ResolvedValue | None:
        """Resolve a value completely, with everything in it."""
        self.step()
        match found:
            case None:
                return None
            case ScalarValue():
                weight = 1 + (len(found.text) // TEXT_UNIT)
                return ResolvedValue(Node(found.value, found.location), 0, weight)
            case Items():
                return self.sized(
                    Node([item.node for item in found.nodes], found.location), found.nodes
                )
            case UnresolvedObject():
                kept: dict[str, ResolvedValue] = {}
                for key, field in found.fields.items():
                    if (result := self.result(field)) is not None:
                        kept[key] = result
                node = Node({key: result.node for key, result in kept.items()}, found.location)
                return self.sized(node, list(kept.values()))


_MISSING = object()
"""A cached None; None itself means not resolved yet."""


def _shown(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:59]}…"
