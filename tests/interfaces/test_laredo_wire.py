"""
Laredo's clients, byte by byte: requests and answers by the numbers of its messages alone.

Nothing here uses our generated classes: the fields are written and read by number and wire type,
as its own client does it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from headrace.api.services import Services
from headrace.engine.engine import Engine
from headrace.errors import BadRequest, HeadraceError, NotAvailable, NotConfirmed, UnknownPipeline
from headrace.targets.memory import memory
from tests.interfaces.callers import LOCAL, Asking, bounded
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Market, await_seen, await_that

Fields: TypeAlias = dict[int, list[int | bytes]]


# -- the encoding ---------------------------------------------------------------------------


def varint(number: int) -> bytes:
    data = b""
    while number > 0x7F:
        data += bytes([number & 0x7F | 0x80])
        number >>= 7
    return data + bytes([number])


def field(number: int, value: str | bytes | bool | int) -> bytes:
    """Return a field: a number as a varint, anything else with its length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(int(value))
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def fields(data: bytes) -> Fields:
    """Return the fields of a message by their numbers."""
    found: Fields = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            found.setdefault(tag >> 3, []).append(value)
            continue
        if kind == 1:
            size = 8
        else:
            assert kind == 2, f"wire type {kind}"
            size, at = _varint(data, at)
        found.setdefault(tag >> 3, []).append(data[at : at + size])
        at += size
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def messages(found: Fields, number: int) -> list[Fields]:
    return [fields(each) for each in found.get(number, []) if isinstance(each, bytes)]


def text(found: Fields, number: int) -> str:
    (value,) = found.get(number, [b""])
    assert isinstance(value, bytes)
    return value.decode()


def number(found: Fields, at: int) -> int:
    (value,) = found.get(at, [0])
    assert isinstance(value, int)
    return value


def value_of(found: Fields) -> object:
    """Return a google.protobuf.Value: null 1, number 2, string 3, bool 4."""
    if 2 in found:
        (data,) = found[2]
        assert isinstance(data, bytes)
        return struct.unpack("<d", data)[0]
    return text(found, 3) if 3 in found else bool(number(found, 4)) if 4 in found else None


def row(found: Fields, at: int) -> dict[str, object]:
    """Return a google.protobuf.Struct: fields 1, each with key 1 and value 2."""
    (message,) = messages(found, at)
    return _struct(message)


def _struct(message: Fields) -> dict[str, object]:
    return {text(e, 1): value_of(messages(e, 2)[0]) for e in messages(message, 1)}


def a_number(value: float) -> bytes:
    """Return a google.protobuf.Value with a number."""
    return varint(2 << 3 | 1) + struct.pack("<d", value)


# -- a server for its clients -----------------------------------------------------------------


class Laredo:
    """What its client does: a path, bytes, bytes."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def oam(self, name: str, *parts: bytes) -> Fields:
        path = f"/laredo.v1.LaredoOAMService/{name}"
        return fields(self._services.call(path, b"".join(parts), LOCAL))

    def query(self, name: str, *parts: bytes) -> Fields:
        path = f"/laredo.v1.LaredoQueryService/{name}"
        return fields(self._services.call(path, b"".join(parts), LOCAL))

    @contextmanager
    def stream(self, service: str, name: str, *parts: bytes) -> Iterator[Iterator[Fields]]:
        path = f"/laredo.v1.{service}/{name}"
        with bounded(self._services.stream(path, b"".join(parts), LOCAL)) as found:
            yield map(fields, found)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.market = Market(folder, ("public.orders", "public.items"))
        self.bad = {"bad"}
        runner = ArrowRunner(fails=lambda _, row: "BROKEN" if row["status"] in self.bad else None)
        target = memory(indexes={"by_status": ["status"]}, lookup=["id"])
        pipeline = self.market.pipeline(target, "public.orders", "public.items", name="all")
        self.engine: Engine = self.market.engine(pipeline, runner=runner)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("laredo"))
    with bench.engine as engine:
        assert engine.await_ready(PATIENCE)
        bench.market.put("public.orders", 11, status="new")
        assert await_that(engine, lambda: engine.pipeline_info("all").counts.inserts == 1)
        yield bench


@pytest.fixture(scope="module")
def services(bench: Bench) -> Services:
    return Asking(bench.engine).services


@pytest.fixture
def laredo(bench: Bench, services: Services) -> Laredo:
    """A client of an engine that is ready, whatever the test before has paused or reloaded."""
    bench.engine.resume()
    laredo = Laredo(services)
    assert await_seen(lambda: number(laredo.oam("GetStatus"), 1) == STREAMING)
    assert bench.engine.await_ready(PATIENCE)
    return laredo


ORDERS = field(1, "public") + field(2, "orders")
STREAMING, PAUSED = 3, 4


@pytest.mark.meets("WIR-02")
def test_the_status_of_the_engine(bench: Bench, laredo: Laredo) -> None:
    found = laredo.oam("GetStatus")
    assert number(found, 1) == STREAMING
    (source,) = messages(found, 2)
    assert (text(source, 1), text(source, 2), number(source, 3)) == ("shop", "test", 1)
    assert (text(source, 4), text(source, 5)[:2]) == ("total", "1:")
    assert {1, 2, 3, 4, 5, 9} <= source.keys()
    (pipeline,) = messages(found, 3)
    assert (text(pipeline, 1), text(pipeline, 2)) == ("all", "shop")
    assert text(pipeline, 4) == "public.orders, public.items"
    assert (text(pipeline, 5), number(pipeline, 6)) == ("indexed-memory", STREAMING)
    info = bench.engine.pipeline_info("all")
    assert (number(pipeline, 7), number(pipeline, 8)) == (info.rows, info.counts.inserts)
    assert number(pipeline, 8) > 0
    assert number(pipeline, 15) == 400_000
    for at in (4, 5):
        (moment,) = messages(found, at)
        assert number(moment, 1) > 1_700_000_000
    (snapshots,) = messages(found, 6)
    assert number(snapshots, 1) == 0


@pytest.mark.meets("WIR-02")
def test_the_status_of_a_table_and_of_a_pipeline(laredo: Laredo) -> None:
    found = laredo.oam("GetTableStatus", ORDERS)
    assert [text(each, 1) for each in messages(found, 1)] == ["all"]
    indexes = messages(found, 2)
    assert [text(each, 1) for each in indexes] == ["", "", "by_status"]
    assert [text(indexes[2], 2), number(indexes[0], 3), number(indexes[2], 3)] == ["status", 1, 0]
    assert number(indexes[2], 4) == number(laredo.query("CountRows", ORDERS), 1)
    found = laredo.oam("GetPipelineStatus", field(1, "all"))
    (status,) = messages(found, 1)
    assert text(status, 1) == "all"
    assert len(messages(found, 2)) == 6
    with pytest.raises(UnknownPipeline):
        laredo.oam("GetPipelineStatus", field(1, "none"))


@pytest.mark.meets("WIR-02")
def test_a_watch_tells_rows_and_states(bench: Bench, laredo: Laredo) -> None:
    with laredo.stream("LaredoOAMService", "WatchStatus", field(2, "all")) as stream:
        bench.market.put("public.orders", 12)
        found = next(each for each in stream if 4 in each)
        (change,) = messages(found, 4)
        assert (text(change, 1), text(change, 2), text(change, 3)) == ("all", "public", "orders")
        assert (text(change, 4), 5 in change) == ("INSERT", True)
        assert number(messages(found, 1)[0], 1) > 1_700_000_000
        bench.engine.pause("all")
        found = next(each for each in stream if 3 in each)
        (state,) = messages(found, 3)
        assert (text(state, 1), number(state, 2), number(state, 3)) == ("all", STREAMING, PAUSED)


@pytest.mark.meets("WIR-02")
def test_readiness_and_sources(bench: Bench, laredo: Laredo) -> None:
    for asked in (b"", field(1, "shop"), field(2, "public.orders"), field(3, "all")):
        assert number(laredo.oam("CheckReady", asked), 1) == 1
    bench.engine.pause("all")
    found = laredo.oam("CheckReady")
    assert number(found, 1) == 0
    assert any(
        str(each, "utf-8").startswith("pipeline all: ")
        for each in found[2]
        if isinstance(each, bytes)
    )
    (source,) = messages(laredo.oam("GetSourceInfo", field(1, "shop")), 1)
    assert (text(source, 1), text(source, 2), number(source, 3)) == ("shop", "test", 1)
    assert row(source, 9)["name"] == "shop"


@pytest.mark.meets("WIR-02")
def test_control(laredo: Laredo) -> None:
    assert number(laredo.oam("PauseSync", field(1, "shop")), 1) == PAUSED
    assert number(laredo.oam("ResumeSync", field(1, "shop")), 1) != PAUSED
    found = laredo.oam("ReloadTable", field(1, "shop"), field(2, "public"), field(3, "orders"))
    assert number(found, 1) == 1
    assert text(found, 2).startswith("public.orders")
    assert number(laredo.oam("ReloadAll"), 1) == 1
    with pytest.raises(NotConfirmed):
        laredo.oam("ResetSource", field(1, "shop"))
    with pytest.raises(HeadraceError, match="cannot be reset"):
        laredo.oam("ResetSource", field(1, "shop"), field(2, True), field(3, True))


@pytest.mark.meets("WIR-02")
def test_tables_and_schemas(laredo: Laredo) -> None:
    orders, items = messages(laredo.oam("ListTables"), 1)
    assert [text(orders, at) for at in (1, 2, 3, 4, 5, 7)] == [
        *("public", "orders", "id", "shop", "test"),
        "indexed-memory",
    ]
    assert text(items, 2) == "items"
    key, status, _ = messages(laredo.oam("GetTableSchema", ORDERS), 1)
    assert (number(key, 1), text(key, 2), number(key, 5), number(key, 6)) == (1, "id", 1, 1)
    assert (number(status, 1), text(status, 2), number(status, 5)) == (2, "status", 0)
    assert text(key, 3)


@pytest.mark.meets("WIR-02")
def test_dead_letters(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with bench.engine as engine:
        laredo = Laredo(Asking(engine).services)
        assert engine.await_ready(PATIENCE)
        for key in (2, 3):
            bench.market.put("public.orders", key, status="bad")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 2)
        found = laredo.oam("ListDeadLetters", field(1, "all"), field(2, 1))
        assert number(found, 2) == 2
        (entry,) = messages(found, 1)
        assert number(messages(entry, 1)[0], 1) > 1_700_000_000
        assert (text(entry, 2), text(entry, 3)) == (
            "UPDATE",
            str(engine.dead_letters()[0].position),
        )
        assert text(entry, 4).startswith("BROKEN")
        (images,) = messages(entry, 5)
        assert {text(each, 1) for each in messages(images, 1)} == {"old", "new"}
        found = laredo.oam("ReplayDeadLetters", field(1, "all"))
        assert (number(found, 1), number(found, 2), number(found, 3)) == (2, 0, 2)
        assert number(laredo.oam("PurgeDeadLetters", field(1, "all")), 1) == 2
        # A replay: without a snapshot, of the log of a pipeline.
        bench.bad.clear()
        started = laredo.oam("StartReplay", field(2, "all"), field(3, "full"))
        assert number(started, 1) == 1
        asked = field(1, text(started, 2))
        assert await_seen(lambda: text(laredo.oam("GetReplayStatus", asked), 2) == "completed")
        found = laredo.oam("GetReplayStatus", asked)
        assert text(found, 1) == text(started, 2)
        assert number(found, 3) == 22
        assert 4 in found
        assert number(laredo.oam("StopReplay", asked), 1) == 0
        with pytest.raises(BadRequest, match="no snapshots to replay"):
            laredo.oam("StartReplay", field(1, "snapshot-1"))


@pytest.mark.meets("WIR-02")
@pytest.mark.parametrize(
    "name",
    [
        *("CreateSnapshot", "ListSnapshots", "InspectSnapshot", "RestoreSnapshot"),
        *("DeleteSnapshot", "PruneSnapshots", "DrainReplication"),
    ],
)
def test_what_this_version_does_not_have_is_said(laredo: Laredo, name: str) -> None:
    with pytest.raises(NotAvailable, match=f"{name} is not available"):
        laredo.oam(name)


@pytest.mark.meets("QRY-01")
def test_rows(laredo: Laredo) -> None:
    expected = {"id": 1.0, "status": "paid", "version": 0.0}
    found = laredo.query("Lookup", ORDERS, field(4, a_number(1)))
    assert (number(found, 1), row(found, 2)) == (1, expected)
    assert number(laredo.query("Lookup", ORDERS, field(4, a_number(999))), 1) == 0
    found = laredo.query("LookupAll", ORDERS, field(3, "by_status"), field(4, field(3, "new")))
    assert [_struct(each)["id"] for each in messages(found, 1)] == [11.0]
    found = laredo.query("GetRow", ORDERS, field(3, 1))
    assert (number(found, 1), row(found, 2)) == (1, expected)
    count = number(laredo.query("CountRows", ORDERS), 1)
    keys: list[object] = []
    token = ""
    while True:
        found = laredo.query("ListRows", ORDERS, field(3, 5), field(4, token))
        page = [_struct(each)["id"] for each in messages(found, 1)]
        assert 0 < len(page) <= 5
        assert number(found, 3) == count
        keys += page
        if not (token := text(found, 2)):
            break
    assert len(keys) == len(set(keys)) == count
    with pytest.raises(HeadraceError, match="No indexed target found"):
        laredo.query("CountRows", field(1, "public"), field(2, "nothing"))


@pytest.mark.meets("QRY-01")
@pytest.mark.meets("QRY-02")
def test_rows_that_are_there_and_changes_since(bench: Bench, laredo: Laredo) -> None:
    count = number(laredo.query("CountRows", ORDERS), 1)
    asked = (ORDERS, field(3, True))
    with laredo.stream("LaredoQueryService", "Subscribe", *asked) as stream:
        present = [next(stream) for _ in range(count)]
        assert {text(each, 1) for each in present} == {"INSERT"}
        bench.market.put("public.orders", 5, status="late", version=9)
        found = next(stream)
        assert text(found, 1) == "UPDATE"
        assert text(found, 2)
        assert row(found, 6) == {"id": 5.0, "status": "late", "version": 9.0}
