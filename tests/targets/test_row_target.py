"""Targets that are called with one row at a time, and the thirteen hooks they have."""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

import pytest

import headrace as hr
from headrace.changelog.change import Op
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import Column, TableSchema
from headrace.errors import FunctionFailed, NoKey, TableError
from headrace.tables import Row
from headrace.targets.row_target import row_of
from headrace.targets.target import Batch, Loading, Target
from headrace.testing.contracts import TABLE, THINGS, State, TargetContract, batch, loaded
from tests.tables.build import DELETE, INSERT, UPDATE, baseline, changes, table_schema

HookCall = tuple[object, ...]


class Names(hr.RowTarget):
    """Keeps a dict, and writes down how it was called."""

    def __init__(self, names: State | None = None, *, durable: bool = False) -> None:
        self.names: State = {} if names is None else names
        self.hooks_called: list[HookCall] = []
        self.durable = durable
        self.fail: set[str] = set()

    def tell(self, *what: object) -> None:
        if what[0] in self.fail:
            raise ValueError(f"a secret: {what}")
        self.hooks_called.append(what)

    def put(self, row: Row) -> None:
        self.names[row.get_int("id")] = None if row["name"] is None else row.get_string("name")

    def on_init(self, table: str, columns: Sequence[Column]) -> None:
        self.tell("init", table, [column.name for column in columns])

    def on_baseline_row(self, row: Row) -> None:
        self.tell("baseline row", row["id"])
        self.put(row)

    def on_baseline_complete(self) -> None:
        self.tell("baseline complete", self.position.commit)

    def on_insert(self, row: Row) -> None:
        self.tell("insert", row["id"])
        self.put(row)

    def on_update(self, row: Row, identity: Row) -> None:
        self.tell("update", row["id"], dict(identity))
        self.names.pop(identity.get_int("id"), None)
        self.put(row)

    def on_delete(self, identity: Row) -> None:
        self.tell("delete", dict(identity))
        self.names.pop(identity.get_int("id"), None)

    def on_truncate(self) -> None:
        self.tell("truncate")
        self.names.clear()

    def is_durable(self) -> bool:
        return self.durable

    def on_close(self) -> None:
        self.tell("close")


class NamesHarness:
    def __init__(self, *, durable: bool) -> None:
        self.names: State = {}
        self.durable = durable

    def make(self) -> Names:
        return Names(self.names if self.durable else None, durable=self.durable)

    def rows(self, target: Target, table: str = TABLE) -> State:
        assert isinstance(target, Names)
        return dict(target.names)


class TestRowTarget(TargetContract):
    beside = several_tables = False

    @pytest.fixture(autouse=True, params=[False, True], ids=["volatile", "durable"])
    def _made(self, request: pytest.FixtureRequest) -> None:
        self.harness = NamesHarness(durable=request.param)


def opened(target: Names | None = None, at: Position = ORIGIN) -> Names:
    target = target or Names()
    target.open({TABLE: THINGS}, {TABLE: at})
    return target


def live(target: Names | None = None) -> Names:
    """Return a target with one row, live at commit 1, that has forgotten how."""
    target = opened(target)
    loading = target.load(TABLE, 1)
    loading.write(loaded({1: "a"}))
    loading.switch(Position(1, 1))
    target.hooks_called.clear()
    return target


def test_a_table_is_told_from_its_columns_to_its_end() -> None:
    target = opened()
    loading: Loading = target.load(TABLE, 1)
    loading.write(loaded({1: "a", 2: "b"}))
    loading.catch_up(batch([(Op.UPDATE, 2, 1, "c")], 2, first=2))
    loading.switch(Position(1, 3))
    target.write(batch([(Op.INSERT, 4, 3, "d"), (Op.DELETE, 5, 2, None)], 5, first=4))
    target.write(batch([], 6, first=6, truncate=6))
    target.close()
    target.close()
    assert target.hooks_called == [
        ("init", TABLE, ["id", "name"]),
        ("baseline row", 1),
        ("baseline row", 2),
        ("update", 1, {"id": 1}),
        ("baseline complete", 3),
        ("insert", 3),
        ("delete", {"id": 2}),
        ("truncate",),
        ("close",),
    ]


def test_a_key_change_is_an_update_of_the_old_identity() -> None:
    target = live()
    target.write(batch([(Op.DELETE, 2, 1, None), (Op.UPDATE, 2, 7, "a")], 2, first=2))
    # Whatever the source calls it: one row, under another key.
    target.write(batch([(Op.DELETE, 3, 7, None), (Op.INSERT, 3, 8, "a")], 3, first=3))
    assert target.hooks_called == [("update", 7, {"id": 1}), ("update", 8, {"id": 7})]
    assert target.names == {8: "a"}


def test_a_delete_before_the_row_of_another_position_is_a_delete() -> None:
    target = live()
    target.write(batch([(Op.DELETE, 2, 1, None), (Op.INSERT, 3, 1, "b")], 3, first=2))
    assert target.hooks_called == [("delete", {"id": 1}), ("insert", 1)]


def test_hooks_know_the_position_and_the_batch_they_are_called_for() -> None:
    seen: list[tuple[Position, str]] = []

    class Places(Names):
        def tell(self, *what: object) -> None:
            seen.append((self.position, self.batch_id))

        def on_batch_complete(self) -> None:
            self.tell("batch complete")

    target = opened(Places())
    seen.clear()
    loading = target.load(TABLE, 1)
    loading.write(loaded({1: "a"}))
    loading.switch(Position(1, 1))
    target.write(batch([(Op.INSERT, 2, 2, "b"), (Op.DELETE, 4, 1, None)], 5, first=2))
    assert seen == [
        (ORIGIN, ""),
        (Position(1, 1), ""),
        (Position(1, 2), "2-5"),
        (Position(1, 4), "2-5"),
        (Position(1, 5), "2-5"),
    ]


@pytest.mark.meets("invariant 4")
def test_a_hook_that_raised_is_called_again_and_those_before_it_are_not() -> None:
    target = live()
    target.fail = {"delete"}
    rows = batch([(Op.INSERT, 2, 2, "b"), (Op.DELETE, 3, 1, None)], 3, first=2)
    with pytest.raises(FunctionFailed) as caught:
        target.write(rows)
    assert caught.value.facts["hook"] == "on_delete"
    assert caught.value.facts["error"] == "ValueError"
    assert str(caught.value.facts["where"]).startswith("test_row_target.py:")
    assert "secret" not in str(caught.value)
    target.fail = set()
    assert target.write(rows) == Position(1, 3)
    assert target.write(rows) == Position(1, 3)
    assert target.hooks_called == [("insert", 2), ("delete", {"id": 1})]


@pytest.mark.meets("R25")
def test_a_batch_counts_only_once_its_end_was_taken() -> None:
    class Buffered(Names):
        def on_batch_complete(self) -> None:
            self.tell("batch complete", self.position.commit)

    target = live(Buffered())
    target.fail = {"batch complete"}
    rows = batch([(Op.INSERT, 2, 2, "b")], 2, first=2)
    with pytest.raises(FunctionFailed):
        target.write(rows)
    target.fail = set()
    assert target.write(rows) == Position(1, 2)
    assert target.hooks_called == [("insert", 2), ("batch complete", 2)]


def test_a_reload_empties_the_table_first() -> None:
    target = live()
    loading = target.load(TABLE, 2)
    assert target.hooks_called == []
    loading.write(loaded({5: "e"}))
    loading.write(loaded({}))
    loading.switch(Position(1, 9))
    assert target.hooks_called == [("truncate",), ("baseline row", 5), ("baseline complete", 9)]
    assert target.names == {5: "e"}


def test_changes_go_on_until_a_reload_delivers_and_then_come_with_it() -> None:
    target = live()
    loading = target.load(TABLE, 2)
    target.write(batch([(Op.INSERT, 2, 2, "b")], 2, first=2))
    loading.write(loaded({1: "a", 2: "b"}))
    late = batch([(Op.INSERT, 3, 3, "c")], 3, first=3)
    assert target.write(late) == Position(1, 3)
    loading.catch_up(late)
    loading.switch(Position(1, 3))
    assert target.names == {1: "a", 2: "b", 3: "c"}
    assert [what for what in target.hooks_called if what[0] == "insert"] == [
        ("insert", 2),
        ("insert", 3),
    ]


def test_a_load_that_was_given_up_is_removed_by_the_next() -> None:
    target = opened()
    first = target.load(TABLE, 1)
    first.write(loaded({1: "half"}))
    first.discard()
    second = target.load(TABLE, 2)
    second.write(loaded({2: "b"}))
    with pytest.raises(TableError):
        first.write(loaded({3: "c"}))
    second.switch(Position(1, 1))
    assert target.names == {2: "b"}
    assert ("truncate",) in target.hooks_called


@pytest.mark.meets("invariant 4")
def test_changes_go_on_where_they_stood_after_a_load_was_given_up() -> None:
    target = live()
    target.write(batch([(Op.INSERT, 2, 2, "b")], 2, first=2))
    loading = target.load(TABLE, 2)
    loading.write(loaded({5: "e"}))
    loading.discard()
    target.hooks_called.clear()
    target.write(batch([(Op.INSERT, 2, 2, "b"), (Op.INSERT, 3, 3, "c")], 3, first=2))
    assert target.hooks_called == [("insert", 3)]


def test_a_baseline_that_failed_begins_anew() -> None:
    target = opened()
    loading = target.load(TABLE, 1)
    loading.write(loaded({1: "a"}))
    target.fail = {"baseline complete"}
    with pytest.raises(FunctionFailed):
        loading.switch(Position(1, 1))
    target.fail = set()
    loading = target.load(TABLE, 1)
    loading.write(loaded({2: "b"}))
    loading.switch(Position(1, 1))
    assert target.names == {2: "b"}


def test_a_durable_target_may_hold_rows_of_an_earlier_life_and_is_emptied_first() -> None:
    target = opened(Names({9: "of a load that a crash ended"}, durable=True))
    loading = target.load(TABLE, 1)
    loading.write(loaded({1: "a"}))
    loading.switch(Position(1, 1))
    assert target.names == {1: "a"}


def test_without_a_baseline_what_a_durable_target_holds_is_left_alone() -> None:
    target = opened(Names({9: "kept"}, durable=True))
    loading = target.load(TABLE, 0)
    loading.catch_up(batch([(Op.INSERT, 2, 2, "b")], 2, first=2))
    again = target.load(TABLE, 0)
    again.catch_up(batch([(Op.INSERT, 2, 2, "b")], 2, first=2))
    again.switch(Position(1, 2))
    assert target.names == {9: "kept", 2: "b"}
    assert [what[0] for what in target.hooks_called] == ["init", "insert"]


def test_a_volatile_target_that_is_opened_again_begins_anew() -> None:
    target = live()
    target.close()
    opened(target)
    loading = target.load(TABLE, 0)
    loading.switch(Position(1, 1))
    assert target.names == {}


def test_a_durable_target_goes_on_from_the_stored_progress() -> None:
    target = opened(Names({1: "a"}, durable=True), at=Position(1, 4))
    rows = batch([(Op.INSERT, 4, 1, "old"), (Op.INSERT, 5, 2, "new")], 5, first=4)
    assert target.write(rows) == Position(1, 5)
    assert target.names == {1: "a", 2: "new"}


def test_one_table_with_a_key_is_taken_and_nothing_else() -> None:
    Names().check({TABLE: THINGS})
    with pytest.raises(TableError) as caught:
        Names().check({TABLE: THINGS, "others": THINGS})
    assert "for each table" in caught.value.remedy
    with pytest.raises(NoKey) as keyless:
        Names().check({TABLE: TableSchema(TABLE, THINGS.columns)})
    assert "key=" not in keyless.value.remedy, "it has no such argument"
    with pytest.raises(TableError):
        Names().load(TABLE, 1)
    Names().close()


def test_the_row_hooks_must_be_there() -> None:
    class Partial(hr.RowTarget):
        def on_insert(self, row: Row) -> None: ...

    make: Callable[[], object] = Partial
    with pytest.raises(TypeError, match="on_baseline_row"):
        make()


def test_all_other_hooks_have_a_default() -> None:
    class Least(hr.RowTarget):
        rows: Mapping[object, object] = {}

        def on_baseline_row(self, row: Row) -> None:
            self.rows = {**self.rows, row["id"]: dict(row)}

        def on_insert(self, row: Row) -> None: ...
        def on_update(self, row: Row, identity: Row) -> None: ...
        def on_delete(self, identity: Row) -> None: ...
        def on_truncate(self) -> None:
            self.rows = {}

    target: Target = Least()
    traits = target.traits
    assert (traits.type, traits.durable, traits.transactional) == ("Least", False, False)
    target.open({TABLE: THINGS}, {})
    target.load(TABLE, 1).switch(Position(1, 1))
    target.write(batch([(Op.INSERT, 2, 2, "b")], 2, first=2))
    assert target.row_count(TABLE) is None
    target.close()
    least = Least()
    assert least.on_schema_change(THINGS.columns, THINGS.columns) == "reload"
    assert least.export_snapshot() is None
    assert least.supports_consistent_snapshot()
    least.restore_snapshot({}, [{"id": 1, "name": "a"}])
    assert least.rows == {1: {"id": 1, "name": "a"}}


def test_rows_have_the_values_that_the_edge_has() -> None:
    schema = table_schema(("a", "b"), a="text", b="int64", d="timestamptz", e="variant")
    seen: list[dict[str, object]] = []

    class Values(hr.RowTarget):
        def on_baseline_row(self, row: Row) -> None:
            seen.append(dict(row))

        def on_insert(self, row: Row) -> None:
            seen.append(dict(row))

        def on_update(self, row: Row, identity: Row) -> None:
            seen.append({**row, "was": dict(identity)})

        def on_delete(self, identity: Row) -> None: ...
        def on_truncate(self) -> None: ...

    target = Values()
    target.open({"orders": schema}, {})
    first = {"a": "x", "b": 1, "d": None, "e": 2.5}
    second = {"a": "x", "b": 2, "d": None, "e": b"\x00"}
    loading = target.load("orders", 1)
    loading.write(baseline(schema, [first]))
    loading.switch(Position(1, 0))
    steps = [
        (INSERT, Position(1, 1), second),
        (DELETE, Position(1, 2), {"a": "x", "b": 1}),
        (UPDATE, Position(1, 2), {**first, "b": 3}),
    ]
    rows = {"orders": changes(schema, steps)}
    target.write(Batch("1", 1, Position(1, 1), Position(1, 2), rows))
    assert seen == [first, second, {**first, "b": 3, "was": {"a": "x", "b": 1}}]


def test_rows_have_helpers_for_what_is_asked_most() -> None:
    row = row_of({"name": "Ada", "qty": 3, "paid": True, "note": None, "sum": Decimal("1.5")})
    assert [row.get_string(name) for name in ("name", "qty", "note", "gone")] == ["Ada", "", "", ""]
    assert [row.get_int(name) for name in ("qty", "name", "paid", "gone")] == [3, 0, 0, 0]
    assert row.without("name", "paid", "sum", "gone") == {"qty": 3, "note": None}
    assert row.get("note", "default") is None
    assert row.get("gone", "default") == "default"
