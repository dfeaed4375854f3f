"""
Names of tables as people write them, read as PostgreSQL reads them.

`orders` is `public.orders`, whatever a search path says. A name without quotes is folded
to lower case and one in quotes is taken as it stands, so what works in SQL works here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from headrace.errors import TableRefused

_PART = r'"((?:[^"\x00]|"")+)"|([^".\s\x00-\x1f]+)'
_NAME = re.compile(rf"(?:(?:{_PART})\.)?(?:{_PART})")
_CAPITALS = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
"""PostgreSQL folds only these where the encoding has several bytes a letter."""


def parse_name(name: str) -> tuple[str, str]:
    """Return schema and table that `name` stands for; raises `TableRefused` if it is no name."""
    if (match := _NAME.fullmatch(name)) is None:
        raise TableRefused(
            "Text is not the name of a table",
            table=name,
            remedy='Write table, schema.table, or "Schema"."Table" where capitals or dots matter.',
        )
    schema = _part(match[1], match[2])
    return schema or "public", _part(match[3], match[4])


def quoted(*names: str) -> str:
    """Return a name of one or more parts as SQL takes it, whatever the parts hold."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def listed(names: Iterable[str]) -> str:
    """Return columns as SQL takes a list of them."""
    return ", ".join(quoted(name) for name in names)


def written(schema: str, table: str) -> str:
    """Return the shortest text that `parse_name` reads as this table."""
    parts = [table] if schema == "public" else [schema, table]
    return ".".join(part if _plain(part) else quoted(part) for part in parts)


def _part(quoted_part: str | None, plain: str | None) -> str:
    if quoted_part is not None:
        return quoted_part.replace('""', '"')
    return (plain or "").translate(_CAPITALS)


def _plain(part: str) -> bool:
    match = _NAME.fullmatch(part)
    return match is not None and match[4] == part.translate(_CAPITALS) == part
