"""Tables that only their oids tell apart: renamed into each other, each is another table."""

from __future__ import annotations

import pytest

from tests.postgres.recording import Recording

pytestmark = pytest.mark.meets("R23b")


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "running"])
def test_tables_that_nothing_but_their_oids_tells_apart_are_not_taken_for_each_other(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    """Made in one transaction, their columns have one stamp; the publication names none of them."""
    monkeypatch.setattr("headrace.capture.postgres.server.ddl_watch.WATCH_SECONDS", 0.0)
    run, tables = recording.database.execute, ("orders", "clients")
    columns = "(id bigint primary key, note text)"
    run(f"begin; create table orders {columns}; create table clients {columns}; commit")
    run("insert into orders values (1, 'o'); insert into clients values (1, 'c')")
    run("create publication everything for all tables with (publish_via_partition_root = true)")
    options = {"publication": "everything", "create_publication": False}
    recording.follow(*tables, **options)
    noted = {f"standing/{table}" for table in tables}
    recording.until(lambda: noted <= recording.log.notes.keys())
    if stopped:
        recording.die()
    run(
        "alter table orders rename to third; alter table clients rename to orders;"
        " alter table third rename to clients"
    )
    if stopped:
        recording.live(*tables, **options)
    recording.until(
        lambda: all(recording.log.rebaseline_required(table) is not None for table in tables)
    )
    reasons = {recording.log.rebaseline_required(table).reason for table in tables}  # type: ignore[union-attr]
    assert reasons == {"replaced"}
