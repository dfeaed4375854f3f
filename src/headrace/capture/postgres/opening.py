"""
From the log's end to a slot that the server sends from (H0, H1).

What the server says decides whether reading goes on or begins anew (R2); where it begins, the
publication is brought in order first and the slot is made after. That may have to wait for
transactions of others, for hours: whoever opens is told for whom (R17).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg

from headrace.capture.postgres import slots
from headrace.capture.postgres.catalog import CatalogTable
from headrace.capture.postgres.connection import connect
from headrace.capture.postgres.older import Watcher
from headrace.capture.postgres.options import Options
from headrace.capture.postgres.place import Place
from headrace.capture.postgres.publishing import Publishing
from headrace.capture.postgres.start import Begin, Resume, decide
from headrace.capture.postgres.stream import Stream
from headrace.capture.postgres.witness import Witness, same_history
from headrace.storage import points

Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Opening:
    """Two connections to one server, and the place that reading begins at."""

    query: Connection
    replication: Connection
    at: Place
    created: slots.Created | None
    """
    The new slot; None where reading goes on with the one there was.

    Nothing may go over the replication connection before its snapshot is held (R14).
    """


def application_of(options: Options) -> str:
    """Return the name that sessions of the slot's reader have at the server."""
    # The server cuts names off, and who looks for a dead reader must know where.
    return f"headrace {options.slot}"[:63]


def open_slot(
    options: Options,
    tables: Mapping[str, CatalogTable],
    publishing: Publishing,
    wanted: Place | None,
    *,
    ours: bool,
    anew: bool,
    on_wait: Callable[[str], object],
    witness: Witness,
    known: Collection[str],
) -> Opening:
    """
    Bring publication and slot in order, and find the place to read on from.

    `wanted` is the log's end; `ours`: the slot may be dropped where the log has no start;
    `anew`: what the slot has is not wanted. `on_wait` is told whom the new slot waits for.
    `known` are the tables that the log has followed so far.
    """
    application = application_of(options)
    query = connect(options, application=application)
    try:
        slots.release(query, options.slot, application)
        replication = connect(options, replication=True, application=application)
        try:
            server = slots.identify(replication)
            moved = wanted is not None and wanted.timeline != server.timeline
            slot = slots.find(query, options.slot)
            decided = partial(
                decide,
                wanted,
                server,
                history=slots.timeline_history(replication, server.timeline) if moved else (),
                ephemeral=options.slot_mode == "ephemeral",
                always_baseline=anew,
                intended=ours,
            )
            decision = decided(slot=slot)
            if isinstance(decision, Resume) and wanted and slot and witness.unsure(query):
                begin = partial(_peek, options, replication)
                followed = [table.oid for name, table in tables.items() if name in known]
                same = same_history(begin, wanted, slot.confirmed or 0, followed, on_wait)
                if same:
                    witness.believe()
                replication.close()
                slots.release(query, options.slot, application)
                replication = connect(options, replication=True, application=application)
                # Looked for again: meanwhile the server may have given it up.
                decision = decided(slot=slots.find(query, options.slot), other=same is False)
            match publishing.prepare(query, decision, tables):
                case Resume(at):
                    return Opening(query, replication, at, None)
                case Begin(branch=branch):
                    created = _create(options, query, replication, on_wait)
            at = Place(server.system, server.database, branch, server.timeline, created.consistent)
            return Opening(query, replication, at, created)
        except BaseException:
            replication.close()
            raise
    except BaseException:
        query.close()
        raise


def _peek(options: Options, replication: Connection, at: int) -> Stream:
    """Start to read from the slot, without what has not been committed."""
    return Stream(replication, options.slot, at, options.publication, streaming=False)


def _create(
    options: Options,
    query: Connection,
    replication: Connection,
    on_wait: Callable[[str], object],
) -> slots.Created:
    created = slots.create(
        replication,
        options.slot,
        temporary=options.slot_mode == "ephemeral",
        failover=options.failover,
        timeout=options.create_slot_timeout,
        on_wait=Watcher(query, replication.info.backend_pid, on_wait).look,
    )
    points.reach(points.SLOT_CREATED)
    return created
