"""What is wrong with a configuration's databases and steps, and where it is said."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.changelog.schema import TableSchema
from headrace.config.checking import Values, located
from headrace.config.parts import Chosen
from headrace.config.tree import Node, Place
from headrace.control.checks import looked_at
from headrace.control.configured_targets import wrong_columns
from headrace.control.gathering import gathered
from headrace.control.taken import TakenTables
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.control.configured import Built, Configured
    from headrace.pipeline.definition import Pipeline

_STEP = re.compile(r"(Filter|Transform) (\d+)")
"""How a step's errors name it; counted from 1."""


def check_databases(configured: Configured, built: Built) -> None:
    """Raise `InvalidConfiguration` with everything a start would refuse before Spark is up."""
    taken = TakenTables(built.pipelines, built.records, [])
    schemas: dict[str, TableSchema] = {}
    with gathered() as errors:
        for name, source in built.sources.items():
            found, wrong = looked_at(source, taken.named(name), taken.selections(name))
            schemas |= {f"{name}/{table}": schema for table, schema in found.items()}
            errors.found += [located(error, _place_of(error, name, configured)) for error in wrong]
        for pipeline in built.pipelines:
            errors.found += _wrong_steps(pipeline, schemas, configured)


def _wrong_steps(
    pipeline: Pipeline, schemas: Mapping[str, TableSchema], configured: Configured
) -> list[HeadraceError]:
    assert pipeline.name is not None
    values = configured.pipelines[pipeline.name]
    wrong: list[HeadraceError] = []
    for table in pipeline.tables:
        if (schema := schemas.get(f"{pipeline.source.name}/{table}")) is None:
            continue
        steps = [located(each, _place_of_step(each, values)) for each in pipeline.check(schema)]
        # Which columns the target gets is not known before the steps are right.
        wrong += steps or wrong_columns(values["target"], pipeline.transforms, schema)
    return wrong


def _place_of_step(error: HeadraceError, values: Values) -> Place:
    if (step := _STEP.match(error.message)) is None:
        return values.place
    steps: tuple[Chosen, ...] = values["filters" if step[1] == "Filter" else "transforms"]
    number = int(step[2]) - 1
    return steps[number].values.place if number < len(steps) else values.place


def _place_of(error: HeadraceError, source: str, configured: Configured) -> Place:
    """Return where the table that an error speaks of is named, or else its source."""
    table = error.facts.get("table")
    for name, values in configured.pipelines.items():
        if values["source"] == source and table in values["tables"]:
            entry = _entry(configured.tree, "pipelines", name, "tables")
            return _element(entry, values["tables"].index(table), values.place_of("tables"))
    chosen = configured.sources[source]
    if table in chosen.values["record"]:
        return chosen.values.place_of("record")
    return chosen.values.place


def _entry(tree: Node, *path: str) -> Node | None:
    found: Node | None = tree
    for key in path:
        if found is None or not isinstance(found.value, dict):
            return None
        found = found.value.get(key)
    return found


def _element(entry: Node | None, number: int, otherwise: Place) -> Place:
    if entry is not None and isinstance(entry.value, list) and number < len(entry.value):
        return entry.value[number].place
    return otherwise
