"""What a real server sends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from headrace.capture.postgres.decode.pgoutput import Relation, RelationLayout, read_relation
from headrace.capture.postgres.server.catalog import value_type
from headrace.capture.postgres.stream.spill import Spill
from headrace.capture.postgres.stream.transactions import Transactions
from headrace.changelog.change import Op
from headrace.changelog.schema import Column, TableSchema
from tests.postgres.naive import Naive, made, place, rows, taken
from tests.postgres.servers import Database
from tests.postgres.test_transactions_fuzz import survives

OPTIONS = "'proto_version', '2', 'publication_names', 'p', 'streaming', 'on', 'messages', 'true'"


class Everything:
    """Every table is captured as the server describes it."""

    def layout(self, relation: Relation) -> RelationLayout:
        columns = tuple(
            Column(column.name, value_type(column.type, column.modifier), number)
            for number, column in enumerate(relation.columns, 1)
        )
        return RelationLayout(TableSchema(relation.table, columns), tuple(range(len(columns))))


class Captured:
    """A database whose changes are read by SQL, message by message."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.connection = database.connect()
        self.run(
            "create table kept (id bigint primary key, note text, big text, hidden text)",
            "create table full_row (id bigint primary key, note text, big text, hidden text)",
            "alter table full_row replica identity full",
            "alter table kept alter big set storage external",
            "alter table full_row alter big set storage external",
            "create publication p for all tables",
            f"select pg_create_logical_replication_slot('{self.slot}', 'pgoutput')",
            # So that a transaction of some hundred rows is streamed.
            "set logical_decoding_work_mem = '64kB'",
        )

    @property
    def slot(self) -> str:
        return f"slot_{self.database.name}"

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement.encode())

    def messages(self) -> list[bytes]:
        source = f"pg_logical_slot_get_binary_changes('{self.slot}', null, null, {OPTIONS})"
        query = f"select data from {source}"
        return [bytes(data) for (data,) in self.connection.execute(query.encode()).fetchall()]


@pytest.fixture
def captured(database: Database) -> Captured:
    return Captured(database)


def kinds(messages: Sequence[bytes]) -> str:
    return "".join(chr(message[0]) for message in messages)


def everything() -> Transactions:
    return Transactions(Everything(), Spill(None), after=0, position_at=place, near_xid=1000)


def busy(it: Captured) -> list[bytes]:
    """Return what the server says of a bit of everything, streams and savepoints included."""
    it.run(
        "insert into kept values (1, 'ünï', repeat('x', 9000), null), (2, '', 'small', 'h')",
        "update kept set note = 'changed' where id = 1",
        "update kept set id = 11 where id = 1",
        "insert into full_row select i, 'n', repeat('y', 9000), null from generate_series(1, 3) i",
        "update full_row set note = 'changed'",
        "delete from full_row where id = 2",
        "delete from kept where id = 2",
        "select pg_logical_emit_message(false, 'alone', 'content')",
        "select pg_logical_emit_message(true, 'within', 'content')",
        "begin",
        "insert into kept select i, 'top', 'b', 'c' from generate_series(100, 1500) i",
        "savepoint one",
        "insert into kept select i, 'gone', 'b', 'c' from generate_series(2000, 4500) i",
        "savepoint two",
        "insert into full_row select i, 'gone', 'b', 'c' from generate_series(2000, 4500) i",
        "release two",
        "rollback to one",
        "insert into kept select i, 'after', 'b', 'c' from generate_series(5000, 6500) i",
        "truncate kept, full_row",
        "alter table full_row add extra bigint default 7",
        "insert into full_row values (1, 'a', 'b', 'c', 8)",
        "insert into kept select i, 'last', 'b', 'c' from generate_series(7000, 8500) i",
        "commit",
        "begin",
        "insert into kept select i, 'never', 'b', 'c' from generate_series(9000, 10500) i",
        "rollback",
        "insert into full_row values (2, 'a', 'b', 'c', 9)",
        "insert into kept values (1, 'end', 'b', 'c')",
    )
    return it.messages()


@pytest.mark.meets("R3", "R5", "R6", "R21", "R23d", "PG-11", "PG-20", "PG-24")
def test_the_tables_are_what_their_changes_make_of_them(captured: Captured) -> None:
    messages = busy(captured)
    found = kinds(messages)
    assert {"S", "E", "c", "A", "M", "T", "R"} <= set(found)
    ours = everything()
    changes = []
    for at in range(0, len(messages), 700):
        changes += taken(ours, messages[at : at + 700])
    tables: dict[str, dict[int, dict[str, Any]]] = {"kept": {}, "full_row": {}}
    positions = []
    for table, _, row in rows(changes):
        positions.append((row["_commit"], row["_ordinal"]))
        held = tables[table]
        if row["_op"] == Op.TRUNCATE:
            held.clear()
            continue
        if row["_op"] != Op.INSERT:
            before = row["before"] or row["after"]
            old = held.pop(before["id"])
            if table == "full_row":
                assert row["before"] == old
                assert row["_unsent"] is None
            for field in row["_unsent"] or []:
                name = list(row["after"])[field - 1]
                row["after"][name] = old[name]
        if row["_op"] != Op.DELETE:
            held[row["after"]["id"]] = row["after"]
    for table, held in tables.items():
        there = captured.connection.execute(
            f"select row_to_json(t) from {table} t order by id".encode()
        ).fetchall()
        assert [held[key] for key in sorted(held)] == [row for (row,) in there]
    assert ours.idle
    assert ours.streams == 0
    xids = [xid for _, xid in ours.committed.pairs()]
    assert xids == sorted(xids)


@pytest.mark.meets("R5", "R6")
def test_a_reader_of_single_rows_finds_the_same(captured: Captured) -> None:
    messages = busy(captured)
    naive = Naive(0, 1000)
    for message in messages:
        naive.take(message)
    assert rows(taken(made(), messages)) == sorted(
        naive.found, key=lambda it: (it[2]["_commit"], it[2]["_ordinal"], it[0])
    )


@pytest.mark.meets("R23f")
def test_a_real_capture_broken_at_random_is_refused_or_read(captured: Captured) -> None:
    messages = busy(captured)
    found = kinds(messages)
    # Few of each long row of inserts: what is broken should be of every kind.
    few = [
        message
        for at, message in enumerate(messages)
        if found[at] not in "I" or found[max(at - 3, 0) : at] != "III"
    ]
    refused = sum(survives(seed, few) for seed in range(150))
    assert refused > 50


def test_types_keep_their_values(captured: Captured) -> None:
    captured.run(
        "create table typed (a smallint, b int, c bigint, d numeric(12, 2), e numeric, f boolean,"
        " g timestamptz, h timestamp, i date, j real, k double precision, l bytea, m uuid,"
        " n jsonb)",
        "insert into typed values (1, -2, 3, 4.50, 1e40, true, '2026-01-02 03:04:05.6+02',"
        " '2026-01-02 03:04:05.6', '2026-01-02', 1.5, 0.1, '\\xdead',"
        " '00000000-0000-0000-0000-00000000000a', '{\"a\": 1}')",
        "insert into typed values (null), ('-32768')",
    )
    messages = captured.messages()
    [relation] = [read_relation(each) for each in messages if each[:1] == b"R"]
    assert len(relation.columns) == 14
    # Before 15 the server tells of commits without a change, too.
    [changes] = [each for each in taken(everything(), messages) if each.tables]
    [table] = changes.tables
    first, second, third = table.rows["after"].to_pylist()
    assert str(first["d"]) == "4.50"
    assert (first["a"], first["f"], first["l"]) == (1, True, b"\xde\xad")
    assert set(second.values()) == {None}
    assert third["a"] == -32768
    assert table.rows["_exact"].null_count == 3
