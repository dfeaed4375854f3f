"""What is worth knowing of a server that can be captured: nothing here keeps us from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.capture.postgres.catalog import CatalogTable
from headrace.capture.postgres.facts import Server
from headrace.capture.postgres.options import Options
from headrace.capture.postgres.unsent import unsent_columns

SHORT_SENDER_TIMEOUT_MS = 10_000
"""Below this a busy second of ours can already cost the connection (R7)."""

_TIMEOUTS = (
    "statement_timeout",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "transaction_timeout",
)


@dataclass(frozen=True, slots=True)
class Note:
    """A setting that has a consequence."""

    setting: str
    value: str
    message: str
    remedy: str = ""
    """Empty where it is information only."""


def notes_on(
    server: Server, options: Options, tables: Sequence[CatalogTable] = ()
) -> Iterator[Note]:
    """Yield what somebody who runs this source should have read once."""
    yield from _unsent(tables, options)
    yield from _keeping(server)
    yield from _ending(server)
    if server.old_publication_cache:
        yield Note(
            "server_version_num",
            str(server.version),
            "Tables are locked against writing for a moment when they are added, because a"
            " running transaction could make this release forget the new table",
            "Upgrade to the newest minor release.",
        )
    if "truncate" not in options.publish:
        yield Note(
            "publish",
            ",".join(options.publish),
            "Truncated tables keep their rows at the targets",
            "Add truncate to what is published.",
        )
    if server.standby:
        yield from _standby(server)
    elif options.failover and "synchronized_standby_slots" in server.settings:
        yield from _failover(server)


def _unsent(tables: Sequence[CatalogTable], options: Options) -> Iterator[Note]:
    """Which tables may have updates without some of their values, and nobody keeps these (R21)."""
    for table in tables:
        if columns := unsent_columns(table, options):
            yield Note(
                "toast_store",
                "off",
                f"An update of {table.name} that leaves a long value alone comes without it, and"
                f" stops pipelines that do not drop it: {', '.join(columns)}",
                "Leave the store on, or run ALTER TABLE … REPLICA IDENTITY FULL.",
            )


def _keeping(server: Server) -> Iterator[Note]:
    """How much WAL the server keeps for a slot, and for how long."""
    keep = server.settings["max_slot_wal_keep_size"]
    yield Note(
        "max_slot_wal_keep_size",
        keep,
        "The server keeps WAL for us without limit: its disk fills if reading stops for long"
        if keep == "-1"
        else "The server drops our slot when it holds back more WAL than this many MB",
    )
    idle = server.settings.get("idle_replication_slot_timeout", "0")
    if idle != "0":
        yield Note(
            "idle_replication_slot_timeout",
            idle,
            "The server drops our slot when nobody has read from it for this long",
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf();",
        )


def _ending(server: Server) -> Iterator[Note]:
    """What may end our connections."""
    timeout = server.number("wal_sender_timeout") or 0
    if timeout == 0:
        yield Note(
            "wal_sender_timeout",
            "0",
            "A sender whose reader is gone without a word keeps our slot until it is ended",
            "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();",
        )
    elif timeout < SHORT_SENDER_TIMEOUT_MS:
        yield Note(
            "wal_sender_timeout",
            f"{timeout}ms",
            "The server ends our connection after a short silence",
            "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();",
        )
    for setting in _TIMEOUTS:
        value = server.settings.get(setting, "0")
        if value != "0":
            # We ask for 0 when we connect; something between us and the server lost it.
            yield Note(
                setting,
                f"{value}ms",
                "The setting we connect with did not reach the server, and long copies may be"
                " cut off: is there a pooler between?",
                "Connect to the server directly.",
            )


def _standby(server: Server) -> Iterator[Note]:
    if server.settings["hot_standby_feedback"] != "on":
        yield Note(
            "hot_standby_feedback",
            server.settings["hot_standby_feedback"],
            "The primary may remove what our slot on this standby needs, which ends the slot",
            "ALTER SYSTEM SET hot_standby_feedback = on; SELECT pg_reload_conf();",
        )


def _failover(server: Server) -> Iterator[Note]:
    """R35, as far as a primary can see: what the standby is set to, it does not tell."""
    value = server.settings["synchronized_standby_slots"]
    named = [name.strip().strip('"') for name in value.split(",") if name.strip()]
    set_it = "ALTER SYSTEM SET synchronized_standby_slots = '{}'; SELECT pg_reload_conf();"
    if not named:
        yield Note(
            "synchronized_standby_slots",
            "",
            "We may be sent commits that no standby has: after a failover all is copied again",
            set_it.format(",".join(server.standby_slots) or "…"),
        )
    elif missing := [name for name in named if name not in server.standby_slots]:
        yield Note(
            "synchronized_standby_slots",
            value,
            f"Nothing is sent to us until these slots exist: {', '.join(missing)}",
            set_it.format(",".join(set(named) - set(missing))),
        )
    followed = named or server.standby_slots
    silent = [name for name in followed if name not in server.feedback_slots]
    if silent or not followed:
        yield Note(
            "hot_standby_feedback",
            ", ".join(silent) or "no standby",
            "No standby was seen that keeps what a synchronised slot needs",
            "On the standby: ALTER SYSTEM SET hot_standby_feedback = on; ALTER SYSTEM SET"
            " sync_replication_slots = on; SELECT pg_reload_conf(); its primary_slot_name and"
            " a dbname in primary_conninfo must be set too.",
        )
    else:
        yield Note(
            "sync_replication_slots",
            "not known here",
            "Only the standby knows whether it copies our slot",
            "On the standby: ALTER SYSTEM SET sync_replication_slots = on;"
            " SELECT pg_reload_conf();",
        )
