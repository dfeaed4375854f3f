"""
Taking away what is ours at a server: the slot, and the publication.

The slot goes first. Without its slot, reading begins anew whatever else is there; a slot that
outlived its publication would be read on, and what was written meanwhile not be sent.
"""

from __future__ import annotations

from headrace.capture.postgres import publication, slots
from headrace.capture.postgres.connection import connect, speaking
from headrace.capture.postgres.opening import application_of
from headrace.capture.postgres.options import Options
from headrace.capture.postgres.place import Place
from headrace.capture.postgres.start import check_database, refuse, unknown
from headrace.storage import points


def remove(options: Options, *, drop_publication: bool) -> None:
    """Drop the slot, and the publication if it is ours; nothing where there is neither."""
    name = application_of(options)
    with speaking(options), connect(options) as connection:
        if options.slot_mode != "ephemeral" and slots.find(connection, options.slot) is not None:
            slots.release(connection, options.slot, name)
            slots.drop(connection, options.slot)
        points.reach(points.SLOT_DROPPED)
        if drop_publication:
            publication.drop(connection, options)
            points.reach(points.PUBLICATION_DROPPED)


def refuse_unknown(options: Options) -> None:
    """Raise where there is a slot already, of the name that is to be given to ours."""
    if options.slot_mode == "ephemeral":
        return  # making one fails while there is another, and drops nothing
    with speaking(options), connect(options) as connection:
        if (slot := slots.find(connection, options.slot)) is not None:
            raise unknown(slot)


def reset_slot(options: Options, after: str | None, *, ours: bool, drop_publication: bool) -> None:
    """
    Remove the slot, and the publication if asked, so that reading begins anew.

    Raises where the slot is somebody else's, or this is not the server of the log that ends
    at `after`; then nothing is removed.
    """
    name = application_of(options)
    with speaking(options), connect(options) as connection:
        slots.release(connection, options.slot, name)
        slot = slots.find(connection, options.slot)
        with connect(options, replication=True, application=name) as replication:
            server = slots.identify(replication)
    check_database(None if after is None else Place.parse(after), server)
    if options.slot_mode != "ephemeral":  # of that one nothing is left, without its connection
        refuse(slot, slots.state(slot, server.database))
        if slot is not None and not ours:
            raise unknown(slot)
    remove(options, drop_publication=drop_publication)
