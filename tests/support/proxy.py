"""A TCP proxy in front of a server, whose connections can be made to lose what they carry."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_LOOK_SECONDS = 0.05
_HEAD_BYTES = 4096


@dataclass(eq=False)
class Carried:
    """One connection through the proxy."""

    client: socket.socket
    server: socket.socket
    head: bytes = b""
    """What the client sent first: with PostgreSQL, the parameters of the session."""

    lost: set[str] = field(default_factory=set)
    """Directions in which bytes are taken and thrown away: `to_client`, `to_server`."""

    @property
    def replicates(self) -> bool:
        return b"replication\0" in self.head


class Proxy:
    """Carries connections to a port of this machine; each may be silenced, and stays open."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._carried: list[Carried] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def lose(
        self, *directions: str, of: Callable[[Carried], bool] = lambda each: each.replicates
    ) -> int:
        """Lose what goes in these directions, on connections that exist now; return how many."""
        with self._lock:
            found = [each for each in self._carried if of(each)]
            for each in found:
                each.lost.update(directions)
        return len(found)

    def close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._ended.is_set():
            if not select.select([self._listener], [], [], _LOOK_SECONDS)[0]:
                continue
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                client.close()  # the server is away
                continue
            each = Carried(client, server)
            with self._lock:
                self._carried.append(each)
            thread = threading.Thread(target=self._carry, args=(each,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _carry(self, each: Carried) -> None:
        with each.client, each.server, suppress(OSError):
            while not self._ended.is_set() and all(
                self._pass_on(each, end)
                for end in select.select([each.client, each.server], [], [], _LOOK_SECONDS)[0]
            ):
                pass
        with self._lock:
            self._carried.remove(each)

    @staticmethod
    def _pass_on(each: Carried, end: socket.socket) -> bool:
        """Pass on what has arrived at one end; return whether that was not the end."""
        data = end.recv(1 << 16)
        upwards = end is each.client
        if upwards and len(each.head) < _HEAD_BYTES:
            each.head += data
        if ("to_server" if upwards else "to_client") not in each.lost:
            (each.server if upwards else each.client).sendall(data)
        return bool(data)


@contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    """Give a proxy to a port of this machine, and close it at the end."""
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
