"""The client of a running engine, over the local socket."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.api import connect, server
from headrace.errors import ControlError, NoAnswer, NoEngine

ANSWER_SECONDS = 60.0
"""How long to wait for an answer. An engine that is silent for longer is stuck."""

STATUS_SECONDS = 5.0
"""The same for a status, which waits for nothing: more than a busy machine takes."""


_FULL_SECONDS = 0.02


class Control:
    """A running engine, seen from another process; every call uses a new connection."""

    def __init__(self, data: Path, path: Path) -> None:
        self._data = data
        self._path = path

    @classmethod
    def connect(cls, data: str | os.PathLike[str]) -> Control:
        """Find the engine of a data directory; `NoEngine` if none accepts commands."""
        folder = Path(data).expanduser().absolute()
        if (found := server.announced(folder)) is None:
            raise server.not_reached(folder)
        control = cls(folder, found.socket)
        # The file of a killed engine still exists: only its socket shows whether it runs.
        control._opened(STATUS_SECONDS).close()
        return control

    def call(
        self, verb: str, *, answer_seconds: float = ANSWER_SECONDS, **fields: Any
    ) -> dict[str, Any]:
        """Send a request and return the fields of the answer; raises what the engine raised."""
        connection = self._opened(answer_seconds)
        try:
            response = self._asked(connection, verb, connect.UNARY, connect.message(fields))
            return self._answer(response)
        except TimeoutError:
            raise self._silent(answer_seconds) from None
        except (OSError, http.client.HTTPException):
            raise self._gone() from None
        finally:
            connection.close()

    def status(self) -> dict[str, Any]:
        """Return the fields of the verb `Status`; `NoAnswer` if the engine itself hangs."""
        return self.call("Status", answer_seconds=STATUS_SECONDS)

    def stream(self, verb: str, **fields: Any) -> Iterator[dict[str, Any]]:
        """
        Send a request and yield its answers one after the other, without a time limit.

        Raises what the engine raised, and `NoEngine` if the connection breaks.
        """
        connection = self._opened(None)
        try:
            data = connect.envelope(fields)
            response = self._asked(connection, verb, connect.STREAMING, data)
            if response.status != http.client.OK:
                self._answer(response)
            yield from connect.envelopes(response)
        except (OSError, EOFError, http.client.HTTPException):
            raise self._gone() from None
        finally:
            connection.close()

    def _opened(self, timeout: float | None) -> _Connection:
        until = time.monotonic() + (ANSWER_SECONDS if timeout is None else timeout)
        while True:
            connection = _Connection(self._path, timeout)
            try:
                connection.connect()
            except BlockingIOError:
                # It has a socket, and takes no connection: too many wait to be answered.
                if time.monotonic() >= until:
                    raise self._silent(ANSWER_SECONDS if timeout is None else timeout) from None
                time.sleep(_FULL_SECONDS)
            except OSError:
                raise server.not_reached(self._data) from None
            else:
                return connection

    def _asked(
        self, connection: _Connection, verb: str, kind: str, data: bytes
    ) -> http.client.HTTPResponse:
        headers = {"Content-Type": kind, "Connect-Protocol-Version": "1"}
        connection.request("POST", f"{connect.SERVICE}{verb}", data, headers)
        return connection.getresponse()

    def _answer(self, response: http.client.HTTPResponse) -> dict[str, Any]:
        body = response.read()
        try:
            fields = json.loads(body)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise ControlError("The engine sent an invalid answer", status=response.status)
        if response.status != http.client.OK:
            raise connect.error_from(fields)
        return fields

    def _gone(self) -> NoEngine:
        return NoEngine(
            "The engine stopped before it answered",
            remedy="See logs/headrace.log in its data directory for the reason. Start it again:"
            " headrace run.",
            data=str(self._data),
        )

    def _silent(self, seconds: float) -> NoAnswer:
        found = server.announced(self._data)
        process = "" if found is None else f", process {found.pid},"
        return NoAnswer(
            f"The engine{process} did not answer within {seconds:g} seconds", data=str(self._data)
        )


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(self.timeout)
            self.sock.connect(str(self._path))
        except OSError:
            self.sock.close()
            raise
