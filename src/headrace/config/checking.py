"""
What is found wrong with a configuration, gathered; and what is found right, frozen.

No message here repeats a value: the place says where it stands, and it may be a secret that
slipped into the wrong line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from headrace.config.nearest import nearest
from headrace.config.tree import Place
from headrace.errors import HeadraceError, InvalidConfiguration, SettingError

_PLAIN = re.compile(r"[\w-]+")


class Problems:
    """Errors in the order they are found, each with its place."""

    def __init__(self) -> None:
        self.found: list[HeadraceError] = []

    def add(
        self,
        kind: type[SettingError],
        place: Place,
        at: str,
        says: str,
        *,
        remedy: str | None = None,
    ) -> None:
        """Add one: `at` is the path of the key, `says` goes on from there."""
        where = {"place": str(place)} if place.origin else {}
        self.found.append(kind(prefixed(place, f"{at} {says}"), key=at, remedy=remedy, **where))

    def raise_all(self) -> None:
        """Raise `InvalidConfiguration` with all of them, if there are any."""
        if self.found:
            raise InvalidConfiguration.of(self.found)


class Values(Mapping[str, Any]):
    """The checked values of a section by key; never changed, and never printed."""

    __slots__ = ("_values", "at", "place", "places")

    def __init__(
        self, at: str, place: Place, values: Mapping[str, Any], places: Mapping[str, Place]
    ) -> None:
        self.at = at
        self.place = place
        self.places = places
        """Of the values that were given; the others are defaults."""
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def place_of(self, key: str) -> Place:
        """Return where a value was written, or else where its section was."""
        return self.places.get(key, self.place)

    def __repr__(self) -> str:
        return f"Values({self.at or 'all'}: {', '.join(self._values)})"


def located(error: HeadraceError, place: Place) -> HeadraceError:
    """Return the same error, saying where in the configuration it comes from."""
    if not place.origin or "place" in error.facts:
        return error
    facts = {**error.facts, "place": str(place)}
    return type(error)(prefixed(place, error.message), remedy=error.remedy, **facts)


def prefixed(place: Place, sentence: str) -> str:
    """Return a sentence after the place it speaks of."""
    return f"{place}: {sentence}" if place.origin else sentence


def below(at: str, name: str) -> str:
    """Return the path of a key in a section, as it could be written in a file."""
    quoted = name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '\\"') + '"'
    return f"{at}.{quoted}" if at else quoted


def meant(word: str, known: Iterable[str], what: str) -> str:
    """Return a remedy that names the nearest of `known`, or else all of them."""
    names = list(known)
    if (near := nearest(word, names)) is not None:
        return f"Did you mean {near}?"
    return f"{what} {', '.join(names)}." if names else "Take it out."
