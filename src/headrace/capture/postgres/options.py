"""
The options of a PostgreSQL source as plain values: table names, settings, passwords.

Table names follow PostgreSQL's rules. `orders` is `public.orders`, whatever the search path is. A
name without quotes is folded to lower case, and a quoted name is used as it is, so what works in
SQL works here.

A configuration has a reference to the password, not the password. The reference is read at every
connect, so that a password can be replaced while the engine runs, and a token may be valid for
minutes only. No error message here contains what was read.
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
from headrace.errors import (
    BadPart,
    CredentialsRefused,
    NoSecret,
    SourceRefused,
    SourceUnreachable,
    TableRefused,
)

# --- table names ----------------------------------------------------------------------------------

_PART = r'"((?:[^"\x00]|"")+)"|([^".\s\x00-\x1f]+)'
_NAME = re.compile(rf"(?:(?:{_PART})\.)?(?:{_PART})")
_CAPITALS = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
"""In an encoding with several bytes per character, PostgreSQL folds only these."""


def parse_name(name: str) -> tuple[str, str]:
    """Return the schema and the table of `name`; raises `TableRefused` if it is not a name."""
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
    """Return a name of one or more parts, quoted for SQL, whatever characters it contains."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def listed(names: Iterable[str]) -> str:
    """Return a list of columns, quoted for SQL."""
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
"""Maximum size of the store, next to the source's log; more needs REPLICA IDENTITY FULL."""

WAL_BUDGET = 16 << 30
"""Enough for hours of most databases, and little enough for most disks."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Which columns and rows of a table are published."""

    columns: tuple[str, ...] = ()
    """Empty: all of them."""

    where: str = ""
    """A row filter in SQL; empty: all rows. PostgreSQL 15 and newer."""


@dataclass(frozen=True, slots=True)
class PostgresOptions:
    """One PostgreSQL source. Created by `options_of`, which has the defaults."""

    name: str
    """The source's id."""

    connection: str = field(repr=False)
    """A libpq connection string or URI. Never printed: it may contain a password."""

    slot_mode: str = "stateful"
    """`stateful`: a named slot, continues after a restart; `ephemeral`: a temporary slot."""

    slot: str = ""
    publication: str = ""
    create_publication: bool = True
    """Whether we create it and keep it up to date; otherwise it must exist and fit."""

    always_baseline: bool = False
    failover: bool = False
    create_slot_timeout: float | None = None
    password_ref: str = ""
    """`file:/path` or `env:NAME`: the password is read from there at every connect."""

    before_connect: str = ""
    """`module:function`, called before every connect; returns more connection parameters."""

    tables: Mapping[str, TableOptions] = field(default_factory=dict)
    publish: tuple[str, ...] = OPERATIONS
    wal_budget: int | None = WAL_BUDGET
    """Bytes of WAL that the server may keep for us, if it has no limit of its own; None: any."""

    toast_store: bool = True
    """Whether values are kept that the server does not send because they did not change (R21)."""

    toast_store_bytes: int = TOAST_STORE_BYTES
    copy_rows_per_s: float | None = None
    """Maximum of all copies of its tables together; None: no limit."""

    def asked_of(self, table: str) -> TableOptions:
        """Return which columns and rows of a table are published; by default all of them."""
        return self.tables.get(table, TableOptions())


def options_of(name: str, given: Mapping[str, Any], reader: str) -> PostgresOptions:
    """Return the options with their defaults; `reader` distinguishes deployments of a source."""
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
        wal_budget=given.get("wal_budget", WAL_BUDGET) or None,
        toast_store=bool(given.get("toast_store", True)),
        toast_store_bytes=int(given.get("toast_store_bytes") or TOAST_STORE_BYTES),
        copy_rows_per_s=None if rate is None else float(rate),
    )


def default_slot(name: str, reader: str) -> str:
    """Return a slot name that no other deployment has, made from the source and its reader."""
    mark = hashlib.sha256(reader.encode()).hexdigest()[:8]
    made = re.sub(r"[^a-z0-9_]", "_", name.lower())[:40]
    return f"headrace_{made}_{mark}"


def address(connection: str) -> dict[str, str]:
    """Return only the host, port and database of a connection string."""
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


def may_change(options: PostgresOptions) -> bool:
    """Whether the password may be another one at the next attempt to connect."""
    if options.password_ref or options.before_connect:
        return True
    # Without a password, libpq looks for one in the user's password file.
    return "password" not in conninfo_to_dict(options.connection)


def read_password(options: PostgresOptions) -> str | None:
    """Return the password that `password_ref` refers to; None without a reference."""
    reference = options.password_ref
    if not reference:
        return None
    if reference.partition(":")[0] not in BUILT_IN and not is_reference(reference):
        # The value is not shown: it may be the password itself.
        raise SourceRefused(
            "password_ref is not a valid reference",
            source=options.name,
            remedy="Write it as file:/path/to/file or env:NAME.",
        )
    facts = {"source": options.name, "password_ref": reference}
    try:
        return read_secret(reference)
    except BadPart as failed:
        # A vault may be unavailable for a while, just as a database may.
        raise SourceUnreachable(
            "The secret provider of password_ref failed",
            **facts,
            error=failed.facts.get("error"),
            remedy="Fix the provider. It is called again at the next attempt to connect.",
        ) from None
    except NoSecret as missing:
        # It may be about to be replaced: some tools remove the old file first.
        if "error" in missing.facts:
            raise CredentialsRefused(
                "The password file cannot be read",
                **facts,
                error=missing.facts["error"],
                remedy=missing.remedy,
            ) from None
        raise CredentialsRefused(
            "No password was found where password_ref points",
            **facts,
            remedy="Put the password there, or point password_ref elsewhere.",
        ) from None


def ask_hook(options: PostgresOptions, parameters: Mapping[str, str]) -> dict[str, str]:
    """
    Return `parameters` with what the user's `before_connect` function adds to them.

    The function gets all connection parameters by libpq's names, and returns those to add or
    replace. If it fails it is called again later: a token service may be unavailable for a
    while, just as a database may.
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
        # The text of its error may contain the token.
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
