"""
The keys of a configuration, and the catalogues of the parts that it may name.

Parts come with Headrace or from installed packages. The keys of a part are declared with the part;
all other keys are declared here.
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
    Reference,
    Section,
    Size,
    Text,
    Values,
)
from headrace.config.secrets import Secret
from headrace.observe.events import LOG
from headrace.pipeline.settings import FILTERS as FILTER_TYPES
from headrace.pipeline.settings import (
    LAG_POLICIES,
    MAX_KEYS,
    MAX_PER_BATCH,
    MODES,
    ON_FAILURE,
    ON_SCHEMA_CHANGE,
)
from headrace.pipeline.settings import TARGETS as FUNCTION_TARGETS
from headrace.pipeline.settings import TRANSFORMS as TRANSFORM_TYPES
from headrace.storage.locations import bucket_of
from headrace.targets.definition import MEMORY

# --- parts ----------------------------------------------------------------------------------------


def adopted_source(type: str, maker: Any) -> Part:
    """
    Return a part for a source class of another package.

    The source is built from a `SourceSpec`, here and again in the recorder's process, so its
    values must be plain: a secret is passed as its reference.
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
    # By name: the engine does not import a target that needs more than `targets`.
    {"indexed-memory": MEMORY, **FUNCTION_TARGETS, "table": "headrace.lake.definition:TABLE"},
)
FILTERS = Catalogue("filter", "headrace.filters", FILTER_TYPES)


def _bucket_location(_: str, values: Values) -> str:
    location = str(values["location"])
    bucket_of(location)
    return location


DEAD_LETTER_STORES = Catalogue(
    "dead letter store",
    "headrace.dead_letter_stores",
    {
        "local": Part("Next to the log: data directory or bucket.", (), lambda _, values: "local"),
        "memory": Part(
            "In memory, lost when the process ends: for targets that are loaded again at every"
            " start.",
            (),
            lambda _, values: "memory",
        ),
        "s3": Part(
            "In a bucket of its own. Credentials are read as for a [log on S3](../guides/s3.md).",
            (
                Key(
                    "location",
                    Text('"s3://bucket/prefix"'),
                    "The bucket and prefix; of one data directory only.",
                    required=True,
                ),
            ),
            _bucket_location,
        ),
    },
)
TRANSFORMS = Catalogue("transform", "headrace.transforms", TRANSFORM_TYPES)
OBSERVERS = Catalogue("observer", "headrace.observers", {"log": LOG})


# --- keys -----------------------------------------------------------------------------------------

_OWN_RETRIES = (
    Key("max_attempts", Integer(1), "After this many failures in a row it stops, until resumed."),
    Key("first_pause", Duration("10ms"), "The first pause; each later one is twice as long."),
    Key("longest_pause", Duration("10ms"), "The limit of the pauses."),
)
"""Keys that are not set are those of the section of the same name for all."""

_SOURCE = (
    Key(
        "record",
        ListOf(Text(), example="[orders]"),
        "Tables or patterns to record even if no pipeline uses them.",
        default=[],
    ),
    Key(
        "reconnect",
        Section(_OWN_RETRIES),
        "How this source is tried again (default: as the section `reconnect` says).",
    ),
)

_DEAD_LETTER = (
    Key(
        "store",
        PartOf(DEAD_LETTER_STORES, short=True),
        "Where dead letters are stored: `local`, next to the log; `memory`; or"
        ' `{ type = s3, location = "s3://bucket/prefix" }`.',
        default="local",
    ),
    Key(
        "max_per_batch",
        Integer(0),
        "Maximum number of rows of a batch that may fail; the pipeline stops at more.",
        default=MAX_PER_BATCH,
    ),
    Key(
        "max_keys",
        Integer(0),
        "Maximum number of keys that dead letters may hold; the pipeline stops at more.",
        default=MAX_KEYS,
    ),
    Key(
        "warn_keys",
        Integer(0),
        "Number of held keys from which a status has a notice (default: 80 % of `max_keys`).",
    ),
    Key(
        "keep",
        Duration("1h"),
        "How long dead letters stay listed after they ended.",
        default="30d",
    ),
)

_ERROR_HANDLING = (
    Key(
        "on_persistent_failure",
        Choice(("isolate", "stop")),
        "`isolate`: a row that fails is stored as a dead letter, with its later changes, and the"
        " pipeline continues; `stop`: the pipeline stops.",
        default="isolate",
    ),
    Key("dead_letter", Section(_DEAD_LETTER), "Limits for dead letters.", default={}),
)

_LAG = (
    Key(
        "max_bytes",
        Size(1),
        "The most bytes of changes that may wait in the log, as compressed there.",
    ),
    Key("max_changes", Integer(1), "The most changes that may wait in the log."),
    Key("max_age", Duration("1s"), "The longest time since the oldest of them was committed."),
    Key(
        "policy",
        Choice(LAG_POLICIES),
        "`block`: nothing, the log keeps the changes; `error`: the pipeline fails until it is"
        " resumed; `release`: its tables are copied again instead.",
        default="block",
    ),
)

_TTL = (
    Key(
        "field",
        Text("expires_at"),
        "The column of the result with the time: a timestamp, a date, or text as in RFC 3339.",
        required=True,
    ),
    Key(
        "expression",
        Text('"created_at + INTERVAL 7 DAYS"'),
        "Spark SQL that computes the column, which is added to the result (default: the result has"
        " it).",
    ),
    Key("scan", Duration("1s"), "How often expired rows are looked for.", default="1m"),
)

_PIPELINE = (
    Key("source", Text("shop"), "The id of the source.", required=True),
    Key(
        "tables",
        ListOf(Text(), 1, "[orders]"),
        'The tables, or patterns: `["public.*", "!public.audit_*"]`.',
        required=True,
    ),
    Key(
        "mode",
        Choice(MODES),
        "Copy the tables, then follow all changes; only copy the tables; or only follow changes.",
        default="baseline_then_changes",
    ),
    Key(
        "filters",
        ListOf(PartOf(FILTERS), example="[{ type = field-equals, … }]"),
        "Conditions on the source's row; a row passes if all of them are true.",
        default=[],
    ),
    Key(
        "transforms",
        ListOf(PartOf(TRANSFORMS), example="[{ type = drop-fields, … }]"),
        "Transforms applied, in order, to rows that pass.",
        default=[],
    ),
    Key("target", PartOf(TARGETS), "Where the rows are delivered.", required=True),
    Key("error_handling", Section(_ERROR_HANDLING), "What happens to rows that fail.", default={}),
    Key(
        "on_schema_change",
        Choice(ON_SCHEMA_CHANGE),
        "What to do when a table's columns change: continue, copy the table again, or stop.",
        default="continue",
    ),
    Key(
        "on_failure",
        Choice(ON_FAILURE),
        "Which pipelines stop when this one has failed: only this one, all of its source, or all.",
        default="isolate",
    ),
    Key(
        "retry",
        Section(_OWN_RETRIES),
        "How this pipeline is tried again (default: as the section `retry` says).",
    ),
    Key(
        "lag",
        Section(_LAG),
        "How far the pipeline may lag behind the log, and what happens beyond that.",
        default={},
    ),
    Key("ttl", Section(_TTL), "When rows expire (default: never). For targets in memory."),
)

_SPARK = (
    Key(
        "master",
        Text('"local[4]"'),
        "Where Spark runs (default: all cores of this machine).",
    ),
    Key(
        "conf",
        Entries(Text(empty=True), "SETTING", flat=True),
        "Spark settings; they override [ours](spark.md). If one name is the beginning of another,"
        ' quote both: `"spark.a" = 1, "spark.a.b" = 2`.',
        default={},
    ),
    Key("ui", Boolean(), "Serve the Spark UI, on the loopback address.", default=False),
    Key("events", Boolean(), "Write Spark event logs, in the data directory.", default=False),
    Key(
        "small_batches",
        Choice(("direct", "job")),
        "How a batch of up to 5,000 rows and 1 MB is computed: `direct`, in the driver without a"
        " Spark job if its steps allow that, or always by a `job`.",
        default="direct",
    ),
)

_LOG = (
    Key("keep", Duration(), "Minimum time to keep a change after its commit.", default="24h"),
    Key(
        "cap",
        Size(or_zero=True),
        "Maximum size of a source's log; at 90 % of it, reading from the source stops (default:"
        " what the disk has space for).",
    ),
    Key(
        "lease",
        Duration(),
        "Time between dropping a file from the log and deleting it.",
        default="10m",
    ),
    Key(
        "keep_baselines",
        Boolean(),
        "Keep the newest baseline of each table usable (default: if a target needs it).",
    ),
    Key("compact", Boolean(), "Merge many small flushes into one.", default=True),
    Key("fold", Boolean(), "Fold changes into the baseline, to keep it up to date.", default=True),
    Key(
        "storage",
        Text('"s3://bucket/prefix"'),
        "Where to store logs and dead letters, as `s3://bucket/prefix` (default: data directory)."
        " See [the guide](../guides/s3.md).",
    ),
)

_RETRIES = (
    Key(
        "max_attempts",
        Integer(1),
        "After this many failures in a row it stops, until it is resumed (default: never).",
    ),
    Key("first_pause", Duration("10ms"), "The first pause; each later one is twice as long."),
    Key("longest_pause", Duration("10ms"), "The limit of the pauses.", default="30s"),
)

_SHUTDOWN = (
    Key(
        "timeout",
        Duration("100ms"),
        "How long a stop may take; what has not ended by then is named and left behind.",
        default="30s",
    ),
)

_SECRETS = (
    Key(
        "inline",
        Choice(("warn", "refuse")),
        "What to do about a password in plain text in the configuration.",
        default="warn",
    ),
)

_TLS = (
    Key(
        "cert",
        FilePath("server.pem"),
        "The certificate in PEM, followed by those of the authorities between it and the root.",
        required=True,
    ),
    Key(
        "key",
        FilePath("server.key"),
        "Its key in PEM, without a password, readable by its owner alone.",
        required=True,
    ),
    Key(
        "client_ca",
        FilePath("clients.pem"),
        "The authorities whose certificates callers must have (default: they need none).",
    ),
)

_TOKEN = (
    Key(
        "role",
        Choice(("read", "operate", "admin")),
        "What its caller may do; each role includes the ones before it.",
        required=True,
    ),
    Key(
        "hash",
        Text('"sha256:…"', secret=True),
        "The hash of the token, as `headrace token new` prints it.",
    ),
    Key("token_ref", Reference(), "Or where the token itself is: it is read once, at the start."),
    Key(
        "certificate",
        Text("app.example.com"),
        "Or the common name of the caller's certificate, with `tls.client_ca`.",
    ),
    Key(
        "tables",
        ListOf(Text(), 1, "[orders]"),
        "The names of the tables whose rows it may read (default: all).",
    ),
    Key(
        "expires",
        Text('"2027-01-31"'),
        "When it ends: a day, which begins at midnight UTC, or a time (default: never).",
    ),
)

_SERVER_LIMITS = (
    Key("largest_request", Size(1 << 20), "The body of one request.", default="4MiB"),
    Key("largest_head", Size(), "The headers of one request.", default="64KiB"),
    Key("connections", Integer(1), "Connections at a time.", default=2_000),
    Key("open_requests", Integer(1), "Requests at a time, without streams.", default=1_000),
    Key("streams_per_token", Integer(1), "Streams at a time, of one token.", default=1_000),
    Key(
        "head_timeout",
        Duration("100ms"),
        "How long the headers of a request may take, and a TLS handshake.",
        default="10s",
    ),
    Key("body_timeout", Duration("100ms"), "How long the body may take.", default="30s"),
    Key(
        "stalled_timeout",
        Duration("100ms"),
        "How long a reader may take nothing of its answer.",
        default="30s",
    ),
    Key(
        "idle_timeout",
        Duration("1s"),
        "How long a connection may stay open between two requests.",
        default="75s",
    ),
    Key("session_timeout", Duration("1m"), "How long a login of the console lasts.", default="12h"),
)

_SERVER = (
    Key(
        "host",
        Text("0.0.0.0"),
        "The address to listen on. One that other machines can reach needs `tls` and `tokens`.",
        default="127.0.0.1",
    ),
    Key(
        "http_port",
        Integer(0, 65_535),
        "The console, the services over HTTP, metrics and health; 0 for any free port.",
        default=4080,
    ),
    Key(
        "grpc_port",
        Integer(0, 65_535),
        "The services over gRPC; 0 for any free port.",
        default=4081,
    ),
    Key(
        "hosts",
        ListOf(Text(), example='["cdc.example.com"]'),
        "More names by which it is called, for example that of a proxy in front of it.",
        default=[],
    ),
    Key("tls", Section(_TLS), "The certificate (default: no TLS)."),
    Key(
        "tokens",
        Entries(Section(_TOKEN), "NAME"),
        "Who may call, by name (default: on 127.0.0.1, every process of the machine).",
        default={},
    ),
    Key(
        "insecure",
        Boolean(),
        "Serve other machines without TLS, or without tokens everybody who reaches the port.",
        default=False,
    ),
    Key("compat", Choice(("laredo",)), "Serve the services of Laredo, too."),
    Key(
        "hold",
        ListOf(Text(), example='["public.orders"]'),
        "Tables in memory of which the server keeps a copy, to answer queries of them itself.",
        default=[],
    ),
    Key("limits", Section(_SERVER_LIMITS), "What callers may use up.", default={}),
)

KEYS = (
    Key("service", Text("shop"), "The name of this deployment; the Spark UI shows it."),
    Key(
        "data",
        FilePath('"./headrace-data"'),
        "The data directory: log, progress, dead letters.",
        default="./headrace-data",
    ),
    Key(
        "sources",
        Entries(PartOf(SOURCES, _SOURCE), "ID", least=1),
        "The databases, by id.",
        required=True,
    ),
    Key("pipelines", Entries(Section(_PIPELINE), "ID"), "The pipelines, by id.", default={}),
    Key("spark", Section(_SPARK), "The Spark session that Headrace starts.", default={}),
    Key("log", Section(_LOG), "Retention and size of the change log.", default={}),
    Key("retry", Section(_RETRIES), "How a failed pipeline is tried again.", default={}),
    Key("reconnect", Section(_RETRIES), "How a lost source is tried again.", default={}),
    Key(
        "observers",
        Entries(PartOf(OBSERVERS), "ID"),
        "Who takes the [events](../guides/events.md) of the engine, by id.",
        default={},
    ),
    Key(
        "server",
        Section(_SERVER),
        "Serves the engine on the [network](../guides/secure.md); `server {}` on this machine only"
        " (default: no server).",
    ),
    Key("shutdown", Section(_SHUTDOWN), "The end of the engine.", default={}),
    Key("secrets", Section(_SECRETS), "How secrets may be written.", default={}),
)
