"""Requests and answers over HTTP: Connect, health, events and the files of the console."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.api.services import Caller
from headrace.errors import NotRunning, UnknownPipeline
from headrace.server.application import pages
from headrace.server.channel import Drain, EngineReport, FrameKind, framed
from headrace.server.settings import ServerLimits, ServerSettings, settings_of, token_hash
from headrace.v1 import oam_pb2, query_pb2
from tests.server.joined import READY, Exchange, Joined, Messages, joined
from tests.server.serving import CONTROL, OAM, QUERY, enveloped
from tests.support.patience import patience
from tests.support.promtext import families

STATUS = f"{OAM}GetStatus"
WATCH = f"{OAM}WatchStatus"
PAUSE = f"{OAM}PauseSync"
TOKEN = "t" * 43


def one_pipeline(body: bytes, caller: Caller) -> bytes:
    found = oam_pb2.GetStatusResponse()
    found.pipelines.add(pipeline_id="orders", row_count=7)
    return bytes(found.SerializeToString())


def changes(count: int) -> Iterator[bytes]:
    for number in range(count):
        found = oam_pb2.WatchStatusResponse()
        found.row_change.pipeline_id = f"orders-{number}"
        yield found.SerializeToString()


def code(exchange: Exchange) -> str:
    return str(exchange.json["code"])


# -- one request, one answer ----------------------------------------------------------------


def test_an_answer_is_the_same_as_json_and_as_protobuf() -> None:
    async def check(both: Joined) -> None:
        both.services.calls[STATUS] = one_pipeline
        as_json = await both.ask(STATUS, b"{}")
        assert (as_json.status, as_json.headers["content-type"]) == (200, "application/json")
        assert as_json.json["pipelines"][0]["pipelineId"] == "orders"
        assert as_json.json["pipelines"][0]["rowCount"] == "7"
        # Zero and empty fields are there, too.
        assert as_json.json["pipelines"][0]["deletesApplied"] == "0"
        as_proto = await both.ask(STATUS, b"", "application/proto")
        assert as_proto.headers["content-type"] == "application/proto"
        assert as_proto.body == one_pipeline(b"", Caller("local", "admin", ""))

    joined(check)


@pytest.mark.parametrize(
    ("number", "shown"),
    [(7.0, "7"), (2.0**53, "9007199254740992"), (0.5, "0.5"), (-0.0, "-0.0"), (1e300, "1e+300")],
)
def test_a_whole_number_of_a_row_is_written_as_one(number: float, shown: str) -> None:
    def one_row(body: bytes, caller: Caller) -> bytes:
        found = query_pb2.GetRowResponse(found=True)
        found.row["qty"] = number
        return bytes(found.SerializeToString())

    async def check(both: Joined) -> None:
        both.services.calls[f"{QUERY}GetRow"] = one_row
        found = await both.ask(f"{QUERY}GetRow", b'{"table": "orders"}')
        assert f'"row": {{"qty": {shown}}}'.encode() in found.body

    joined(check)


def test_an_unknown_field_is_named_with_those_that_there_are() -> None:
    async def check(both: Joined) -> None:
        found = await both.ask(f"{QUERY}CountRows", b'{"tabel": "orders"}')
        error = found.json["details"][0]["debug"]
        assert error["message"].endswith('has no field named "tabel" at "CountRowsRequest"')
        assert error["remedy"] == "Its fields are schema, table, pipeline."

    joined(check)


def test_a_verb_of_the_command_line_has_its_json_passed_on_as_it_is() -> None:
    async def check(both: Joined) -> None:
        both.services.calls[f"{CONTROL}Status"] = lambda body, caller: body
        found = await both.ask(f"{CONTROL}Status", b'{"a": 1}')
        assert found.body == b'{"a": 1}'
        refused = await both.ask(f"{CONTROL}Status", b"", "application/proto")
        assert (refused.status, refused.headers["accept-post"]) == (415, "application/json")

    joined(check)


def test_the_caller_is_told_to_the_engine() -> None:
    callers = []

    async def check(both: Joined) -> None:
        def takes(body: bytes, caller: Caller) -> bytes:
            callers.append(caller)
            return b""

        both.services.calls[STATUS] = takes
        await both.ask(STATUS)
        assert callers == [Caller("local", "admin", "127.0.0.1")]

    joined(check)


def test_the_clients_of_laredo_are_served_when_that_is_asked_for() -> None:
    theirs = "/laredo.v1.LaredoOAMService/GetStatus"

    async def check(both: Joined) -> None:
        both.services.calls[STATUS] = one_pipeline
        found = await both.ask(theirs, b"", "application/proto")
        assert found.status == (200 if both.settings.compat else 501)

    joined(check, ServerSettings(compat="laredo"))
    joined(check)


def test_an_error_has_its_status_its_code_and_its_detail() -> None:
    def unknown(body: bytes, caller: Caller) -> bytes:
        raise UnknownPipeline("There is no pipeline a", pipelines=["orders"])

    async def check(both: Joined) -> None:
        both.services.calls[STATUS] = unknown
        found = await both.ask(STATUS, b"", "application/proto")
        assert (found.status, code(found)) == (404, "not_found")
        assert found.headers["content-type"] == "application/json"
        detail = found.json["details"][0]
        assert (detail["type"], detail["debug"]["code"]) == (
            "headrace.v1.Error",
            "control.unknown_pipeline",
        )

    joined(check)


def test_a_mistake_of_ours_is_told_without_its_text() -> None:
    def mistaken(body: bytes, caller: Caller) -> bytes:
        raise KeyError("a secret")

    async def check(both: Joined) -> None:
        both.services.calls[STATUS] = mistaken
        found = await both.ask(STATUS)
        assert (found.status, code(found)) == (500, "internal")
        assert "secret" not in found.body.decode()

    joined(check)


@pytest.mark.parametrize(
    ("path", "body", "kind", "headers", "status", "expected"),
    [
        ("/headrace.v1.OAMService/Nothing", b"{}", "application/json", {}, 501, "unimplemented"),
        (STATUS, b"{", "application/json", {}, 400, "invalid_argument"),
        (STATUS, b'{"nothing": 1}', "application/json", {}, 400, "invalid_argument"),
        (STATUS, b"[" * 5000, "application/json", {}, 400, "invalid_argument"),
        (STATUS, b"{}", "application/json", {"content_encoding": "br"}, 501, "unimplemented"),
        (STATUS, b"{}", "application/json", {"content_encoding": "gzip"}, 400, "invalid_argument"),
        (
            STATUS,
            b"{}",
            "application/json",
            {"connect_timeout_ms": "soon"},
            400,
            "invalid_argument",
        ),
        (STATUS, b"x" * 101, "application/json", {}, 429, "resource_exhausted"),
        (STATUS, b"{}", "application/json", {"host": "evil.example"}, 403, "permission_denied"),
        (
            STATUS,
            b"{}",
            "application/json",
            {"origin": "http://evil.example"},
            403,
            "permission_denied",
        ),
    ],
)
def test_a_request_that_cannot_be_answered_is_refused_with_a_reason(
    path: str, body: bytes, kind: str, headers: dict[str, str], status: int, expected: str
) -> None:
    async def check(both: Joined) -> None:
        both.services.calls[STATUS] = one_pipeline
        found = await both.ask(path, body, kind, **headers)
        assert (found.status, code(found)) == (status, expected)

    joined(
        check, ServerSettings(limits=ServerLimits(largest_request=100 if len(body) < 200 else 9999))
    )


def test_a_request_may_be_compressed_and_not_be_more_than_others() -> None:
    async def check(both: Joined) -> None:
        both.services.calls[f"{CONTROL}Status"] = lambda body, caller: body
        both.services.streams[f"{CONTROL}Watch"] = lambda body, caller: Messages(iter([body]))
        small, large = gzip.compress(b'{"a": 1}'), gzip.compress(bytes(2000))
        found = await both.ask(f"{CONTROL}Status", small, content_encoding="gzip")
        assert found.body == b'{"a": 1}'
        found = await both.ask(f"{CONTROL}Status", large, content_encoding="gzip")
        assert (found.status, code(found)) == (429, "resource_exhausted")
        found = await both.ask(f"{CONTROL}Status", small[:-9], content_encoding="gzip")
        assert (found.status, code(found)) == (400, "invalid_argument")
        found = await both.ask(
            f"{CONTROL}Watch",
            enveloped(small, 1),
            "application/connect+json",
            connect_content_encoding="gzip",
        )
        assert found.messages == [(0, b'{"a": 1}'), (2, b"{}")]

    joined(check, ServerSettings(limits=ServerLimits(largest_request=1000)))


def test_a_body_that_does_not_come_or_is_too_long_is_not_waited_for() -> None:
    async def check(both: Joined) -> None:
        both.services.calls[STATUS] = one_pipeline
        slow = both.begin(STATUS, b"{", part=True)
        await slow.task
        assert (slow.status, code(slow)) == (504, "deadline_exceeded")
        long = both.begin(STATUS, bytes(101), part=True)
        await long.task
        assert (long.status, code(long)) == (429, "resource_exhausted")
        said = both.begin(STATUS, b"", part=True, content_length="101")
        await said.task
        assert (said.status, code(said)) == (429, "resource_exhausted")
        left = both.begin(STATUS, b"{", part=True)
        left.leave()
        await left.task
        assert (await both.ask(STATUS)).status == 200

    joined(check, ServerSettings(limits=ServerLimits(body_seconds=0.05, largest_request=100)))


def test_another_content_type_is_told_the_right_ones() -> None:
    async def check(both: Joined) -> None:
        found = await both.ask(STATUS, b"", "text/plain")
        assert found.status == 415
        assert found.headers["accept-post"] == "application/proto, application/json"
        assert b"Content-Type must be one of: application/proto, application/json" in found.body
        found = await both.ask(WATCH, b"", "application/json")
        assert found.headers["accept-post"] == "application/connect+proto, application/connect+json"

    joined(check)


def test_a_method_is_not_asked_for_with_get_and_a_page_not_with_put() -> None:
    async def check(both: Joined) -> None:
        found = await both.ask(STATUS, method="GET")
        assert (found.status, found.headers["allow"]) == (405, "POST")
        assert b"POST" in found.body
        assert (await both.ask("/", method="PUT")).status == 405
        assert (await both.ask("/nothing", method="GET")).status == 404

    joined(check)


def test_a_caller_waits_no_longer_than_it_says() -> None:
    go_on = threading.Event()

    def waits(body: bytes, caller: Caller) -> bytes:
        go_on.wait(patience())
        return b""

    async def check(both: Joined) -> None:
        both.services.calls[STATUS] = waits
        found = await both.ask(STATUS, connect_timeout_ms="20")
        assert (found.status, code(found)) == (504, "deadline_exceeded")
        go_on.set()

    joined(check)


def test_no_more_requests_wait_than_may() -> None:
    go_on = threading.Event()

    def waits(body: bytes, caller: Caller) -> bytes:
        go_on.wait(patience())
        return b""

    async def check(both: Joined) -> None:
        both.services.calls[STATUS] = waits
        waiting = [both.begin(STATUS) for _ in range(3)]
        await both.until(lambda: len(both.link._waiting) == 3)
        found = await both.ask(STATUS)
        assert (found.status, code(found)) == (429, "resource_exhausted")
        go_on.set()
        await asyncio.gather(*(each.task for each in waiting))
        assert {each.status for each in waiting} == {200}

    joined(check, ServerSettings(limits=ServerLimits(open_requests=3)))


def test_a_call_that_hangs_is_not_kept_for_a_caller_who_has_left() -> None:
    go_on = threading.Event()

    def hangs(body: bytes, caller: Caller) -> bytes:
        go_on.wait(patience())
        return b""

    async def check(both: Joined) -> None:
        both.services.calls[STATUS] = hangs
        both.services.calls[f"{OAM}ListTables"] = lambda body, caller: b""
        waiting = [both.begin(STATUS) for _ in range(10)]
        await both.until(lambda: len(both.link._waiting) == 10)
        # Other reads are answered meanwhile.
        assert (await both.ask(f"{OAM}ListTables")).status == 200
        for each in waiting:
            each.leave()
        await asyncio.gather(*(each.task for each in waiting))
        assert both.link._waiting == {}
        assert {each.status for each in waiting} == {0}
        go_on.set()
        assert (await both.ask(STATUS)).status == 200

    joined(check)


def test_a_change_that_waits_delays_neither_reads_nor_other_changes() -> None:
    go_on = threading.Event()
    count = 20

    def waits(body: bytes, caller: Caller) -> bytes:
        go_on.wait(patience())
        return b""

    async def check(both: Joined) -> None:
        both.services.calls[PAUSE] = waits
        both.services.calls[f"{OAM}ReloadAll"] = lambda body, caller: b""
        both.services.calls[STATUS] = one_pipeline
        waiting = [both.begin(PAUSE) for _ in range(count)]
        assert (await both.ask(STATUS)).status == 200
        assert (await both.ask(f"{OAM}ReloadAll")).status == 200
        go_on.set()
        await asyncio.gather(*(each.task for each in waiting))

    joined(check)


def test_an_answer_that_is_too_long_is_an_error_and_not_the_end_of_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.server.answers.LONGEST_ANSWER", 1000)

    async def check(both: Joined) -> None:
        both.services.calls[STATUS] = lambda body, caller: bytes(1001)
        both.services.streams[WATCH] = lambda body, caller: Messages(iter([bytes(1001)]))
        found = await both.ask(STATUS, b"", "application/proto")
        assert (found.status, code(found)) == (429, "resource_exhausted")
        ended = await both.ask(WATCH, enveloped(b""), "application/connect+proto")
        assert json.loads(ended.messages[0][1])["error"]["code"] == "resource_exhausted"

    joined(check)


def test_a_long_answer_is_written_as_json_while_others_are_answered() -> None:
    def long(body: bytes, caller: Caller) -> bytes:
        found = oam_pb2.GetStatusResponse()
        for number in range(5000):
            found.pipelines.add(pipeline_id=f"orders-{number}")
        return bytes(found.SerializeToString())

    async def check(both: Joined) -> None:
        both.services.calls[STATUS] = long
        both.services.calls[f"{OAM}ListTables"] = lambda body, caller: b""
        slow = both.begin(STATUS)
        await both.ask(f"{OAM}ListTables")
        assert not slow.over
        await slow.task
        assert len(slow.json["pipelines"]) == 5000

    joined(check)


# -- streams --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["json", "proto"])
def test_a_stream_has_its_messages_and_then_its_end(form: str) -> None:
    async def check(both: Joined) -> None:
        both.services.streams[WATCH] = lambda body, caller: Messages(changes(3))
        body = enveloped(b"{}" if form == "json" else b"")
        found = await both.ask(WATCH, body, f"application/connect+{form}")
        assert found.status == 200
        *some, (flags, end) = found.messages
        assert (flags, end) == (2, b"{}")
        names = [
            json.loads(data)["rowChange"]["pipelineId"]
            if form == "json"
            else oam_pb2.WatchStatusResponse.FromString(data).row_change.pipeline_id
            for _, data in some
        ]
        assert names == ["orders-0", "orders-1", "orders-2"]

    joined(check)


def test_an_error_on_the_way_is_the_last_message_of_a_stream() -> None:
    def breaks() -> Iterator[bytes]:
        yield from changes(1)
        raise NotRunning("The engine was stopped")

    async def check(both: Joined) -> None:
        both.services.streams[WATCH] = lambda body, caller: Messages(breaks())
        found = await both.ask(WATCH, enveloped(b""), "application/connect+proto")
        (flags, _), (last, end) = found.messages
        assert (flags, last) == (0, 2)
        assert json.loads(end)["error"]["code"] == "failed_precondition"

    joined(check)


@pytest.mark.parametrize(
    "body", [b"", b"{}", enveloped(b"{}", 1), enveloped(b"{}", 2), enveloped(b"{}") + b"x"]
)
def test_a_stream_is_refused_in_its_own_form(body: bytes) -> None:
    async def check(both: Joined) -> None:
        found = await both.ask(WATCH, body, "application/connect+json")
        assert found.status == 200
        [(flags, end)] = found.messages
        assert (flags, json.loads(end)["error"]["code"]) == (2, "invalid_argument")

    joined(check)


def test_the_engine_is_told_when_a_reader_leaves() -> None:
    stream = Messages(iter(()))

    async def check(both: Joined) -> None:
        both.services.streams[WATCH] = lambda body, caller: stream.endless(b"x" * 1000)
        found = both.begin(WATCH, enveloped(b""), "application/connect+proto")
        await both.until(lambda: found.messages)
        found.leave()
        await found.task
        await both.until(stream.closed.is_set)
        await both.until(lambda: both.answers.streams == 0)

    joined(check)


def test_a_slow_reader_holds_its_own_stream_and_nothing_else() -> None:
    stream, size = Messages(iter(())), 10_000

    async def check(both: Joined) -> None:
        both.services.streams[WATCH] = lambda body, caller: stream.endless(b"x" * size)
        both.services.calls[STATUS] = one_pipeline
        slow = both.begin(WATCH, enveloped(b""), "application/connect+proto")
        slow.takes.clear()
        await both.until(lambda: stream.given * size > 200_000)
        given = 0
        while given != stream.given:  # until it does not go on
            given = stream.given
            assert (await both.ask(STATUS)).status == 200
            await asyncio.sleep(0.05)
        assert given * size < 1_000_000
        slow.takes.set()
        await both.until(lambda: stream.given > 2 * given)
        slow.leave()
        await slow.task

    joined(check)


def test_a_reader_that_takes_nothing_is_disconnected() -> None:
    stream = Messages(iter(()))

    async def check(both: Joined) -> None:
        both.services.streams[WATCH] = lambda body, caller: stream.endless(b"x" * 1000)
        found = both.begin(WATCH, enveloped(b""), "application/connect+proto")
        found.takes.clear()
        async with asyncio.timeout(patience()):
            await found.aborted.wait()
            await found.task
        assert both.link.stalled == 1
        await both.until(stream.closed.is_set)

    joined(check, ServerSettings(limits=ServerLimits(stalled_seconds=0.05)))


def test_a_caller_has_no_more_streams_than_it_may() -> None:
    async def check(both: Joined) -> None:
        streams = [Messages(iter(())).endless(b"x" * 100_000) for _ in range(2)]
        both.services.streams[WATCH] = lambda body, caller: streams.pop()
        first = both.begin(WATCH, enveloped(b""), "application/connect+proto")
        await both.until(lambda: first.messages)
        found = await both.ask(WATCH, enveloped(b""), "application/connect+proto")
        assert json.loads(found.messages[0][1])["error"]["code"] == "resource_exhausted"

    joined(check, ServerSettings(limits=ServerLimits(streams_per_token=1)))


# -- an engine that hangs, stops or is gone -------------------------------------------------


def test_an_engine_that_hangs_ends_what_waits_and_what_comes() -> None:
    go_on = threading.Event()

    def waits(body: bytes, caller: Caller) -> bytes:
        go_on.wait(patience())
        return b""

    async def check(both: Joined) -> None:
        both.services.calls[STATUS] = waits
        both.services.streams[WATCH] = lambda body, caller: Messages(iter(())).endless(b"")
        waiting = both.begin(STATUS)
        streaming = both.begin(WATCH, enveloped(b""), "application/connect+proto")
        await both.until(lambda: len(both.link._waiting) == 1 and streaming.messages)
        for _ in range(5):
            both.link.tick(0)
        await asyncio.gather(waiting.task, streaming.task)
        assert (waiting.status, code(waiting)) == (503, "unavailable")
        assert json.loads(streaming.messages[-1][1])["error"]["code"] == "unavailable"
        assert code(await both.ask(STATUS)) == "unavailable"
        ready = await both.ask("/health/ready", method="GET")
        assert (ready.status, ready.json["ready"]) == (503, False)
        assert ready.json["reasons"][0]["code"] == "engine_hangs"
        go_on.set()
        both.report(EngineReport("running", READY))
        await both.until(lambda: both.link.is_ready)
        assert (await both.ask(STATUS)).status == 200
        assert (await both.ask("/health/ready", method="GET")).status == 200

    joined(check)


def test_an_engine_that_stops_is_not_ready_and_answers_until_it_has_stopped() -> None:
    async def check(both: Joined) -> None:
        both.services.calls[STATUS] = one_pipeline
        both.services.streams[WATCH] = lambda body, caller: Messages(iter(())).endless(b"")
        streaming = both.begin(WATCH, enveloped(b""), "application/connect+proto")
        await both.until(lambda: streaming.messages)
        both.calls.send(framed(FrameKind.DRAIN, body=Drain("The engine is stopping")))
        await both.until(lambda: both.link.draining)
        assert (await both.ask("/health/ready", method="GET")).status == 503
        assert (await both.ask(STATUS)).status == 200
        assert not streaming.task.done()
        both.calls.send(framed(FrameKind.DRAIN, body=Drain("The engine is stopping", now=True)))
        async with asyncio.timeout(patience()):
            await streaming.task
        end = json.loads(streaming.messages[-1][1])
        assert end["error"]["code"] == "unavailable"
        assert end["error"]["message"] == "The engine is stopping"
        assert code(await both.ask(STATUS)) == "unavailable"

    joined(check)


def test_the_end_of_either_connection_is_the_end_of_the_engine() -> None:
    async def check(both: Joined) -> None:
        both.bulk.close()
        async with asyncio.timeout(patience()):
            await both.lost.wait()

    joined(check)


# -- health, metrics, events, pages ---------------------------------------------------------


def test_health_has_the_bodies_that_probes_expect() -> None:
    async def check(both: Joined) -> None:
        live, ready, startup = [
            await both.ask(f"/health/{name}", method="GET") for name in ("live", "ready", "startup")
        ]
        assert (live.status, live.json["status"]) == (200, "ok")
        assert (ready.status, ready.json["ready"]) == (200, True)
        assert (startup.status, startup.json["status"]) == (200, "started")
        assert ready.json["reasons"] == []
        assert (await both.ask("/health/other", method="GET")).status == 404
        reasons = [{"part": "pipeline", "name": "orders", "code": "pipeline_paused"}]
        health = {**READY, "ready": {"ok": False, "reasons": reasons}}
        both.report(EngineReport("running", health))
        await both.until(lambda: not both.link.is_ready)
        red = await both.ask("/health/ready", method="GET")
        assert (red.status, red.json["ready"], red.json["reasons"]) == (503, False, reasons)
        # Whoever may not ask learns whether, and not why.
        probe = await both.ask("/health/ready", method="GET", host="10.1.2.3:4080")
        assert (probe.status, probe.json) == (503, {"ready": False})

    joined(check)


def test_metrics_are_those_of_the_engine_as_text() -> None:
    asked = []

    def metrics(body: bytes, caller: Caller) -> bytes:
        asked.append(json.loads(body))
        return b'{"text": "# HELP headrace_up Up.\\n# TYPE headrace_up gauge\\nheadrace_up 1\\n"}'

    async def check(both: Joined) -> None:
        both.services.calls[f"{CONTROL}Metrics"] = metrics
        found = await both.ask("/metrics", method="GET")
        assert found.status == 200
        shown = families(found.body.decode())
        assert shown["headrace_up"].value() == 1
        # The server's own are there, too.
        assert shown["headrace_server_requests_total"].value() == 1
        assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
        await both.ask("/metrics?compat=1", method="GET")
        assert asked == [{"compat": False}, {"compat": True}]

    joined(check)


def test_events_continue_where_a_reader_was_and_say_how_many_are_missing() -> None:
    async def check(both: Joined) -> None:
        for number in (1, 2, 5):
            both.bulk.send(framed(FrameKind.EVENT, number, b'{"event": "E%d"}' % number))
        await both.until(lambda: both.link.events.newest == 5)
        found = both.begin("/events", method="GET", last_event_id="engine-1")
        await both.until(lambda: b"E5" in found.body)
        text = found.body.decode()
        assert found.headers["content-type"] == "text/event-stream"
        assert "E1" not in text
        assert 'id: engine-2\ndata: {"event": "E2"}\n\n' in text
        assert 'event: skipped\ndata: {"count": 2}\n\nid: engine-5' in text
        # A new reader gets what comes from now on; one of an earlier engine all that is there.
        new = both.begin("/events", method="GET")
        old = both.begin("/events", method="GET", last_event_id="another-9")
        await both.until(lambda: b"E1" in old.body and new.body)
        both.bulk.send(framed(FrameKind.EVENT, 6, b'{"event": "E6"}'))
        await both.until(lambda: all(b"E6" in each.body for each in (found, new, old)))
        assert b"E5" not in new.body
        found.leave()
        await found.task

    joined(check)


def test_the_files_of_a_folder_are_served_and_no_others(tmp_path: Path) -> None:
    folder = tmp_path / "static"
    (folder / "parts").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html>")
    (folder / "parts" / "flow.js").write_text("export {}")
    (folder / ".hidden").write_text("x")
    (tmp_path / "secret").write_text("x")
    (folder / "link").symlink_to(tmp_path / "secret")

    async def check(both: Joined) -> None:
        root = await both.ask("/", method="GET")
        assert (root.status, root.body) == (200, b"<!doctype html>")
        assert root.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'self'" in root.headers["content-security-policy"]
        assert root.headers["x-content-type-options"] == "nosniff"
        script = await both.ask("/parts/flow.js", method="GET")
        assert script.headers["content-type"] == "text/javascript; charset=utf-8"
        again = await both.ask("/parts/flow.js", method="GET", if_none_match=script.headers["etag"])
        assert (again.status, again.body) == (304, b"")
        head = await both.ask("/", method="HEAD")
        assert (head.headers["content-length"], head.body) == ("15", b"")
        for path in ("/../secret", "/parts/../../secret", "/.hidden", "/link", "/parts", "//etc"):
            assert (await both.ask(path, method="GET")).status == 404, path

    joined(check, pages=pages(folder))


# -- who calls ------------------------------------------------------------------------------


def with_token(role: str) -> ServerSettings:
    access = {"role": role, "hash": token_hash(TOKEN)}
    return settings_of({"tokens": {"watcher": access}})


def test_a_call_needs_a_token_and_its_role_and_refusals_are_recorded() -> None:
    async def check(both: Joined) -> None:
        both.services.calls[STATUS] = one_pipeline
        refused = await both.ask(STATUS)
        assert (refused.status, code(refused)) == (401, "unauthenticated")
        assert refused.headers["www-authenticate"] == "Bearer"
        bearer = f"Bearer {TOKEN}"
        assert (await both.ask(STATUS, authorization=bearer)).status == 200
        forbidden = await both.ask(PAUSE, authorization=bearer)
        assert (forbidden.status, code(forbidden)) == (403, "permission_denied")
        await both.until(lambda: len(both.audited) == 2)
        assert [(each.method, each.caller) for each in both.audited] == [
            ("OAMService/GetStatus", ""),
            ("OAMService/PauseSync", "watcher"),
        ]

    joined(check, with_token("read"))


def test_what_changes_something_is_recorded_with_its_outcome() -> None:
    def refused(body: bytes, caller: Caller) -> bytes:
        raise UnknownPipeline("There is no source a")

    async def check(both: Joined) -> None:
        both.services.calls[PAUSE] = refused
        both.services.calls[f"{OAM}ReloadAll"] = lambda body, caller: b""
        await both.ask(PAUSE, b'{"sourceId": "shop"}')
        await both.ask(f"{OAM}ReloadAll", b"{}")
        await both.until(lambda: len(both.audited) == 2)
        first, second = both.audited
        assert (first.method, first.outcome) == ("OAMService/PauseSync", "control.unknown_pipeline")
        assert first.about == {"source_id": "shop"}
        assert (second.outcome, second.caller) == ("ok", "local")

    joined(check)


def test_a_browser_trades_its_token_for_a_cookie() -> None:
    async def check(both: Joined) -> None:
        both.services.calls[STATUS] = one_pipeline
        assert (await both.ask("/session", b'{"token": "wrong"}')).status == 401
        assert (await both.ask("/session", b"[]")).status == 400
        found = await both.ask("/session", json.dumps({"token": TOKEN}).encode())
        assert found.json == {"name": "watcher", "role": "read"}
        cookie, *flags = found.headers["set-cookie"].split("; ")
        assert {"HttpOnly", "SameSite=Strict"} <= set(flags)
        assert (await both.ask(STATUS, cookie=cookie)).status == 200
        await both.ask("/session", method="DELETE", cookie=cookie)
        assert (await both.ask(STATUS, cookie=cookie)).status == 401

    joined(check, with_token("read"))


def test_metrics_and_events_need_a_token_and_pages_do_not(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("hello")

    async def check(both: Joined) -> None:
        assert (await both.ask("/metrics", method="GET")).status == 401
        assert (await both.ask("/events", method="GET")).status == 401
        assert (await both.ask("/", method="GET")).status == 200
        assert (await both.ask("/health/live", method="GET")).json == {"status": "ok"}

    joined(check, with_token("read"), pages(tmp_path))


def test_a_query_is_answered_where_it_is_received() -> None:
    threads = set()

    async def check(both: Joined) -> None:
        def lookup(body: bytes, caller: Caller) -> bytes:
            threads.add(threading.current_thread())
            return b""

        both.services.calls[f"{QUERY}Lookup"] = lookup
        found = [both.begin(f"{QUERY}Lookup", b"", "application/proto") for _ in range(50)]
        await asyncio.gather(*(each.task for each in found))
        assert threads == {both._thread}

    joined(check)
