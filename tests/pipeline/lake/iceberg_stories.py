"""What is Iceberg's own: the branch that is its fence, expired snapshots, catalogs, names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pyarrow as pa

from headrace.changelog.change import Op
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import BadTable, Fenced, HeadraceError, TableTaken, TargetError
from headrace.lake.history import CommitNote
from headrace.lake.iceberg import IcebergTable
from headrace.lake.target import TableTarget, table
from headrace.targets.target import Batch
from headrace.testing.contracts import batch, loaded
from headrace.testing.source import TABLE, THINGS
from tests.pipeline.lake.delta_stories import RETYPED, One, refused
from tests.pipeline.lake.foreign_stories import found_out
from tests.pipeline.lake.kinds import Iceberg
from tests.pipeline.lake.lending import target_context
from tests.pipeline.lake.stories import StoryEnvironment, story_of

iceberg = story_of("iceberg")
LATE = batch([(Op.INSERT, 2, 3, "late")], 2, first=2)
"""What a writer is about to commit that is taken over from."""


@contextmanager
def before(method: str, act: Callable[[IcebergTable], None]) -> Iterator[None]:
    """Let something happen once, right before a step of the commit that is made next."""
    step = getattr(IcebergTable, method)
    left = [act]

    def stepped(self: IcebergTable, *about: object) -> object:
        if left:
            left.pop()(self)
        return step(self, *about)

    with patch.object(IcebergTable, method, stepped):
        yield
    assert not left, "the step was not reached"


def once(one: One) -> None:
    """See that the table has the change of the new writer, and it alone, in each mode."""
    names = [row[0] for row in one.rows("name", order=["id"])]
    assert names == ["one", "two", "new"]
    versions = one.env.kind.versions(one.env.spark, one.path)
    assert [note.number for _, note in versions if note is not None] == [2, 1]


def overtake(one: One) -> Callable[[IcebergTable], None]:
    """Return what another engine does: it takes over, and commits the change."""
    new = one.opened(Position(1, 1))
    change = batch([(Op.INSERT, 2, 3, "new")], 2, first=2)
    return lambda table: assert_reached(new, change)


def assert_reached(target: TableTarget, change: object) -> None:
    assert target.write(change) == Position(1, 2)  # type: ignore[arg-type]


@iceberg
def a_writer_that_is_late_at_any_step_has_no_effect(env: StoryEnvironment) -> None:
    # Before it looks, before it writes to its branch, looks at that, and goes forward.
    for mode in ("merge", "append", "history"):
        for step in ("_head", "_noted", "_goes_on_from", "_forwarded"):
            one = One(env.within(f"{mode}{step}"), mode)
            old = one.begun()
            # The other one leaves its branch alone, so that nothing but Iceberg refuses it.
            with patch.object(IcebergTable, "_drop"), before(step, overtake(one)):
                refused(TargetError, lambda old=old: old.write(LATE))  # type: ignore[misc]
            once(one)
            assert old.write(LATE) == Position(1, 2)
            once(one)


@iceberg
def a_branch_that_somebody_removed_is_not_gone_on_with(env: StoryEnvironment) -> None:
    for mode in ("merge", "append"):
        one = One(env.within(mode), mode)
        old = one.begun()
        act = overtake(one)

        def remove(table: IcebergTable, act: Callable[[IcebergTable], None] = act) -> None:
            table._drop([table._branch])
            act(table)

        with before("_noted", remove):
            refused(HeadraceError, lambda old=old: old.write(LATE))  # type: ignore[misc]
        once(one)
        assert old.write(LATE) == Position(1, 2)
        once(one)
    # Removed by the other one, right before it would have gone forward.
    one = One(env.within("forward"))
    old = one.begun()
    with before("_forwarded", overtake(one)):
        refused(TargetError, lambda: old.write(LATE))
    once(one)


@iceberg
def a_late_baseline_of_the_same_columns_has_no_effect(env: StoryEnvironment) -> None:
    one = One(env)
    old = one.begun()
    act = overtake(one)  # An engine that begins removes what another one has loaded.
    loading = old.load(TABLE, 2)
    loading.write(loaded({1: "late"}))
    with before("_forwarded", act):
        refused(TargetError, lambda: loading.switch(Position(1, 1)))
    once(one)


@iceberg
def a_late_baseline_of_other_columns_is_found_out(env: StoryEnvironment) -> None:
    # By one commit of who took over, mostly that very load, and by two: then by the number, too.
    for commits in (1, 2):
        for loads in (True, False):
            see_late_baseline(One(env.within(f"{commits}{loads}")), commits, loads=loads)


def see_late_baseline(one: One, commits: int, *, loads: bool) -> None:
    """See that a load of other columns is found out which lands behind commits of another."""
    begun = one.opened(schema=RETYPED)
    loading = begun.load(TABLE, 1)
    loading.write(pa.table({"id": [1], "size": ["one"]}, schema=RETYPED.arrow))
    loading.switch(Position(1, 1))
    old, new = one.target(), one.opened(Position(1, 1), RETYPED)
    over: list[bool] = []
    old.use(replace(one.target_context(), check=lambda: _fenced(over)))
    old.open({TABLE: RETYPED}, {TABLE: Position(1, 1)})
    assert old.schema_changed(TABLE, RETYPED, THINGS) == "reload"
    late = old.load(TABLE, 2)
    late.write(loaded({1: "late"}))

    def act(table: IcebergTable) -> None:
        over.append(True)
        if loads:
            assert new.schema_changed(TABLE, RETYPED, THINGS) == "reload"
            own = new.load(TABLE, 2)
            own.write(loaded({1: "new"}))
            own.switch(Position(1, 2))
        for at in range(2 + loads, 2 + commits):
            new.write(_one_change(THINGS if loads else RETYPED, at))

    with before("_writing", act):
        refused(Fenced, lambda: late.switch(Position(1, 1)))
    columns = THINGS if loads else RETYPED
    start = one.opened(Position(1, 1 + commits), columns)
    assert "the table was" in str(start.lost(TABLE))
    found_out(new, _one_change(columns, 2 + commits))
    again = one.opened(Position(1, 2 + commits), columns)
    assert "the table was" in str(again.lost(TABLE))


def _fenced(over: list[bool]) -> None:
    if over:
        raise Fenced("Another engine took over")


def _one_change(schema: TableSchema, at: int) -> Batch:
    """Return a batch of one row, whose second column is called as the schema says."""
    made = batch([(Op.INSERT, at, at + 1, "new")], at, first=at)
    rows = made.tables[TABLE]
    named = rows.rename_columns([*rows.column_names[:-1], schema.names[-1]])
    return replace(made, tables={TABLE: named})


@iceberg
def two_that_make_a_table_at_once_do_not_both(env: StoryEnvironment) -> None:
    one = One(env)
    old, new = one.opened(), one.opened()
    loadings = [target.load(TABLE, 1) for target in (old, new)]
    for loading, name in zip(loadings, ("old", "new"), strict=True):
        loading.write(loaded({1: name}))

    with before("_writing", lambda table: loadings[1].switch(Position(1, 1))):
        refused(HeadraceError, lambda: loadings[0].switch(Position(1, 1)))
    assert one.rows() == [(1, "new")]


@iceberg
def our_note_outlives_compaction_and_expired_snapshots(env: StoryEnvironment) -> None:
    kind = env.kind
    assert isinstance(kind, Iceberg)
    one = One(env, "append")
    target = one.begun()
    for at in range(2, 9):
        target.write(batch([(Op.INSERT, at, at + 10, "row")], at, first=at))
    files = f"select count(*) as n from {kind.named(env.spark, one.path)}.files"
    assert env.spark.bulk.sql(files).collect()[0].n == 8
    target._tables[TABLE]._table().compact()  # type: ignore[union-attr]
    assert env.spark.bulk.sql(files).collect()[0].n == 1
    kind.expire(env.spark, one.path)
    assert len(kind.branches(env.spark, one.path)) == 1
    again = one.opened(Position(1, 8))
    assert again.lost(TABLE) is None
    again.write(batch([(Op.INSERT, 9, 19, "row")], 9, first=9))
    assert len(one.rows("id")) == 10


@iceberg
def snapshots_between_our_last_commit_and_now_stay_where_they_are_expired(
    env: StoryEnvironment,
) -> None:
    kind = env.kind
    assert isinstance(kind, Iceberg)
    one = One(env)
    target = one.begun(dict.fromkeys(range(10), "old"))
    for at in range(2, 5):
        target.write(batch([(Op.UPDATE, at, at, "new")], at, first=at))
    for _ in range(3):
        kind.compact(env.spark, one.path)
    kind.expire(env.spark, one.path, retain_last=None)
    target.write(batch([(Op.UPDATE, 5, 5, "new")], 5, first=5))
    for _ in range(3):
        kind.compact(env.spark, one.path)
    kind.expire(env.spark, one.path)
    # Only one is left, and that of our branch: it is not known what came between.
    refused(TableTaken, lambda: target.write(batch([(Op.UPDATE, 6, 6, "new")], 6, first=6)))
    assert "history" in str(one.opened(Position(1, 6)).lost(TABLE))


@iceberg
def deletes_are_made_few_as_well(env: StoryEnvironment) -> None:
    one = One(env)
    target = one.begun(dict.fromkeys(range(100), "old"))
    for at in range(2, 9):
        target.write(batch([(Op.UPDATE, at, at, "new")], at, first=at))
    target._tables[TABLE]._table().compact()  # type: ignore[union-attr]
    named = env.kind.named(env.spark, one.path)
    left = env.spark.bulk.sql(f"select content from {named}.files").collect()
    assert sorted(row.content for row in left) in ([0], [0, 1])
    rows = one.rows("name")
    assert rows == [("new" if 2 <= number < 9 else "old",) for number in range(100)]


@iceberg
def a_table_is_kept_by_its_name_in_a_catalog(env: StoryEnvironment) -> None:
    def opened(name: str) -> TableTarget:
        made = table(name, format="iceberg")
        made.use(target_context(env.spark, env.folder / "data"))
        made.open({TABLE: THINGS}, {TABLE: ORIGIN})
        return made

    target = opened("lake.some.{table}")
    loading = target.load(TABLE, 1)
    loading.write(loaded({1: "one"}))
    loading.switch(Position(1, 1))
    target.write(batch([(Op.INSERT, 2, 2, "two")], 2, first=2))
    rows = env.spark.session.sql(f"select id from lake.some.{TABLE} order by id").collect()
    assert [row.id for row in rows] == [1, 2]
    # A file of metadata that exists is all that keeps a late writer out of such a catalog.
    listed = env.spark.session.sql(f"show tblproperties lake.some.{TABLE}").collect()
    properties = {row.key: row.value for row in listed}
    assert properties["write.merge.mode"] == "merge-on-read"
    assert "write.metadata.delete-after-commit.enabled" not in properties
    error = refused(BadTable, lambda: opened("nowhere.some.things"))
    assert "spark.sql.catalog.nowhere" in error.remedy


@iceberg
def columns_may_have_any_name_and_small_numbers(env: StoryEnvironment) -> None:
    names = ("a b", "a,b", "a.b", "ä`=", "_change_ordinal")
    columns = [Column("id", ValueType("int16"), 1, declared="smallint")]
    columns += [Column(name, ValueType("text"), at) for at, name in enumerate(names, 2)]
    schema = TableSchema(TABLE, tuple(columns), key=("id",))
    one = One(env)
    target = one.opened(schema=schema)
    for baseline in (1, 2):
        loading = target.load(TABLE, baseline)
        values = {name: [name] for name in names}
        loading.write(pa.table({"id": [1], **values}, schema=schema.arrow))
        loading.switch(Position(1, baseline))
    again = one.opened(Position(1, 2), schema)
    assert again.lost(TABLE) is None
    assert one.rows() == [(1, *names)]
    changed = replace(batch([], 3, first=3), tables={TABLE: _changed(schema, names)})
    again.write(changed)
    assert one.rows() == [(1, *("new" for _ in names)), (2, *("new" for _ in names))]


def _changed(schema: TableSchema, names: tuple[str, ...]) -> pa.Table:
    from headrace.testing.contracts import changes

    changed = changes([(Op.UPDATE, 3, 1, "new"), (Op.INSERT, 3, 2, "new")])
    kept = changed.select(changed.column_names[:4])
    kept = kept.append_column("id", changed["id"].cast(schema.arrow.field("id").type))
    for name in names:
        kept = kept.append_column(name, changed["name"])
    return kept


@iceberg
def an_empty_table_of_somebody_else_can_be_adopted(env: StoryEnvironment) -> None:
    one = One(env)
    named = env.kind.named(env.spark, one.path)
    env.spark.bulk.sql(f"create table {named} (id bigint, name string) using iceberg")
    refused(TableTaken, one.opened)
    adopted = one.opened(adopt=True)
    loading = adopted.load(TABLE, 1)
    loading.write(loaded({1: "one"}))
    loading.switch(Position(1, 1))
    adopted.write(batch([(Op.INSERT, 2, 2, "two")], 2, first=2))
    assert one.rows() == [(1, "one"), (2, "two")]
    assert one.opened(Position(1, 2)).lost(TABLE) is None


@iceberg
def a_table_of_the_first_format_version_is_adopted_and_numbers_its_commits(
    env: StoryEnvironment,
) -> None:
    one = One(env)
    named = env.kind.named(env.spark, one.path)
    sql = env.spark.bulk.sql
    sql(
        f"create table {named} (id bigint, name string) using iceberg"
        " partitioned by (bucket(2, id)) tblproperties ('format-version' = '1')"
    )
    sql(f"insert into {named} values (8, 'theirs'), (9, 'theirs')")
    target = one.opened(adopt=True)
    loading = target.load(TABLE, 1)
    loading.write(loaded({1: "one", 2: "two"}))
    loading.switch(Position(1, 1))
    target.write(batch([(Op.UPDATE, 2, 1, "uno")], 2, first=2))
    assert one.rows() == [(1, "uno"), (2, "two")]
    assert len(sql(f"select * from {named}.partitions").collect()) > 0
    sql(f"insert into {named} values (9, 'theirs')")
    refused(TableTaken, lambda: target.write(batch([(Op.INSERT, 3, 3, "c")], 3, first=3)))
    assert "append" in str(one.opened(Position(1, 3)).lost(TABLE))


@iceberg
def what_was_moved_by_a_branch_of_somebody_else_is_found_out(env: StoryEnvironment) -> None:
    one = One(env)
    target = one.begun()
    target.write(batch([(Op.UPDATE, 2, 1, "uno")], 2, first=2))
    named = env.kind.named(env.spark, one.path)
    sql, catalog = env.spark.bulk.sql, named.partition(".")[0]
    sql(f"alter table {named} create branch theirs")
    sql(f"insert into {named}.branch_theirs values (9, 'theirs')")
    # Another branch does not matter, although its snapshots take numbers.
    target.write(batch([(Op.INSERT, 3, 3, "c")], 3, first=3))
    assert one.opened(Position(1, 3)).lost(TABLE) is None
    sql(f"alter table {named} create or replace branch theirs")
    sql(f"insert into {named}.branch_theirs values (9, 'theirs')")
    sql(f"call {catalog}.system.fast_forward('{named}', 'main', 'theirs')").collect()
    refused(TableTaken, lambda: target.write(batch([(Op.INSERT, 4, 4, "d")], 4, first=4)))


@iceberg
def what_a_commit_says_stands_in_its_snapshot(env: StoryEnvironment) -> None:
    one = One(env)
    one.begun().write(batch([(Op.DELETE, 2, 1, None)], 2, first=2))
    (_, last), (_, first) = env.kind.versions(env.spark, one.path)
    assert isinstance(last, CommitNote)
    assert isinstance(first, CommitNote)
    assert (first.number, first.baseline, first.batch) == (1, 1, "baseline-1")
    assert (last.number, last.at, last.lineage) == (2, Position(1, 2), "test/1")
    assert last.owner == first.owner
    assert last.writer == first.writer
