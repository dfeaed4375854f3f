"""
What Spark finds by the name: `format("headrace")` (S11).

It says which columns there are, and gives Spark a reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from pyspark.sql import types as t
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from headrace.changelog.log import LogReader
from headrace.errors import BadSchema, UnknownTable
from headrace.pipeline.reading.columns import Frame
from headrace.pipeline.reading.options import check_batch, check_stream, parse_options
from headrace.pipeline.reading.places import known_table, located, opened
from headrace.pipeline.reading.readers import (
    HAS_LIMITS,
    HeadraceReader,
    HeadraceStreamReader,
    Place,
    framed,
)
from headrace.pipeline.reading.told import told
from headrace.pipeline.shapes import spark_type


class HeadraceSource(DataSource):
    """The changes of one table, from the log that an engine or `hr.record` writes."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        with told():
            self._options = parse_options(options)
        self._place: Place | None = None

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format(…)`."""
        return "headrace"

    def schema(self) -> t.StructType:
        """Return the table's columns as they are now, then ours."""
        with told():
            place, log = self._located()
            self._place = place
            return _spark_schema(framed(log, place, self._options))

    def reader(self, schema: t.StructType) -> DataSourceReader:
        """Return a reader of a part of the log."""
        with told():
            check_batch(self._options)
            place = self._placed(schema)
        return HeadraceReader(self._options, place)

    def streamReader(self, schema: t.StructType) -> DataSourceStreamReader:
        """Return a reader that follows the log."""
        with told():
            check_stream(self._options, admission=HAS_LIMITS)
            place = self._placed(schema)
        return HeadraceStreamReader(self._options, place)

    def _located(self) -> tuple[Place, LogReader]:
        options = self._options
        data, source = located(options, options.wait)
        log = opened(data, source)
        known_table(log, options.table, options.wait)
        return Place(data, source, log.columns(options.table, 0).schema), log

    def _placed(self, schema: t.StructType) -> Place:
        """Return which version of the table a frame shows; of a catalog's, by its columns."""
        if self._place is not None:
            return self._place
        place, log = self._located()
        for schema_id in range(place.schema_id, 0, -1):
            found = replace(place, schema_id=schema_id)
            with suppress(UnknownTable):
                mine = _spark_schema(framed(log, found, self._options))
                if _same(mine, schema):
                    return found
        raise BadSchema(
            "The table never had these columns",
            table=self._options.table,
            remedy="Leave the schema out: the source has its own. A table of a catalog is made"
            " anew when its source has other columns.",
        )


def _spark_schema(frame: Frame) -> t.StructType:
    return t.StructType([t.StructField(each.name, spark_type(each.type)) for each in frame.arrow])


def _same(ours: t.StructType, given: t.StructType) -> bool:
    return [(each.name, each.dataType) for each in ours] == [
        (each.name, each.dataType) for each in given
    ]
