"""Rows that a target will not take become dead letters; the others go on, each once."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

import headrace as hr
from headrace.changelog.position import Position
from headrace.changelog.schema import TableName
from headrace.errors import RefusedRow, RowRefused, RowsRefused, TargetError, TooManyFailed
from headrace.pipeline.definition import DeadLetters
from headrace.runtime.table_jobs import refused_rows
from headrace.targets.memory import memory
from headrace.targets.target import BaselineId, Batch
from headrace.testing.target import ScriptedLoading, ScriptedTarget
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Market, await_seen, await_that

State = dict[object, object]


class Keeper(hr.RowTarget):
    """Keeps the status of orders, and takes none that is bad."""

    def __init__(self, *, durable: bool = False) -> None:
        self.rows: State = {}
        self.calls: list[tuple[str, object]] = []
        self.durable = durable
        self.refuses = True

    def is_durable(self) -> bool:
        return self.durable

    def take(self, hook: str, row: hr.Row) -> None:
        if row["status"] == "bad" and self.refuses:
            raise hr.RowRefused("a bad status", status=row["status"])
        self.calls.append((hook, row["id"]))
        self.rows[row["id"]] = row["status"]

    def on_baseline_row(self, row: hr.Row) -> None:
        self.take("baseline", row)

    def on_insert(self, row: hr.Row) -> None:
        self.take("insert", row)

    def on_update(self, row: hr.Row, identity: hr.Row) -> None:
        self.take("update", row)

    def on_delete(self, identity: hr.Row) -> None:
        self.calls.append(("delete", identity["id"]))
        self.rows.pop(identity["id"], None)

    def on_truncate(self) -> None:
        self.rows.clear()


def bad_rows(table: TableName, rows: pa.Table) -> list[RefusedRow]:
    """Return the rows with a bad status, as a service would find them."""
    return [
        RefusedRow(table, at, "409", {"answer": "conflict"})
        for at, status in enumerate(rows.column("status").to_pylist())
        if status == "bad"
    ]


def check(batch: Batch) -> None:
    if found := [each for table, rows in batch.tables.items() for each in bad_rows(table, rows)]:
        raise RowsRefused.of(found)


class Service(ScriptedTarget):
    """A durable target that checks whole batches before it takes anything of them."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[str, int]] = []

    def write(self, batch: Batch) -> Position:
        check(batch)
        self.batches.append((batch.id, sum(rows.num_rows for rows in batch.tables.values())))
        return super().write(batch)

    def load(self, table: TableName, baseline: BaselineId) -> ScriptedLoading:
        loading = super().load(table, baseline)
        taken, follows = loading.write, loading.catch_up

        def write(rows: pa.Table) -> None:
            found = bad_rows(table, rows)
            gone = {each.row for each in found}
            taken(rows.take([at for at in range(rows.num_rows) if at not in gone]))
            if found:
                raise RowsRefused.of(found)

        def catch_up(batch: Batch) -> None:
            check(batch)
            follows(batch)

        loading.write, loading.catch_up = write, catch_up  # type: ignore[method-assign]
        return loading


@pytest.mark.meets("R30", "ENG-46")
@pytest.mark.parametrize("durable", [False, True])
def test_a_row_that_a_hook_refuses_is_a_dead_letter_and_others_are_taken_once(
    market: Market, durable: bool
) -> None:
    orders = Keeper(durable=durable)
    with market.engine(market.pipeline(orders), runner=ArrowRunner()) as engine:
        assert engine.await_ready(PATIENCE)
        orders.calls.clear()
        with market.source.transaction():
            market.put("orders", 1, status="sent")
            market.put("orders", 2, status="bad")
            market.put("orders", 2, status="good")
            market.put("orders", 3, status="sent")
        at = market.source.position.commit
        assert await_that(engine, lambda: orders.rows.get(3) == "sent")
        assert engine.await_ready(PATIENCE)
        assert (orders.rows[1], orders.rows[2]) == ("sent", "paid")
        assert orders.calls == [("update", 1), ("update", 3)]
        failed, behind = engine.dead_letters()
        info = engine.pipeline_info("orders")
        assert (info.dead_letters, info.error) == (2, None)
    assert (failed.position.commit, failed.position.ordinal) == (at, 1)
    assert (failed.kind, failed.code, failed.key) == ("failed", "ROW_REFUSED", (2,))
    assert failed.facts == {"reason": "a bad status", "status": "bad"}
    assert failed.after == {"id": 2, "status": "bad", "version": 0}
    assert (behind.kind, behind.key) == ("behind", (2,))


@pytest.mark.meets("R30", "ENG-46")
def test_a_batch_that_a_service_refuses_in_part_comes_again_without_these_rows(
    market: Market,
) -> None:
    target = Service()
    with market.engine(market.pipeline(target), runner=ArrowRunner()) as engine:
        assert engine.await_ready(PATIENCE)
        with market.source.transaction():
            for key, status in (1, "sent"), (2, "bad"), (3, "sent"), (4, "bad"), (4, "good"):
                market.put("orders", key, status=status)
        assert await_seen(lambda: target.rows("orders")[(3,)]["status"] == "sent")
        assert engine.await_ready(PATIENCE)
        letters = engine.dead_letters()
        assert market.source.wait_until_acknowledged(PATIENCE)
    assert [(each.key, each.kind) for each in letters] == [
        ((2,), "failed"),
        ((4,), "failed"),
        ((4,), "behind"),
    ]
    assert {(each.code, each.facts["answer"]) for each in letters[:2]} == {("409", "conflict")}
    assert target.rows("orders")[(4,)]["status"] == "paid"
    assert target.disk.duplicates() == []


@pytest.mark.meets("R30")
@pytest.mark.parametrize("make", [Keeper, Service])
def test_rows_of_a_baseline_can_be_refused(
    market: Market, make: Callable[[], Keeper | Service]
) -> None:
    market.put("orders", 2, status="bad")
    market.put("orders", 5, status="bad")
    target = make()
    with market.engine(market.pipeline(target), runner=ArrowRunner()) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 5, status="good")
        market.put("orders", 1, status="sent")
        assert market.source.wait_until_acknowledged(PATIENCE)
        assert engine.await_ready(PATIENCE)
        letters = engine.dead_letters()
    assert [(each.key, each.op, each.kind) for each in letters] == [
        ((2,), "baseline", "failed"),
        ((5,), "baseline", "failed"),
        ((5,), "update", "behind"),
    ]
    assert statuses(target) == {1: "sent"} | dict.fromkeys((3, 4, *range(6, 11)), "paid")


def statuses(target: Keeper | Service) -> State:
    if isinstance(target, Keeper):
        return target.rows
    return {key[0]: row["status"] for key, row in target.rows("orders").items()}


@pytest.mark.meets("R30")
def test_changes_made_during_a_load_can_be_refused(market: Market) -> None:
    target = Service()
    engine = market.engine(market.pipeline(target), runner=ArrowRunner())
    with engine:
        assert engine.await_ready(PATIENCE)
        target.hold()
        market.put("orders", 1, status="held")
        assert await_seen(target.holding.is_set)
        engine.reload("shop", "orders")
        market.put("orders", 2, status="bad")
        market.put("orders", 2, status="good")
        market.put("orders", 3, status="sent")
        target.release()

        def exact() -> bool:
            (table,) = engine.pipeline_info("orders").tables
            held = bool(engine.dead_letters())
            # As of the copy, it may be refused there, or be good again.
            allowed = ("paid", None) if held else ("good",)
            return (
                table.state == "live"
                and engine.is_ready()
                and statuses(target)[3] == "sent"
                and statuses(target).get(2) in allowed
            )

        assert await_that(engine, exact)
    assert target.disk.duplicates() == []


@pytest.mark.meets("R30", "R25")
def test_a_target_without_transactions_gets_each_row_once_after_a_restart(market: Market) -> None:
    orders = Keeper(durable=True)
    engine = market.engine(market.pipeline(orders), runner=ArrowRunner())
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 1)
    orders.calls.clear()
    orders.refuses = False
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="good")
        market.put("orders", 3, status="sent")
        assert await_that(engine, lambda: orders.rows[3] == "sent")
        assert [each.kind for each in engine.dead_letters()] == ["failed", "behind"]
    assert orders.calls == [("update", 3)]
    assert orders.rows[2] == "paid"


@pytest.mark.parametrize("make", [Keeper, Service])
def test_a_pipeline_that_is_set_to_stop_stops_at_a_refused_row(
    market: Market, make: Callable[[], Keeper | Service]
) -> None:
    target = make()
    pipeline = market.pipeline(target, on_error="stop")
    with market.engine(pipeline, runner=ArrowRunner()) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 1, status="sent")
        market.put("orders", 2, status="bad")
        assert await_that(engine, lambda: engine.pipeline_info("orders").state == "failed")
        error = engine.pipeline_info("orders").error
        assert isinstance(error, RowRefused)
        assert error.facts["table"] == "orders"
        assert engine.dead_letters() == ()
    assert statuses(target)[2] == "paid"


@pytest.mark.meets("R30")
def test_too_many_refused_rows_stop_the_pipeline(market: Market) -> None:
    target = Service()
    pipeline = market.pipeline(target, on_error=DeadLetters(max_per_batch=2))
    with market.engine(pipeline, runner=ArrowRunner()) as engine:
        assert engine.await_ready(PATIENCE)
        with market.source.transaction():
            for key in (1, 2, 3):
                market.put("orders", key, status="bad")
        assert await_that(engine, lambda: engine.pipeline_info("orders").state == "failed")
        error = engine.pipeline_info("orders").error
        assert isinstance(error, TooManyFailed)
        assert (error.facts["found"], error.facts["limit"]) == (3, 2)


@pytest.mark.meets("R30")
@pytest.mark.parametrize("make", [Keeper, Service])
def test_a_replay_leaves_out_refused_rows_with_what_follows_them(
    market: Market, make: Callable[[], Keeper | Service]
) -> None:
    market.put("orders", 2, status="bad")
    with market.engine(market.pipeline(memory()), runner=ArrowRunner()) as engine:
        assert engine.await_ready(PATIENCE)
        with market.source.transaction():
            for key, status in (1, "sent"), (2, "good"), (3, "bad"), (3, "good"):
                market.put("orders", key, status=status)
        assert market.recorded(engine)
        target = make()
        done = engine.replay("orders", target)
        assert engine.dead_letters() == ()
    expected = {1: "sent", 3: "paid"} | dict.fromkeys(range(4, 11), "paid")
    assert statuses(target) == expected
    assert done.failed == 4


@pytest.mark.meets("R30")
@pytest.mark.parametrize(
    "refused",
    [
        [RefusedRow("orders", 7)],
        [RefusedRow("nothing", 0)],
        [RefusedRow("orders", {"id": 1})],
        [],
    ],
    ids=["no such row", "no such table", "a key", "none"],
)
def test_a_target_that_refuses_rows_it_was_not_given_is_tried_again(
    market: Market, refused: list[RefusedRow]
) -> None:
    target = ScriptedTarget()
    target.reject(RowsRefused.of(refused))
    with market.engine(market.pipeline(target), runner=ArrowRunner()) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 1, status="sent")
        assert await_that(engine, lambda: target.rows("orders")[(1,)]["status"] == "sent")
        assert engine.dead_letters() == ()


@pytest.mark.parametrize("refused", [RefusedRow("orders", 7), RefusedRow("", {"id": 1})])
def test_a_row_that_the_target_was_not_given_is_an_error_that_says_so(refused: RefusedRow) -> None:
    given = {"orders": pa.table({"id": [1, 2]})}
    with pytest.raises(TargetError, match="not given") as caught:
        refused_rows(RowsRefused.of([refused]), given)
    assert not isinstance(caught.value, RowsRefused)
    with pytest.raises(TargetError, match="named none"):
        refused_rows(RowsRefused.of([]), given)


@pytest.mark.meets("ENG-46")
@pytest.mark.parametrize("hook", ["on_init", "on_baseline_complete", "on_batch_complete"])
def test_a_hook_that_is_not_for_a_row_refuses_none(market: Market, hook: str) -> None:
    orders = Keeper()
    raised: list[str] = []

    def once(*values: object) -> None:
        if not raised:
            raised.append(hook)
            raise hr.RowRefused("not about a row")

    setattr(orders, hook, once)
    with market.engine(market.pipeline(orders), runner=ArrowRunner()) as engine:
        if hook != "on_init":
            market.put("orders", 1, status="sent")
        # An error like any other: the hook is called again.
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="sent")
        assert await_that(engine, lambda: orders.rows.get(2) == "sent")
        assert engine.dead_letters() == ()
    assert raised == [hook]


class Answer:
    """A row as Spark returns it."""

    def __init__(self, **values: object) -> None:
        self._values = values

    def asDict(self) -> dict[str, object]:
        return self._values


class Collected:
    """A DataFrame, as far as it is needed here."""

    def collect(self) -> list[Answer]:
        return [Answer(id=1, _position="p"), Answer(id=2, _position=None)]


def test_rows_of_a_frame_are_named_by_position_or_else_by_their_values() -> None:
    at = Position(1, 2, 3)
    error = hr.RowsRefused.in_frame(Collected(), "409", answer=7)
    assert error.rows == (
        RefusedRow("", "p", "409", {"answer": "7"}),
        RefusedRow("", {"id": 2, "_position": None}, "409", {"answer": "7"}),
    )
    named = hr.RowsRefused.in_frame([at, str(at), {"id": 1}])
    assert [each.row for each in named.rows] == [str(at), str(at), {"id": 1}]
    assert {each.code for each in named.rows} == {"ROW_REFUSED"}
