"""A PostgreSQL source as a user defines it: by a call in Python, or in a configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.config.plugins import Part
from headrace.config.schema import (
    Boolean,
    Choice,
    Connection,
    Duration,
    Entries,
    Key,
    ListOf,
    Number,
    Reference,
    Section,
    Size,
    Text,
    Values,
)
from headrace.errors import BadName, SourceRefused
from headrace.extras import require

if TYPE_CHECKING:
    from headrace.capture.postgres.source import PostgresSource


# --- by a call in Python --------------------------------------------------------------------------

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
MODES = ("stateful", "ephemeral")
LEAST_BUDGET = 64 << 20
"""Bytes: a server removes WAL in segments of 16 MB, and some of them late."""


def postgres(
    connection: str,
    *,
    name: str | None = None,
    slot: str = "stateful",
    slot_name: str | None = None,
    publication: str | None = None,
    create_publication: bool = True,
    tables: Mapping[str, Mapping[str, object]] | None = None,
    publish: Sequence[str] = (),
    always_baseline: bool = False,
    failover: bool = False,
    create_slot_timeout: float | None = None,
    password_ref: str = "",
    before_connect: str = "",
    copy_rows_per_s: float | None = None,
    toast_store: bool = True,
    toast_store_bytes: int | None = None,
    wal_budget: int | None = None,
) -> PostgresSource:
    """
    Return a PostgreSQL database as a source; it is not contacted before the engine starts.

    `slot` is `stateful` (a named slot; capture continues where it stopped) or `ephemeral` (a
    temporary slot; every start copies the tables again). `tables` can set the columns and a row
    filter of a table: `{"orders": {"columns": ["id", "total"], "where": "total > 0"}}`.
    `copy_rows_per_s` limits how fast tables are copied, all of them together.
    An update does not send a large value that it leaves unchanged; `toast_store` keeps these
    values in the data directory, up to `toast_store_bytes`, so that no change lacks one.
    `wal_budget` is how many bytes of WAL the server may keep for the slot, if it has no
    max_slot_wal_keep_size: at 90 % the pipeline that holds the WAL is released. The default is
    16 GiB, or less if the server is on this machine and its disk has less space. 0: no limit.
    """
    require("postgres", "A PostgreSQL source")
    from headrace.capture.baselines import checked_rate
    from headrace.capture.postgres.options import address
    from headrace.capture.postgres.source import PostgresSource
    from headrace.capture.source import SourceSpec

    if slot not in MODES:
        raise SourceRefused(
            f"Option slot must be {' or '.join(MODES)}",
            slot=slot,
            remedy='Use slot="stateful" for a named slot, or slot="ephemeral" for a temporary one.',
        )
    if wal_budget and wal_budget < LEAST_BUDGET:
        raise SourceRefused(
            f"wal_budget must be at least {LEAST_BUDGET} bytes",
            wal_budget=wal_budget,
            remedy="Raise it to 64 MiB or more, set 0 for no limit, or leave wal_budget out.",
        )
    if name is None:
        made = re.sub(r"[^a-z0-9._-]", "_", address(connection)["dbname"].lower())
        name = made.lstrip("._-")[:64] or "postgres"
    elif NAME.fullmatch(name) is None:
        raise BadName("Invalid source name", name=name)
    given: dict[str, object] = {
        "connection": connection,
        "slot": slot,
        "slot_name": slot_name,
        "publication": publication,
        "create_publication": create_publication,
        "tables": {table: dict(each) for table, each in (tables or {}).items()},
        "publish": list(publish),
        "always_baseline": always_baseline,
        "failover": failover,
        "create_slot_timeout": create_slot_timeout,
        "password_ref": password_ref,
        "before_connect": before_connect,
        "copy_rows_per_s": checked_rate(copy_rows_per_s),
        "toast_store": toast_store,
        "toast_store_bytes": toast_store_bytes,
        "wal_budget": wal_budget,
    }
    options = {key: value for key, value in given.items() if value not in (None, "", [], {})}
    return PostgresSource(SourceSpec("postgres", name, options))


# --- in a configuration ---------------------------------------------------------------------------

SLOT_MODES = ("stateful", "ephemeral")
OPERATIONS = ("insert", "update", "delete", "truncate")
LEAST_WAL_BUDGET = 64 << 20
"""As above and in `options.py`, which is not imported here because it imports psycopg."""


def _build(name: str, values: Values) -> PostgresSource:

    published, password = values["publication"], values["password_ref"]
    return postgres(
        values["connection"],
        name=name,
        slot=values["slot_mode"],
        slot_name=values["slot_name"],
        publication=published["name"],
        create_publication=published["create"],
        tables={
            table: {"columns": list(each["columns"]), "where": each["where"] or ""}
            for table, each in published["tables"].items()
        },
        publish=published["publish"],
        always_baseline=values["always_baseline"],
        failover=values["failover"],
        create_slot_timeout=values["create_slot_timeout"],
        password_ref="" if password is None else password.reference,
        before_connect=values["before_connect"] or "",
        copy_rows_per_s=values["copy_rows_per_s"],
        toast_store=values["toast_store"],
        toast_store_bytes=values["toast_store_bytes"],
        wal_budget=values["wal_budget"],
    )


_TABLE = (
    Key("columns", ListOf(Text()), "The columns to publish (default: all).", default=[]),
    Key("where", Text("total > 0"), "A row filter in SQL; needs PostgreSQL 15 or newer."),
)

_PUBLICATION = (
    Key(
        "name",
        Text("shop_pub"),
        "Name of the publication (default: derived from the slot's name).",
    ),
    Key(
        "create",
        Boolean(),
        "Create the publication and keep it up to date. If false, it must exist and have what is"
        " needed.",
        default=True,
    ),
    Key(
        "publish",
        ListOf(Choice(OPERATIONS), example="[insert, update]"),
        "The operations to publish (default: all).",
        default=[],
    ),
    Key(
        "tables",
        Entries(Section(_TABLE), "TABLE"),
        'Columns and row filter of a table; quote a name with a dot: `"sales.orders" { … }`.',
        default={},
    ),
)

POSTGRES = Part(
    "A PostgreSQL database (14 to 18), read by logical replication.",
    (
        Key(
            "connection",
            Connection(),
            "A libpq connection string or URI, preferably without a password.",
            required=True,
        ),
        Key(
            "password_ref",
            Reference(),
            "Where to read the password at every connect: `env:NAME` or `file:/path`.",
        ),
        Key(
            "before_connect",
            Text("module:function"),
            "A function `module:function` that is called with the connection parameters before"
            " every connect, and returns parameters to add, such as a new token.",
        ),
        Key(
            "slot_mode",
            Choice(SLOT_MODES),
            "`stateful`: a named slot, capture continues where it stopped. `ephemeral`: a temporary"
            " slot, every start copies the tables.",
            default="stateful",
        ),
        Key(
            "slot_name",
            Text("headrace_shop"),
            "Name of the slot (default: derived from the source and the data directory, so that"
            " two engines never share a slot).",
        ),
        Key("publication", Section(_PUBLICATION), "The publication to read.", default={}),
        Key(
            "always_baseline",
            Boolean(),
            "Copy the tables at every start, even if capture could continue.",
            default=False,
        ),
        Key(
            "failover",
            Boolean(),
            "Create a failover slot; needs PostgreSQL 17 or newer.",
            default=False,
        ),
        Key(
            "create_slot_timeout",
            Duration(),
            "How long a new slot may wait for open transactions (default: no limit).",
        ),
        Key(
            "copy_rows_per_s",
            Number(more_than=0),
            "Maximum number of rows copied per second, all tables together (default: no limit).",
        ),
        Key(
            "toast_store",
            Boolean(),
            "Keep large values that an update does not send, in the data directory.",
            default=True,
        ),
        Key(
            "toast_store_bytes",
            Size(),
            "Maximum size of the values that `toast_store` keeps.",
            default="1GiB",
        ),
        Key(
            "wal_budget",
            Size(LEAST_WAL_BUDGET, or_zero=True),
            "How much WAL the server may keep for the slot, if it has no limit of its own (default:"
            " 16 GiB, or less if the server is on this machine and its disk has less space).",
        ),
    ),
    _build,
    aliases=("postgresql", "pg"),
)
