"""Tables that others touch, with an engine and without, and keys that are held as text."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from headrace.changelog.change import Op
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import BadTable, HeadraceError, TableTaken
from headrace.lake.target import TableTarget, table
from headrace.pipeline.result import result_schema
from headrace.targets.target import Batch
from headrace.testing.contracts import batch, loaded
from headrace.testing.source import TABLE, THINGS
from tests.pipeline.lake.delta_stories import WIDER, One, refused
from tests.pipeline.lake.lending import target_context
from tests.pipeline.lake.stories import StoryEnvironment, story, story_of
from tests.support.tiers import thinned


def within(env: StoryEnvironment, name: str, mode: str = "merge") -> One:
    return One(env.within(name), mode)


@story
def rows_that_somebody_added_to_a_history_end_and_the_right_ones_stay_current(
    env: StoryEnvironment,
) -> None:
    one = One(env, "history")
    target = one.begun()
    spark, named = env.spark.bulk, env.kind.named(env.spark, one.path)
    for row in ((1, "one"), (2, "other"), (2, "one more"), (9, "nine")):
        spark.sql(
            f"INSERT INTO {named} SELECT {row[0]}L, '{row[1]}', cast(null as timestamp),"
            " cast(null as timestamp), 'somewhere', cast(null as string)"
        ).collect()
    found_out(target, batch([(Op.INSERT, 4, 3, "three")], 4, first=4))
    again = one.opened(Position(1, 4))
    loading = again.load(TABLE, 2)
    loading.write(loaded({1: "one", 2: "two", 3: "three"}))
    loading.switch(Position(1, 5))
    current = [row[:2] for row in one.rows("id", "name", "_valid_to is null") if row[2]]
    assert current == [(1, "one"), (2, "two"), (3, "three")]


@story_of("delta")
def a_name_shows_the_table_that_is_kept_under_it(env: StoryEnvironment) -> None:
    sql, at = env.spark.bulk.sql, Position(1, 1)

    def opened(name: str, folder: str, at: Position = ORIGIN) -> TableTarget:
        target = table(name, path=str(env.folder / folder))
        target.use(target_context(env.spark, env.folder / "data", pipeline=folder))
        target.open({TABLE: THINGS}, {TABLE: at})
        return target

    def kept(name: str, folder: str) -> TableTarget:
        target = opened(name, folder)
        loading = target.load(TABLE, 1)
        loading.write(loaded({1: folder}))
        loading.switch(at)
        return target

    kept("names.things", "first")
    assert opened("names.things", "first", at).lost(TABLE) is None
    # Before anything is loaded, whatever it is that has the name.
    refused(BadTable, lambda: opened("names.things", "second"))
    sql("CREATE TABLE names.mine (id long) USING delta")
    refused(BadTable, lambda: opened("names.mine", "second"))
    sql(f"CREATE TABLE names.plain (id long) USING parquet LOCATION '{env.folder}/plain'")
    refused(BadTable, lambda: opened("names.plain", "second"))
    assert [row.name for row in sql("SELECT * FROM names.things").collect()] == ["first"]
    # A folder that is gone stands for nothing.
    shutil.rmtree(env.folder / "first")
    kept("names.things", "first")
    assert [row.name for row in sql("SELECT * FROM names.things").collect()] == ["first"]


def found_out(target: TableTarget, change: Batch) -> None:
    """
    Write as an engine does, once more where it is told that the batch is to come again.

    Delta finds out by the commit that comes on top, Iceberg may refuse that, and reads back.
    """
    error = refused(HeadraceError, lambda: target.write(change))
    if not isinstance(error, TableTaken):
        refused(TableTaken, lambda: target.write(change))


def delete_one(one: One) -> None:
    named = one.env.kind.named(one.env.spark, one.path)
    one.env.spark.bulk.sql(f"DELETE FROM {named} WHERE id = 1").collect()


def put_back(one: One) -> None:
    one.env.kind.put_back(one.env.spark, one.path)


@story
def what_somebody_did_meanwhile_is_not_hidden_by_our_next_commit(env: StoryEnvironment) -> None:
    # Each way by itself takes as long as three other stories.
    ways = (("merge", put_back), ("append", put_back), ("append", delete_one))
    for mode, act in thinned(ways, 2):
        one = within(env, f"{mode}_{act.__name__}", mode)
        target = one.begun()
        target.write(batch([(Op.UPDATE, 2, 1, "new")], 2, first=2))
        env.kind.compact(env.spark, one.path)
        target.write(batch([(Op.UPDATE, 3, 1, "newer")], 3, first=3))
        act(one)
        found_out(target, batch([(Op.INSERT, 4, 3, "three")], 4, first=4))
        again = one.opened(Position(1, 4))
        why = str(again.lost(TABLE))
        assert any(each in why for each in ("RESTORE", "restored", "another writer")), why
        loading = again.load(TABLE, 2)
        loading.write(loaded({1: "newer", 2: "two", 3: "three"}))
        loading.switch(Position(1, 5))
        again.write(batch([(Op.DELETE, 6, 2, None)], 6, first=6))
        assert one.opened(Position(1, 6)).lost(TABLE) is None
        if mode == "merge":
            assert one.rows() == [(1, "newer"), (3, "three")]


@story
def a_table_that_was_removed_meanwhile_is_not_begun_with_our_next_changes(
    env: StoryEnvironment,
) -> None:
    one = within(env, "append", "append")
    target = one.begun()
    shutil.rmtree(one.path)
    found_out(target, batch([(Op.INSERT, 3, 3, "three")], 3, first=3))
    again = one.opened(Position(1, 3))
    assert again.lost(TABLE) is not None
    loading = again.load(TABLE, 2)
    loading.write(loaded({1: "one", 2: "two", 3: "three"}))
    loading.switch(Position(1, 3))
    assert one.opened(Position(1, 3)).lost(TABLE) is None


@story
def a_history_that_is_cut_off_lets_the_table_be_loaded(env: StoryEnvironment) -> None:
    for mode in ("merge", "history"):
        one = within(env, mode, mode)
        target = one.begun()
        target.write(batch([(Op.UPDATE, 2, 1, "new")], 2, first=2))
        target.close()
        env.kind.forget(env.spark, one.path)
        again = one.opened(Position(1, 2))
        assert again.lost(TABLE) is not None
        loading = again.load(TABLE, 2)
        loading.write(loaded({1: "newer", 2: "two"}))
        loading.switch(Position(1, 3))
        assert one.opened(Position(1, 3)).lost(TABLE) is None
        expected = [(1, "newer"), (2, "two")]
        if mode == "merge":
            assert one.rows() == expected
        else:
            assert [row[:2] for row in one.rows("id", "name", "_valid_to") if row[2] is None] == (
                expected
            )
            assert len(one.rows()) == 4  # what was before is still told
    one = within(env, "merge")
    env.kind.forget(env.spark, one.path)
    see_adopted(one)


@story_of("delta")
def numbers_are_known_where_the_log_begins_later(env: StoryEnvironment) -> None:
    one = within(env, "merge")
    one.begun().write(batch([(Op.UPDATE, 2, 1, "new")], 2, first=2))
    for _ in range(10):
        env.spark.bulk.sql(
            f"ALTER TABLE delta.`{one.path}` SET TBLPROPERTIES ('mine' = 'yes')"
        ).collect()
    log = Path(one.path) / "_delta_log"
    assert list(log.glob("*.checkpoint*.parquet"))
    for version in range(5):
        (log / f"{version:020d}.json").unlink()
    env.kind.forget(env.spark, one.path)
    see_adopted(one)


def see_adopted(one: One) -> None:
    """See that another data directory, which knows no number, can take the table over."""
    refused(TableTaken, lambda: one.opened(data="other"))
    adopted = one.opened(data="other", adopt=True)
    loading = adopted.load(TABLE, 1)
    loading.write(loaded({7: "seven"}))
    loading.switch(Position(1, 1))
    assert one.rows() == [(7, "seven")]


@story
def a_lost_table_takes_more_columns_as_it_is_loaded(env: StoryEnvironment) -> None:
    rows = pa.table({"id": [1], "name": ["one"], "size": [7]}, schema=WIDER.arrow)
    for mode, how in (("merge", "gone"), ("history", "deleted"), ("append", "deleted")):
        one = within(env, mode, mode)
        one.begun().close()
        if how == "gone":
            shutil.rmtree(one.path)
        else:
            delete_one(one)
        target = one.opened(Position(1, 1))
        assert target.lost(TABLE) is not None
        assert target.schema_changed(TABLE, THINGS, WIDER) == "continue"
        loading = target.load(TABLE, 2)
        loading.write(rows)
        loading.switch(Position(1, 3))
        assert (1, "one", 7) in one.rows("id", "name", "size")
        assert one.opened(Position(1, 3), WIDER).lost(TABLE) is None


@story
def keys_that_are_equal_numbers_and_other_texts_leave_no_row_behind(env: StoryEnvironment) -> None:
    schema = replace(
        THINGS,
        columns=(Column("id", ValueType("numeric"), 1), Column("name", ValueType("text"), 2)),
    )
    for mode in ("merge", "history"):
        one = within(env, mode, mode)
        target = one.opened(schema=schema)
        loading = target.load(TABLE, 1)
        loading.write(pa.table({"id": ["1.0", "2"], "name": ["a", "b"]}, schema=schema.arrow))
        loading.switch(Position(1, 1))
        moved = changed(schema, [(Op.DELETE, "1.0", None), (Op.UPDATE, "1.00", "c")])
        target.write(replace(batch([], 2, first=2), tables={TABLE: moved}))
        there = [("1.00", "c"), ("2", "b")]
        if mode == "merge":
            assert one.rows() == there
        else:
            rows = one.rows("id", "name", "_valid_to_position")
            assert [row[:2] for row in rows if row[2] is None] == there
            assert len(rows) == 3


def changed(schema: TableSchema, rows: list[tuple[Op, str, str | None]]) -> pa.Table:
    made = [[int(op), 2, 0, 0, id, name] for op, id, name in rows]
    fields = result_schema(schema)
    columns = zip(*made, strict=True)
    return pa.table(
        [pa.array(list(each), field.type) for each, field in zip(columns, fields, strict=True)],
        schema=fields,
    )
