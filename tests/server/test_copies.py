"""Copies in the server child: queries that it answers itself, and when the engine does."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import ListValue

from headrace.api.services import Caller, Services
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import TableSchema
from headrace.changelog.values import ValueType
from headrace.server.channel import CallFailure
from headrace.server.copies import HeldTables
from headrace.targets.target import Batch
from headrace.v1 import query_pb2 as v1
from tests.interfaces.test_queries import ME, OURS, Front, of_table, row, shown, values
from tests.server.joined import Joined, joined
from tests.server.serving import QUERY, served
from tests.support.shop import await_seen
from tests.tables.build import DELETE, INSERT, changes, table_schema
from tests.tables.test_table_reads import VALUES

ORDERS = table_schema(id="int64", grp="int32", note="text")
KINDS: dict[str, str | ValueType] = {f"c{at}": kind for at, (kind, _) in enumerate(VALUES)}
EVERY_KIND = table_schema(("id",), id="int64", **KINDS)


class Held:
    """An engine's tables, and a child with copies of some of them."""

    def __init__(self, both: Joined, *names: str) -> None:
        self.both = both
        self.front = Front()
        self.engine_calls: list[str] = []
        self.copies = HeldTables(names, both.link)
        both.answers._services = self  # type: ignore[assignment]
        both.link.copies = self.copies

    def call(self, path: str, body: bytes, caller: Caller) -> bytes:
        self.engine_calls.append(path.rpartition("/")[2])
        return self.front.services.call(path, body, caller)

    def stream(self, path: str, body: bytes, caller: Caller) -> Any:
        return self.front.services.stream(path, body, caller)

    def add(self, schema: TableSchema, pipeline: str = "orders") -> None:
        self.front.add(pipeline, schema, indexes={"by_grp": ["grp"]}, lookup=["note"])

    async def begin(self) -> None:
        """Keep the copies from now on."""
        self.task = asyncio.ensure_future(self.copies.run())

    def position(self, name: str = "orders") -> Position | None:
        """How far a copy is; None without one that is live."""
        if (copy := self.copies._live.get(name)) is None:
            return None
        return copy.target.table(name).position

    async def reached(self, at: Position, name: str = "orders") -> None:
        await self.both.until(lambda: self.position(name) == at)

    async def ask(self, request: Message, caller: Caller = ME) -> bytes | CallFailure:
        name = type(request).__name__.removesuffix("Request")
        return await self.both.link.ask(OURS + name, caller, request.SerializeToString(), None)

    async def row(self, key: int, **fields: Any) -> v1.GetRowResponse:
        found = await self.ask(v1.GetRowRequest(table="orders", primary_key=key, **fields))
        assert isinstance(found, bytes), found
        answer: v1.GetRowResponse = v1.GetRowResponse.FromString(found)
        return answer


def held(test: Callable[[Held], Awaitable[None]], *names: str) -> None:
    async def run(both: Joined) -> None:
        await test(Held(both, *(names or ("orders",))))

    joined(run)


REQUESTS: list[Message] = [
    v1.GetRowRequest(table="orders", primary_key=2, with_columns=True),
    v1.GetRowRequest(table="orders", primary_key=99),
    v1.LookupRequest(table="orders", key_values=values("b")),
    v1.LookupAllRequest(table="orders", index_name="by_grp", key_values=values(7)),
    v1.ListRowsRequest(table="orders", page_size=1),
    v1.ListRowsRequest(table="orders", form=v1.ROW_FORM_ARROW),
    v1.CountRowsRequest(table="orders"),
    v1.BatchLookupRequest(table="orders", keys=[ListValue(values=values(1))]),
]


def test_a_copy_answers_every_query_as_the_engine_would_and_does_not_ask_it() -> None:
    async def test(here: Held) -> None:
        here.add(ORDERS)
        at = here.front.put(ORDERS, row(1, 7, "a"), row(2, 7, "b"))
        await here.begin()
        await here.reached(at)
        for request in REQUESTS:
            name = type(request).__name__.removesuffix("Request")
            theirs = here.front.services.call(OURS + name, request.SerializeToString(), ME)
            assert await here.ask(request) == theirs
        assert here.engine_calls == []

    held(test)


@pytest.mark.meets("S6")
def test_a_copy_has_every_kind_of_value() -> None:
    async def test(here: Held) -> None:
        here.front.add("all", EVERY_KIND)
        most = max(len(some) for _, some in VALUES)
        rows = [
            {"id": n, **{f"c{at}": some[n % len(some)] for at, (_, some) in enumerate(VALUES)}}
            for n in range(most)
        ]
        nulls: dict[str, object] = dict.fromkeys(EVERY_KIND.names) | {"id": most}
        here.front.put(EVERY_KIND, *rows[:1])
        await here.begin()
        await here.both.until(lambda: here.position() is not None)
        at = here.front.put(EVERY_KIND, *rows, nulls)
        await here.reached(at)
        request = v1.ListRowsRequest(table="orders", with_columns=True)
        theirs = here.front.services.call(f"{OURS}ListRows", request.SerializeToString(), ME)
        assert await here.ask(request) == theirs
        assert here.engine_calls == []

    held(test)


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_is_the_table_whatever_is_written(seed: int) -> None:
    chance = random.Random(seed)

    async def test(here: Held) -> None:
        here.add(ORDERS)
        target = here.front.targets["orders"]
        await here.begin()
        at = here.front.put(ORDERS, row(0, 0))
        for number in range(2, 40):
            steps: list[Any] = []
            for _ in range(chance.randint(1, 8)):
                n = chance.randint(0, 20)
                gone = chance.random() < 0.3
                steps.append(
                    (DELETE, {"id": n}) if gone else (INSERT, row(n, chance.randint(0, 3)))
                )
            at = here.front.write(ORDERS, *steps)
            if chance.random() < 0.1:
                here.front._commit += 1
                at = Position(1, here.front._commit)
                empty = {"orders": changes(ORDERS, [])}
                target.write(Batch(str(number), 1, at, at, empty, {"orders": at}))
            if chance.random() < 0.1:
                here.front._commit += 1
                at = Position(1, here.front._commit)
                loading = target.load("orders", number)
                rows = changes(ORDERS, [(INSERT, ORIGIN, row(n, n)) for n in range(5)])
                loading.write(rows.drop_columns(["_op", "_commit", "_ordinal", "_time"]))
                loading.switch(at)
            if chance.random() < 0.3:
                await asyncio.sleep(0)
        # A last row for certain: deletes of rows that are not there do not move a copy.
        at = here.front.put(ORDERS, row(100, 1))
        await here.reached(at)
        for group in range(5):
            request = v1.LookupAllRequest(
                table="orders", index_name="by_grp", key_values=values(group)
            )
            theirs = here.front.services.call(f"{OURS}LookupAll", request.SerializeToString(), ME)
            ours = await here.ask(request)
            assert isinstance(ours, bytes)
            found = [v1.LookupAllResponse.FromString(each).rows for each in (ours, theirs)]
            assert sorted(map(str, map(shown, found[0]))) == sorted(map(str, map(shown, found[1])))
        assert (await here.row(100)).found
        assert here.engine_calls == []

    held(test)


def test_a_truncate_empties_a_copy() -> None:
    async def test(here: Held) -> None:
        here.add(ORDERS)
        await here.begin()
        await here.reached(here.front.put(ORDERS, row(1), row(2)))
        at, last = Position(1, 5), Position(1, 5, 1)
        rows = {"orders": changes(ORDERS, [(INSERT, last, row(3))])}
        here.front.targets["orders"].write(Batch("t", 1, at, last, rows, {"orders": at}))
        await here.reached(last)
        assert [(await here.row(n)).found for n in (1, 2, 3)] == [False, False, True]
        assert here.engine_calls == []

    held(test)


def test_the_engine_answers_for_other_tables_and_pipelines_and_until_a_copy_is_live() -> None:
    async def test(here: Held) -> None:
        here.add(ORDERS)
        here.add(of_table(ORDERS, "others"), "others")
        here.add(ORDERS, "second")
        at = here.front.put(ORDERS, row(1, 7, "a"))
        assert (await here.row(1)).found
        assert here.engine_calls == ["GetRow"]
        await here.begin()
        await here.reached(at)
        assert (await here.row(1, pipeline="orders")).pipeline == "orders"
        assert here.engine_calls == ["GetRow"]
        assert (await here.row(1, pipeline="second")).pipeline == "second"
        await here.ask(v1.CountRowsRequest(table="others"))
        await here.ask(v1.CountRowsRequest(pipeline="orders"))
        assert here.engine_calls == ["GetRow", "GetRow", "CountRows", "CountRows"]

    held(test)


def test_a_copy_holds_to_the_tables_of_a_token() -> None:
    async def test(here: Held) -> None:
        here.add(ORDERS)
        await here.begin()
        await here.reached(here.front.put(ORDERS, row(1)))
        other = Caller("dashboard", "read", "10.0.0.1", ("customers",))
        refused = await here.ask(v1.GetRowRequest(table="orders", primary_key=1), other)
        assert isinstance(refused, CallFailure)
        assert json.loads(refused.error)["code"] == "permission_denied"
        assert here.engine_calls == []

    held(test)


def test_a_copy_stays_while_the_table_is_loaded_again_and_goes_when_it_cannot_be_followed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def test(here: Held) -> None:
        here.add(ORDERS)
        target = here.front.targets["orders"]
        await here.begin()
        await here.reached(here.front.put(ORDERS, row(1, 7, "a")))
        target.load("orders", 2).switch(Position(1, 8))
        assert here.position() is not None
        await here.reached(Position(1, 8))
        assert not (await here.row(1)).found
        del here.front.targets["orders"]
        target.close()
        await here.both.until(lambda: here.position() is None)
        refused = await here.ask(v1.GetRowRequest(table="orders", primary_key=1))
        assert isinstance(refused, CallFailure)
        assert here.engine_calls == ["GetRow"]
        assert "No copy of orders: No indexed target found for orders" in capsys.readouterr().err
        here.add(ORDERS)
        await here.reached(here.front.put(ORDERS, row(5)))
        assert (await here.row(5)).found

    held(test)


def test_a_message_that_cannot_be_read_ends_a_copy_and_not_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def test(here: Held) -> None:
        other = of_table(ORDERS, "others")
        here.add(ORDERS)
        here.add(other, "others")
        await here.begin()
        await here.reached(here.front.put(ORDERS, row(1)))
        await here.reached(here.front.put(other, row(1)), "others")
        live = here.copies._live["orders"]
        live._write = None  # type: ignore[assignment,method-assign]
        here.front.put(ORDERS, row(2))
        # It is dropped with the reason, and built again.
        await here.both.until(lambda: here.copies._live.get("orders") not in (live, None))
        assert (await here.row(2)).found
        assert "No copy of orders: TypeError" in capsys.readouterr().err
        await here.reached(here.front.put(other, row(3)), "others")

    held(test, "orders", "others")


@pytest.mark.process
def test_a_real_child_answers_for_a_table_that_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, hold=["orders"]) as here:
        usual = Services.call
        forwarded: list[str] = []

        def counted(self: Services, path: str, body: bytes, caller: Caller) -> bytes:
            forwarded.append(path)
            return usual(self, path, body, caller)

        monkeypatch.setattr(Services, "call", counted)

        def found(key: int) -> dict[str, Any]:
            fields = {"table": "orders", "primaryKey": str(key)}
            answer: dict[str, Any] = here.http.post(f"{QUERY}GetRow", json=fields).json()
            return answer

        def is_held() -> bool:
            before = len(forwarded)
            assert found(3)["row"]["status"] == "paid"
            return len(forwarded) == before

        # Until the copy has all rows, the engine is asked.
        assert await_seen(is_held)
        asked = len(forwarded)
        here.shop.insert(range(50, 51))
        assert await_seen(lambda: bool(found(50).get("found")))
        assert len(forwarded) == asked
