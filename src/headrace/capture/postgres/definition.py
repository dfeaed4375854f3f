"""A PostgreSQL source as a user describes it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from headrace.capture.pacing import checked_rate
from headrace.capture.postgres.options import address
from headrace.capture.postgres.source import PostgresSource
from headrace.capture.source import SourceSpec
from headrace.errors import BadName, SourceRefused

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
