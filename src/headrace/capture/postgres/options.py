"""
The options of a PostgreSQL source as plain values: names of tables, settings, passwords.

Names of tables are read as PostgreSQL reads them. `orders` is `public.orders`, whatever a search
path says. A name without quotes is folded to lower case and one in quotes is taken as it stands,
so what works in SQL works here.

A configuration names the place where a password is and not the password. The place is read at
every connect, so that a password may be replaced while we run, and a token may live for minutes
only. Nothing here puts what it read into a message.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from headrace.config.secrets import BUILT_IN, is_reference, read_secret
from headrace.errors import BadPart, NoSecret, SourceRefused, SourceUnreachable, TableRefused

# --- names of tables ------------------------------------------------------------------------------

_PART = r'"((?:[^"\x00]|"")+)"|([^".\s\x00-\x1f]+)'
_NAME = re.compile(rf"(?:(?:{_PART})\.)?(?:{_PART})")
_CAPITALS = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
"""PostgreSQL folds only these where the encoding has several bytes a letter."""


def parse_name(name: str) -> tuple[str, str]:
    """Return schema and table that `name` stands for; raises `TableRefused` if it is no name."""
    if (match := _NAME.fullmatch(name)) is None:
        raise TableRefused(
            "Invalid table name",
            table=name,
            remedy="Write table or schema.table; quote names with capitals or dots:"
            ' "Schema"."Table".',
        )
    schema = _part(match[1], match[2])
    return schema or "public", _part(match[3], match[4])


def quoted(*names: str) -> str:
    """Return a name of one or more parts as SQL takes it, whatever the parts hold."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def listed(names: Iterable[str]) -> str:
    """Return columns as SQL takes a list of them."""
    return ", ".join(quoted(name) for name in names)


def written(schema: str, table: str) -> str:
    """Return the shortest text that `parse_name` reads as this table."""
    parts = [table] if schema == "public" else [schema, table]
    return ".".join(part if _plain(part) else quoted(part) for part in parts)


def _part(quoted_part: str | None, plain: str | None) -> str:
    if quoted_part is not None:
        return quoted_part.replace('""', '"')
    return (plain or "").translate(_CAPITALS)


def _plain(part: str) -> bool:
    match = _NAME.fullmatch(part)
    return match is not None and match[4] == part.translate(_CAPITALS) == part


# --- the options and their defaults ---------------------------------------------------------------

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
class PostgresOptions:
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


def options_of(name: str, given: Mapping[str, Any], reader: str) -> PostgresOptions:
    """Return the options with their defaults; `reader` tells deployments of one source apart."""
    tables = {
        table: TableOptions(tuple(each.get("columns") or ()), str(each.get("where") or ""))
        for table, each in (given.get("tables") or {}).items()
    }
    slot = str(given.get("slot_name") or "") or default_slot(name, reader)
    if SLOT_NAME.fullmatch(slot) is None:
        raise SourceRefused(
            "Invalid slot name",
            source=name,
            slot=slot,
            remedy="Use only a-z, 0-9 and _, at most 63 characters.",
        )
    timeout = given.get("create_slot_timeout")
    rate = given.get("copy_rows_per_s")
    return PostgresOptions(
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
            "The connection string is not valid",
            remedy="Write it as host=… dbname=… user=…, or as postgresql://user@host/database.",
        ) from None
    return {
        "host": str(given.get("host") or given.get("hostaddr") or "local"),
        "port": str(given.get("port") or 5432),
        "dbname": str(given.get("dbname") or given.get("user") or "postgres"),
    }


# --- where a password comes from ------------------------------------------------------------------


def read_password(options: PostgresOptions) -> str | None:
    """Return the password that `password_ref` names; None where nothing is named."""
    reference = options.password_ref
    if not reference:
        return None
    if reference.partition(":")[0] not in BUILT_IN and not is_reference(reference):
        # What stands there is not shown: somebody may have put the password itself.
        raise SourceRefused(
            "password_ref is not a valid reference",
            source=options.name,
            remedy="Write it as file:/path/to/file or env:NAME.",
        )
    facts = {"source": options.name, "password_ref": reference}
    try:
        return read_secret(reference)
    except BadPart as failed:
        # A vault may be away for a while, just as a database may.
        raise SourceUnreachable(
            "The secret provider of password_ref failed",
            **facts,
            error=failed.facts.get("error"),
            remedy="Fix the provider. It is called again at the next attempt to connect.",
        ) from None
    except NoSecret as missing:
        if "error" in missing.facts:
            raise SourceRefused(
                "The password file cannot be read",
                **facts,
                error=missing.facts["error"],
                remedy=missing.remedy,
            ) from None
        raise SourceRefused(
            "password_ref points to nothing",
            **facts,
            remedy="Put the password there, or point password_ref elsewhere.",
        ) from None


def ask_hook(options: PostgresOptions, parameters: Mapping[str, str]) -> dict[str, str]:
    """
    Return `parameters` together with what the user's `before_connect` adds to them.

    The function gets all connection parameters by libpq's names and returns those that it
    wants added or replaced. One that fails is asked again later: where tokens come from
    may be away for a while, just as a database may.
    """
    if not options.before_connect:
        return dict(parameters)
    facts = {"source": options.name, "before_connect": options.before_connect}
    module, _, name = options.before_connect.partition(":")
    try:
        function = getattr(import_module(module), name)
    except Exception as error:  # noqa: BLE001  # Whatever an import may raise.
        raise SourceRefused(
            "The before_connect function cannot be imported",
            **facts,
            error=type(error).__name__,
            remedy="Write before_connect as module:function. The module must be importable where"
            " the engine runs.",
        ) from None
    try:
        more = function(dict(parameters))
    except Exception as error:  # noqa: BLE001  # The user's function may raise anything.
        # Its text may hold the token that did not work.
        raise SourceUnreachable(
            "The before_connect function raised an error",
            **facts,
            error=type(error).__name__,
            remedy="Fix the function. It is called again at the next attempt to connect.",
        ) from None
    if not isinstance(more, Mapping) or not all(isinstance(key, str) for key in more):
        raise SourceRefused(
            "The before_connect function must return a dict of connection parameters",
            **facts,
            returned=type(more).__name__,
            remedy='Return libpq parameters by name, for example {"password": token}.',
        )
    return {**parameters, **{key: str(value) for key, value in more.items() if value is not None}}
