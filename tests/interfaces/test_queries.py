"""The calls of `QueryService`, from bytes to bytes: a real target, its rows and its changes."""

from __future__ import annotations

import json
import random
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import ListValue, Struct, Value

from headrace.api import connect
from headrace.api.handlers import ControlService
from headrace.api.services import Caller, Services
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.engine.status import ReadableTarget
from headrace.errors import (
    BadRequest,
    FellBehind,
    Forbidden,
    HeadraceError,
    NotRunning,
    NotUnique,
    TooManyRows,
    UnknownIndex,
    UnknownPipeline,
    UnknownTable,
)
from headrace.runtime.model import Member
from headrace.targets import memory as memory_target
from headrace.targets.memory import IndexedMemory, memory
from headrace.targets.target import Batch
from headrace.v1 import query_pb2 as v1
from tests.support.patience import patience
from tests.support.shop import Market
from tests.support.tiers import sweep
from tests.tables.build import DELETE, INSERT, UPDATE, Values, changes, table_schema
from tests.tables.test_table_reads import VALUES, kind_name

M = TypeVar("M", bound=Message)

OURS = "/headrace.v1.QueryService/"
THEIRS = "/laredo.v1.LaredoQueryService/"
ME = Caller("local", "admin", "127.0.0.1")

KINDS = [
    *VALUES,
    (ValueType("arrow", other=pa.struct([("a", pa.int32())])), [{"a": 1}, {"a": None}]),
]


class Front:
    """The services of tables that a test writes: the targets of an engine without a source."""

    def __init__(self) -> None:
        self.targets: dict[str, IndexedMemory] = {}
        self.lineage = "the first history"
        engine: Any = SimpleNamespace(
            readable_targets=self._readable, target=self._target, observe=lambda *_: None
        )
        self.control = ControlService(engine)
        self.services = Services(engine, self.control)
        self._commit = 0

    def _readable(self) -> tuple[ReadableTarget, ...]:
        return tuple(
            ReadableTarget(
                name,
                "source",
                target,
                tuple(
                    Member(each, schema, schema, lineage=self.lineage)
                    for each in target.tables
                    for schema in [target.table(each).schema]
                ),
            )
            for name, target in self.targets.items()
        )

    def _target(self, name: str) -> object:
        if name == "lake":
            return object()
        raise NotRunning("No such pipeline", pipeline=name)

    def add(
        self, pipeline: str, *schemas: TableSchema, show: bool = True, **options: Any
    ) -> IndexedMemory:
        self.targets[pipeline] = target = memory(**options)
        target.open({schema.table: schema for schema in schemas}, {})
        for schema in schemas if show else ():
            target.load(schema.table, 0).switch(ORIGIN)
        return target

    def write(self, schema: TableSchema, *steps: tuple[int, Values]) -> Position:
        """Apply steps as one commit, to every target that has the table."""
        self._commit += 1
        placed = [(op, Position(1, self._commit, n), row) for n, (op, row) in enumerate(steps)]
        last = placed[-1][1]
        rows = {schema.table: changes(schema, placed)}
        for target in self.targets.values():
            if schema.table in target.tables:
                target.write(Batch(str(last), 1, Position(1, self._commit), last, rows))
        return last

    def put(self, schema: TableSchema, *rows: Values) -> Position:
        return self.write(schema, *((INSERT, row) for row in rows))

    def ask(self, answer: type[M], request: Message, caller: Caller = ME) -> M:
        name = type(request).__name__.removesuffix("Request")
        body = request.SerializeToString()
        found: M = answer.FromString(self.services.call(OURS + name, body, caller))
        return found

    def follow(self, caller: Caller = ME, **fields: Any) -> Follower:
        return Follower(self.services, v1.SubscribeRequest(**fields), caller)


class Follower(Iterator[v1.SubscribeResponse]):
    """The messages of a subscription."""

    def __init__(self, services: Services, asked: v1.SubscribeRequest, caller: Caller) -> None:
        self.stream = services.stream(OURS + "Subscribe", asked.SerializeToString(), caller)
        self._messages = iter(self.stream)

    def __next__(self) -> v1.SubscribeResponse:
        message: v1.SubscribeResponse = v1.SubscribeResponse.FromString(next(self._messages))
        return message

    def close(self) -> None:
        self.stream.close()


ORDERS = table_schema(id="int64", grp="int32", note="text")


def row(id: int, grp: int | None = None, note: str | None = "x") -> dict[str, object]:
    return {"id": id, "grp": grp, "note": note}


def of_table(schema: TableSchema, table: str) -> TableSchema:
    return TableSchema(table, schema.columns, schema.key)


def values(*given: object) -> list[Value]:
    found = ListValue()
    found.extend(given)
    return list(found.values)


def shown(row: Struct) -> dict[str, Any]:
    """Return a Struct as JSON has it; numbers are floats."""
    found: dict[str, Any] = MessageToDict(row)
    return found


@pytest.fixture
def front() -> Front:
    return Front()


@pytest.fixture
def orders(front: Front) -> Front:
    front.add("orders", ORDERS, indexes={"by_grp": ["grp"], "pair": ["grp", "note"]})
    front.put(ORDERS, row(1, 7, "a"), row(2, 7, "b"), row(3, None, "c"))
    return front


# -- one row ------------------------------------------------------------------------------


def test_an_answer_has_the_row_with_position_lineage_and_pipeline(orders: Front) -> None:
    at = orders.put(ORDERS, row(4, 9, "d"))
    found = orders.ask(v1.GetRowResponse, v1.GetRowRequest(table="orders", primary_key=4))
    assert found.found
    assert shown(found.row) == {"id": 4, "grp": 9, "note": "d"}
    assert found.position == str(at)
    assert found.lineage == "the first history"
    assert found.pipeline == "orders"
    assert not found.columns
    absent = orders.ask(v1.GetRowResponse, v1.GetRowRequest(table="orders", primary_key=5))
    assert not absent.found
    assert not absent.HasField("row")
    assert absent.position == str(at)


def test_the_columns_come_on_request_with_their_kinds(orders: Front) -> None:
    asked = v1.GetRowRequest(table="orders", primary_key=1, with_columns=True)
    columns = orders.ask(v1.GetRowResponse, asked).columns
    assert [(each.name, each.type, each.key) for each in columns] == [
        ("id", "int64", True),
        ("grp", "int32", False),
        ("note", "text", False),
    ]


@pytest.mark.meets("S6")
@pytest.mark.parametrize(("kind", "some"), KINDS, ids=lambda value: kind_name(value)[:20])
def test_a_key_of_any_kind_is_found_by_the_value_that_an_answer_shows(
    front: Front, kind: str | ValueType, some: Sequence[object]
) -> None:
    keyed = table_schema(("k",), k=kind, n="int32")
    plain = of_table(table_schema(id="int64", k=kind), "plain")
    front.add("keyed", keyed)
    front.add("plain", plain, indexes={"by_k": ["k"]})
    front.put(keyed, *({"k": value, "n": at} for at, value in enumerate(some)))
    front.put(plain, *({"id": at, "k": value} for at, value in enumerate(some)))
    listed = front.ask(v1.ListRowsResponse, v1.ListRowsRequest(table="orders", page_size=50))
    assert listed.total_count == len(listed.rows) == len(some)
    for each in listed.rows:
        key, n = each.fields["k"], each.fields["n"]
        found = front.ask(v1.GetRowResponse, v1.GetRowRequest(table="orders", key=[key]))
        assert found.row.fields["n"] == n
        many = front.ask(
            v1.LookupAllResponse,
            v1.LookupAllRequest(table="plain", index_name="by_k", key_values=[key]),
        )
        assert [inner.fields["id"] for inner in many.rows] == [n]
        batch = v1.BatchLookupRequest(table="orders", keys=[ListValue(values=[key])])
        assert list(front.ask(v1.BatchLookupResponse, batch).counts) == [1]


@pytest.mark.meets("S6")
@pytest.mark.parametrize(("kind", "some"), KINDS, ids=lambda value: kind_name(value)[:20])
def test_every_form_has_the_same_values(
    front: Front, kind: str | ValueType, some: Sequence[object]
) -> None:
    schema = table_schema(id="int64", v=kind)
    front.add("all", schema)
    rows = [{"id": at, "v": value} for at, value in enumerate([None, *some])]
    front.put(schema, *rows)
    structs, text, columns = (
        front.ask(v1.ListRowsResponse, v1.ListRowsRequest(table="orders", form=form))
        for form in (v1.ROW_FORM_STRUCT, v1.ROW_FORM_JSON, v1.ROW_FORM_ARROW)
    )
    assert [shown(each) for each in structs.rows] == json.loads(text.json)
    assert not text.rows
    table = pa.ipc.open_stream(columns.arrow).read_all()
    assert table.schema.equals(schema.arrow, check_metadata=True)
    exact = schema.column("v").type.from_arrow(table.column("v"))
    assert exact == [row["v"] for row in rows]
    assert [type(value) for value in exact] == [type(row["v"]) for row in rows]
    one = [
        front.ask(
            v1.GetRowResponse,
            v1.GetRowRequest(table="orders", primary_key=1, form=form),
        )
        for form in (v1.ROW_FORM_JSON, v1.ROW_FORM_ARROW)
    ]
    assert json.loads(one[0].json) == [shown(structs.rows[1])]
    assert pa.ipc.open_stream(one[1].arrow).read_all() == table.slice(1, 1)


@pytest.mark.meets("S6")
def test_numbers_are_exact_and_those_that_json_has_not_are_text(front: Front) -> None:
    schema = table_schema(id="int64", f="float64", v="variant")
    front.add("p", schema)
    front.put(
        schema,
        {"id": 2**53, "f": 0.1, "v": 2**60},
        {"id": 2**53 + 1, "f": float("-inf"), "v": b"\x00"},
        {"id": -(2**63), "f": float("nan"), "v": "text"},
    )
    listed = front.ask(v1.ListRowsResponse, v1.ListRowsRequest(table="orders"))
    assert [shown(each) for each in listed.rows] == [
        {"id": str(-(2**63)), "f": "NaN", "v": "text"},
        {"id": 2**53, "f": 0.1, "v": {"kind": "int", "value": str(2**60)}},
        {"id": str(2**53 + 1), "f": "-Infinity", "v": {"kind": "bytes", "value": "AA=="}},
    ]


def test_a_key_of_several_columns_takes_their_values_in_order(front: Front) -> None:
    schema = table_schema(("region", "id"), region="text", id="int64", n="int32")
    front.add("p", schema)
    front.put(schema, {"region": "eu", "id": 1, "n": 5})
    found = front.ask(v1.GetRowResponse, v1.GetRowRequest(table="orders", key=values("eu", "1")))
    assert found.row["n"] == 5
    with pytest.raises(BadRequest, match="2 values needed, 1 given"):
        front.ask(v1.GetRowResponse, v1.GetRowRequest(table="orders", key=values("eu")))
    with pytest.raises(BadRequest, match="is not an integer"):
        front.ask(v1.GetRowResponse, v1.GetRowRequest(table="orders", primary_key=1))


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("int64", 1.5),
        ("int64", 2.0**60),
        ("int64", "one"),
        ("int64", True),
        (ValueType("decimal", 30, 2), 2.0**70),
        ("text", 5),
        ("date", "yesterday"),
        ("timestamptz", 17),
        ("uuid", "not one"),
        ("bytes", "no base64"),
        ("interval", "soon"),
        ("timetz", "12:00"),
        (ValueType("arrow", other=pa.duration("us")), "a while"),
        (ValueType("arrow", other=pa.date64()), "some day"),
        ("date", "2026-13-45"),
        ("boolean", "perhaps"),
        ("variant", {"kind": "float", "value": "1"}),
        ("bytes", {"kind": "bytes"}),
        ("text", [1]),
    ],
)
def test_a_value_that_a_column_cannot_have_is_refused_by_name_and_not_shown(
    front: Front, kind: str | ValueType, given: Any
) -> None:
    schema = table_schema(("k",), k=kind, n="int32")
    front.add("p", schema)
    with pytest.raises(BadRequest) as caught:
        front.ask(v1.GetRowResponse, v1.GetRowRequest(table="orders", key=values(given)))
    assert caught.value.facts["column"] == "k"
    assert str(given) not in str(caught.value)


def test_a_decimal_may_be_given_as_the_number_that_was_written(front: Front) -> None:
    schema = table_schema(("k",), k=ValueType("decimal", 10, 2), n="int32")
    front.add("p", schema)
    front.put(schema, {"k": Decimal("0.10"), "n": 1}, {"k": Decimal("3.00"), "n": 2})
    for given, n in ((0.1, 1), ("0.1", 1), (3, 2)):
        asked = v1.GetRowRequest(table="orders", key=values(given))
        assert front.ask(v1.GetRowResponse, asked).row["n"] == n


# -- lookups ------------------------------------------------------------------------------


def test_a_lookup_uses_the_index_that_is_named(orders: Front) -> None:
    def look(*given: object, **fields: Any) -> v1.LookupResponse:
        asked = v1.LookupRequest(table="orders", key_values=values(*given), **fields)
        return orders.ask(v1.LookupResponse, asked)

    found = look(7, "b", index_name="pair")
    assert (shown(found.row)["id"], found.found, found.more) == (2, True, False)
    several = look(7, index_name="by_grp")
    assert (shown(several.row)["id"], several.found, several.more) == (1, True, True)
    assert shown(look(None, index_name="by_grp").row)["id"] == 3
    assert not look(8, index_name="by_grp").found
    text = look(7, "b", index_name="pair", form=v1.ROW_FORM_JSON)
    assert json.loads(text.json) == [{"id": 2, "grp": 7, "note": "b"}]
    with pytest.raises(UnknownIndex) as caught:
        look(7, index_name="by_note")
    assert connect.error_fields(caught.value)[1]["code"] == "not_found"


def test_a_lookup_without_an_index_is_the_unique_one_or_else_by_key(orders: Front) -> None:
    asked = v1.LookupRequest(table="orders", key_values=values(2))
    assert shown(orders.ask(v1.LookupResponse, asked).row)["note"] == "b"
    schema = of_table(ORDERS, "named")
    orders.add("named", schema, lookup=["note"])
    orders.put(schema, row(1, 1, "a"), row(2, 1, "b"), row(3, 1, "b"))
    asked = v1.LookupRequest(table="named", key_values=values("a"))
    assert shown(orders.ask(v1.LookupResponse, asked).row)["id"] == 1
    with pytest.raises(NotUnique) as caught:
        orders.ask(v1.LookupResponse, v1.LookupRequest(table="named", key_values=values("b")))
    assert connect.error_fields(caught.value)[1]["code"] == "failed_precondition"


def test_all_rows_of_an_index_come_or_as_many_as_the_limit(orders: Front) -> None:
    def look(**fields: Any) -> v1.LookupAllResponse:
        return orders.ask(
            v1.LookupAllResponse,
            v1.LookupAllRequest(table="orders", key_values=values(7), **fields),
        )

    everything = look(index_name="by_grp")
    assert [each["id"] for each in everything.rows] == [1, 2]
    assert not everything.more
    some = look(index_name="by_grp", limit=1)
    assert [each["id"] for each in some.rows] == [1]
    assert some.more
    with pytest.raises(BadRequest, match="index_name is required"):
        look()
    with pytest.raises(BadRequest, match="negative"):
        look(index_name="by_grp", limit=-1)


def test_more_rows_than_an_answer_may_have_are_refused_and_not_cut_off(
    orders: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.api.queries.MOST_ROWS", 2)
    orders.put(ORDERS, row(5, 7))
    asked = v1.LookupAllRequest(table="orders", index_name="by_grp", key_values=values(7))
    with pytest.raises(TooManyRows) as caught:
        orders.ask(v1.LookupAllResponse, asked)
    assert connect.error_fields(caught.value)[1]["code"] == "resource_exhausted"
    asked.limit = 2
    assert orders.ask(v1.LookupAllResponse, asked).more
    keys = [ListValue(values=values(7))]
    batch = v1.BatchLookupRequest(table="orders", index_name="by_grp", keys=keys)
    with pytest.raises(TooManyRows):
        orders.ask(v1.BatchLookupResponse, batch)
    with pytest.raises(TooManyRows):
        orders.ask(v1.BatchLookupResponse, v1.BatchLookupRequest(table="orders", keys=keys * 3))


def test_a_batch_has_the_rows_of_each_key_in_order(orders: Front) -> None:
    def look(*keys: Sequence[object], **fields: Any) -> v1.BatchLookupResponse:
        asked = [ListValue(values=values(*key)) for key in keys]
        request = v1.BatchLookupRequest(table="orders", keys=asked, **fields)
        return orders.ask(v1.BatchLookupResponse, request)

    found = look([3], [99], [1], [3])
    assert [each["id"] for each in found.rows] == [3, 1, 3]
    assert list(found.counts) == [1, 0, 1, 1]
    grouped = look([7], [None], [8], index_name="by_grp", form=v1.ROW_FORM_JSON)
    assert [each["id"] for each in json.loads(grouped.json)] == [1, 2, 3]
    assert list(grouped.counts) == [2, 1, 0]
    columns = look([2], [1], form=v1.ROW_FORM_ARROW, with_columns=True)
    assert pa.ipc.open_stream(columns.arrow).read_all()["id"].to_pylist() == [2, 1]
    assert len(columns.columns) == 3
    assert list(look().counts) == []
    with pytest.raises(UnknownIndex):
        look([1], unique_lookup=True)
    with pytest.raises(BadRequest, match="not both"):
        look([1], unique_lookup=True, index_name="by_grp")


def test_a_batch_finds_what_single_calls_find_in_columns_of_several_meanings(
    front: Front,
) -> None:
    schema = table_schema(("k",), k="variant", n="int32")
    front.add("p", schema)
    front.put(schema, {"k": 42, "n": 1}, {"k": "43", "n": 2}, {"k": b"44", "n": 3})
    keys = [ListValue(values=values(each)) for each in ("42", "43", "X'3434'", "45", 42)]
    found = front.ask(v1.BatchLookupResponse, v1.BatchLookupRequest(table="orders", keys=keys))
    assert [each["n"] for each in found.rows] == [1, 2, 3, 1]
    assert list(found.counts) == [1, 1, 1, 0, 1]


# -- pages --------------------------------------------------------------------------------


def pages(front: Front, **fields: Any) -> Iterator[v1.ListRowsResponse]:
    token = ""
    while True:
        page = front.ask(
            v1.ListRowsResponse, v1.ListRowsRequest(table="orders", page_token=token, **fields)
        )
        yield page
        if not (token := page.next_page_token):
            return


def test_a_page_has_a_hundred_rows_unless_asked_and_never_more_than_a_thousand(
    front: Front,
) -> None:
    front.add("p", ORDERS)
    front.put(ORDERS, *(row(n) for n in range(1100)))
    sizes = [len(page.rows) for page in pages(front)]
    assert sizes == [100] * 11
    assert [len(page.rows) for page in pages(front, page_size=5000)] == [1000, 100]
    first = next(pages(front))
    assert [each["id"] for each in first.rows] == list(range(100))
    assert first.total_count == 1100
    with pytest.raises(BadRequest, match="negative"):
        next(pages(front, page_size=-1))


@pytest.mark.parametrize("form", [v1.ROW_FORM_STRUCT, v1.ROW_FORM_JSON, v1.ROW_FORM_ARROW])
def test_pages_of_large_rows_have_fewer_and_other_answers_are_refused(
    front: Front, form: v1.RowForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.api.row_forms.MOST_BYTES", 20_000)
    monkeypatch.setattr("headrace.api.row_forms._FIRST_ROWS", 2)
    front.add("p", ORDERS, indexes={"by_grp": ["grp"]})
    front.put(ORDERS, *(row(n, 1, "x" * (50_000 if n == 7 else 3_000)) for n in range(40)))
    ids = [ids_in(page) for page in pages(front, form=form)]
    assert [each for page in ids for each in page] == list(range(40))
    assert 4 < len(ids[0]) < 8
    assert [7] in ids or [6, 7] in ids  # a row that is too large alone comes all the same
    asked = v1.LookupAllRequest(
        table="orders", index_name="by_grp", key_values=values(1), form=form, limit=4
    )
    assert ids_in(front.ask(v1.LookupAllResponse, asked)) == [0, 1, 2, 3]
    asked.limit = 0
    with pytest.raises(TooManyRows, match="bytes"):
        front.ask(v1.LookupAllResponse, asked)
    keys = [ListValue(values=values(n)) for n in range(40)]
    with pytest.raises(TooManyRows, match="bytes"):
        batch = v1.BatchLookupRequest(table="orders", keys=keys, form=form)
        front.ask(v1.BatchLookupResponse, batch)


def ids_in(answer: Any) -> list[object]:
    """Return the ids of the rows of an answer, in any form."""
    if answer.arrow:
        found: list[object] = pa.ipc.open_stream(answer.arrow).read_all()["id"].to_pylist()
        return found
    return [each["id"] for each in json.loads(answer.json or "[]") or answer.rows]


@pytest.mark.meets("invariant 7")
@pytest.mark.parametrize("key", ["int64", "text", "many"])
@pytest.mark.parametrize("seed", sweep(range(24), 8))
def test_pages_neither_repeat_nor_lose_a_row_while_the_table_is_written(
    key: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if key == "many":  # too many for the order of the keys
        monkeypatch.setattr("headrace.tables.version._FEW_KEYS", 100)
    chance, front = random.Random(seed), Front()
    named = str if key == "text" else int
    schema = table_schema(id="text" if key == "text" else "int64", grp="int32", note="text")
    target = front.add("p", schema)
    state = {n: {**row(n), "id": named(n)} for n in range(300)}
    front.put(schema, *state.values())
    steady, seen = set(state), []
    for page in pages(front, page_size=chance.randint(1, 40)):
        seen += [int(each["id"]) for each in page.rows]
        if len(seen) > 5000:
            break
        steps: list[tuple[int, Values]] = []
        for _ in range(chance.randint(0, 60)):
            n = chance.randint(0, 600)
            if chance.random() < 0.2 and n in state:
                steps.append((DELETE, {"id": state.pop(n)["id"]}))
            else:
                steps.append((UPDATE if n in state else INSERT, {**row(n, n), "id": named(n)}))
                state[n] = {**row(n, n), "id": named(n)}
        if steps:
            front.write(schema, *steps)
        if chance.random() < 0.1:  # a baseline again: another store, other numbers
            loading = target.load("orders", 1)
            rows = changes(schema, [(INSERT, ORIGIN, each) for each in state.values()])
            loading.write(rows.drop_columns(["_op", "_commit", "_ordinal", "_time"]))
            loading.switch(front.put(schema, *list(state.values())[:1]))
        steady &= set(state)
    assert len(seen) == len(set(seen))
    assert steady <= set(seen)


def test_a_page_token_of_another_table_or_of_nobody_is_refused(front: Front) -> None:
    others = of_table(ORDERS, "others")
    front.add("p", ORDERS, others)
    front.put(ORDERS, *(row(n) for n in range(5)))
    front.put(others, *(row(n) for n in range(5)))
    token = next(pages(front, page_size=2)).next_page_token
    bent = ("B" if token[0] != "B" else "C") + token[1:]
    for table, given in (
        ("others", token),
        *(("orders", each) for each in ("x", "é", "AAAA", bent, token[:-2], token + "A")),
    ):
        with pytest.raises(BadRequest, match="page token"):
            front.ask(v1.ListRowsResponse, v1.ListRowsRequest(table=table, page_token=given))
    again = v1.ListRowsRequest(table="orders", page_token=token)
    assert [each["id"] for each in front.ask(v1.ListRowsResponse, again).rows] == [2, 3, 4]


def test_rows_are_counted_with_their_position(orders: Front) -> None:
    found = orders.ask(v1.CountRowsResponse, v1.CountRowsRequest(table="orders"))
    assert found.count == 3
    assert Position.parse(found.position) == Position(1, 1, 2)
    assert (found.lineage, found.pipeline) == ("the first history", "orders")


# -- changes ------------------------------------------------------------------------------


def test_a_subscriber_gets_each_change_with_both_images_and_its_time(orders: Front) -> None:
    follower = orders.follow(table="orders", with_columns=True)
    at = orders.write(ORDERS, (UPDATE, row(1, 8, "z")), (DELETE, {"id": 2}))
    update, delete = next(follower), next(follower)
    assert (update.action, update.position) == ("UPDATE", str(Position(1, 2, 0)))
    assert shown(update.old_values) == {"id": 1, "grp": 7, "note": "a"}
    assert shown(update.new_values) == {"id": 1, "grp": 8, "note": "z"}
    assert [each.number_value for each in update.key] == [1]
    assert update.HasField("timestamp")
    assert update.timestamp.ToMicroseconds() == 0
    assert update.lineage == "the first history"
    assert (delete.action, delete.position) == ("DELETE", str(at))
    assert not delete.HasField("new_values")
    assert [len(each.columns) for each in (update, delete)] == [3, 0]
    follower.close()
    assert list(follower) == []


def test_rows_that_are_there_come_first_as_inserts_and_a_mark_after_them(orders: Front) -> None:
    follower = orders.follow(table="orders", replay_existing=True, markers=True)
    orders.put(ORDERS, row(9))
    messages = [next(follower) for _ in range(6)]
    assert [(each.action, each.existing) for each in messages] == [
        ("BEGIN", False),
        *[("INSERT", True)] * 3,
        ("LIVE", False),
        ("INSERT", False),
    ]
    assert {each.position for each in messages[:5]} == {str(Position(1, 1, 2))}
    assert not messages[1].HasField("timestamp")
    follower.close()
    markers = orders.follow(table="orders", markers=True)
    assert [next(markers).action for _ in range(2)] == ["BEGIN", "LIVE"]
    markers.close()


def test_a_truncate_is_a_message_without_rows(orders: Front) -> None:
    follower = orders.follow(table="orders")
    target = orders.targets["orders"]
    at = Position(1, 5)
    target.write(Batch("t", 1, at, at, {"orders": changes(ORDERS, [])}, {"orders": at}))
    message = next(follower)
    assert (message.action, message.position, len(message.key)) == ("TRUNCATE", str(at), 0)
    assert not message.HasField("old_values")
    follower.close()


@pytest.mark.parametrize("seed", sweep(range(16), 8))
def test_a_subscription_leads_to_the_table_with_no_gap_and_nothing_twice(seed: int) -> None:
    chance, front = random.Random(seed), Front()
    target = front.add("p", ORDERS)
    state: dict[int, dict[str, object]] = {}

    def some() -> list[tuple[int, Values]]:
        steps: list[tuple[int, Values]] = []
        for _ in range(chance.randint(1, 20)):
            n = chance.randint(0, 30)
            if chance.random() < 0.3:
                if state.pop(n, None) is not None:
                    steps.append((DELETE, {"id": n}))
            else:
                state[n] = row(n, chance.randint(0, 9))
                steps.append((INSERT, state[n]))
        return steps or [(INSERT, state.setdefault(0, row(0)))]

    front.write(ORDERS, *some())
    stop = threading.Event()

    def writes() -> None:
        while not stop.is_set():
            front.write(ORDERS, *some())

    writer = threading.Thread(target=writes)
    writer.start()
    follower = front.follow(table="orders", replay_existing=True)
    heard: dict[int, dict[str, Any]] = {}
    last = ""
    for n, message in enumerate(follower):
        key = int(message.key[0].number_value)
        assert message.position >= last
        last = message.position
        if message.action == "INSERT":
            assert key not in heard
        else:
            assert shown(message.old_values) == heard[key]
        if message.action == "DELETE":
            del heard[key]
        else:
            heard[key] = shown(message.new_values)
        if n == 300:
            stop.set()
            writer.join()
            target.close()  # the last changes are still given, then it ends
    assert heard == state


def test_a_subscriber_that_does_not_read_costs_the_writer_nothing_and_is_told_where_it_was(
    orders: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_target, "MAX_LAG", 10)
    follower = orders.follow(table="orders", replay_existing=True)
    seen = [next(follower) for _ in range(4) if orders.put(ORDERS, row(20)) or True]
    for n in range(30):
        orders.put(ORDERS, row(n, n))
    assert orders.targets["orders"].count() == 30
    with pytest.raises(FellBehind) as caught:
        for _ in range(100):
            seen.append(next(follower))
    error = caught.value
    assert error.facts["position"] == seen[-1].position
    assert error.facts["behind"]
    assert "replay_existing" in error.remedy
    assert connect.error_fields(error)[1]["code"] == "resource_exhausted"


def test_rows_that_are_there_do_not_count_as_lag(
    orders: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_target, "MAX_LAG", 2)
    follower = orders.follow(table="orders", replay_existing=True)
    orders.put(ORDERS, row(8))
    orders.put(ORDERS, row(9))
    assert [next(follower).key[0].number_value for _ in range(5)] == [1, 2, 3, 8, 9]
    follower.close()


def test_new_columns_reach_a_subscriber_with_the_first_row_that_has_them(orders: Front) -> None:
    follower = orders.follow(table="orders", replay_existing=True, with_columns=True)
    assert [len(next(follower).columns) for _ in range(3)] == [3, 0, 0]
    wider = TableSchema(
        "orders", (*ORDERS.columns, Column("more", ValueType("boolean"), 9)), ORDERS.key
    )
    target = orders.targets["orders"]
    target.schema_changed("orders", ORDERS, wider)
    loading = target.load("orders", 2)
    rows = changes(wider, [(INSERT, ORIGIN, {**row(1, 7, "a"), "more": True})])
    loading.write(rows.drop_columns(["_op", "_commit", "_ordinal", "_time"]))
    loading.switch(Position(1, 9))
    messages = [next(follower) for _ in range(3)]
    assert [each.action for each in messages] == ["DELETE", "DELETE", "UPDATE"]
    assert [len(each.columns) for each in messages] == [4, 0, 0]
    assert shown(messages[2].new_values) == {**row(1, 7, "a"), "more": True}
    assert shown(messages[2].old_values) == row(1, 7, "a")
    follower.close()


# -- a copy ------------------------------------------------------------------------------------


def copy_of(front: Front, table: str = "orders") -> Iterator[v1.FollowResponse]:
    """Yield the messages of a feed; closing this closes it."""
    asked = v1.FollowRequest(table=table).SerializeToString()
    stream = front.services.stream(f"{OURS}Follow", asked, ME)
    try:
        yield from map(v1.FollowResponse.FromString, stream)
    finally:
        stream.close()


def rows_of(message: v1.FollowResponse) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.ipc.open_stream(message.arrow).read_all().to_pylist()
    return found


def test_a_feed_has_all_rows_and_then_the_changes_of_each_batch_as_arrow(front: Front) -> None:
    front.add("p", ORDERS, indexes={"by_grp": ["grp"]}, lookup=["note"])
    front.put(ORDERS, row(1, 7, "a"), row(2, 7, "b"))
    feed = copy_of(front)
    begin, rows, live = (next(feed) for _ in range(3))
    assert [each.action for each in (begin, rows, live)] == ["BEGIN", "ROWS", "LIVE"]
    assert [(each.name, each.type) for each in begin.columns][:2] == [
        ("id", "int64"),
        ("grp", "int32"),
    ]
    assert list(begin.key) == ["id"]
    assert {each.name: list(each.columns) for each in begin.indexes} == {
        "by_grp": ["grp"],
        "": ["note"],
    }
    assert (begin.pipeline, begin.table, begin.lineage) == ("p", "orders", "the first history")
    assert rows_of(rows) == [row(1, 7, "a"), row(2, 7, "b")]
    assert live.position == str(Position(1, 1, 1))
    at = front.write(ORDERS, (DELETE, {"id": 1}), (UPDATE, row(2, 8, "c")), (INSERT, row(3)))
    changed = next(feed)
    assert (changed.action, changed.position, changed.truncate) == ("CHANGES", str(at), "")
    found = rows_of(changed)
    assert [each["_op"] for each in found] == [DELETE, UPDATE, INSERT]
    assert [each["_commit"] for each in found] == [2, 2, 2]
    assert [each["_ordinal"] for each in found] == [0, 1, 2]
    assert [each["id"] for each in found] == [1, 2, 3]
    at = Position(1, 5)
    steps = changes(ORDERS, [(INSERT, Position(1, 5, 1), row(9))])
    last = Position(1, 5, 1)
    front.targets["p"].write(Batch("t", 1, at, last, {"orders": steps}, {"orders": at}))
    emptied = next(feed)
    assert (emptied.truncate, emptied.position) == (str(at), str(last))
    assert [(each["_op"], each["id"]) for each in rows_of(emptied)] == [(INSERT, 9)]
    feed.close()  # type: ignore[attr-defined]


def test_a_feed_ends_when_the_table_is_loaded_again(orders: Front) -> None:
    feed = copy_of(orders)
    assert [next(feed).action for _ in range(3)] == ["BEGIN", "ROWS", "LIVE"]
    orders.targets["orders"].load("orders", 2).switch(Position(1, 8))
    assert list(feed) == []
    assert [next(copy_of(orders)).action] == ["BEGIN"]


def test_a_feed_that_is_read_does_not_fall_behind_and_one_that_is_not_ends_with_an_error(
    orders: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_target, "MAX_LAG", 10)
    feed, slow = copy_of(orders), copy_of(orders)
    assert [next(feed).action for _ in range(3)] == ["BEGIN", "ROWS", "LIVE"]
    assert next(slow).action == "BEGIN"
    for n in range(40):
        orders.put(ORDERS, row(n, 3))
        assert rows_of(next(feed))[0]["id"] == n
    with pytest.raises(FellBehind):
        list(slow)


def test_a_feed_of_a_table_that_is_not_ready_is_refused_and_not_empty(front: Front) -> None:
    front.add("p", ORDERS, show=False)
    with pytest.raises(UnknownTable):
        next(copy_of(front))


# -- which table, and who may see it ------------------------------------------------------


def count(front: Front, caller: Caller = ME, **fields: Any) -> v1.CountRowsResponse:
    return front.ask(v1.CountRowsResponse, v1.CountRowsRequest(**fields), caller)


def test_schema_and_table_are_joined_and_the_first_pipeline_answers(front: Front) -> None:
    schema = of_table(ORDERS, "public.orders")
    front.add("first", schema)
    front.put(schema, row(1))
    front.add("second", schema)
    front.put(schema, row(2))
    assert count(front, schema="public", table="orders").pipeline == "first"
    assert count(front, table="public.orders").count == 2
    assert count(front, schema="public", table="orders", pipeline="second").count == 1
    assert count(front, pipeline="second").pipeline == "second"


@pytest.mark.parametrize(
    ("fields", "error", "code", "words"),
    [
        ({}, BadRequest, "invalid_argument", "Schema and table are required"),
        ({"schema": "public"}, BadRequest, "invalid_argument", "Schema and table are required"),
        (
            {"schema": "public", "table": "absent"},
            UnknownPipeline,
            "not_found",
            "No indexed target found for public.absent",
        ),
        (
            {"table": "absent", "pipeline": "orders"},
            UnknownPipeline,
            "not_found",
            "No indexed target found for absent",
        ),
        ({"pipeline": "absent"}, UnknownPipeline, "not_found", "There is no pipeline absent"),
        ({"pipeline": "lake"}, BadRequest, "invalid_argument", "cannot be queried"),
        ({"pipeline": "several"}, BadRequest, "invalid_argument", "several tables"),
        ({"table": "late"}, UnknownTable, "failed_precondition", "not ready"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_with_the_reason(
    orders: Front,
    fields: dict[str, Any],
    error: type[HeadraceError],
    code: str,
    words: str,
) -> None:
    orders.add("several", of_table(ORDERS, "a"), of_table(ORDERS, "b"))
    orders.add("loading", of_table(ORDERS, "late"), show=False)
    with pytest.raises(error) as caught:
        count(orders, **fields)
    assert words in caught.value.message
    assert connect.error_fields(caught.value)[1]["code"] == code


def test_nothing_is_read_before_the_engine_has_started(orders: Front) -> None:
    orders.control.phase = "starting"
    with pytest.raises(NotRunning, match="still starting"):
        count(orders, table="orders")


REQUESTS: Mapping[str, Message] = {
    "Lookup": v1.LookupRequest(table="orders", key_values=values(1)),
    "LookupAll": v1.LookupAllRequest(table="orders", index_name="by_grp", key_values=values(7)),
    "GetRow": v1.GetRowRequest(table="orders", primary_key=1),
    "ListRows": v1.ListRowsRequest(table="orders"),
    "CountRows": v1.CountRowsRequest(table="orders"),
    "BatchLookup": v1.BatchLookupRequest(table="orders", keys=[ListValue(values=values(1))]),
    "Subscribe": v1.SubscribeRequest(table="orders"),
    "Follow": v1.FollowRequest(table="orders"),
}

STREAMS = ("Subscribe", "Follow")


@pytest.mark.parametrize("name", list(REQUESTS))
@pytest.mark.parametrize("by_pipeline", [False, True])
def test_a_token_for_other_tables_gets_no_row_and_learns_nothing(
    orders: Front, name: str, by_pipeline: bool
) -> None:
    service = v1.DESCRIPTOR.services_by_name["QueryService"]
    assert set(REQUESTS) == {each.name for each in service.methods}
    asked = type(REQUESTS[name])()
    asked.CopyFrom(REQUESTS[name])
    if by_pipeline:
        asked.table, asked.pipeline = "", "orders"
    call: Any = orders.services.stream if name in STREAMS else orders.services.call
    other = Caller("dashboard", "read", "10.0.0.1", ("customers",))
    with pytest.raises(Forbidden) as caught:
        call(OURS + name, asked.SerializeToString(), other)
    assert caught.value.facts["table"] == "orders"
    assert connect.error_fields(caught.value)[1]["code"] == "permission_denied"
    own = Caller("dashboard", "read", "10.0.0.1", ("customers", "orders"))
    answer = call(OURS + name, asked.SerializeToString(), own)
    if name in STREAMS:
        answer.close()


def test_a_token_that_may_not_see_a_table_does_not_learn_whether_it_is_there(
    orders: Front,
) -> None:
    other = Caller("dashboard", "read", "10.0.0.1", ("customers",))
    with pytest.raises(Forbidden):
        count(orders, other, table="absent")
    with pytest.raises(Forbidden):
        count(orders, other, schema="public", table="customers")


# -- the peer's clients -------------------------------------------------------------------


def field(number: int, content: bytes | int) -> bytes:
    """Return one field of a message as bytes; numbers below 16 and short contents only."""
    if isinstance(content, int):
        return bytes([number << 3, content])
    return bytes([number << 3 | 2, len(content)]) + content


TEXT_A = field(3, b"a")  # a google.protobuf.Value with a string
NUMBER_7 = b"\x11" + struct.pack("<d", 7.0)  # and one with a number
TABLE = field(1, b"public") + field(2, b"orders")


def parts(data: bytes) -> dict[int, list[bytes | int]]:
    """Return the fields of a message by number, as any reader of protobuf sees them."""
    found: dict[int, list[bytes | int]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(data):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            found.setdefault(number, []).append(varint())
        else:
            assert kind == 2
            size = varint()
            found.setdefault(number, []).append(data[at : at + size])
            at += size
    return found


@pytest.fixture
def laredo(front: Front) -> Front:
    schema = of_table(ORDERS, "public.orders")
    front.add("p", schema, indexes={"by_grp": ["grp"]}, lookup=["note"])
    front.put(schema, row(1, 7, "a"), row(2, 7, "b"))
    return front


@pytest.mark.parametrize(
    ("name", "body", "numbers"),
    [
        ("Lookup", TABLE + field(4, TEXT_A), {1: 1, 2: "row"}),
        ("Lookup", TABLE + field(3, b"by_grp") + field(4, NUMBER_7), {1: 1, 2: "row"}),
        ("LookupAll", TABLE + field(3, b"by_grp") + field(4, NUMBER_7), {1: "rows"}),
        ("GetRow", TABLE + field(3, 1), {1: 1, 2: "row"}),
        ("ListRows", TABLE + field(3, 1), {1: "rows", 2: "token", 3: 2}),
        ("CountRows", TABLE, {1: 2}),
    ],
)
def test_the_bytes_of_a_laredo_client_are_understood_and_answered_by_its_numbers(
    laredo: Front, name: str, body: bytes, numbers: dict[int, object]
) -> None:
    answer = laredo.services.call(THEIRS + name, body, ME)
    assert answer == laredo.services.call(OURS + name, body, ME)
    found = {number: value for number, value in parts(answer).items() if number < 100}
    assert set(found) == set(numbers)
    for number, what in numbers.items():
        if isinstance(what, int):
            assert found[number] == [what]
        elif what != "token":
            row = Struct.FromString(found[number][0])
            assert shown(row) == {"id": 1, "grp": 7, "note": "a"}


def test_a_laredo_subscriber_reads_actions_rows_and_positions_by_its_numbers(
    laredo: Front,
) -> None:
    stream = laredo.services.stream(THEIRS + "Subscribe", TABLE + field(3, 1), ME)
    laredo.write(of_table(ORDERS, "public.orders"), (UPDATE, row(1, 8, "a")), (DELETE, {"id": 2}))
    received = iter(stream)
    messages = [parts(next(received)) for _ in range(4)]
    stream.close()
    assert [each[1] for each in messages] == [[b"INSERT"], [b"INSERT"], [b"UPDATE"], [b"DELETE"]]
    assert [sorted(n for n in each if n < 100) for each in messages] == [
        [1, 2, 6],
        [1, 2, 6],
        [1, 2, 4, 5, 6],
        [1, 2, 4, 5],
    ]
    assert shown(Struct.FromString(messages[2][6][0])) == row(1, 8, "a")


# -- a real engine ------------------------------------------------------------------------


def test_an_engine_answers_for_its_tables_with_their_position_and_lineage(
    tmp_path: Path,
) -> None:
    market = Market(tmp_path, ("orders", "items"))
    target = memory()
    with market.engine(market.pipeline(target, "orders", "items", name="all")) as engine:
        assert engine.await_ready(patience())
        services = Services(engine, ControlService(engine))
        asked = v1.GetRowRequest(table="items", primary_key=3)
        body = asked.SerializeToString()
        found = v1.GetRowResponse.FromString(services.call(OURS + "GetRow", body, ME))
        assert shown(found.row) == market.truth("items")[3]
        assert found.position == str(target.table("items").position)
        assert found.lineage == market.log().lineage
        assert found.pipeline == "all"
