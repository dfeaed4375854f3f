"""
The two programs around a server that is measured: one that only echoes, and one that asks.

`echo DESCRIPTOR` is an ASGI function under the same uvicorn, httptools and uvloop as our server:
what a request costs at least. `ask URL CONNECTIONS SECONDS [PAUSE]` reads a request from standard
input and sends it on each connection, again as soon as the answer has come, or after a pause; it
prints how many answers came, and how long they took.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import uvicorn
import uvloop

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def echo(scope: Any, receive: Callable[[], Awaitable[Any]], send: Send) -> None:
    """Answer with the body of the request."""
    body = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message["more_body"]:
            break
    headers = [(b"content-type", b"application/proto"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def serve_echo(descriptor: int) -> None:
    """Serve `echo` on a listening socket, until the end."""
    config = uvicorn.Config(
        echo,
        http="httptools",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
    )
    server = uvicorn.Server(config)
    uvloop.run(server.serve([socket.socket(fileno=descriptor)]))


class _Asking(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, request: bytes, pause: float, took: list[float], delay: float) -> None:
        self._request = request
        self._pause = pause
        self._took = took
        self._delay = delay
        self._data = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        asyncio.get_running_loop().call_later(self._delay, self._ask)

    def _ask(self) -> None:
        self._began = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        assert head.startswith(b"HTTP/1.1 200"), self._data
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return
        self._data = b""
        now = time.perf_counter()
        self._took.append(now - self._began)
        if self._pause:
            left = self._pause - (now - self._began)
            asyncio.get_running_loop().call_later(max(0, left), self._ask)
        else:
            self._ask()


async def ask(url: str, connections: int, seconds: float, pause: float, request: bytes) -> None:
    """Ask for some seconds; print how many answers came, and how long they took."""
    parts = urlsplit(url)
    took: list[float] = []
    loop = asyncio.get_running_loop()
    for number in range(connections):
        delay = pause * number / connections
        await loop.create_connection(
            lambda delay=delay: _Asking(request, pause, took, delay),  # type: ignore[misc]
            parts.hostname or "",
            parts.port or 0,
        )
    began = time.perf_counter()
    await asyncio.sleep(seconds)
    elapsed = time.perf_counter() - began
    took.sort()
    found = {
        "per_s": len(took) / elapsed,
        "p50_ms": 1000 * took[len(took) // 2],
        "p99_ms": 1000 * took[len(took) * 99 // 100],
    }
    print(json.dumps(found))


def main(arguments: Sequence[str]) -> None:
    """Run one of the two."""
    if arguments[0] == "echo":
        return serve_echo(int(arguments[1]))
    url, connections, seconds, pause = arguments[1:5]
    request = sys.stdin.buffer.read()
    return uvloop.run(ask(url, int(connections), float(seconds), float(pause), request))


if __name__ == "__main__":
    main(sys.argv[1:])
