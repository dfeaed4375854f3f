"""
The tables of each source that an engine records: named by pipelines and `records`, or by patterns.

Named tables are known from the start. Tables that match a pattern are found by the recorder, at its
start and later; this module passes them to the pipelines with matching patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.capture.table_selection import chosen, is_pattern
from headrace.changelog.schema import TableSchema
from headrace.errors import HeadraceError
from headrace.pipeline.definition import Pipeline
from headrace.runtime.new_tables import own_tables
from headrace.runtime.pipeline_run import PipelineRun
from headrace.runtime.source_run import SourceRun

if TYPE_CHECKING:
    from headrace.capture.source import Recordable


class TakenTables:
    """The tables of an engine. `schemas` is set at the start, and grows."""

    def __init__(
        self,
        pipelines: Sequence[Pipeline],
        records: Sequence[tuple[Recordable, Sequence[str]]],
        runs: Sequence[PipelineRun],
    ) -> None:
        self.schemas: dict[str, TableSchema] = {}
        """By `source/table`."""

        self.away: dict[str, HeadraceError] = {}
        """Sources that could not be reached at the start, each with the error."""

        self.recorded = [
            (source.name, [table for table in tables if not is_pattern(table)])
            for source, tables in records
        ]
        """Tables that are recorded without a pipeline; those that match a pattern once found."""

        self._pipelines = pipelines
        self._records = records
        self._runs = runs

    def named(self, source: str) -> list[str]:
        """Return the tables of a source that were given by name."""
        taken = {table for each in self._of(source) for table in each.tables}
        asked = {t for each, tables in self._records if each.name == source for t in tables}
        return sorted(table for table in taken | asked if not is_pattern(table))

    def selections(self, source: str) -> list[tuple[str, ...]]:
        """Return the lists of patterns for a source; tables that match any of them are recorded."""
        lists = [pipeline.patterns for pipeline in self._of(source)]
        lists += [tuple(filter(is_pattern, t)) for s, t in self._records if s.name == source]
        return [patterns for patterns in lists if patterns]

    def only_recorded(self, source: str) -> list[str]:
        """Return the tables of a source that are recorded without a pipeline."""
        return [table for name, tables in self.recorded if name == source for table in tables]

    def ask_baselines(self, recordings: Mapping[str, SourceRun]) -> None:
        """Request a baseline for recorded tables that have none in the log, also after a gap."""
        for source, tables in self.recorded:
            if (recording := recordings.get(source)) is not None:
                for table in list(tables):
                    if recording.log.usable_baseline(table) is None:
                        recording.ask_baseline(table)

    def schemas_for(
        self, pipeline: Pipeline, recording: SourceRun
    ) -> dict[str, TableSchema] | None:
        """
        Return the tables that a pipeline starts with; None while a named one is not known.

        A source that was away at the start describes its tables when its recorder has connected;
        until then they are as the log knows them. Raises the pipeline's error in its steps.
        """
        source = recording.name
        if source in self.away:
            self._learn(recording)
        known = self._known(source)
        if not all(table in known for table in pipeline.tables):
            return None
        if source in self.away:
            for table in pipeline.tables:
                for error in pipeline.check(known[table]):
                    raise error
        return own_tables(pipeline, known)

    def _learn(self, recording: SourceRun) -> None:
        if (found := recording.described) is None:
            log = recording.log
            found = {table: log.schema(table) for table in log.tables()}
        taken = self.named(recording.name)
        for table, schema in found.items():
            if table in taken or any(chosen([table], p) for p in self.selections(recording.name)):
                self.schemas[f"{recording.name}/{table}"] = schema

    def grow(self, recording: SourceRun, wake: Callable[[PipelineRun], None]) -> None:
        """Pass the tables that the recorder found to pipelines; `wake` those that have to act."""
        source, found = recording.name, recording.found
        if found is None:
            return  # the recorder has not looked yet: it is not known which tables are gone
        for run in self._runs:
            if run.source == source:
                run.lose({t: e for t, e in recording.lost.items() if t in run.pipeline.tables})
        for table, schema in found.items():
            self.schemas[f"{source}/{table}"] = schema
        for (each, patterns), (_, tables) in zip(self._records, self.recorded, strict=True):
            if each.name == source:
                tables += [table for table in chosen(found, patterns) if table not in tables]
        there = {*self.named(source), *found}
        known = {table: each for table, each in self._known(source).items() if table in there}
        for run in self._runs:
            mine = run.source == source and run.pipeline.patterns
            if mine and run.new_tables.update(known, recording.left_out, run.tables):
                run.nudge()
                wake(run)

    def _of(self, source: str) -> list[Pipeline]:
        return [pipeline for pipeline in self._pipelines if pipeline.source.name == source]

    def _known(self, source: str) -> Mapping[str, TableSchema]:
        known = [(name.split("/", 1), schema) for name, schema in list(self.schemas.items())]
        return {table: schema for (of, table), schema in known if of == source}
