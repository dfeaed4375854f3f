"""
What each format can do, and what Spark needs for it.

This is known before anything starts, so that what a format does not support is refused early,
and our own Spark is started with the settings that its targets need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata

from headrace.errors import BadTable, SparkFailed
from headrace.lake.history import TableLocation
from headrace.lake.rows import MODES, LakeShape, Mode
from headrace.spark_session.settings import EXTENSIONS, IVY, PACKAGES, ivy_folder, listed

_DELTA_CLASS = "io.delta.sql.DeltaSparkSessionExtension"
_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_DELTA_REFUSES = frozenset(" ,;{}()\n\t=")
_ICEBERG_CLASS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_ICEBERG_TAKEN = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id"}
    | {"_last_updated_sequence_number"}
)
"""Metadata columns that each Iceberg table has, and that a MERGE reads."""

_RENAMES = ("file", "hdfs", "viewfs")
"""File systems with an atomic rename, which commits to a table in a folder without a catalog."""


@dataclass(frozen=True, slots=True)
class Format:
    """A table format."""

    name: str
    modes: tuple[Mode, ...]
    transactional: bool
    """Whether the format's own commits keep our position; otherwise intents do (R25)."""

    packages: Mapping[str, str] = field(default_factory=dict)
    """The package to fetch, by Spark's minor version, such as 4.2; empty if none is needed."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings without which it does not work, in our own Spark or the user's."""

    tuning: Mapping[str, str] = field(default_factory=dict)
    """More settings for our own Spark."""

    refuses: Callable[[LakeShape], str | None] = lambda shape: None
    """Returns why the format cannot hold a table; None if it can."""

    refuses_location: Callable[[str | None, str | None], str | None] = lambda name, path: None
    """Returns why the format cannot have a table with this name or folder; None if it can."""


def _delta_refuses(shape: LakeShape) -> str | None:
    for name in shape.names:
        if bad := sorted(_DELTA_REFUSES & set(name)):
            return f"the name of column {name!r} contains {bad[0]!r}"
    return _by_case(shape)


def _iceberg_refuses(shape: LakeShape) -> str | None:
    for name in shape.names:
        if name.lower() in _ICEBERG_TAKEN:
            return f"{name} is the name of a metadata column in every Iceberg table"
    return _by_case(shape)


def _by_case(shape: LakeShape) -> str | None:
    lowered: dict[str, str] = {}
    for name in shape.names:
        if (other := lowered.setdefault(name.lower(), name)) != name:
            return f"the names of columns {other} and {name} differ only by case"
    return None


def _iceberg_refuses_location(name: str | None, path: str | None) -> str | None:
    if path is None:
        known = not TableLocation(tuple((name or "").split(".")), None).in_session_catalog
        return None if known else "it must be in an Iceberg catalog or in a folder"
    if name is not None:
        return "name and path exclude each other, as the catalog chooses the folder"
    scheme, found, _ = path.partition("://")
    if found and scheme not in _RENAMES:
        return f"{scheme}:// has no atomic rename, which a table in a folder needs"
    return None


DELTA = Format(
    "delta",
    MODES,
    transactional=True,
    packages={"4.2": "io.delta:delta-spark_4.2_2.13:4.4.0"},
    settings={
        EXTENSIONS: _DELTA_CLASS,
        "spark.sql.catalog.spark_catalog": _DELTA_CATALOG,
    },
    # The default of 50 tasks to read a table's log is for tables with millions of files.
    tuning={"spark.databricks.delta.snapshotPartitions": "2"},
    refuses=_delta_refuses,
)
ICEBERG = Format(
    "iceberg",
    MODES,
    transactional=True,
    packages={"4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"},
    settings={EXTENSIONS: _ICEBERG_CLASS},
    refuses=_iceberg_refuses,
    refuses_location=_iceberg_refuses_location,
)
PARQUET = Format("parquet", ("append",), transactional=False)
FORMATS = {each.name: each for each in (DELTA, ICEBERG, PARQUET)}


def chosen(name: str, mode: str) -> tuple[Format, Mode]:
    """Return a format and a mode by name; `BadTable` if unknown, or not possible together."""
    found = FORMATS.get(name)
    if found is None:
        raise BadTable(
            f"There is no table format {name!r}",
            remedy=f"Use one of: {', '.join(FORMATS)}.",
            format=name,
            formats=", ".join(FORMATS),
        )
    for each in found.modes:
        if each == mode:
            return found, each
    known = " or ".join(found.modes)
    if mode in MODES:
        raise BadTable(
            f"Format {name} does not support mode {mode}",
            remedy=f"Use mode {known}, or format delta or iceberg.",
            format=name,
            mode=mode,
        )
    raise BadTable(f"There is no mode {mode!r}", remedy=f"Use {known}.", mode=mode)


def check_location(format: Format, name: str | None, path: str | None) -> None:
    """Raise `BadTable` if a format cannot have a table with this name or folder."""
    if (why := format.refuses_location(name, path)) is not None:
        raise BadTable(
            f"Format {format.name} cannot have a table at this location: {why}",
            remedy="Use a name of the form catalog.schema.table, or only path=, on a disk or HDFS.",
            name=name,
            path=path,
        )


def needs(format: Format, version: str | None = None) -> dict[str, str]:
    """Return the settings to start Spark with for this format."""
    if not format.packages:
        return dict(format.settings)
    version = version or metadata.version("pyspark")
    package = format.packages.get(".".join(version.split(".")[:2]))
    if package is None:
        known = ", ".join(format.packages)
        raise BadTable(
            f"No release of {format.name} works with this version of Spark",
            remedy="Install another version of Spark: pip install"
            f' "pyspark=={next(iter(format.packages))}.*".',
            pyspark=version,
            versions=known,
        )
    return {PACKAGES: package, IVY: str(ivy_folder()), **format.settings, **format.tuning}


def check_session(
    format: Format, setting: Callable[[str], str | None], *, own: bool = False
) -> None:
    """
    Raise `SparkFailed` with the missing settings if a running Spark lacks what is needed.

    `own`: it is our own Spark, which lacks them only because the target was added later.
    """
    for name, value in format.settings.items():
        if value not in listed(setting(name) or ""):
            asked = {PACKAGES: " or ".join(format.packages.values()), **format.settings}
            lines = ", ".join(f"{key}={each}" for key, each in asked.items())
            raise SparkFailed(
                f"Spark was started without the settings that {format.name} needs",
                remedy=f"Restart the engine with this target: it then starts Spark with {lines}."
                if own
                else f"Start Spark with these settings: {lines}. The engine sets them itself if it"
                " starts with such a target and no other Spark runs in this process.",
                setting=name,
            )
