"""Partitions that come and go: rows that come or go with them are in no message."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.capture.messages import (
    BaselineProgress,
    FlushNow,
    StateReport,
    TakeBaseline,
    Warned,
)
from headrace.capture.postgres.copy.snapshot import Snapshots
from headrace.capture.postgres.definition import postgres
from headrace.capture.postgres.server import ddl_watch, partitions
from headrace.capture.postgres.server.partitions import Branch, Tree
from headrace.capture.postgres.server.slot import CreatedSlot
from headrace.capture.postgres.stream.stream import ReplicationStream
from headrace.capture.recorder import Recorder
from headrace.changelog.change import Op
from headrace.changelog.reader import LogReader
from headrace.engine.engine import Engine
from headrace.errors import NoIdentity, PublicationRefused, TableLost, TableRefused
from headrace.pipeline.definition import Pipeline
from headrace.targets.memory import IndexedMemory, memory
from tests.postgres import recording
from tests.postgres.servers import Database, wait_until
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience

PATIENCE = patience()

MONTHS = """
    create table sales (id bigint, value text, primary key (id)) partition by range (id);
    create table sales_1 partition of sales for values from (100) to (200);
    create table sales_2 partition of sales for values from (200) to (300);
    create table sales_3 partition of sales for values from (300) to (400)
        partition by range (id);
    create table sales_3a partition of sales_3 for values from (300) to (350);
    create table clients (id bigint primary key, value text);
    insert into sales select n, 'old' from generate_series(100, 349, 10) n;
    insert into clients values (1, 'ada');
"""

SILENT = {
    "emptied": "truncate sales_1",
    "dropped": "drop table sales_1",
    "detached": "alter table sales detach partition sales_1",
    "emptied with all below it": "truncate sales_3",
    "attached": """
        create table filled (id bigint primary key, value text);
        insert into filled values (401, 'brought');
        alter table sales attach partition filled for values from (400) to (500)""",
    "attached with what is below it": """
        create table above (id bigint primary key, value text) partition by range (id);
        create table below partition of above for values from (400) to (450);
        insert into above values (401, 'brought');
        alter table sales attach partition above for values from (400) to (500)""",
    "made, filled and attached in one transaction": """
        begin;
        create table filled (id bigint primary key, value text);
        insert into filled values (401, 'brought');
        alter table sales attach partition filled for values from (400) to (500);
        commit""",
    "filled under a savepoint": """
        begin;
        create table filled (id bigint primary key, value text);
        savepoint here;
        insert into filled values (401, 'brought');
        release here;
        alter table sales attach partition filled for values from (400) to (500);
        commit""",
    "away for a moment": """
        alter table sales detach partition sales_1;
        insert into sales_1 values (199, 'meanwhile');
        alter table sales attach partition sales_1 for values from (100) to (200)""",
    "replaced": """
        begin;
        drop table sales_1;
        create table sales_1 partition of sales for values from (100) to (200);
        insert into sales values (101, 'again');
        commit""",
    "emptied and filled again": """
        begin; truncate sales_1; insert into sales values (101, 'again'); commit""",
    "emptied, filled again and written anew": """
        truncate sales_1; insert into sales values (101, 'again'); vacuum full sales_1""",
    "given other values by its column": """
        alter table sales alter value type text using upper(value)""",
}

HARMLESS = {
    "made and filled": """
        create table sales_4 partition of sales for values from (400) to (500);
        insert into sales values (401, 'sent')""",
    "made and filled in one transaction": """
        begin;
        create table sales_4 partition of sales for values from (400) to (500);
        insert into sales values (401, 'sent');
        insert into sales_4 values (402, 'sent, too');
        commit""",
    "made before a default was altered": """
        create table sales_4 partition of sales for values from (400) to (500);
        alter table sales alter value set default 'x'""",
    "made of several levels and filled": """
        create table sales_4 partition of sales for values from (400) to (500)
            partition by range (id);
        create table sales_4a partition of sales_4 for values from (400) to (450);
        insert into sales values (401, 'sent')""",
    "made below another and filled": """
        create table sales_3b partition of sales_3 for values from (350) to (400);
        insert into sales values (351, 'sent')""",
    "written anew": "vacuum full sales_1; cluster sales_2 using sales_2_pkey",
    "without partitions and dropped": """
        create table sales_4 partition of sales for values from (400) to (500)
            partition by range (id);
        drop table sales_4""",
}

ATTACHED_EMPTY = """
    create table empty (like sales including all);
    alter table sales attach partition empty for values from (400) to (500)
"""


def in_turn(scripts: Mapping[str, str], every: int) -> list[Any]:
    """Return scripts as parameters: one of `every` is run always, the others in CI."""
    return [
        pytest.param(script, id=name, marks=[pytest.mark.ci] if number % every else [])
        for number, (name, script) in enumerate(scripts.items())
    ]


class Recording(recording.Recording):
    """The same of two tables, which must never stop by themselves."""

    def live(self, *tables: str, **options: object) -> None:
        super().live(*(tables or ("sales", "clients")), **options)
        self.until(lambda: any(isinstance(each, StateReport) for each in self.reports))
        self.until(lambda: self.recorder._connected)

    def die(self) -> None:
        if hasattr(self, "recorder"):
            # A process that is killed leaves no connection behind.
            self.recorder._copies.stop()
        super().die()

    def step(self, *, idle: bool = True) -> None:
        self.reports += self.recorder.step([FlushNow()] if idle else [], 0.02)

    def run(self, script: str) -> None:
        """Run statements, each by itself: some of them cannot be run in a transaction."""
        for statement in filter(str.strip, script.split(";")):
            self.database.execute(statement)

    def until(self, condition: Callable[[], object], *, idle: bool = True) -> None:
        """Step until something is true."""

        def stepped() -> object:
            self.step(idle=idle)
            assert not self.recorder.done, self.reports[-2:]
            return condition()

        wait_until(stepped, PATIENCE)

    def copy(self, *tables: str) -> None:
        before = {table: self.baseline(table) for table in tables}
        self.reports += self.recorder.step([TakeBaseline(table) for table in tables], 0.02)
        self.until(
            lambda: all(self.baseline(table) not in (None, before[table]) for table in tables)
        )

    def pass_by(self) -> None:
        """Read until the log has something written now: what was there before is noticed."""
        name = f"at {time.monotonic()}"
        self.database.execute("update clients set value = %s", name)
        self.until(lambda: self.rows("clients")[1] == name)

    def rows(self, table: str) -> dict[int, object]:
        """Return what a target would have: the newest baseline, and every change after its F."""
        return replayed(self.log, table)

    def truth(self, table: str) -> dict[int, object]:
        return dict(self.database.rows(f"select * from {table}"))

    def exact(self) -> bool:
        return all(self.rows(each) == self.truth(each) for each in ("sales", "clients"))


@pytest.fixture
def shop(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Recording]:
    """Looked at with every read, and copied once."""
    monkeypatch.setattr("headrace.capture.postgres.server.ddl_watch.WATCH_SECONDS", 0.0)
    recording = Recording(database, tmp_path / "data")
    recording.run(MONTHS)
    recording.live()
    recording.copy("sales", "clients")
    yield recording
    recording.die()


@pytest.mark.meets("R23c")
@pytest.mark.parametrize("script", in_turn(SILENT, 2))
def test_rows_that_came_or_went_with_a_partition_make_the_table_be_copied_and_no_other(
    shop: Recording, script: str
) -> None:
    shop.run(script)
    copied_again(shop)


@pytest.mark.meets("R23c")
@pytest.mark.parametrize(
    "how",
    [
        *("emptied", "dropped", "detached", "attached", "away for a moment"),
        "made, filled and attached in one transaction",
        "emptied, filled again and written anew",
        "given other values by its column",
    ],
)
def test_what_came_or_went_while_nobody_recorded_is_noticed(shop: Recording, how: str) -> None:
    shop.die()
    shop.run(SILENT[how])
    shop.live()
    copied_again(shop)


@pytest.mark.meets("R23c")
@pytest.mark.parametrize("script", in_turn(HARMLESS, 2))
@pytest.mark.parametrize("stopped", [False, True], ids=["while recording", "while nobody records"])
def test_a_partition_that_brought_nothing_with_it_costs_no_copy(
    shop: Recording, script: str, stopped: bool
) -> None:
    before = shop.baseline("sales"), shop.baseline("clients")
    if stopped:
        shop.die()
    shop.run(script)
    if stopped:
        shop.live()
    shop.pass_by()
    assert (shop.baseline("sales"), shop.baseline("clients")) == before
    assert shop.exact()
    shop.copy("sales")
    assert shop.exact()


@pytest.mark.meets("R23c")
def test_what_is_written_to_a_partition_after_it_was_detached_is_not_the_tables(
    shop: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run("update sales set value = 'sent'")
    shop.gather(monkeypatch)
    shop.run(SILENT["detached"])
    shop.until(lambda: shop.log.rebaseline_required("sales") is not None, idle=False)
    assert shop.log.counts().rows > 0, "what was pending was not written with the news"
    shop.copy("sales")
    shop.run("insert into sales_1 values (155, 'elsewhere')")
    shop.pass_by()
    assert shop.exact()


@pytest.mark.meets("R23c")
def test_a_table_that_was_attached_empty_and_noticed_so_costs_no_copy(shop: Recording) -> None:
    before = shop.baseline("sales")
    shop.run(ATTACHED_EMPTY)
    shop.pass_by()
    shop.run("insert into sales values (401, 'sent')")
    shop.pass_by()
    shop.run("vacuum full empty")
    shop.pass_by()
    if shop.database.connect().info.server_version >= 150000:  # an older one goes on as it began
        assert shop.baseline("sales") == before
        assert shop.exact()


@pytest.mark.meets("R23c")
def test_what_cannot_be_looked_into_soon_is_copied(shop: Recording) -> None:
    shop.run("create table empty (like sales including all)")
    holder = shop.database.connect(autocommit=False)
    holder.execute("alter table sales attach partition empty for values from (400) to (500)")
    holder.commit()
    holder.execute("lock table empty")
    shop.step()
    holder.commit()
    shop.pass_by()
    assert shop.log.rebaseline_required("sales") is not None
    shop.copy("sales")
    assert shop.exact()


@pytest.mark.meets("R23c", "R11")
@pytest.mark.parametrize("killed", [False, True], ids=["in one life", "in two"])
def test_what_was_written_before_a_partition_went_does_not_come_back(
    shop: Recording, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    with monkeypatch.context() as late:
        late.setattr(ReplicationStream, "receive", lambda *_: None)
        shop.run("insert into sales values (155, 'goes'); truncate sales_1")
        shop.reports += shop.recorder.step([TakeBaseline("sales")], 0.0)
        wait_a_little(shop)
    if killed:
        shop.run("insert into sales values (156, 'stays')")
        with monkeypatch.context() as dying:
            dying.setattr(Recorder, "_append", lambda *_: None)
            shop.until(lambda: shop.log.rebaseline_required("sales") is not None)
        assert shop.log.counts().rows == 0
        with monkeypatch.context() as late:
            late.setattr(ReplicationStream, "receive", lambda *_: None)
            shop.live()
            shop.reports += shop.recorder.step([TakeBaseline("sales")], 0.0)
            wait_a_little(shop)
    shop.pass_by()
    shop.until(lambda: not shop.recorder._copies.pressing)
    if shop.baseline("sales") in (None, 1):
        shop.copy("sales")
    assert shop.exact()


@pytest.mark.meets("R23c", "R16")
@pytest.mark.parametrize("how", ["dropped", "emptied and filled again", "attached", "replaced"])
def test_a_copy_under_way_does_not_outlive_the_partitions_it_was_planned_with(
    shop: Recording, how: str
) -> None:
    told = len(shop.reports)
    shop.reports += shop.recorder.step([TakeBaseline("sales")], 0.0)
    shop.until(lambda: any(isinstance(each, BaselineProgress) for each in shop.reports[told:]))
    shop.run(SILENT[how])
    shop.pass_by()
    shop.until(lambda: not shop.recorder._copies.pressing)
    if shop.baseline("sales") is None:
        shop.copy("sales")
    assert shop.exact()


@pytest.mark.meets("R23c", "H1")
@pytest.mark.parametrize("how", ["dropped", "attached", "made and filled"])
def test_what_happens_right_after_the_slot_was_made_is_noticed(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    shop = Recording(database, tmp_path / "data")
    shop.run(MONTHS)
    keep = Snapshots.keep

    def kept(self: Snapshots, created: CreatedSlot) -> None:
        keep(self, created)
        shop.run({**SILENT, **HARMLESS}[how])

    monkeypatch.setattr(Snapshots, "keep", kept)
    shop.live()
    shop.copy("sales", "clients")
    shop.pass_by()
    assert shop.baseline("sales") is not None
    assert shop.exact()
    assert not reconnected(shop)
    shop.die()


@pytest.fixture
def plain(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Recording]:
    """Two partitioned tables, read by their owner, and by a sender as of PostgreSQL 14."""
    monkeypatch.setattr(partitions, "SENDER_UPDATES_SINCE", 1_000_000)
    monkeypatch.setattr(ddl_watch, "WATCH_SECONDS", 0.0)
    role = database.role("login replication")
    recording = Recording(database, tmp_path / "data")
    database.execute(f"grant create on database {database.name} to {role}")
    database.execute(f"grant all on schema public to {role}")
    database.execute(f"alter default privileges grant all on tables to {role}")
    recording.run(MONTHS)
    recording.run("create table visits (like sales including all) partition by range (id)")
    for table in ("sales", "visits", "clients"):
        database.execute(f"alter table {table} owner to {role}")
    dsn = database.dsn_as(role)
    monkeypatch.setattr(Database, "dsn", property(lambda _: dsn))
    recording.live("sales", "visits", "clients")
    recording.copy("sales", "visits", "clients")
    yield recording
    recording.die()


def attached(to: str) -> str:
    return f"""
        create table filled_{to} (like {to} including all);
        insert into filled_{to} values (401, 'brought');
        alter table {to} attach partition filled_{to} for values from (400) to (500)
    """


@pytest.mark.meets("R23c")
def test_the_owner_of_the_tables_can_have_an_older_sender_look_at_the_partitions_again(
    plain: Recording,
) -> None:
    """Both in one look, which costs the third table nothing."""
    before = plain.baseline("clients")
    script = "begin;" + attached("sales") + ";" + attached("visits") + "; commit"
    with plain.database.connect() as connection:
        connection.execute(script.encode())
    plain.until(lambda: all(plain.baseline(each) is None for each in ("sales", "visits")))
    plain.copy("sales", "visits")
    plain.run("insert into sales values (402, 'sent'); insert into visits values (402, 'sent')")
    plain.pass_by()
    assert plain.exact()
    assert plain.rows("visits") == plain.truth("visits")
    assert plain.baseline("clients") == before
    refused = [each for each in plain.reports if isinstance(each, Warned)]
    assert not [each for each in refused if isinstance(each.problem.error(), PublicationRefused)]


@pytest.mark.meets("R23c")
def test_a_table_is_not_copied_until_an_older_sender_looks_at_its_partitions_again(
    plain: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "GLANCE", "set local lock_timeout = '5ms'")
    holder = plain.database.connect(autocommit=False)
    holder.execute("select 1 from pg_publication for update")
    plain.run(attached("sales"))
    plain.until(lambda: plain.baseline("sales") is None)
    plain.reports += plain.recorder.step([TakeBaseline("sales")], 0.02)
    wait_a_little(plain)
    assert plain.baseline("sales") is None
    problems = [each.problem.error() for each in plain.reports if isinstance(each, Warned)]
    assert len([each for each in problems if isinstance(each, PublicationRefused)]) == 1
    plain.run("insert into sales values (402, 'perhaps unsent')")
    holder.rollback()
    plain.until(lambda: plain.baseline("sales") is not None)
    plain.run("insert into sales values (403, 'sent')")
    plain.pass_by()
    assert plain.exact()


@pytest.mark.meets("R23a", "R23c")
def test_a_partition_whose_rows_cannot_be_changed_any_more_is_told_of_and_recording_goes_on(
    shop: Recording,
) -> None:
    shop.run(
        "begin; create table sales_4 partition of sales for values from (400) to (500);"
        " alter table sales_4 replica identity nothing; commit"
    )
    shop.until(lambda: any(isinstance(each, Warned) for each in shop.reports))
    [warned] = [each for each in shop.reports if isinstance(each, Warned)]
    assert isinstance(warned.problem.error(), NoIdentity)
    assert "sales_4" in warned.problem.remedy
    shop.pass_by()
    assert [each for each in shop.reports if isinstance(each, Warned)] == [warned]


@pytest.mark.meets("R23a", "R23c")
def test_a_table_is_lost_while_it_has_a_partition_without_changes(
    shop: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.capture.table_selection.LOOK_SECONDS", 0.1)
    shop.run("create unlogged table sales_4 (like sales including all)")
    shop.run("alter table sales attach partition sales_4 for values from (400) to (500)")
    shop.until(lambda: any(isinstance(each, Warned) for each in shop.reports))
    [warned] = [each.problem for each in shop.reports if isinstance(each, Warned)]
    assert isinstance(warned.error(), TableLost)
    assert (warned.facts["table"], warned.facts["cause"]) == ("sales", TableRefused.code)
    shop.pass_by()
    shop.run("alter table sales detach partition sales_4")
    shop.until(lambda: shop.log.rebaseline_required("sales") is not None)
    shop.copy("sales")
    assert shop.exact()


def test_a_note_reads_back_and_any_other_text_stands_for_partitions_that_are_gone() -> None:
    tree = Tree(2**40, {16_400: Branch(16_403, 750), 16_390: Branch(0, 4_000_000_000)})
    assert Tree.parse(str(tree)) == tree
    assert Tree.parse(str(Tree(7, {}))) == Tree(7, {})
    [gone] = Tree.parse("something else").branches.values()
    assert gone.filenode


@pytest.mark.meets("R23c")
def test_a_target_follows_partitions_that_come_and_go(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.capture.postgres.server.ddl_watch.WATCH_SECONDS", 0.0)
    shop = Recording(database, tmp_path / "data")
    shop.run(MONTHS)
    source = postgres(database.dsn, name="shop")
    targets = {table: memory() for table in ("sales", "clients")}
    pipelines = [Pipeline(source, table, targets[table], name=table) for table in targets]

    def equal() -> bool:
        return all(seen(target) == shop.truth(table) for table, target in targets.items())

    with Engine(*pipelines, data=shop.data, runner=ArrowRunner(), recorder="thread") as engine:
        assert engine.await_ready(PATIENCE)
        shop.run(SILENT["dropped"])
        shop.run(SILENT["attached"])
        shop.run(HARMLESS["made below another and filled"])
        shop.run("insert into clients values (2, 'bob')")

        def copied() -> bool:
            sales = engine.pipeline_info("sales").tables[0]
            return sales.state == "live" and (sales.baseline or 0) >= 3

        wait_until(copied, PATIENCE)
        wait_until(equal, PATIENCE)
        assert engine.pipeline_info("clients").tables[0].baseline in (1, 2)
        assert engine.source_info("shop").restarts == 0


def copied_again(shop: Recording) -> None:
    """Look for what is owed, pay it, and see that nothing else was touched."""
    before = shop.baseline("clients")
    shop.until(lambda: shop.log.rebaseline_required("sales") is not None, idle=False)
    shop.pass_by()
    shop.copy("sales")
    assert shop.exact()
    shop.database.execute("update sales set value = 'later' where id >= 210")
    shop.pass_by()
    assert shop.exact()
    assert shop.baseline("sales") is not None
    assert shop.baseline("clients") == before
    assert not reconnected(shop)


def wait_a_little(shop: Recording) -> None:
    """Let a copy begin that could, though nothing shall."""
    for _ in range(20):
        shop.step()


def reconnected(shop: Recording) -> bool:
    states = [each.state for each in shop.reports if isinstance(each, StateReport)]
    return "reconnecting" in states


def seen(target: IndexedMemory) -> dict[int, object]:
    return {int(str(row["id"])): list(row.values())[1] for row in target.all()}


def replayed(log: LogReader, table: str) -> dict[int, object]:
    """Return what a target has: the newest baseline, and every change after its F."""
    baseline = log.usable_baseline(table)
    if baseline is None:
        return {}
    rows = [row for file in baseline.files for row in log.rows(file).to_pylist()]
    held = {row["after"]["id"]: row["after"]["value"] for row in rows}
    first, _ = baseline.window
    batch = log.next_batch(table, first, 100_000, most_files=10_000)
    changes = [row for file in (batch.files if batch else ()) for row in log.rows(file).to_pylist()]
    for row in sorted(changes, key=lambda row: (row["_commit"], row["_ordinal"])):
        if row["_commit"] <= first.commit:
            continue
        if row["_op"] == Op.TRUNCATE:
            held.clear()
        for image in ("before", "after"):
            if row[image] is not None:
                held.pop(row[image]["id"], None)
        if row["after"] is not None:
            held[row["after"]["id"]] = row["after"]["value"]
    return held
