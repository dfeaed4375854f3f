"""What can be found wrong before anything is started: all of it, told together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

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
) -> dict[str, TableSchema]:
    """
    Return the schema of every `source/table`.

    Raises `InvalidConfiguration` with all that is wrong with names, sources, tables and plans.
    """
    schemas: dict[str, TableSchema] = {}
    with gathered() as errors:
        errors.found += misnamed
        for name, source in sources.items():
            problems = list(source.check(tables[name]))
            errors.found += problems
            # One bad table must not hide what is wrong with the pipelines of another.
            for some in [[table] for table in tables[name]] if problems else [tables[name]]:
                try:
                    described = source.describe(some)
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
