"""
What each format can do, and what Spark needs for it.

Known before anything is started, so that what a format cannot do is refused by name, and a
Spark of ours is started with what its targets need.
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
"""Columns that each of its tables has besides, and a MERGE reads."""

_RENAMES = ("file", "hdfs", "viewfs")
"""File systems whose rename is the commit of a table that is in a folder and in no catalog."""


@dataclass(frozen=True, slots=True)
class Format:
    """A way to keep tables."""

    name: str
    modes: tuple[Mode, ...]
    transactional: bool
    """Whether a commit of its own keeps our position; otherwise intents do (R25)."""

    packages: Mapping[str, str] = field(default_factory=dict)
    """What to fetch, by version of Spark as far as its first point; empty: nothing, anywhere."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Without these it does not work, in whosever Spark it is."""

    tuning: Mapping[str, str] = field(default_factory=dict)
    """What besides a Spark of ours is started with."""

    refuses: Callable[[LakeShape], str | None] = lambda shape: None
    """Says what of a table it cannot hold."""

    refuses_place: Callable[[str | None, str | None], str | None] = lambda name, path: None
    """Says why it has no tables by this name, in this folder."""


def _delta_refuses(shape: LakeShape) -> str | None:
    for name in shape.names:
        if bad := sorted(_DELTA_REFUSES & set(name)):
            return f"the column {name!r} has {bad[0]!r} in its name"
    return _by_case(shape)


def _iceberg_refuses(shape: LakeShape) -> str | None:
    for name in shape.names:
        if name.lower() in _ICEBERG_TAKEN:
            return f"the column {name} has a name that each of its tables gives to one of its own"
    return _by_case(shape)


def _by_case(shape: LakeShape) -> str | None:
    lowered: dict[str, str] = {}
    for name in shape.names:
        if (other := lowered.setdefault(name.lower(), name)) != name:
            return f"the columns {other} and {name} differ by case alone"
    return None


def _iceberg_refuses_place(name: str | None, path: str | None) -> str | None:
    if path is None:
        known = not TableLocation(tuple((name or "").split(".")), None).in_session_catalog
        return None if known else "its tables are in a catalog of Iceberg, or in a folder"
    if name is not None:
        return "a catalog says itself where its tables are"
    scheme, found, _ = path.partition("://")
    if found and scheme not in _RENAMES:
        return f"a folder at {scheme}:// has no rename that only one writer succeeds with"
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
    # Its default of 50 tasks to read a table's log is for tables of millions of files.
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
    refuses_place=_iceberg_refuses_place,
)
PARQUET = Format("parquet", ("append",), transactional=False)
FORMATS = {each.name: each for each in (DELTA, ICEBERG, PARQUET)}


def chosen(name: str, mode: str) -> tuple[Format, Mode]:
    """Return a format and a mode by name; `BadTable` where there is none, or not both together."""
    found = FORMATS.get(name)
    if found is None:
        raise BadTable("There is no such format", format=name, formats=", ".join(FORMATS))
    for each in found.modes:
        if each == mode:
            return found, each
    known = " or ".join(found.modes)
    if mode in MODES:
        raise BadTable(
            f"A table of plain {name} cannot be kept in mode {mode}",
            remedy=f"Use mode {known} with it, or format delta or iceberg.",
            format=name,
            mode=mode,
        )
    raise BadTable("There is no such mode", remedy=f"Write {known}.", mode=mode)


def check_place(format: Format, name: str | None, path: str | None) -> None:
    """Raise `BadTable` where a format has no tables by this name, in this folder."""
    if (why := format.refuses_place(name, path)) is not None:
        raise BadTable(
            f"A table of {format.name} cannot be there: {why}",
            remedy="Name it catalog.schema.table, or give path= alone, on a disk or HDFS.",
            name=name,
            path=path,
        )


def needs(format: Format, version: str | None = None) -> dict[str, str]:
    """Return the settings that a Spark for this format is started with."""
    if not format.packages:
        return dict(format.settings)
    version = version or metadata.version("pyspark")
    package = format.packages.get(".".join(version.split(".")[:2]))
    if package is None:
        known = ", ".join(format.packages)
        raise BadTable(
            f"There is no {format.name} for this version of Spark that reads what it writes",
            remedy=f'Install another: pip install "pyspark=={next(iter(format.packages))}.*".',
            pyspark=version,
            versions=known,
        )
    return {PACKAGES: package, IVY: str(ivy_folder()), **format.settings, **format.tuning}


def check_session(
    format: Format, setting: Callable[[str], str | None], *, own: bool = False
) -> None:
    """
    Raise `SparkFailed` with what to add where a Spark that runs lacks what is needed.

    With `own` it is one of ours, which only lacks it because the target came later.
    """
    for name, value in format.settings.items():
        if value not in listed(setting(name) or ""):
            asked = {PACKAGES: " or ".join(format.packages.values()), **format.settings}
            lines = ", ".join(f"{key}={each}" for key, each in asked.items())
            raise SparkFailed(
                f"This Spark was started without what {format.name} needs",
                remedy="Restart the engine with this target among its pipelines: its Spark is then"
                f" started with {lines}."
                if own
                else f"Start it with these settings: {lines}. One of ours has them when the"
                " engine starts with such a target and no other Spark runs in this process.",
                setting=name,
            )
