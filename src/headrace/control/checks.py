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
            matched, unlisted = _matching(source, tables[name], (selections or {}).get(name, ()))
            wanted = [*tables[name], *matched]
            # What only matches a pattern is left out where it cannot be captured.
            refused, problems = blamed(source.check(wanted), matched)
            errors.found += problems or unlisted
            wanted = [table for table in wanted if table not in refused]
            # One bad table must not hide what is wrong with the pipelines of another.
            for some in [[table] for table in wanted] if problems else [wanted]:
                try:
                    described, _ = describe(source, some, matched)
                except HeadraceError as error:
                    if not problems:
                        errors.found.append(error)
                    continue
                for table, schema in described.items():
                    schemas[f"{name}/{table}"] = schema
        for pipeline in pipelines:
            for table in pipeline.tables:
                if known := schemas.get(f"{pipeline.source.name}/{table}"):
                    errors.found += pipeline.check(known)
    return schemas


def _matching(
    source: Recordable, named: Sequence[str], selections: Sequence[Sequence[str]]
) -> tuple[tuple[str, ...], list[HeadraceError]]:
    """Return the tables that patterns stand for, or why that cannot be said."""
    try:
        return matching(source, named, selections), []
    except HeadraceError as error:
        return (), [error]
