"""
The keys of a configuration, and the catalogues of the parts that it may name.

Parts are ours, and those of installed packages. The keys of a part are declared with the part;
every other key is here.
"""

from __future__ import annotations

from typing import Any

from headrace.capture.postgres.definition import POSTGRES
from headrace.capture.sqlite.definition import SQLITE
from headrace.config.plugins import Catalogue, Part, PartOf, part_of_class
from headrace.config.schema import (
    Boolean,
    Choice,
    Duration,
    Entries,
    FilePath,
    Integer,
    Key,
    ListOf,
    Section,
    Size,
    Text,
    Values,
)
from headrace.config.secrets import Secret
from headrace.pipeline.settings import FILTERS as FILTER_TYPES
from headrace.pipeline.settings import MAX_KEYS, MAX_PER_BATCH, MODES, ON_SCHEMA_CHANGE
from headrace.pipeline.settings import TARGETS as FUNCTION_TARGETS
from headrace.pipeline.settings import TRANSFORMS as TRANSFORM_TYPES
from headrace.targets.definition import MEMORY

# --- parts ----------------------------------------------------------------------------------------


def adopted_source(type: str, maker: Any) -> Part:
    """
    Return a part for a source's class of somebody else.

    It is made from a `SourceSpec`, here and again in the recorder's process, so its values
    must be plain: a secret goes as its reference.
    """

    def build(name: str, values: Values) -> Any:
        from headrace.capture.source import SourceSpec

        return maker(SourceSpec(type, name, {key: _plain(each) for key, each in values.items()}))

    part = part_of_class(type, maker)
    return Part(part.doc, part.keys, build)


def _plain(value: object) -> object:
    match value:
        case Secret():
            return value.reference
        case None | bool() | int() | float() | str():
            return value
        case tuple():
            return [_plain(each) for each in value]
    if hasattr(value, "items"):
        return {str(key): _plain(each) for key, each in value.items()}
    return str(value)


SOURCES = Catalogue(
    "source", "headrace.sources", {"sqlite": SQLITE, "postgres": POSTGRES}, adopted_source
)
TARGETS = Catalogue(
    "target",
    "headrace.targets",
    # By name: a target that is more than the contract of `targets` is not imported by the engine.
    {"indexed-memory": MEMORY, **FUNCTION_TARGETS, "table": "headrace.lake.definition:TABLE"},
)
FILTERS = Catalogue("filter", "headrace.filters", FILTER_TYPES)
TRANSFORMS = Catalogue("transform", "headrace.transforms", TRANSFORM_TYPES)


# --- keys -----------------------------------------------------------------------------------------

_SOURCE = (
    Key(
        "record",
        ListOf(Text(), example="[orders]"),
        "Tables that are recorded whether or not a pipeline takes them; patterns, too.",
        default=[],
    ),
)

_DEAD_LETTER = (
    Key("store", Choice(("local",)), "Where letters are kept: beside the log.", default="local"),
    Key(
        "max_per_batch",
        Integer(0),
        "Rows of a batch that may fail before the pipeline stops.",
        default=MAX_PER_BATCH,
    ),
    Key(
        "max_keys",
        Integer(0),
        "Rows that may be held in all before the pipeline stops.",
        default=MAX_KEYS,
    ),
)

_ERROR_HANDLING = (
    Key(
        "on_persistent_failure",
        Choice(("isolate", "stop")),
        "`isolate`: a row that cannot be computed is set aside with its later changes; `stop`:"
        " the pipeline stops at it.",
        default="isolate",
    ),
    Key("dead_letter", Section(_DEAD_LETTER), "How much is set aside.", default={}),
)

_PIPELINE = (
    Key("source", Text("shop"), "The id of the source.", required=True),
    Key(
        "tables",
        ListOf(Text(), 1, "[orders]"),
        'The tables; patterns, too: `["public.*", "!public.audit_*"]`.',
        required=True,
    ),
    Key(
        "mode",
        Choice(MODES),
        "The tables as they are and then every change, the tables alone, or changes alone.",
        default="baseline_then_changes",
    ),
    Key(
        "filters",
        ListOf(PartOf(FILTERS), example="[{ type = field-equals, … }]"),
        "A row passes when all of them are true of it, as the source has it.",
        default=[],
    ),
    Key(
        "transforms",
        ListOf(PartOf(TRANSFORMS), example="[{ type = drop-fields, … }]"),
        "What happens to a row that passed, in order.",
        default=[],
    ),
    Key("target", PartOf(TARGETS), "Where the rows are brought.", required=True),
    Key("error_handling", Section(_ERROR_HANDLING), "What happens to rows that fail.", default={}),
    Key(
        "on_schema_change",
        Choice(ON_SCHEMA_CHANGE),
        "When a table gets other columns: go on with them, copy it again, or stop.",
        default="continue",
    ),
)

_SPARK = (
    Key(
        "master",
        Text('"local[4]"'),
        "Where Spark runs; by default on all cores of this machine.",
    ),
    Key(
        "conf",
        Entries(Text(empty=True), "SETTING", flat=True),
        "Settings of Spark over [ours](spark.md). Where one name begins with another, both in"
        ' quotes: `"spark.a" = 1, "spark.a.b" = 2`.',
        default={},
    ),
    Key("ui", Boolean(), "Whether Spark's own pages are served, on loopback.", default=False),
    Key("events", Boolean(), "Whether event logs are written, in the data folder.", default=False),
)

_LOG = (
    Key("keep", Duration(), "How long a change is kept, whoever needs it.", default="24h"),
    Key(
        "cap",
        Size(),
        "The most bytes of a source's log; at 90 % of it nothing is read any more.",
    ),
    Key("lease", Duration(), "From a file being dropped to its being deleted.", default="10m"),
    Key(
        "keep_baselines",
        Boolean(),
        "Whether each table's newest baseline stays usable; by default where a target needs it.",
    ),
    Key("compact", Boolean(), "Whether many small flushes become one.", default=True),
    Key("fold", Boolean(), "Whether a baseline is brought up to date.", default=True),
    Key(
        "storage",
        Text('"s3://bucket/prefix"'),
        "Where logs and dead letters lie, as `s3://bucket/prefix`; by default in the data folder."
        " See [the guide](../guides/s3.md).",
    ),
)

_SECRETS = (
    Key(
        "inline",
        Choice(("warn", "refuse")),
        "What happens about a password that is written out in a configuration.",
        default="warn",
    ),
)

KEYS = (
    Key("service", Text("shop"), "What this deployment is called, in Spark's pages for one."),
    Key(
        "data",
        FilePath('"./headrace-data"'),
        "The data directory: the log, progress, dead letters.",
        default="./headrace-data",
    ),
    Key(
        "sources",
        Entries(PartOf(SOURCES, _SOURCE), "ID", least=1),
        "The databases, by id.",
        required=True,
    ),
    Key("pipelines", Entries(Section(_PIPELINE), "ID"), "The pipelines, by id.", default={}),
    Key("spark", Section(_SPARK), "The Spark that is started.", default={}),
    Key("log", Section(_LOG), "How long changes are kept, and how many.", default={}),
    Key("secrets", Section(_SECRETS), "How secrets are written.", default={}),
)
