"""A server and its engine, for tests: a real child, a real log, and no JVM."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from headrace.engine.engine import Engine
from headrace.server.network import NetworkServer, serve
from headrace.server.supervisor import ServerInfo
from headrace.targets.memory import memory
from tests.support.patience import patience
from tests.support.shop import Shop

CONTROL = "/headrace.v1.ControlService/"
OAM = "/headrace.v1.OAMService/"
QUERY = "/headrace.v1.QueryService/"


class Served:
    """A shop, its engine, and the server of that."""

    def __init__(self, shop: Shop, engine: Engine, server: NetworkServer, **client: Any) -> None:
        self.shop = shop
        self.engine = engine
        self.server = server
        self.http = httpx.Client(base_url=server.info.http, timeout=patience(), **client)

    @property
    def pid(self) -> int:
        """The child's process id."""
        found = self.server.info.pid
        assert found is not None
        return found

    def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        """Call a verb of the command line; return the fields of the answer."""
        response = self.http.post(f"{CONTROL}{verb}", json=fields)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found


@contextmanager
def served(
    folder: Path, client: Mapping[str, Any] | None = None, **options: Any
) -> Iterator[Served]:
    """An engine at work with a server that serves, on ports that are free."""
    shop = Shop(folder)
    target = memory(indexes={"by_customer": ["customer_id"]}, lookup=["id"])
    options = {"http_port": 0, "grpc_port": 0, **options}
    with shop.engine(shop.pipeline(target, "orders")) as engine, serve(engine, **options) as server:
        assert engine.await_ready(patience())
        await_child(server, lambda info: info.state == "serving" and bool(info.grpc), shop.data)
        found = Served(shop, engine, server, **(client or {}))
        try:
            yield found
        finally:
            found.http.close()
    shop.close()


def await_child(server: NetworkServer, what: Callable[[ServerInfo], bool], data: Path) -> None:
    """Wait for something observed about a server, unless its child fails again and again."""
    first = server.info.restarts
    server._supervisor.await_that(lambda info: what(info) or info.restarts > first + 3, patience())
    assert what(server.info), f"{server.info}\n{log_of(data)[-3000:]}"


def log_of(data: Path) -> str:
    """What the child has written, for the message of a test that fails."""
    file = data / "logs" / "server.log"
    return file.read_text() if file.exists() else ""


def enveloped(data: bytes, flags: int = 0) -> bytes:
    return struct.pack(">BI", flags, len(data)) + data


def messages(response: httpx.Response) -> Iterator[tuple[int, bytes]]:
    """Yield flags and bytes of the messages of a stream."""
    rest = b""
    for piece in response.iter_raw():
        rest += piece
        while len(rest) >= 5 and len(rest) >= 5 + (size := int.from_bytes(rest[1:5], "big")):
            yield rest[0], rest[5 : 5 + size]
            rest = rest[5 + size :]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def code_of(response: httpx.Response) -> str:
    """The Connect code of an error."""
    found: str = json.loads(response.content)["code"]
    return found
