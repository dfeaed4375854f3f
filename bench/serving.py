"""
An engine on the network: lookups that are forwarded to it, what it costs the engine, the console.

The floor of a lookup is an echo of the same bytes by the same HTTP server. That of the engine's own
work is the same work without a server; beside it, clients ask for the status as consoles do.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness import Result, Rounds, at_most, ratio_at_least, ratio_at_most
from headrace.engine.engine import Engine
from headrace.pipeline.definition import Pipeline
from headrace.server.network import NetworkServer, serve
from headrace.targets.memory import memory
from headrace.targets.target import Readable
from headrace.testing.source import MemorySource
from headrace.v1 import query_pb2
from tests.support.arrow_runner import ArrowRunner

ROWS = 10_000
LOOKUP_CONNECTIONS = 8
CONSOLES = 50
BATCHES = 200


def run(*, quick: bool) -> list[Result]:
    """Measure in rounds, ours and the floor in turn."""
    rounds, seconds = (2, 1.0) if quick else (7, 4.0)
    with tempfile.TemporaryDirectory() as folder, _engine(Path(folder)) as (source, engine):
        lookups, work = Rounds(), Rounds()
        consoles: list[float] = []
        with serve(engine, http_port=0, grpc_port=0) as server, _echo() as echo:
            server.await_serving(60)
            for _ in range(rounds):
                lookup = _request("QueryService/Lookup", _lookup())
                lookups.floor.append(_asked(echo, LOOKUP_CONNECTIONS, seconds, lookup)["per_s"])
                ours = _asked(server.info.http, LOOKUP_CONNECTIONS, seconds, lookup)
                lookups.ours.append(ours["per_s"])
            for _ in range(rounds):
                status = _request("OAMService/GetStatus", b"{}", "application/json")
                asked = _asked(server.info.http, CONSOLES, 2 * seconds, status, 1.0)
                consoles.append(asked["p99_ms"])
        for _ in range(rounds):
            work.floor.append(_work(source, engine))
            with serve(engine, http_port=0, grpc_port=0) as server, _consoles(server):
                work.ours.append(_work(source, engine))
    shown = Rounds(ours=consoles)
    return [
        lookups.result("query.lookup.ratio", "/s", ratio_at_least(0.45), "an echo, same server"),
        work.result("serve.overhead", "s", ratio_at_most(1.1), "the same work without a server"),
        shown.result("console.api_p99_ms", "ms", at_most(50), ""),
    ]


@contextmanager
def _engine(folder: Path) -> Iterator[tuple[MemorySource, Engine]]:
    source = MemorySource("shop")
    source.set_supports_resume(True)
    source.set_schema("orders", {"id": "int64", "status": "text", "version": "int64"}, key=["id"])
    for key in range(ROWS):
        source.add_row("orders", {"id": key, "status": "paid", "version": 0})
    pipeline = Pipeline(source, "orders", memory(lookup=["id"]), name="orders")
    with Engine(pipeline, data=folder / "data", runner=ArrowRunner(), recorder="thread") as engine:
        assert engine.await_ready(120)
        yield source, engine


def _work(source: MemorySource, engine: Engine) -> float:
    """Return the seconds until the engine has applied a number of commits, one after the other."""
    applied = threading.Event()
    [table] = engine.targets("shop", "orders")
    assert isinstance(table, Readable)
    began = time.perf_counter()
    for number in range(BATCHES):
        version = time.perf_counter_ns()
        source.emit_update("orders", {"id": number, "status": "paid", "version": version})
        while (row := table.table("orders").get(number)) is None or row["version"] != version:
            applied.wait(0.0005)
    return time.perf_counter() - began


@contextmanager
def _echo() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
        descriptor = listening.fileno()
        command = [sys.executable, "-m", "bench.serving_peers", "echo", str(descriptor)]
        with subprocess.Popen(command, pass_fds=[descriptor]) as process:
            try:
                yield f"http://127.0.0.1:{listening.getsockname()[1]}"
            finally:
                process.kill()


@contextmanager
def _consoles(server: NetworkServer) -> Iterator[None]:
    server.await_serving(60)
    request = _request("OAMService/GetStatus", b"{}", "application/json")
    with _asking(server.info.http, CONSOLES, 3600, 1.0) as process:
        assert process.stdin is not None
        process.stdin.write(request)
        process.stdin.close()
        while server.info.clients.answered < CONSOLES:
            time.sleep(0.1)
        try:
            yield
        finally:
            process.kill()


def _asked(
    url: str, connections: int, seconds: float, request: bytes, pause: float = 0.0
) -> dict[str, float]:
    with _asking(url, connections, seconds, pause) as process:
        out, _ = process.communicate(request)
    found: dict[str, float] = json.loads(out)
    return found


def _asking(url: str, connections: int, seconds: float, pause: float) -> subprocess.Popen[bytes]:
    words = [url, str(connections), str(seconds), str(pause)]
    command = [sys.executable, "-m", "bench.serving_peers", "ask", *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _lookup() -> bytes:
    asked = query_pb2.LookupRequest(table="orders")
    asked.key_values.add().number_value = 4711
    return bytes(asked.SerializeToString())


def _request(method: str, body: bytes, kind: str = "application/proto") -> bytes:
    return (
        f"POST /headrace.v1.{method} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
