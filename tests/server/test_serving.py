"""An engine on the network: real children, both protocols, real connections, and their ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from connectrpc.client import ConnectClientSync
from connectrpc.code import Code
from connectrpc.compat import google_protobuf_codecs
from connectrpc.errors import ConnectError
from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headrace.errors import NotInstalled, UnknownPipeline, WrongValue
from headrace.server.network import serve
from headrace.server.supervisor import _Child
from headrace.v1 import error_pb2, oam_pb2
from tests.server.certificates import Authority, Files
from tests.server.joined import Messages
from tests.server.serving import (
    CONTROL,
    OAM,
    Served,
    alive,
    await_child,
    code_of,
    enveloped,
    log_of,
    messages,
    served,
)
from tests.support.children import python
from tests.support.patience import patience
from tests.support.shop import Shop, await_seen

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("served")) as found:
        yield found


# -- the protocols --------------------------------------------------------------------------


def test_a_verb_of_the_command_line_is_answered_over_http(here: Served) -> None:
    found = here.ask("Status")
    assert [each["name"] for each in found["pipelines"]] == ["orders"]
    assert found["server"]["state"] == "serving"
    assert found["server"]["http"] == here.server.info.http
    assert found["server"]["pid"] == here.pid


def test_changes_are_streamed_over_http_as_they_happen(here: Served) -> None:
    body = enveloped(json.dumps({"pipeline": "orders"}).encode())
    headers = {"content-type": "application/connect+json"}
    with here.http.stream("POST", f"{CONTROL}Watch", content=body, headers=headers) as response:
        found = messages(response)
        assert "columns" in json.loads(next(found)[1])
        here.shop.insert(range(1000, 1001))
        assert json.loads(next(found)[1])["key"] == [1000]


def test_the_services_answer_over_grpc_with_statuses_and_details(
    here: Served, services: Any
) -> None:
    status = oam_pb2.GetStatusResponse(pipelines=[oam_pb2.PipelineStatus(pipeline_id="orders")])
    services._unary[f"{OAM}GetStatus"] = lambda request, caller: status
    services._unary[f"{OAM}GetPipelineStatus"] = _unknown
    with grpc.insecure_channel(here.server.info.grpc) as channel:
        ask = channel.unary_unary(
            f"{OAM}GetStatus",
            request_serializer=oam_pb2.GetStatusRequest.SerializeToString,
            response_deserializer=oam_pb2.GetStatusResponse.FromString,
        )
        assert ask(oam_pb2.GetStatusRequest(), timeout=patience()) == status
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(f"{OAM}GetPipelineStatus")(b"", timeout=patience())
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        assert caught.value.details() == "There is no pipeline a"
        data = dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
        # The last field of the last detail is the error itself.
        name = b"type.googleapis.com/headrace.v1.Error"
        assert name in data
        found = error_pb2.Error.FromString(data[data.index(name) + len(name) + 2 :])
        assert (found.code, found.message) == ("control.unknown_pipeline", caught.value.details())
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(f"{CONTROL}Status")(b"", timeout=patience())
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_stream_over_grpc_ends_when_its_reader_leaves(here: Served, services: Any) -> None:
    stream = Messages(iter(()))
    services._streams[f"{OAM}WatchStatus"] = lambda request, caller: _Protos(stream)
    with grpc.insecure_channel(here.server.info.grpc) as channel:
        call = channel.unary_stream(
            f"{OAM}WatchStatus", response_deserializer=oam_pb2.WatchStatusResponse.FromString
        )(b"", timeout=patience())
        assert next(call).row_change.pipeline_id == "orders"
        call.cancel()
    assert stream.closed.wait(patience())


def test_another_client_of_the_protocol_is_served(here: Served, services: Any) -> None:
    status = oam_pb2.GetStatusResponse(pipelines=[oam_pb2.PipelineStatus(pipeline_id="orders")])
    services._unary[f"{OAM}GetStatus"] = lambda request, caller: status
    services._streams[f"{OAM}WatchStatus"] = lambda request, caller: _Protos(Messages(iter(())))
    services._unary[f"{OAM}GetPipelineStatus"] = _unknown
    for codec in google_protobuf_codecs():
        with ConnectClientSync(here.server.info.http, codec=codec) as client:
            found = client.execute_unary(request=oam_pb2.GetStatusRequest(), method=_GET)
            assert found == status
            changes = client.execute_server_stream(
                request=oam_pb2.WatchStatusRequest(), method=_WATCH
            )
            assert next(iter(changes)).row_change.pipeline_id == "orders"
            with pytest.raises(ConnectError) as caught:
                client.execute_unary(request=oam_pb2.GetPipelineStatusRequest(), method=_GET_ONE)
            assert caught.value.code == Code.NOT_FOUND


def _method(name: str, kind: StreamType = StreamType.UNARY) -> MethodInfo[Any, Any]:
    return MethodInfo(
        name=name,
        service_name="headrace.v1.OAMService",
        input=getattr(oam_pb2, f"{name}Request"),
        output=getattr(oam_pb2, f"{name}Response"),
        idempotency_level=IdempotencyLevel.UNKNOWN,
        stream_type=kind,
    )


_GET, _GET_ONE = _method("GetStatus"), _method("GetPipelineStatus")
_WATCH = _method("WatchStatus", StreamType.SERVER_STREAM)


def _unknown(request: Message, caller: Any) -> Message:
    raise UnknownPipeline("There is no pipeline a", pipelines=["orders"])


class _Protos:
    """Messages without end."""

    def __init__(self, stream: Messages) -> None:
        self._stream = stream
        self.close = stream.close

    def __iter__(self) -> Iterator[Message]:
        while not self._stream.closed.wait(0.01):
            yield oam_pb2.WatchStatusResponse(row_change=oam_pb2.RowChange(pipeline_id="orders"))


def test_grpc_has_health_and_reflection(here: Served) -> None:
    with grpc.insecure_channel(here.server.info.grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest(service="headrace.v1.OAMService")
        assert await_seen(
            lambda: health.Check(asked).status == health_pb2.HealthCheckResponse.SERVING
        )
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        listing = reflection_pb2.ServerReflectionRequest(list_services="")
        [answer] = reflection.ServerReflectionInfo(iter([listing]))
        names = {each.name for each in answer.list_services_response.service}
        assert {"headrace.v1.OAMService", "headrace.v1.QueryService"} <= names


def test_a_caller_over_grpc_waits_no_longer_than_its_deadline(here: Served, services: Any) -> None:
    go_on = threading.Event()

    def waits(request: Message, caller: Any) -> Message:
        go_on.wait(patience())
        return oam_pb2.GetSourceInfoResponse()

    services._unary[f"{OAM}GetSourceInfo"] = waits
    with grpc.insecure_channel(here.server.info.grpc) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(f"{OAM}GetSourceInfo")(b"", timeout=0.2)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    go_on.set()


@pytest.fixture
def services(here: Served) -> Any:
    """The front door of the engine, whose calls a test may replace."""
    return here.server._supervisor._services


def test_events_are_followed_over_http(here: Served) -> None:
    with here.http.stream("GET", "/events") as response:
        lines = response.iter_lines()
        assert next(lines) == ": events of the engine"
        here.engine.pause("orders")
        found = list(_until(lines, "PipelineStateChanged"))
        here.engine.resume("orders")
    assert any(line.startswith("id: ") for line in found)


def _until(lines: Iterator[str], text: str) -> Iterator[str]:
    for line in lines:
        yield line
        if text in line:
            return


def test_metrics_and_health_are_on_the_same_port(here: Served) -> None:
    assert "headrace_" in here.http.get("/metrics").text
    assert here.http.get("/health/live").status_code == 200
    assert await_seen(lambda: here.http.get("/health/ready").status_code == 200)


def test_a_head_that_is_too_large_ends_its_connection(here: Served) -> None:
    host, port = here.server.info.http.removeprefix("http://").split(":")
    with closing(socket.create_connection((host, int(port)), patience())) as connection:
        with suppress(OSError):  # it may be closed before all is sent
            connection.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 200_000)
        data = b""
        with suppress(ConnectionError):
            while piece := connection.recv(65536):
                data += piece
    assert data.startswith(b"HTTP/1.1 400") or not data
    assert here.ask("Status")


def test_what_is_not_http_is_refused_and_fills_no_log(here: Served) -> None:
    before = log_of(here.shop.data)
    host, port = here.server.info.http.removeprefix("http://").split(":")
    upgrade = (
        b"GET /nothing HTTP/1.1\r\nhost: localhost\r\n"
        b"connection: upgrade\r\nupgrade: websocket\r\n\r\n"
    )
    for data in (b"\x16\x03\x01garbage\r\n\r\n", b"GET\r\n\r\n", upgrade):
        with closing(socket.create_connection((host, int(port)), patience())) as connection:
            connection.sendall(data)
            assert connection.recv(65536).startswith((b"HTTP/1.1 400", b"HTTP/1.1 404"))
    assert here.ask("Status")
    assert log_of(here.shop.data) == before


def test_a_child_may_open_as_many_files_as_it_has_connections() -> None:
    program = """
import resource
from headrace.server.child import _allow_files
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
_allow_files(500)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= min(1_256, hard))
"""
    assert python("-c", program, check=True).stdout == "True\n"


def test_a_mistake_in_the_supervision_is_not_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = _Child.spawn
    mistakes = [KeyError("a mistake")]

    def spawned(*arguments: Any) -> Any:
        if mistakes:
            raise mistakes.pop()
        return spawn(*arguments)

    monkeypatch.setattr(_Child, "spawn", spawned)
    with served(tmp_path) as found:
        assert found.server.info.restarts == 1
        assert found.ask("Status")["server"]["state"] == "serving"


def test_a_caller_who_leaves_is_not_waited_for(here: Served, services: Any) -> None:
    go_on = threading.Event()

    def waits(request: Message, caller: Any) -> Message:
        go_on.wait(patience())
        return oam_pb2.ListTablesResponse()

    services._unary[f"{OAM}ListTables"] = waits
    before = log_of(here.shop.data)
    with httpx.Client(base_url=here.server.info.http) as client:
        with pytest.raises(httpx.ReadTimeout):
            client.post(f"{OAM}ListTables", json={}, timeout=0.5)
        client.close()
    assert await_seen(lambda: here.ask("Status")["server"]["requests"] == 0)
    go_on.set()
    assert log_of(here.shop.data) == before


# -- a child that dies, hangs, or cannot serve ----------------------------------------------


def test_a_child_that_is_killed_refuses_nobody_and_the_status_says_so(
    here: Served, services: Any
) -> None:
    states = []
    here.server._supervisor._on_change = lambda info: states.append((info.state, info.reason))
    stream = Messages(iter(()))
    services._streams[f"{OAM}WatchStatus"] = lambda request, caller: _Protos(stream)
    before, restarts = here.pid, here.server.info.restarts
    watching = here.http.build_request(
        "POST",
        f"{OAM}WatchStatus",
        content=enveloped(b""),
        headers={"content-type": "application/connect+proto"},
    )
    assert next(messages(here.http.send(watching, stream=True)))
    grpc_address = here.server.info.grpc
    os.kill(before, signal.SIGKILL)
    # Whoever connects now waits in the socket, which the engine keeps.
    answered = 0
    while answered < 3:
        with suppress(httpx.RemoteProtocolError, httpx.ReadError), httpx.Client() as client:
            client.post(f"{here.server.info.http}{CONTROL}Health", json={}, timeout=patience())
            answered += 1
    await_child(here.server, lambda info: info.pid not in (None, before), here.shop.data)
    assert here.server.info.restarts == restarts + 1
    # Its readers are gone, and nothing in the engine waits for them.
    assert stream.closed.wait(patience())
    assert await_seen(
        lambda: not any(each.name == "headrace-server-stream" for each in threading.enumerate())
    )
    assert states[0] == ("restarting", "The server process was killed by signal 9")
    await_child(here.server, lambda info: info.grpc == grpc_address, here.shop.data)
    assert here.ask("Status")["server"]["restarts"] == restarts + 1


@pytest.mark.slow
def test_a_child_that_is_suspended_is_replaced(
    here: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.server.supervisor.QUIET_SECONDS", 2.0)
    monkeypatch.setattr("headrace.server.supervisor.SILENT_SECONDS", 3.0)
    states = []
    here.server._supervisor._on_change = lambda info: states.append(info.state)
    before = here.pid
    os.kill(before, signal.SIGSTOP)
    await_child(here.server, lambda info: info.pid not in (None, before), here.shop.data)
    assert states[:2] == ["not_answering", "restarting"]
    assert not alive(before)
    assert here.http.get("/health/live").status_code == 200


def test_a_port_that_is_taken_stops_no_engine_and_is_named(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with shop.engine() as engine, serve(engine, http_port=port, grpc_port=0) as server:
            assert server._supervisor.await_that(
                lambda info: info.state == "port_taken", patience()
            )
            info = server.info
            assert (
                info.reason == f"Port {port} is taken: another process listens on 127.0.0.1:{port}"
            )
            assert info.error is not None
            assert f"ss -ltnp 'sport = :{port}'" in info.error.remedy
            taken.close()
            await_child(server, lambda info: info.state == "serving", shop.data)
            assert server.info.error is None
            assert httpx.get(f"{server.info.http}/health/live").status_code == 200
    shop.close()


def test_a_grpc_port_that_is_taken_leaves_http_served_and_is_tried_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with shop.engine() as engine, serve(engine, http_port=0, grpc_port=port) as server:
            await_child(server, lambda info: info.state == "serving", shop.data)
            assert (server.info.grpc, server.info.reason) == (
                "",
                f"Port {port} is taken or not permitted: 127.0.0.1:{port} cannot be opened for"
                " gRPC",
            )
            assert httpx.get(f"{server.info.http}/health/live").status_code == 200
            taken.close()
            await_child(server, lambda info: info.grpc == f"127.0.0.1:{port}", shop.data)
            assert (server.info.reason, server.info.error) == ("", None)
    shop.close()


def test_a_stop_ends_streams_and_the_child_and_closes_the_port(tmp_path: Path) -> None:
    with served(tmp_path) as found:
        address, pid = found.server.info.http, found.pid
        body = enveloped(json.dumps({"pipeline": "orders"}).encode())
        headers = {"content-type": "application/connect+json"}
        with found.http.stream("POST", f"{CONTROL}Watch", content=body, headers=headers) as answer:
            stream = messages(answer)
            assert next(stream)[0] == 0
            found.server.drain()
            assert await_seen(lambda: httpx.get(f"{address}/health/ready").status_code == 503)
            found.server.close()
            flags, end = next(stream)
            assert (flags, json.loads(end)["error"]["code"]) == (2, "unavailable")
        assert not alive(pid)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{address}/health/live")
        assert found.server.info.state == "stopped"


# -- an engine that dies or hangs -----------------------------------------------------------


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Any]:
    """An engine in a process of its own, with a server; what it printed when it was ready."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.server.engine_process", str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, log_of(tmp_path / "data")
            yield process, json.loads(line)
        finally:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()


@pytest.mark.slow
def test_an_engine_that_is_suspended_is_not_ready_until_it_goes_on(engine: Any) -> None:
    process, info = engine
    ready = f"{info['http']}/health/ready"
    assert await_seen(lambda: httpx.get(ready, timeout=patience()).status_code == 200)
    process.send_signal(signal.SIGSTOP)
    assert await_seen(lambda: httpx.get(ready, timeout=patience()).status_code == 503)
    refused = httpx.post(f"{info['http']}{CONTROL}Status", json={}, timeout=patience())
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
    process.send_signal(signal.SIGCONT)
    assert await_seen(lambda: httpx.get(ready, timeout=patience()).status_code == 200)


def test_a_child_ends_with_its_engine(engine: Any) -> None:
    process, info = engine
    assert alive(info["pid"])
    process.kill()
    process.wait(patience())
    assert await_seen(lambda: not alive(info["pid"]))


# -- TLS ------------------------------------------------------------------------------------


def test_callers_prove_who_they_are_by_certificate_on_both_ports(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, ours = authority.sign("server"), authority.sign("ingest", client=True)
    stranger = authority.sign("stranger", client=True)
    tls = {"cert": str(own.cert), "key": str(own.key), "client_ca": str(authority.cert)}
    tokens = {"ingest": {"role": "read", "certificate": "ingest"}}

    def trusting(files: Files) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(authority.cert))
        context.load_cert_chain(files.cert, files.key)
        return context

    with served(tmp_path, {"verify": trusting(ours)}, tls=tls, tokens=tokens) as found:
        assert found.server.info.http.startswith("https://127.0.0.1:")
        assert found.ask("Me") == {"name": "ingest", "role": "read", "tables": []}
        refused = found.http.post(f"{CONTROL}Reset", json={"source": "shop"})
        assert (refused.status_code, code_of(refused)) == (403, "permission_denied")
        with httpx.Client(verify=trusting(stranger), timeout=patience()) as other:
            unknown = other.post(f"{found.server.info.http}{CONTROL}Me", json={})
            assert (unknown.status_code, code_of(unknown)) == (401, "unauthenticated")
        credentials = grpc.ssl_channel_credentials(
            authority.cert.read_bytes(), ours.key.read_bytes(), ours.cert.read_bytes()
        )
        with grpc.secure_channel(found.server.info.grpc, credentials) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(f"{OAM}ResetSource")(b"", timeout=patience())
            assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
            assert caught.value.details() == "ResetSource needs the role admin"
        # Another certificate is served as soon as its files are there.
        first = _serial(found.server.info.http, trusting(ours))
        authority.sign("server")
        assert await_seen(lambda: _serial(found.server.info.http, trusting(ours)) != first)


def _serial(url: str, context: ssl.SSLContext) -> object:
    host, port = url.removeprefix("https://").split(":")
    with (
        socket.create_connection((host, int(port)), patience()) as plain,
        context.wrap_socket(plain, server_hostname=host) as found,
    ):
        return (found.getpeercert() or {})["serialNumber"]


# -- what is refused at once ----------------------------------------------------------------


def test_without_its_libraries_a_server_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.extras.util.find_spec", lambda name: None)
    shop = Shop(tmp_path)
    with pytest.raises(NotInstalled, match=r"uvicorn.*grpc") as caught:
        serve(shop.engine())
    assert "headrace-core[server]" in caught.value.remedy
    shop.close()


def test_an_address_that_others_can_reach_needs_tls_and_tokens(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with pytest.raises(WrongValue, match="no TLS and no token"):
        serve(shop.engine(), host="0.0.0.0")
    shop.close()


def test_a_child_is_not_given_the_passwords_of_its_engine(
    here: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.server.supervisor import _environment

    monkeypatch.setenv("SHOP_PASSWORD", "secret")
    monkeypatch.setenv("PGPASSWORD", "secret")
    assert "secret" not in _environment().values()
    environment = Path(f"/proc/{here.pid}/environ").read_bytes()
    assert b"PASSWORD" not in environment
