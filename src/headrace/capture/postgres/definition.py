"""A PostgreSQL source as a user describes it: by a call in Python, or in a configuration."""

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
"""Bytes: a server lets go of its log by segments of 16 MB, and some of them late."""


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
    Return the PostgreSQL database that `connection` leads to; nothing is touched before a start.

    `slot` is `stateful` (a named slot; reading goes on where it ended) or `ephemeral` (a
    temporary one; every start copies the tables anew). `tables` may give columns and a row
    filter for a table: `{"orders": {"columns": ["id", "total"], "where": "total > 0"}}`.
    With `copy_rows_per_s` copies of tables read no more rows a second, all together.
    An update does not send a large value that it leaves alone; `toast_store` keeps these values
    in the data directory, up to `toast_store_bytes` of them, so that no change lacks one.
    `wal_budget` is how many bytes of its log the server may keep for us, where it has no
    max_slot_wal_keep_size: at 80 % the pipeline that it is kept for is set aside.
    """
    require("postgres", "A PostgreSQL source")
    from headrace.capture.baselines import checked_rate
    from headrace.capture.postgres.options import address
    from headrace.capture.postgres.source import PostgresSource
    from headrace.capture.source import SourceSpec

    if slot not in MODES:
        raise SourceRefused(
            "Unknown kind of slot", slot=slot, remedy=f"Use one of {', '.join(MODES)}."
        )
    if wal_budget is not None and wal_budget < LEAST_BUDGET:
        raise SourceRefused(
            "Too small a budget for the server's log",
            wal_budget=wal_budget,
            remedy=f"Allow {LEAST_BUDGET} bytes, or leave wal_budget out.",
        )
    if name is None:
        made = re.sub(r"[^a-z0-9._-]", "_", address(connection)["dbname"].lower())
        name = made.lstrip("._-")[:64] or "postgres"
    elif NAME.fullmatch(name) is None:
        raise BadName("Not a usable name for a source", name=name)
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
"""As above and in `options.py`, which is not imported for that: it brings psycopg with it."""


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
    Key("columns", ListOf(Text()), "The columns to publish; all by default.", default=[]),
    Key("where", Text("total > 0"), "A row filter as PostgreSQL reads it; 15 and newer."),
)

_PUBLICATION = (
    Key("name", Text("shop_pub"), "Its name; by default made from the source and the data folder."),
    Key(
        "create",
        Boolean(),
        "Whether we create it and keep it in step; else it must be there and fit.",
        default=True,
    ),
    Key(
        "publish",
        ListOf(Choice(OPERATIONS), example="[insert, update]"),
        "The operations to publish; all by default.",
        default=[],
    ),
    Key(
        "tables",
        Entries(Section(_TABLE), "TABLE"),
        'What is published of a table; a name with a dot in quotes: `"sales.orders" { … }`.',
        default={},
    ),
)

POSTGRES = Part(
    "A PostgreSQL database, 14 to 18, by logical replication.",
    (
        Key(
            "connection",
            Connection(),
            "A connection string or URI as libpq takes it, best without a password.",
            required=True,
        ),
        Key(
            "password_ref",
            Reference(),
            "Where the password is read from at every connect: `env:NAME` or `file:/path`.",
        ),
        Key(
            "before_connect",
            Text("module:function"),
            "A function `module:function`, called before every connect with the parameters;"
            " returns those to add, a fresh token say.",
        ),
        Key(
            "slot_mode",
            Choice(SLOT_MODES),
            "`stateful`: a named slot, reading goes on where it ended; `ephemeral`: a temporary"
            " one, every start copies the tables.",
            default="stateful",
        ),
        Key(
            "slot_name",
            Text("headrace_shop"),
            "By default made from the source and the data folder, so that two never meet.",
        ),
        Key("publication", Section(_PUBLICATION), "The publication that is read.", default={}),
        Key(
            "always_baseline",
            Boolean(),
            "Copy the tables at each start, also where reading could go on.",
            default=False,
        ),
        Key("failover", Boolean(), "A failover slot; PostgreSQL 17 and newer.", default=False),
        Key(
            "create_slot_timeout",
            Duration(),
            "How long a new slot may wait for open transactions; by default without end.",
        ),
        Key(
            "copy_rows_per_s",
            Number(more_than=0),
            "Copies of tables read no more rows a second, all together.",
        ),
        Key(
            "toast_store",
            Boolean(),
            "Whether large values that an update does not send are kept in the data folder.",
            default=True,
        ),
        Key("toast_store_bytes", Size(), "How much of them is kept at most.", default="1GiB"),
        Key(
            "wal_budget",
            Size(LEAST_WAL_BUDGET),
            "Bytes of its log that the server may keep for us, where it has no limit of its own.",
        ),
    ),
    _build,
    aliases=("postgresql", "pg"),
)
