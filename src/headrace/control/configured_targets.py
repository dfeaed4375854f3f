"""What is wrong with the columns that a target in memory is configured with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.changelog.schema import TableSchema
from headrace.config.checking import located
from headrace.config.parts import Chosen
from headrace.config.tree import Place
from headrace.errors import HeadraceError, NoKey, TableError
from headrace.pipeline.scope import scope_after, unknown
from headrace.pipeline.steps import Transform
from headrace.targets.settings import MEMORY


def wrong_columns(
    target: Chosen, transforms: Sequence[Transform], schema: TableSchema
) -> list[HeadraceError]:
    """Return what a start would refuse of a target over such a table, as far as that is known."""
    if target.part is not MEMORY:
        return []
    scope = scope_after(transforms, schema)
    errors = [located(error, target.values.place) for error in _wrong_key(target, scope.key)]
    if scope.known:
        errors += [
            located(unknown(name, scope.names, what), place)
            for what, place, names in _named(target)
            for name in names
            if name not in scope.names
        ]
    return [_of_table(error, schema.table) for error in errors]


def _wrong_key(target: Chosen, key: frozenset[str]) -> Iterator[HeadraceError]:
    given = target.values["key_fields"]
    if key and given and set(given) != key:
        yield TableError(
            "Table has a key of its own", remedy="Leave key_fields out.", key=sorted(key)
        )
    if not (key or given):
        yield NoKey(
            "Table has no key",
            remedy="Declare a primary key at the source, or name unique not-null columns in"
            " key_fields.",
        )


def _named(target: Chosen) -> Iterator[tuple[str, Place, Sequence[str]]]:
    """Yield what names columns, where it is said, and the columns."""
    values = target.values
    for key in ("key_fields", "lookup_fields"):
        yield key, values.place_of(key), values[key]
    for name, index in values["indexes"].items():
        yield f"Index {name}", index.place_of("fields"), index["fields"]


def _of_table(error: HeadraceError, table: str) -> HeadraceError:
    error.facts.setdefault("table", table)
    return error
