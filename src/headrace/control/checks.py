"""What can be found wrong before anything is started: all of it, told together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.capture.choosing import blamed, describe, matching
from headrace.changelog.schema import TableSchema
from headrace.control.gathering import gathered
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.capture.source import Recordable
    from headrace.pipeline.definition import Pipeline


def checked_schemas(
    sources: Mapping[str, Recordable],
    tables: Mapping[str, Sequence[str]],
    pipelines: Sequence[Pipeline],
    misnamed: Sequence[HeadraceError],
    selections: Mapping[str, Sequence[Sequence[str]]] | None = None,
) -> dict[str, TableSchema]:
    """
    Return the schema of every `source/table`: those named, and those that `selections` choose.

    Raises `InvalidConfiguration` with all that is wrong with names, sources, tables and plans.
    """
    schemas: dict[str, TableSchema] = {}
    with gathered() as errors:
        errors.found += misnamed
        for name, source in sources.items():
            found, wrong = looked_at(source, tables[name], (selections or {}).get(name, ()))
            errors.found += wrong
            schemas |= {f"{name}/{table}": schema for table, schema in found.items()}
        for pipeline in pipelines:
            for table in pipeline.tables:
                if known := schemas.get(f"{pipeline.source.name}/{table}"):
                    errors.found += pipeline.check(known)
    return schemas


def looked_at(
    source: Recordable, named: Sequence[str], selections: Sequence[Sequence[str]]
) -> tuple[dict[str, TableSchema], list[HeadraceError]]:
    """Return the schemas of a source's tables, as far as there are, and what is wrong with it."""
    matched, unlisted = _matching(source, named, selections)
    wanted = [*named, *matched]
    # What only matches a pattern is left out where it cannot be captured.
    refused, problems = blamed(source.check(wanted), matched)
    errors = [*(problems or unlisted)]
    wanted = [table for table in wanted if table not in refused]
    schemas: dict[str, TableSchema] = {}
    # One bad table must not hide what is wrong with the pipelines of another.
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
    """Return the tables that patterns stand for, or why that cannot be said."""
    try:
        return matching(source, named, selections), []
    except HeadraceError as error:
        return (), [error]
