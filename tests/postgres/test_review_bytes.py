"""A database without an encoding holds bytes of any kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.capture.postgres.definition import postgres
from headrace.changelog.change import Changes
from headrace.embedded.postgres import PostgresServer
from tests.postgres.servers import Database, wait_until


@pytest.fixture
def raw(server: PostgresServer) -> Iterator[Database]:
    made = Database(server, "test_without_encoding")
    with made._outside() as outside:
        outside.execute(
            "create database test_without_encoding template template0 encoding 'SQL_ASCII'"
            " locale 'C'"
        )
    yield made
    made.drop()


@pytest.mark.meets("R23f", "R18")
def test_bytes_that_are_no_text_stop_neither_the_stream_nor_a_copy(raw: Database) -> None:
    app = raw.connect(client_encoding="SQL_ASCII")
    app.execute(b"create table notes (id int primary key, note text)")
    app.execute(b"insert into notes values (1, 'caf\xe9'), (2, 'caf\xc3\xa9')")
    source = postgres(raw.dsn, name="raw")
    source.describe(["notes"])
    source.open(None)
    try:
        copy = source.baseline("notes")
        rows: list[object] = []
        exact: list[object] = []
        for batch in copy:
            rows += batch.column("note").to_pylist()
            exact += [] if copy.exact is None else copy.exact.to_pylist()
        assert rows == [None, "café"]
        app.execute(b"insert into notes values (3, '\xff')")
        app.execute(b"insert into notes values (4, 'plain')")
        found: list[Changes] = []

        def read() -> bool:
            changes = source.read(100, 0.1)
            if changes is not None and changes.tables:
                found.append(changes)
            return bool(sum(t.rows.num_rows for each in found for t in each.tables) == 2)

        wait_until(read)
        streamed = [
            row["after"]["note"]
            for each in found
            for table in each.tables
            for row in table.rows.to_pylist()
        ]
        assert streamed == [None, "plain"]
        marks = [
            row["_exact"]
            for each in found
            for table in each.tables
            for row in table.rows.to_pylist()
        ]
        assert marks[0]
        assert exact[0]
    finally:
        source.close()
        source.teardown()
