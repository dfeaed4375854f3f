"""A PostgreSQL source in a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.config.checking import Values
from headrace.config.keys import Key
from headrace.config.kinds import (
    Boolean,
    Choice,
    Connection,
    Duration,
    Entries,
    ListOf,
    Number,
    Reference,
    Section,
    Size,
    Text,
)
from headrace.config.parts import Part

if TYPE_CHECKING:
    from headrace.capture.postgres.source import PostgresSource

SLOT_MODES = ("stateful", "ephemeral")
OPERATIONS = ("insert", "update", "delete", "truncate")
LEAST_WAL_BUDGET = 64 << 20
"""As `definition` and `options` have them, which are not imported with psycopg for that."""


def _build(name: str, values: Values) -> PostgresSource:
    from headrace.capture.postgres.definition import postgres

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
    also=("postgresql", "pg"),
)
