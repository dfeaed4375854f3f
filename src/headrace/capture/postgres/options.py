"""What a PostgreSQL source was asked for, as plain values."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from headrace.errors import SourceRefused

SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")
OPERATIONS = ("insert", "update", "delete", "truncate")
TOAST_STORE_BYTES = 1 << 30
"""Of the disk beside a source's log; what would need more is left to REPLICA IDENTITY FULL."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What is published of one table."""

    columns: tuple[str, ...] = ()
    """Empty: all of them."""

    where: str = ""
    """A row filter, as PostgreSQL reads it; empty: all rows. PostgreSQL 15 and newer."""


@dataclass(frozen=True, slots=True)
class Options:
    """One PostgreSQL source. Made by `options_of`, which knows the defaults."""

    name: str
    """The source's id."""

    connection: str = field(repr=False)
    """A connection string or URI as libpq takes it. Never printed: it may hold a password."""

    slot_mode: str = "stateful"
    """`stateful`: a named slot, reading goes on after a restart; `ephemeral`: a temporary one."""

    slot: str = ""
    publication: str = ""
    create_publication: bool = True
    """Whether we create it and keep it in step; otherwise it must be there and fit."""

    always_baseline: bool = False
    failover: bool = False
    create_slot_timeout: float | None = None
    password_ref: str = ""
    """`file:/path` or `env:NAME`: where the password is read from at every connect."""

    before_connect: str = ""
    """`module:function`, called before every connect; returns more connection parameters."""

    tables: Mapping[str, TableOptions] = field(default_factory=dict)
    publish: tuple[str, ...] = OPERATIONS
    wal_budget: int | None = None
    """Bytes of its log that the server may keep for us, where it has no limit of its own."""

    toast_store: bool = True
    """Whether values that the server leaves out, because they did not change, are kept (R21)."""

    toast_store_bytes: int = TOAST_STORE_BYTES
    copy_rows_per_s: float | None = None
    """At most, by all copies of its tables together; None: as fast as they can."""

    def asked_of(self, table: str) -> TableOptions:
        """Return what is published of a table; all of it where nothing was said."""
        return self.tables.get(table, TableOptions())


def options_of(name: str, given: Mapping[str, Any], reader: str) -> Options:
    """Return the options with their defaults; `reader` tells deployments of one source apart."""
    tables = {
        table: TableOptions(tuple(each.get("columns") or ()), str(each.get("where") or ""))
        for table, each in (given.get("tables") or {}).items()
    }
    slot = str(given.get("slot_name") or "") or default_slot(name, reader)
    if SLOT_NAME.fullmatch(slot) is None:
        raise SourceRefused(
            "Not a usable name for a slot",
            source=name,
            slot=slot,
            remedy="Use small letters, digits and underscores, 63 at most.",
        )
    timeout = given.get("create_slot_timeout")
    rate = given.get("copy_rows_per_s")
    return Options(
        name=name,
        connection=str(given["connection"]),
        slot_mode=str(given.get("slot") or "stateful"),
        slot=slot,
        publication=str(given.get("publication") or "") or f"{slot[:59]}_pub",
        create_publication=bool(given.get("create_publication", True)),
        always_baseline=bool(given.get("always_baseline", False)),
        failover=bool(given.get("failover", False)),
        create_slot_timeout=None if timeout is None else float(timeout),
        password_ref=str(given.get("password_ref") or ""),
        before_connect=str(given.get("before_connect") or ""),
        tables=tables,
        publish=tuple(given.get("publish") or OPERATIONS),
        wal_budget=given.get("wal_budget"),
        toast_store=bool(given.get("toast_store", True)),
        toast_store_bytes=int(given.get("toast_store_bytes") or TOAST_STORE_BYTES),
        copy_rows_per_s=None if rate is None else float(rate),
    )


def default_slot(name: str, reader: str) -> str:
    """Return the name of a slot that no other deployment has: the source and who reads it."""
    mark = hashlib.sha256(reader.encode()).hexdigest()[:8]
    made = re.sub(r"[^a-z0-9_]", "_", name.lower())[:40]
    return f"headrace_{made}_{mark}"


def address(connection: str) -> dict[str, str]:
    """Return host, port and database of a connection string, and nothing else of it."""
    try:
        given = conninfo_to_dict(connection)
    except psycopg.Error:
        raise SourceRefused(
            "The connection string cannot be read",
            remedy="Write it as host=… dbname=… user=…, or as postgresql://user@host/database.",
        ) from None
    return {
        "host": str(given.get("host") or given.get("hostaddr") or "local"),
        "port": str(given.get("port") or 5432),
        "dbname": str(given.get("dbname") or given.get("user") or "postgres"),
    }
