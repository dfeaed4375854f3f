"""
`headrace init`: a configuration file, made from the tables of a database.

The file is made to be edited: it has comments, and values that read back the same.

Each table that can be captured becomes a pipeline of its own into memory, with a comment that
lists its columns. Tables that cannot be captured are listed with the reason. A password in the URL
is not written to the file: the file names the variable that must contain it.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.api.connect import error_object
from headrace.cli import errors
from headrace.cli.common import json_option
from headrace.cli.errors import force_option, opened_output, refuse_taken
from headrace.config.secrets import masked_text, password_in, password_of, without_password
from headrace.errors import HeadraceError, NotInstalled, SourceRefused
from headrace.extras import require

if TYPE_CHECKING:
    from headrace.capture.postgres.source import PostgresSource
    from headrace.capture.sqlite.source import SQLiteSource
    from headrace.changelog.schema import TableSchema

_DEFAULT = Path("headrace.conf")


@click.command(short_help="Write a configuration file for a database.")
@click.argument("url", required=False)
@click.option(
    "--from",
    "other",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Convert the configuration of another engine: tables = [{ …, targets = […] }].",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=_DEFAULT,
    metavar="FILE",
    help="File to write (default: headrace.conf in this folder).",
)
@force_option
@json_option
def init(url: str | None, other: Path | None, output: Path, force: bool, as_json: bool) -> int:
    """
    Write a commented configuration file that is ready to run.

    URL is your database: sqlite:shop.db or postgresql://user@host/database. Each of its tables
    gets a pipeline into memory. The result is checked as by headrace validate.

    With --from, convert the configuration of another engine instead. Settings without a
    counterpart are listed in comments. Passwords are never copied into the file.
    """
    if (url is None) == (other is None):
        raise click.UsageError(
            "Give the URL of a database, such as sqlite:shop.db, or --from FILE."
        )
    refuse_taken(output, force=force)
    if url is not None:
        return _look(url, output, force=force, as_json=as_json)
    assert other is not None
    _convert(other, output, force=force, as_json=as_json)
    return errors.DONE


def _look(url: str, output: Path, *, force: bool, as_json: bool) -> int:

    found = looked_at(url, output.parent)
    _write(output, found.text, force=force)
    if as_json:
        if found.tables:
            _check(output, found.variables)
        fields = {"written": str(output), "source": found.source, "tables": list(found.tables)}
        left = [error_object(each) for each in found.left_out]
        click.echo(json.dumps({**fields, "left_out": left, "set": sorted(found.variables)}))
        return errors.DONE
    click.echo(f"✓ {output} written: source {found.source}, {_count(len(found.tables), 'table')}")
    for each in found.left_out:
        errors.print_warning(each)
    for variable in found.variables:
        click.echo(
            f"  The password is not in the file. Set it first: export {variable}=…", err=True
        )
    if not found.tables:
        click.echo("  No table can be captured yet. Edit the file, then run: headrace validate")
        return errors.DONE
    _check(output, found.variables)
    click.echo("✓ checked")
    try:
        require("spark", "A pipeline")
    except NotInstalled as missing:
        errors.print_warning(missing)
    option = "" if output == _DEFAULT else f" --config {output}"
    click.echo(f"  next: headrace run{option}")
    return errors.DONE


def _convert(other: Path, output: Path, *, force: bool, as_json: bool) -> None:
    # Imported here: `--help` reads no configuration.
    from headrace.cli.import_laredo import converted
    from headrace.config.hocon import read_text

    made = converted(read_text(other), str(other))
    _write(output, made.text, force=force)
    if as_json:
        counts = {"sources": made.sources, "pipelines": made.pipelines}
        click.echo(json.dumps({"written": str(output), **counts, "notes": list(made.notes)}))
        return
    for note in made.notes:
        click.echo(f"! {note}", err=True)
    click.echo(f"✓ {output} written: {_count(made.sources, 'source')}, ", nl=False)
    click.echo(_count(made.pipelines, "pipeline"))
    click.echo("  next: headrace validate", err=True)


def _write(output: Path, text: str, *, force: bool) -> None:
    # Readable as the umask allows: it has no password, and the engine may run as another user.
    with opened_output(output, force=force, mode=0o666) as stream:
        stream.write(text.encode())


def _check(output: Path, variables: Mapping[str, str]) -> None:
    from headrace.cli.common import read_configuration

    # For this process only: the password was in the URL, and is stored nowhere.
    os.environ.update(variables)
    read_configuration(output, ()).check()


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


# --- the text of a configuration ------------------------------------------------------------------

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_WORDS = ("true", "false", "null", "include")
"""Words that are text only in quotes."""

_OPEN, _CLOSE = "\ue000", "\ue001"
"""Private-use characters: they enclose a variable's name in place of its value."""

_VARIABLE = re.compile(f"{_OPEN}([^{_CLOSE}]*){_CLOSE}")
_WIDTH = 96


class PlaceholderEnvironment(Mapping[str, str]):
    """An environment in which every variable is set, to a placeholder with its name."""

    def __getitem__(self, name: str) -> str:
        return f"{_OPEN}{name}{_CLOSE}"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class ConfigLines:
    """The lines of a file, one after the other."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, *lines: str) -> None:
        """Add lines as they are."""
        self._lines += lines

    def blank(self) -> None:
        """Add an empty line, unless the last one is empty."""
        if self._lines and self._lines[-1]:
            self._lines.append("")

    def comment(self, text: str, indent: str = "") -> None:
        """Add a comment, wrapped to several lines if needed."""
        start = f"{indent}# "
        self._lines += textwrap.wrap(
            " ".join(text.split()),
            _WIDTH,
            initial_indent=start,
            subsequent_indent=start,
            break_long_words=False,
            break_on_hyphens=False,
        )

    def text(self) -> str:
        """Return the file."""
        return "\n".join(self._lines).rstrip("\n") + "\n"


def variables_of(text: str) -> list[str]:
    """Return the variables in a text of `PlaceholderEnvironment`."""
    return _VARIABLE.findall(text)


def without_variables(text: str) -> str:
    """Return a text of `PlaceholderEnvironment` without its variables."""
    return _VARIABLE.sub("", text)


def with_scheme(text: str) -> str:
    """Return a URL with a valid scheme in place of a variable."""
    return re.sub(f"^{_VARIABLE.pattern}(?=://)", "x", text)


def entry(value: object) -> str:
    """Return a key or a value as it is written; variables as substitutions."""
    if not isinstance(value, str):
        return json.dumps(value)
    if not variables_of(value):
        return _quoted(value)
    # HOCON joins values that follow each other.
    parts = _VARIABLE.split(value)
    return "".join(
        f"${{{part}}}" if number % 2 else json.dumps(part, ensure_ascii=False)
        for number, part in enumerate(parts)
        if part
    )


def list_of(values: Sequence[str]) -> str:
    """Return a list as it is written."""
    return f"[{', '.join(entry(each) for each in values)}]"


def _quoted(text: str) -> str:
    if _BARE.fullmatch(text) and not text.startswith(_WORDS):
        return text
    return json.dumps(text, ensure_ascii=False)


# --- from the tables of a database ----------------------------------------------------------------

MOST_PIPELINES = 20
"""Further tables are written as comments: a hundred tables are rarely meant to be in memory."""

_POSTGRES = re.compile(r"postgres(ql)?://|(^|\s)(host|hostaddr|dbname|service)\s*=", re.IGNORECASE)
_ADDRESS = re.compile(r"(?!sqlite:)([a-z][a-z0-9+.-]*):/", re.IGNORECASE)
_MAGIC = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class InitProposal:
    """A configuration, and the problems of the database it was made from."""

    text: str
    source: str
    tables: tuple[str, ...]
    """The tables that have a pipeline."""

    left_out: tuple[HeadraceError, ...]
    """Why tables were left out, or why nothing can be captured."""

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that must be set in the environment: the password that was in the URL."""


def looked_at(url: str, folder: Path | None = None) -> InitProposal:
    """
    Inspect a database, and return a configuration for it; raises if it cannot be reached.

    `folder` is the folder of the configuration, if not the current one: paths start there.
    """
    if _POSTGRES.search(url):
        return _of_postgres(url)
    return _of_sqlite(url, folder or Path())


def _of_sqlite(url: str, folder: Path) -> InitProposal:
    from headrace.capture.sqlite.source import sqlite

    given = Path(re.sub(r"^sqlite:(//)?", "", url)).expanduser()
    if not given.is_file():
        # Only the scheme of the URL: a password may be anywhere in the rest.
        if (address := _ADDRESS.match(url)) is not None:
            raise SourceRefused(
                f"{address[1]} is not a supported database",
                remedy="Use a SQLite file, sqlite:shop.db, or a PostgreSQL server,"
                " postgresql://user@host/database.",
            )
        raise SourceRefused(
            f"{masked_text(str(given))} does not exist",
            path=masked_text(str(given)),
            remedy="Use a SQLite file, sqlite:shop.db, or a PostgreSQL server,"
            " postgresql://user@host/database.",
        )
    with given.open("rb") as file:
        head = file.read(len(_MAGIC))
    # An empty file is a database without tables.
    if head and head != _MAGIC:
        raise SourceRefused(
            f"{given} is not a SQLite database",
            path=str(given),
            remedy="Use a SQLite file, or a PostgreSQL server: postgresql://user@host/database.",
        )
    source = sqlite(given)
    path = given if folder.resolve() == Path.cwd() else given.absolute()
    lines = ["type = sqlite", f"path = {entry(str(path))}"]
    return _written(source, lines, url=f"sqlite:{given}")


def _of_postgres(url: str) -> InitProposal:
    from headrace.capture.postgres.definition import postgres

    source = postgres(url)
    lines = ["type = postgres", f"connection = {entry(without_password(url))}"]
    variables = {}
    if password_in(url):
        variable = re.sub(r"[^A-Z0-9]", "_", source.name.upper()) + "_PASSWORD"
        variables[variable] = password_of(url)
        lines.append(f'password_ref = "env:{variable}"     # or "file:/run/secrets/…"')
    lines.append("slot_mode = stateful     # ephemeral: copy the tables again at every start")
    return _written(source, lines, url=without_password(url), variables=variables)


def _written(
    source: SQLiteSource | PostgresSource,
    about: Sequence[str],
    url: str,
    variables: Mapping[str, str] | None = None,
) -> InitProposal:
    names = list(source.tables())
    problems = list(source.check(names)) if names else []
    refused = {str(each.facts["table"]): each for each in problems if "table" in each.facts}
    fit = [name for name in names if name not in refused]
    schemas = source.describe(fit) if fit else {}
    lines = ConfigLines()
    lines.comment(f"Written by headrace init {url}. headrace config prints every key.")
    lines.blank()
    lines.add('data = "./headrace-data"     # the log, progress and dead letters')
    lines.blank()
    lines.add(f"sources.{entry(source.name)} {{", *(f"  {line}" for line in about), "}")
    taken: set[str] = set()
    for number, name in enumerate(fit):
        lines.blank()
        block = _pipeline(source.name, name, schemas[name], taken)
        if number == MOST_PIPELINES:
            lines.comment("More tables. Uncomment those you need; each is kept in memory.")
        lines.add(*(block if number < MOST_PIPELINES else [f"# {line}" for line in block]))
    for table, problem in refused.items():
        lines.blank()
        lines.comment(f"{table} was left out: {problem.sentence}. {problem.remedy}")
    if not names:
        lines.blank()
        lines.comment(
            "The database has no tables yet. A pipeline for a table named orders looks like this:"
        )
        lines.add(f"# pipelines.orders {{ source = {entry(source.name)}, tables = [orders],")
        lines.add("#                    target { type = indexed-memory } }")
    left_out = tuple(problems)
    return InitProposal(
        lines.text(), source.name, tuple(fit[:MOST_PIPELINES]), left_out, dict(variables or {})
    )


def _pipeline(source: str, table: str, schema: TableSchema, taken: set[str]) -> list[str]:
    """Return the lines of one table's pipeline."""
    # Imported here: commands start without the engine.
    from headrace.engine.checks import fitted

    id_ = stem = fitted(table.removeprefix("public."))
    number = 1
    while id_ in taken:
        number += 1
        id_ = f"{stem[:60]}-{number}"
    taken.add(id_)
    lines = ConfigLines()
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
        lines.comment(f"The key is {', '.join(schema.key)}. Add indexes for other lookups:", "  ")
        lines.add(
            "  target {",
            "    type = indexed-memory",
            f"    # indexes.by_{fitted(example or 'column').replace('.', '_').replace('-', '_')}"
            f" {{ fields = [{shown}] }}",
            "  }",
        )
    else:
        lines.comment("The table has no key. List the columns that identify a row:", "  ")
        every = list_of([column.name for column in schema.columns])
        lines.add(f"  target {{ type = indexed-memory, key_fields = {every} }}")
    lines.add("}")
    return lines.text().rstrip("\n").split("\n")
