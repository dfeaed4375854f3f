"""The page of every key of a configuration, made from the keys themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from headrace.config.plugins import Catalogue, PartOf
from headrace.config.schema import Entries, Key, Kind, ListOf, Section
from headrace.engine.config_keys import (
    DEAD_LETTER_STORES,
    FILTERS,
    KEYS,
    OBSERVERS,
    SOURCES,
    TARGETS,
    TRANSFORMS,
)

_INTRODUCTION = """\
# Configuration

<!-- Made from the keys of each part by `make reference`; edit them there. -->

All keys. An unknown key is refused, with the nearest known one. `headrace validate` reports all
errors at once, with file, line and column. `headrace config` prints the effective configuration,
with secrets masked and the origin of each value. [The guide](../guides/configuration.md) has the
syntax.

Values come from these sources, and later ones win: the defaults on this page, the file
(`--config FILE`, by default `headrace.conf` in the current folder), the files in the folder
`headrace.conf.d` next to it, the environment (`HEADRACE_SOURCES__SHOP__PATH` is
`sources.shop.path`), and `--set key=value`.

| kind | written as |
|---|---|
| text | `shop`, or in quotes: `"a text, with anything in it"` |
| path | text; in a file relative to the folder of that file, otherwise to the current folder |
| boolean | `true`, `false`; also `yes`, `no`, `on`, `off` |
| duration | a number and a unit: `500ms`, `10s`, `5m`, `24h`, `7d` |
| size | a number and a unit, `512MiB`, `1GB`; without a unit, bytes |
| list | `[a, b]` |
| by name | a section with names that you choose: `by_customer { … }` |
| connection | a libpq connection string or URI; shown without its password |
| reference | where a secret is: `env:NAME`, `file:/path`, or a scheme that a package provides |
"""

_PARTS: Sequence[tuple[Catalogue, str, str]] = (
    (SOURCES, "Sources", "Keys of `sources.ID` by its `type`; every type has those above as well."),
    (TARGETS, "Targets", "Keys of `pipelines.ID.target` by its `type`."),
    (FILTERS, "Filters", "Keys of an entry of `pipelines.ID.filters` by its `type`."),
    (TRANSFORMS, "Transforms", "Keys of an entry of `pipelines.ID.transforms` by its `type`."),
    (OBSERVERS, "Observers", "Keys of `observers.ID` by its `type`."),
    (
        DEAD_LETTER_STORES,
        "Stores of dead letters",
        "Keys of `pipelines.ID.error_handling.dead_letter.store` by its `type`; without other keys,"
        " the type alone will do: `store = memory`.",
    ),
)


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield _INTRODUCTION
    yield "## All keys"
    yield ""
    yield from _table(KEYS, "")
    for catalogue, title, about in _PARTS:
        yield ""
        yield f"## {title}"
        yield ""
        yield f"{about} Packages add types by entry points of the group `{catalogue.group}`."
        for type, part in catalogue.built_in.items():
            also = f" (also `{'`, `'.join(part.aliases)}`)" if part.aliases else ""
            yield ""
            yield f"### {type}"
            yield ""
            yield f"{part.doc} `type = {type}`{also}."
            yield ""
            yield from _table(part.keys, "")


def _table(keys: Sequence[Key], path: str) -> Iterator[str]:
    yield "| key | kind | default | |"
    yield "|---|---|---|---|"
    yield from _rows(keys, path)


def _rows(keys: Sequence[Key], path: str) -> Iterator[str]:
    for key in keys:
        here = f"{path}{key.name}"
        below, deeper = _within(key.kind, here)
        # A section by itself says nothing that its keys do not.
        if not isinstance(key.kind, Section):
            yield f"| `{here}` | {_cell(key.kind.label)} | {_default(key)} | {_cell(key.doc)} |"
        yield from _rows(deeper, below)


def _within(kind: Kind, path: str) -> tuple[str, Sequence[Key]]:
    """Return the keys below a key, and the path they have in front."""
    match kind:
        case Section(keys):
            return f"{path}.", keys
        case Entries(of):
            return _within(of, f"{path}.{kind.called}")
        case ListOf(of):
            return _within(of, f"{path}[]")
        case PartOf():
            type_ = Key("type", _Types(kind.catalogue), f"Which {kind.label} it is.", required=True)
            return f"{path}.", (type_, *kind.common)
    return path, ()


class _Types:
    """Shows the types of a catalogue, ours alone: the page is the same on every machine."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.label = " or ".join(f"`{name}`" for name in catalogue.built_in)

    def read(self, node: object, at: str, problems: object) -> None:
        """Never asked for."""


def _default(key: Key) -> str:
    if key.required:
        return "*required*"
    if key.default in (None, [], {}):
        return ""
    return f"`{key.default if isinstance(key.default, str) else json.dumps(key.default)}`"


def _cell(text: str) -> str:
    # Markdown would take it for the table's own.
    return text.replace("|", "\\|")
