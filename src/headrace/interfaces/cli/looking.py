"""
A configuration to begin with, from what a database has.

Each table that can be captured becomes a pipeline of its own into memory, with a comment that
tells its columns; those that cannot are named, with the reason. A password in the address is
not written down: the file says in which variable it is looked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.config.masking import masked_text, password_in, password_of, without_password
from headrace.control.names import fitted
from headrace.errors import HeadraceError, SourceRefused
from headrace.interfaces.cli.writing import Lines, entry, list_of

if TYPE_CHECKING:
    from headrace.capture.postgres.source import PostgresSource
    from headrace.capture.sqlite.source import SQLiteSource
    from headrace.changelog.schema import TableSchema

MOST_PIPELINES = 20
"""Beyond it, tables stand in comments: nobody means to hold a hundred of them in memory."""

_POSTGRES = re.compile(r"postgres(ql)?://|(^|\s)(host|hostaddr|dbname|service)\s*=", re.IGNORECASE)
_ADDRESS = re.compile(r"(?!sqlite:)([a-z][a-z0-9+.-]*):/", re.IGNORECASE)
_MAGIC = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class Looked:
    """A configuration, and what a person should know of the database it was made from."""

    text: str
    source: str
    tables: tuple[str, ...]
    """Those that have a pipeline."""

    left_out: tuple[HeadraceError, ...]
    """Why tables have none, or why capture could not begin at all."""

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What has to be set in the environment: the password that stood in the address."""


def looked_at(url: str, folder: Path | None = None) -> Looked:
    """
    Look at a database, and return a configuration for it; raises where it is not reachable.

    `folder` is where the configuration will lie, if not here: paths in it begin there.
    """
    if _POSTGRES.search(url):
        return _of_postgres(url)
    return _of_sqlite(url, folder or Path())


def _of_sqlite(url: str, folder: Path) -> Looked:
    from headrace.capture.sqlite.source import sqlite

    given = Path(re.sub(r"^sqlite:(//)?", "", url)).expanduser()
    if not given.is_file():
        # Of an address its scheme alone: a password may stand anywhere in the rest.
        if (address := _ADDRESS.match(url)) is not None:
            raise SourceRefused(
                f"There is no source for {address[1]}",
                remedy="Name a SQLite file, sqlite:shop.db, or a server,"
                " postgresql://user@host/database.",
            )
        raise SourceRefused(
            "There is no such file",
            path=masked_text(str(given)),
            remedy="Name a SQLite file, sqlite:shop.db, or a server,"
            " postgresql://user@host/database.",
        )
    with given.open("rb") as file:
        head = file.read(len(_MAGIC))
    # A file without a byte is a database without a table.
    if head and head != _MAGIC:
        raise SourceRefused(
            "This file is no SQLite database",
            path=str(given),
            remedy="Name a SQLite file, or a server: postgresql://user@host/database.",
        )
    source = sqlite(given)
    path = given if folder.resolve() == Path.cwd() else given.absolute()
    lines = ["type = sqlite", f"path = {entry(str(path))}"]
    return _written(source, lines, url=f"sqlite:{given}")


def _of_postgres(url: str) -> Looked:
    from headrace.capture.postgres.definition import postgres

    source = postgres(url)
    lines = ["type = postgres", f"connection = {entry(without_password(url))}"]
    variables = {}
    if password_in(url):
        variable = re.sub(r"[^A-Z0-9]", "_", source.name.upper()) + "_PASSWORD"
        variables[variable] = password_of(url)
        lines.append(f'password_ref = "env:{variable}"     # or "file:/run/secrets/…"')
    lines.append("slot_mode = stateful     # ephemeral: every start copies the tables anew")
    return _written(source, lines, url=without_password(url), variables=variables)


def _written(
    source: SQLiteSource | PostgresSource,
    about: Sequence[str],
    url: str,
    variables: Mapping[str, str] | None = None,
) -> Looked:
    names = list(source.tables())
    problems = list(source.check(names)) if names else []
    refused = {str(each.facts["table"]): each for each in problems if "table" in each.facts}
    fit = [name for name in names if name not in refused]
    schemas = source.describe(fit) if fit else {}
    lines = Lines()
    lines.comment(f"Written by headrace init {url}. Every key: headrace config, and the docs.")
    lines.blank()
    lines.add('data = "./headrace-data"     # the log, progress and dead letters')
    lines.blank()
    lines.add(f"sources.{entry(source.name)} {{", *(f"  {line}" for line in about), "}")
    taken: set[str] = set()
    for number, name in enumerate(fit):
        lines.blank()
        block = _pipeline(source.name, name, schemas[name], taken)
        if number == MOST_PIPELINES:
            lines.comment("More tables, to be uncommented: each is held in memory.")
        lines.add(*(block if number < MOST_PIPELINES else [f"# {line}" for line in block]))
    for table, problem in refused.items():
        lines.blank()
        lines.comment(f"{table} is left out: {problem.message}. {problem.remedy}")
    if not names:
        lines.blank()
        lines.comment("The database has no table yet. One of orders would be brought by:")
        lines.add(f"# pipelines.orders {{ source = {entry(source.name)}, tables = [orders],")
        lines.add("#                    target { type = indexed-memory } }")
    left_out = tuple(problems)
    return Looked(
        lines.text(), source.name, tuple(fit[:MOST_PIPELINES]), left_out, dict(variables or {})
    )


def _pipeline(source: str, table: str, schema: TableSchema, taken: set[str]) -> list[str]:
    """Return the lines of one table's pipeline."""
    id_ = stem = fitted(table.removeprefix("public."))
    number = 1
    while id_ in taken:
        number += 1
        id_ = f"{stem[:60]}-{number}"
    taken.add(id_)
    lines = Lines()
    columns = ", ".join(
        f"{column.name} {column.declared or column.type}".strip() for column in schema.columns
    )
    lines.comment(f"columns: {columns}")
    lines.add(
        f"pipelines.{entry(id_)} {{",
        f"  source = {entry(source)}",
        f"  tables = {list_of([table])}",
    )
    example = next((each.name for each in schema.columns if each.name not in schema.key), None)
    shown = entry(example or schema.columns[0].name)
    lines.add(f"  # filters = [{{ type = field-equals, field = {shown}, value = … }}]")
    if schema.key:
        lines.comment(f"The key is {', '.join(schema.key)}; other lookups by indexes:", "  ")
        lines.add(
            "  target {",
            "    type = indexed-memory",
            f"    # indexes.by_{fitted(example or 'column').replace('.', '_').replace('-', '_')}"
            f" {{ fields = [{shown}] }}",
            "  }",
        )
    else:
        lines.comment("The table has no key: say which columns tell its rows apart.", "  ")
        every = list_of([column.name for column in schema.columns])
        lines.add(f"  target {{ type = indexed-memory, key_fields = {every} }}")
    lines.add("}")
    return lines.text().rstrip("\n").split("\n")
