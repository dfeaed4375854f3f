"""A target of tables without an engine: the contract, fences, schema changes, modes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from headrace.changelog.change import Op
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import Column, TableName, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import HeadraceError, TableTaken, TargetError
from headrace.lake.target import TableTarget, table
from headrace.targets.target import Target, TargetContext
from headrace.testing.contracts import TargetContract, batch, changes, loaded
from headrace.testing.source import TABLE, THINGS, State
from tests.pipeline.lake.lending import target_context
from tests.pipeline.lake.stories import STORIES, StoryEnvironment, story


class Harness:
    """Drives targets of one folder, each test with a table of its own."""

    def __init__(self, env: StoryEnvironment) -> None:
        self._env = env

    def make(self) -> Target:
        env = self._env
        target = table(path=str(env.folder / "lake" / "{table}"), format=env.kind.format.name)
        target.use(target_context(env.spark, env.folder / "data"))
        return target

    def rows(self, target: Target, table: TableName = TABLE) -> State:
        env = self._env
        found = env.kind.rows(env.spark, env.folder / "lake" / table).collect()
        assert len({row.id for row in found}) == len(found)
        return {row.id: row.name for row in found}


def _contract() -> None:
    """Make a story of every test that the contract of targets has."""
    for name in dir(TargetContract):
        if not name.startswith("test_"):
            continue

        def run(env: StoryEnvironment, name: str = name) -> None:
            suite = TargetContract()
            suite.harness = Harness(env)
            getattr(suite, name)()

        for stories in STORIES.values():
            stories[name.removeprefix("test_")] = run


_contract()


# -- one table, step by step ---------------------------------------------------------------


class One:
    """A table of one mode, opened as often as needed."""

    def __init__(self, env: StoryEnvironment, mode: str = "merge") -> None:
        self.env = env
        self.mode = mode
        self.path = str(env.folder / "lake")

    def target(self, *, data: str = "data", adopt: bool = False, lend: bool = True) -> TableTarget:
        format = self.env.kind.format.name
        made = table(path=self.path, format=format, mode=self.mode, adopt=adopt, compact_every=0)
        made.use(self.target_context(data))
        return made

    def target_context(self, data: str = "data") -> TargetContext:
        return target_context(self.env.spark, self.env.folder / data)

    def opened(
        self, at: Position = ORIGIN, schema: TableSchema = THINGS, **how: object
    ) -> TableTarget:
        made = self.target(**how)  # type: ignore[arg-type]
        made.check({TABLE: schema})
        made.open({TABLE: schema}, {TABLE: at})
        return made

    def begun(self, rows: State | None = None) -> TableTarget:
        made = self.opened()
        loading = made.load(TABLE, 1)
        loading.write(loaded(rows or {1: "one", 2: "two"}))
        loading.switch(Position(1, 1))
        return made

    def rows(self, *columns: str, order: Sequence[str] = ("id",)) -> list[tuple[object, ...]]:
        frame = self.env.kind.rows(self.env.spark, self.path)
        found = frame.selectExpr(*(columns or ["*"]), *(f"{each} as o_{each}" for each in order))
        ordered = found.orderBy(*(f"o_{each}" for each in order)).collect()
        return [tuple(row)[: -len(order)] for row in ordered]

    def versions(self) -> int:
        return len(self.env.kind.versions(self.env.spark, self.path))


def refused(kind: type[HeadraceError], call: Callable[[], object]) -> HeadraceError:
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was to be raised")


@story
def each_batch_is_one_version_and_an_empty_one_is_none(env: StoryEnvironment) -> None:
    one = One(env)
    target = one.begun()
    rows = [(Op.INSERT, 2, 3, "three"), (Op.DELETE, 2, 1, None), (Op.UPDATE, 3, 2, "zwei")]
    target.write(batch(rows, 3, first=2))
    target.write(batch([], 5, first=4))
    assert one.versions() == 2
    target.write(batch([(Op.INSERT, 7, 9, "new")], 8, first=6, truncate=6))
    assert one.versions() == 3
    assert one.rows() == [(9, "new")]
    assert one.opened(Position(1, 8)).lost(TABLE) is None


@story
def a_writer_that_was_taken_over_from_has_no_effect(env: StoryEnvironment) -> None:
    one = One(env)
    old = one.begun()
    new = one.opened(Position(1, 1))
    new.write(batch([(Op.UPDATE, 2, 1, "new")], 2, first=2))
    new.write(batch([(Op.DELETE, 3, 1, None)], 3, first=3))
    late = batch([(Op.UPDATE, 2, 1, "late")], 2, first=2)
    refused(TargetError, lambda: old.write(late))
    assert one.rows() == [(2, "two")]
    # Read back, it knows how far the table is, and the same batch is nothing new.
    assert old.write(late) == Position(1, 3)
    assert one.rows() == [(2, "two")]
    assert one.versions() == 3


@story
def a_commit_whose_answer_was_lost_is_not_made_twice(env: StoryEnvironment) -> None:
    one = One(env, "append")
    target = one.begun()
    table = target._tables[TABLE]
    made = table._commit  # type: ignore[union-attr]

    def lost(*about: object) -> None:
        made(*about)  # type: ignore[arg-type]
        table._unknown = True  # type: ignore[union-attr]
        table._number -= 1  # type: ignore[union-attr]
        table.position = Position(1, 1)
        raise TargetError("The answer got lost")

    table._commit = lost  # type: ignore[union-attr, method-assign]
    change = batch([(Op.INSERT, 2, 3, "three")], 2, first=2)
    refused(TargetError, lambda: target.write(change))
    table._commit = made  # type: ignore[union-attr, method-assign]
    assert target.write(change) == Position(1, 2)
    assert one.rows("id") == [(1,), (2,), (3,)]


@story
def a_table_of_somebody_else_is_refused_unless_it_is_adopted(env: StoryEnvironment) -> None:
    one = One(env)
    env.kind.make(env.spark, one.path)
    refused(TableTaken, one.opened)
    adopted = one.opened(adopt=True)
    loading = adopted.load(TABLE, 1)
    loading.write(loaded({1: "one"}))
    loading.switch(Position(1, 1))
    assert one.rows() == [(1, "one")]
    error = refused(TableTaken, lambda: one.opened(data="other"))
    assert "orders" in str(error)


@story
def a_table_that_was_put_back_or_changed_is_loaded_anew(env: StoryEnvironment) -> None:
    one = One(env)
    sql, named = env.spark.bulk.sql, env.kind.named(env.spark, one.path)
    target = one.begun()
    target.write(batch([(Op.UPDATE, 2, 1, "new")], 2, first=2))
    env.kind.compact(env.spark, one.path)
    sql(f"ALTER TABLE {named} SET TBLPROPERTIES ('mine' = 'yes')").collect()
    assert one.opened(Position(1, 2)).lost(TABLE) is None
    env.kind.put_back(env.spark, one.path)
    again = one.opened(Position(1, 2))
    assert again.lost(TABLE) is not None
    loading = again.load(TABLE, 2)
    loading.write(loaded({1: "new", 2: "two"}))
    loading.switch(Position(1, 2))
    assert again.lost(TABLE) is None
    assert one.rows() == [(1, "new"), (2, "two")]
    sql(f"DELETE FROM {named} WHERE id = 1").collect()
    again._tables[TABLE]._unknown = True  # type: ignore[union-attr]
    refused(TableTaken, lambda: again.write(batch([(Op.INSERT, 3, 3, "c")], 3, first=3)))
    assert "another writer" in str(one.opened(Position(1, 2)).lost(TABLE))


@story
def a_history_that_does_not_reach_back_to_us_is_no_other_table(env: StoryEnvironment) -> None:
    one = One(env)
    one.begun().close()
    env.kind.forget(env.spark, one.path)
    assert one.opened(Position(1, 1)).lost(TABLE) is not None
    refused(TableTaken, lambda: one.opened(data="other"))


@story
def a_table_that_is_gone_is_loaded_anew(env: StoryEnvironment) -> None:
    import shutil

    one = One(env)
    one.begun().close()
    shutil.rmtree(one.path)
    assert one.opened(Position(1, 1)).lost(TABLE) is not None


WIDER = replace(
    THINGS, columns=(*THINGS.columns, Column("size", ValueType("int32"), 3, declared="int"))
)


@story
def a_column_is_added_and_the_rest_is_loaded_anew(env: StoryEnvironment) -> None:
    import pyarrow as pa

    one = One(env)
    target = one.begun()
    assert target.schema_changed(TABLE, THINGS, WIDER) == "continue"
    assert target.schema_changed(TABLE, THINGS, WIDER) == "continue"
    rows = changes([(Op.INSERT, 2, 3, "three"), (Op.DELETE, 2, 1, None)])
    rows = rows.append_column("size", pa.array([7, None], pa.int32()))
    target.write(replace(batch([], 2, first=2), tables={TABLE: rows}))
    assert one.rows() == [(2, "two", None), (3, "three", 7)]
    assert one.opened(Position(1, 2), WIDER).lost(TABLE) is None
    assert "size" in str(one.opened(Position(1, 2), RETYPED).lost(TABLE))
    assert target.schema_changed(TABLE, WIDER, RETYPED) == "reload"
    loading = target.load(TABLE, 2)
    loading.write(pa.table({"id": [1], "size": ["seven"]}, schema=RETYPED.arrow))
    loading.switch(Position(1, 3))
    assert one.rows() == [(1, "seven")]


RETYPED = replace(
    THINGS, columns=(THINGS.columns[0], Column("size", ValueType("text"), 3, declared="text"))
)


@story
def every_change_is_a_row_and_a_reload_begins_with_a_truncate(env: StoryEnvironment) -> None:
    one = One(env, "append")
    target = one.begun()
    rows = [(Op.UPDATE, 2, 1, "uno"), (Op.DELETE, 2, 2, None), (Op.INSERT, 2, 1, "again")]
    target.write(batch(rows, 2, first=2))
    target.write(batch([(Op.INSERT, 4, 5, "five")], 4, first=3, truncate=3))
    loading = target.load(TABLE, 2)
    loading.write(loaded({7: "seven"}))
    loading.switch(Position(1, 6))
    found = one.rows("_change_type", "id", "name", "_commit_version", order=["_position"])
    assert sorted(found, key=str) == sorted(
        [
            ("insert", 1, "one", 1),
            ("insert", 2, "two", 1),
            ("update_postimage", 1, "uno", 2),
            ("delete", 2, None, 2),
            ("insert", 1, "again", 2),
            ("truncate", None, None, 3),
            ("insert", 5, "five", 4),
            ("truncate", None, None, 6),
            ("insert", 7, "seven", 6),
        ],
        key=str,
    )
    assert one.versions() == 4


@story
def a_history_tells_what_was_there_when(env: StoryEnvironment) -> None:
    one = One(env, "history")
    target = one.begun()
    target.write(batch([(Op.UPDATE, 2, 1, "uno"), (Op.INSERT, 2, 3, "three")], 2, first=2))
    rows = [(Op.DELETE, 3, 2, None), (Op.UPDATE, 4, 1, "eins"), (Op.UPDATE, 5, 1, "un")]
    target.write(batch(rows, 5, first=3))
    began, ended = (f"substring(_valid_{at}_position, 19, 3)" for at in ("from", "to"))
    order = ["id", "_valid_from_position"]
    assert one.rows("id", "name", began, ended, order=order) == [
        (1, "one", "001", "002"),
        (1, "uno", "002", "004"),
        (1, "eins", "004", "005"),
        (1, "un", "005", None),
        (2, "two", "001", "003"),
        (3, "three", "002", None),
    ]
    before = len(one.rows())
    loading = target.load(TABLE, 2)
    loading.write(loaded({1: "un", 3: "drei", 4: "four"}))
    loading.switch(Position(1, 7))
    found = one.rows("id", "name", "_valid_to is null")
    assert {row[:2] for row in found if row[2]} == {(1, "un"), (3, "drei"), (4, "four")}
    assert len(found) == before + 2
    target.write(batch([(Op.INSERT, 9, 8, "eight")], 9, first=8, truncate=8))
    found = one.rows("id", "name", "_valid_to is null")
    assert [row[:2] for row in found if row[2]] == [(8, "eight")]
    assert len(found) == before + 3
    assert one.versions() == 5


@story
def values_of_every_kind_come_back_as_they_were(env: StoryEnvironment) -> None:
    import pyarrow as pa

    one = One(env)
    kinds = ["int16", "int64", "float64", "boolean", "numeric", "text", "json", "bytes", "uuid"]
    kinds += ["date", "timestamp", "timestamptz", "time", "timetz", "interval", "variant"]
    columns = [Column("id", ValueType("int64"), 1)]
    columns += [Column(f"c_{kind}", ValueType(kind), at) for at, kind in enumerate(kinds, 2)]
    columns.append(Column("c_decimal", ValueType("decimal", 38, 9), 90))
    schema = TableSchema(TABLE, tuple(columns), key=("id",))
    nothing = pa.table(
        [pa.array([1]), *(pa.nulls(1, f.type) for f in list(schema.arrow)[1:])], schema=schema.arrow
    )
    far = {"c_date": 2**31 - 1, "c_timestamp": 2**63 - 1, "c_timestamptz": -(2**63)}
    extreme = nothing.set_column(0, "id", pa.array([2]))
    for name, number in far.items():
        type = schema.arrow.field(name).type
        bits = pa.array([number], pa.int32() if name == "c_date" else pa.int64())
        at = schema.arrow.get_field_index(name)
        extreme = extreme.set_column(at, schema.arrow.field(name), bits.cast(type))
    at = schema.arrow.get_field_index("c_uuid")
    extreme = extreme.set_column(
        at, schema.arrow.field("c_uuid"), pa.array([bytes(range(16))], schema.arrow.field(at).type)
    )
    target = one.opened(schema=schema)
    loading = target.load(TABLE, 1)
    loading.write(pa.concat_tables([nothing, extreme]))
    loading.switch(Position(1, 1))
    rows = env.kind.rows(env.spark, one.path).orderBy("id").toArrow()
    assert rows["c_uuid"].to_pylist() == [None, bytes(range(16))]
    for name, number in far.items():
        back = rows[name].cast(pa.int32() if name == "c_date" else pa.int64())
        assert back.to_pylist() == [None, number]


@story
def two_writers_at_the_same_time_cannot_both_commit(env: StoryEnvironment) -> None:
    from concurrent.futures import ThreadPoolExecutor

    one = One(env, "append")
    one.begun()
    writers = [one.opened(Position(1, 1)) for _ in range(2)]

    def write(target: TableTarget) -> bool:
        with contextlib.suppress(HeadraceError):
            target.write(batch([(Op.INSERT, 2, 3, "three")], 2, first=2))
            return True
        return False

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(write, writers))
    assert sorted(done) == [False, True]
    for target in itertools.chain(writers, writers):
        assert target.write(batch([(Op.INSERT, 2, 3, "three")], 2, first=2)) == Position(1, 2)
    assert one.rows("id") == [(1,), (2,), (3,)]


@story
def what_a_late_task_prepared_is_not_read(env: StoryEnvironment) -> None:
    one = One(env)
    target = one.begun()

    def staged(name: str) -> object:
        position = "0001-0000000000000002-00000000"
        rows = [(1, None, "delete", position, 2, 0), (3, name, "insert", position, 2, 1)]
        frame = env.spark.bulk.createDataFrame(
            rows, "id long, name string, _op string, _position string, _commit long, _ordinal int"
        )
        timed = frame.selectExpr("*", "timestamp_micros(0) as _time")
        return target.stage(TABLE, timed, 1, None)

    late = Path(staged("first").paths[0])  # type: ignore[attr-defined]
    kept = late.read_bytes()
    second = staged("second")
    assert not late.exists()
    empty = batch([], 2, first=2)
    target.write(replace(empty, staged={TABLE: second}))
    late.parent.mkdir(parents=True, exist_ok=True)
    late.write_bytes(kept)
    target.write(batch([(Op.INSERT, 3, 4, "four")], 3, first=3))
    assert one.rows() == [(2, "two"), (3, "second"), (4, "four")]
    assert one.opened(Position(1, 3)).lost(TABLE) is None
    assert not late.exists()


@story
def changes_alone_and_rows_without_a_key_are_told_in_their_order(env: StoryEnvironment) -> None:
    shown = ("substring(_position, 20, 2)", "_change_type", "id")
    order = ("_position", "id")
    alone = One(env.within("alone"), "append")
    target = alone.opened()
    loading = target.load(TABLE, 0)
    loading.catch_up(batch([(Op.INSERT, 2, 1, "a"), (Op.DELETE, 3, 1, None)], 3))
    loading.switch(Position(1, 3))
    target.write(batch([(Op.INSERT, 4, 1, "b")], 4, first=4))
    rows = alone.rows(*shown, order=order)
    assert rows == [("02", "insert", 1), ("03", "delete", 1), ("04", "insert", 1)]
    keyless = One(env.within("keyless"), "append")
    target = keyless.opened(schema=replace(THINGS, key=()))
    loading = target.load(TABLE, 1)
    loading.write(loaded({1: "a"}))
    loading.catch_up(batch([(Op.INSERT, 3, 2, "b")], 3))
    loading.switch(Position(1, 5))
    rows = keyless.rows(*shown, order=order)
    assert rows == [("02", "insert", 1), ("03", "insert", 2)]
