"""Changes that lack a value which their target needs: they stop a pipeline (R21)."""

from __future__ import annotations

from headrace.changelog.entry import File
from headrace.changelog.log import LogReader
from headrace.changelog.schema import TableSchema
from headrace.errors import UnknownValue
from headrace.pipeline.batch import Runner
from headrace.pipeline.definition import Pipeline


def refuse_unknown(
    log: LogReader, file: File, runner: Runner, pipeline: Pipeline, schema: TableSchema
) -> None:
    """
    Raise `UnknownValue` where a change of a segment was sent without a value that is needed.

    Taken as it is, the value would become null at the target. A column that the pipeline
    drops, and that no step of it reads, may be missing.
    """
    if not file.unsent:
        return
    rows = log.rows(file)
    lacking = {number for each in rows["_unsent"].drop_null().to_pylist() for number in each}
    if unknown := lacking & runner.needs(pipeline, schema):
        raise UnknownValue(
            "A value that did not change was not sent by the source",
            table=file.table,
            columns=[column.name for column in schema.columns if column.field in unknown],
        )
