"""Formats as their readers know them, apart from the code that writes: what stories look with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.lake.formats import DELTA, ICEBERG, Format, needs
from headrace.lake.history import CommitNote, read
from headrace.lake.iceberg import PREFIX, PROPERTY, in_folder, own_catalog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from headrace.spark_session.session import Spark


class Kind(Protocol):
    """A format whose commits keep our notes; its tables are found by their folders here."""

    format: Format

    def needs(self, data: Path) -> dict[str, str]:
        """Return the settings that a Spark for it is started with."""
        ...

    def rows(self, spark: Spark, path: object, version: int | None = None) -> DataFrame:
        """Return what a version of a table shows, or what it shows now."""
        ...

    def versions(self, spark: Spark, path: object) -> list[tuple[int, CommitNote | None]]:
        """Return what readers have seen, the newest first, and our notes."""
        ...

    def only_added(self, spark: Spark, path: object) -> list[bool]:
        """Return of each version, the newest first, whether it has all rows of the one before."""
        ...

    def named(self, spark: Spark, path: object) -> str:
        """Return what SQL calls the table, in the session for bulk."""
        ...

    def make(self, spark: Spark, path: object) -> None:
        """Make a table that is not ours."""
        ...

    def compact(self, spark: Spark, path: object) -> None:
        """Make few files of many, as somebody else would."""
        ...

    def put_back(self, spark: Spark, path: object) -> None:
        """Let it be as its first version was."""
        ...

    def forget(self, spark: Spark, path: object) -> None:
        """Let its history not reach back to us any more."""
        ...


class Delta:
    format = DELTA

    def needs(self, data: Path) -> dict[str, str]:
        return needs(DELTA)

    def rows(self, spark: Spark, path: object, version: int | None = None) -> DataFrame:
        options = {} if version is None else {"versionAsOf": version}
        return spark.bulk.read.format("delta").options(**options).load(str(path))

    def versions(self, spark: Spark, path: object) -> list[tuple[int, CommitNote | None]]:
        commits = spark.bulk.sql(f"describe history {self.named(spark, path)}").collect()
        return [(commit.version, read(commit.userMetadata)) for commit in commits]

    def only_added(self, spark: Spark, path: object) -> list[bool]:
        commits = spark.bulk.sql(f"describe history {self.named(spark, path)}").collect()
        return [commit.operationParameters["mode"] == "Append" for commit in commits]

    def named(self, spark: Spark, path: object) -> str:
        return f"delta.`{path}`"

    def make(self, spark: Spark, path: object) -> None:
        spark.bulk.range(3).write.format("delta").save(str(path))

    def compact(self, spark: Spark, path: object) -> None:
        spark.bulk.sql(f"OPTIMIZE {self.named(spark, path)}").collect()

    def put_back(self, spark: Spark, path: object) -> None:
        spark.bulk.sql(f"RESTORE TABLE {self.named(spark, path)} TO VERSION AS OF 0").collect()

    def forget(self, spark: Spark, path: object) -> None:
        log = Path(str(path)) / "_delta_log"
        for each in log.glob("*.json"):
            each.write_text(each.read_text().replace("userMetadata", "somebodyElse"))
        for crc in [*log.glob(".*.crc"), *log.glob("*.crc")]:
            crc.unlink(missing_ok=True)


class Iceberg:
    format = ICEBERG

    def needs(self, data: Path) -> dict[str, str]:
        # A catalog as a user would have one, for tables that are found by their names.
        return {
            **needs(ICEBERG),
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": str(data / "warehouse"),
        }

    def rows(self, spark: Spark, path: object, version: int | None = None) -> DataFrame:
        options = {} if version is None else {"versionAsOf": version}
        return spark.bulk.read.format("iceberg").options(**options).load(str(path))

    def versions(self, spark: Spark, path: object) -> list[tuple[int, CommitNote | None]]:
        return [(each.snapshot_id, read(each.note)) for each in self._seen(spark, path)]

    def only_added(self, spark: Spark, path: object) -> list[bool]:
        return [each.operation == "append" for each in self._seen(spark, path)]

    def named(self, spark: Spark, path: object) -> str:
        folder, parts = in_folder(str(path))
        catalog, settings = own_catalog(folder)
        for key, value in settings.items():
            spark.bulk.conf.set(key, value)
        spark.bulk.conf.set(f"spark.sql.catalog.{catalog}.cache-enabled", "false")
        return ".".join([catalog, *(f"`{part}`" for part in parts)])

    def make(self, spark: Spark, path: object) -> None:
        spark.bulk.range(3).writeTo(self.named(spark, path)).using("iceberg").create()

    def compact(self, spark: Spark, path: object) -> None:
        self._call(spark, path, "rewrite_data_files", "options => map('rewrite-all', 'true')")

    def put_back(self, spark: Spark, path: object) -> None:
        first = self.versions(spark, path)[-1][0]
        self._call(spark, path, "rollback_to_snapshot", f"snapshot_id => {first}")

    def forget(self, spark: Spark, path: object) -> None:
        for branch in self.branches(spark, path):
            spark.bulk.sql(f"alter table {self.named(spark, path)} drop branch {branch}")
        self.compact(spark, path)
        self.expire(spark, path)

    def expire(self, spark: Spark, path: object, retain_last: int | None = 1) -> None:
        """Remove all snapshots but those that must stay; None: as the table itself says."""
        older = "older_than => timestamp '2999-01-01 00:00:00'"
        if retain_last is not None:
            older += f", retain_last => {retain_last}"
        self._call(spark, path, "expire_snapshots", older)

    def branches(self, spark: Spark, path: object) -> list[str]:
        """Return the names of those that are ours."""
        rows = spark.bulk.sql(f"select name from {self.named(spark, path)}.refs").collect()
        return [row.name for row in rows if row.name.startswith(PREFIX)]

    def _seen(self, spark: Spark, path: object) -> list[Row]:
        name = self.named(spark, path)
        return spark.bulk.sql(
            f"select h.snapshot_id, s.operation, s.summary['{PROPERTY}'] as note"
            f" from {name}.history h join {name}.snapshots s on h.snapshot_id = s.snapshot_id"
            " where h.is_current_ancestor order by h.made_current_at desc"
        ).collect()

    def _call(self, spark: Spark, path: object, procedure: str, arguments: str) -> None:
        name = self.named(spark, path)
        catalog = name.partition(".")[0]
        text = f"call {catalog}.system.{procedure}(table => '{name}', {arguments})"
        spark.bulk.sql(text).collect()


KINDS: dict[str, Kind] = {"delta": Delta(), "iceberg": Iceberg()}
