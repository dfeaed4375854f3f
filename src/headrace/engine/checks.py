"""
Checks before a start; all errors are reported together.

`ErrorCollector` and `collected_errors` collect errors, which are found one by one, and report them
together.

The ids of sources and pipelines are given, or derived from names of tables and sources. An id is
the name of a folder, a label of metrics and a word on the command line, so it is short and plain:
`[a-z0-9][a-z0-9._-]{0,63}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from headrace.errors import BadName, HeadraceError, InvalidConfiguration, SourceUnreachable

if TYPE_CHECKING:
    from headrace.capture.source import Recordable
    from headrace.changelog.schema import TableSchema
    from headrace.pipeline.definition import Pipeline


# --- collecting errors ----------------------------------------------------------------------------


class ErrorCollector:
    """Collects errors as they are raised: put each check that may raise into `with collector:`."""

    def __init__(self) -> None:
        self.found: list[HeadraceError] = []

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, HeadraceError):
            return False
        self.found.append(error)
        return True


@contextmanager
def collected_errors() -> Iterator[ErrorCollector]:
    """Raise `InvalidConfiguration` at the end of the block if it collected any error."""
    collector = ErrorCollector()
    yield collector
    if collector.found:
        raise InvalidConfiguration.of(collector.found)


# --- sources, tables and plans --------------------------------------------------------------------

_SOURCES_AT_ONCE = 16


def checked_schemas(
    sources: Mapping[str, Recordable],
    tables: Mapping[str, Sequence[str]],
    pipelines: Sequence[Pipeline],
    misnamed: Sequence[HeadraceError],
    selections: Mapping[str, Sequence[Sequence[str]]] | None = None,
    away: dict[str, HeadraceError] | None = None,
    *,
    logged: Callable[[str], Mapping[str, TableSchema]],
) -> dict[str, TableSchema]:
    """
    Return the schema of every `source/table`: the named ones, and those that `selections` choose.

    A source that cannot be reached is added to `away` with the error, if that is given: nothing is
    known of it then, and nothing is wrong with the configuration.
    `logged` returns the tables in the log of a source. One of these that cannot be captured any
    more is as the log knows it: its recorder reports it, and the other tables can be used.
    Raises `InvalidConfiguration` with all errors in names, sources, tables and plans.
    """
    schemas: dict[str, TableSchema] = {}
    with collected_errors() as errors:
        errors.found += misnamed

        def look(name: str) -> tuple[dict[str, TableSchema], list[HeadraceError]]:
            return looked_at(sources[name], tables[name], (selections or {}).get(name, ()), logged)

        # At the same time: a server that does not answer does not hold up the other sources more
        # than once.
        with futures.ThreadPoolExecutor(_SOURCES_AT_ONCE) as pool:
            looks = list(zip(sources, pool.map(look, sources), strict=True))
        for name, (found, wrong) in looks:
            if away is not None and wrong and all(isinstance(e, SourceUnreachable) for e in wrong):
                away[name] = wrong[0]
                continue
            errors.found += wrong
            schemas |= {f"{name}/{table}": schema for table, schema in found.items()}
        for pipeline in pipelines:
            for table in pipeline.tables:
                if known := schemas.get(f"{pipeline.source.name}/{table}"):
                    errors.found += pipeline.check(known)
    return schemas


def looked_at(
    source: Recordable,
    named: Sequence[str],
    selections: Sequence[Sequence[str]],
    logged: Callable[[str], Mapping[str, TableSchema]] = lambda source: {},
) -> tuple[dict[str, TableSchema], list[HeadraceError]]:
    """Return the schemas of a source's tables, as far as they are known, and all errors."""
    from headrace.capture.table_selection import blamed, describe

    matched, unlisted = _matching(source, named, selections)
    if any(isinstance(error, SourceUnreachable) for error in unlisted):
        return {}, unlisted
    wanted = [*named, *matched]
    found = source.check(wanted)
    # A table that only matches a pattern is left out if it cannot be captured.
    refused, problems = blamed(found, matched)
    recorded = logged(source.name) if problems else {}
    refused, problems = blamed(found, [*matched, *(each for each in named if each in recorded)])
    errors = [*(problems or unlisted)]
    if errors and all(isinstance(error, SourceUnreachable) for error in errors):
        return {}, errors  # not once more for every table: each attempt may take seconds
    schemas = {table: recorded[table] for table in refused if table in recorded}
    wanted = [table for table in wanted if table not in refused]
    # One bad table must not hide errors in the pipelines of another.
    for some in [[table] for table in wanted] if problems else [wanted]:
        try:
            described, _ = describe(source, some, matched)
        except HeadraceError as error:
            if not problems:
                errors.append(error)
            continue
        schemas |= described
    return schemas, errors


def _matching(
    source: Recordable, named: Sequence[str], selections: Sequence[Sequence[str]]
) -> tuple[tuple[str, ...], list[HeadraceError]]:
    """Return the tables that match the patterns, or the error that kept us from listing them."""
    from headrace.capture.table_selection import matching

    try:
        return matching(source, named, selections), []
    except HeadraceError as error:
        return (), [error]


# --- ids of sources and pipelines -----------------------------------------------------------------

_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_OTHER = re.compile(r"[^a-z0-9._-]")


def fitted(text: str) -> str:
    """Return `text` as an id: lower case, every other character replaced by an underscore."""
    plain = _OTHER.sub("_", text.lower())[:64]
    return plain if plain and _ID.fullmatch(plain) else f"x{plain}"[:64]


def checked(name: str, what: str) -> list[HeadraceError]:
    """Return the errors in an id."""
    if _ID.fullmatch(name):
        return []
    return [BadName(f"{what} name {name!r} is not a valid id")]


def pipeline_names(
    wanted: Sequence[tuple[str | None, str, str, str]],
) -> tuple[list[str], list[HeadraceError]]:
    """
    Name pipelines given as (name or None, source, table, target type).

    The default is the table's name, several joined by `_`, or `source.table.type` if that name
    is taken.
    """
    names: list[str] = []
    errors: list[HeadraceError] = []
    for given, source, table, kind in wanted:
        if given is not None:
            errors += checked(given, "Pipeline")
            name = given
        else:
            name = fitted(table)
            if name in names or any(name == other for other, *_ in wanted):
                name = fitted(f"{source}.{table}.{kind}")
        if name in names:
            errors.append(BadName(f"Two pipelines are named {name}"))
        names.append(name)
    return names, errors


def named(
    pipelines: Sequence[Pipeline], recorded: Sequence[Recordable] = ()
) -> tuple[dict[str, Recordable], list[str], list[HeadraceError]]:
    """Return the sources by name, the names of the pipelines, and the errors in both."""
    sources, errors = named_sources([*(pipeline.source for pipeline in pipelines), *recorded])
    names, wrong = named_pipelines(pipelines)
    return sources, names, errors + wrong


def named_sources(
    given: Sequence[Recordable],
) -> tuple[dict[str, Recordable], list[HeadraceError]]:
    """Return sources by name, and the errors in the names."""
    errors: list[HeadraceError] = []
    sources: dict[str, Recordable] = {}
    for source in given:
        if source.name not in sources:
            errors += checked(source.name, "Source")
        if sources.setdefault(source.name, source) is not source:
            errors.append(BadName(f"Two sources are named {source.name}"))
    return sources, errors


def named_pipelines(pipelines: Sequence[Pipeline]) -> tuple[list[str], list[HeadraceError]]:
    """Return the names of pipelines, and the errors in them."""
    names, errors = pipeline_names(
        # With patterns, the tables of a pipeline change: it is named after its source.
        [
            (
                p.name,
                p.source.name,
                p.source.name if p.patterns else "_".join(p.tables),
                p.target.traits.type,
            )
            for p in pipelines
        ]
    )
    if len({id(p.target) for p in pipelines}) < len(pipelines):
        errors.append(BadName("Two pipelines have the same target object; create one for each"))
    return names, errors
