"""A row as a reader gets it: a place in a chunk, until a field is asked for."""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping

from headrace.tables.reading import Reader


class Row(Mapping[str, object]):
    """
    The columns of one row, by name.

    Nothing is decoded before it is asked for, and then each time: whoever needs all of a
    row, more than once, takes `dict(row)`. A row is of one version of its table for good,
    and keeps the chunk it lies in alive. It equals every mapping with the same items.
    """

    __slots__ = ("_at", "_values")

    def __init__(self, values: Mapping[str, Reader], at: int) -> None:
        self._values = values
        self._at = at

    def __getitem__(self, name: str) -> object:
        return self._values[name](self._at)

    def keys(self) -> KeysView[str]:
        # The dict's own: with it, dict(row) is twice as fast.
        return self._values.keys()

    def get_string(self, name: str) -> str:
        """Return a text; empty where the column is absent, null or holds no text."""
        value = self.get(name)
        return value if isinstance(value, str) else ""

    def get_int(self, name: str) -> int:
        """Return a whole number; 0 where the column is absent, null or holds none."""
        value = self.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    def without(self, *names: str) -> dict[str, object]:
        """Return a copy without these columns."""
        return {name: self[name] for name in self if name not in names}

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __eq__(self, other: object) -> bool:
        return dict(self) == dict(other) if isinstance(other, Mapping) else NotImplemented

    def __repr__(self) -> str:
        return f"Row({dict(self)!r})"

    def __reduce__(self) -> tuple[type[dict[str, object]], tuple[dict[str, object]]]:
        # On its way to another process a row is its values, not a piece of the table.
        return dict, (dict(self),)
