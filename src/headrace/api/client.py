"""
The client of a running engine: over its local socket, or over the network.

Both take the same calls and raise the same errors: a verb does not know where its engine is. Every
call uses a new connection.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headrace.api import connect, server
from headrace.api.address import (
    Address,
    NetworkConnection,
    checked_token,
    tls_context,
    tls_failed,
)
from headrace.errors import (
    ControlError,
    Forbidden,
    HeadraceError,
    NoAnswer,
    NoEngine,
    Unauthenticated,
    Unreachable,
)

ANSWER_SECONDS = 60.0
"""How long to wait for an answer. An engine that is silent for longer is stuck."""

STATUS_SECONDS = 5.0
"""The same for a status, which waits for nothing: more than a busy machine takes."""


_FULL_SECONDS = 0.02


class Control:
    """A running engine, seen from another process; every call uses a new connection."""

    def __init__(self, route: _Route) -> None:
        self._route = route

    @classmethod
    def connect(cls, data: str | os.PathLike[str]) -> Control:
        """Find the engine of a data directory; `NoEngine` if none accepts commands."""
        folder = Path(data).expanduser().absolute()
        if (found := server.announced(folder)) is None:
            raise server.not_reached(folder)
        route = _LocalRoute(folder, found.socket)
        # The file of a killed engine still exists: only its socket shows whether it runs.
        route.opened(STATUS_SECONDS).close()
        return cls(route)

    @classmethod
    def at(
        cls,
        address: str,
        *,
        token: str | None = None,
        ca: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> Control:
        """
        Return the engine at an address: `HOST:PORT`, `https://HOST:PORT`.

        It is reached at the first call, which raises `Unreachable` or `NotTrusted` if it fails.
        `ca` are the authorities to trust instead of the system's; `certificate` and `key` prove
        who we are. Raises `BadAddress`, `InsecureAddress` or `BadCertificate`.
        """
        where = Address.parse(address)
        if token is not None:
            token = checked_token(where, token)
        context = tls_context(ca, certificate, key) if where.tls else None
        return cls(_NetworkRoute(where, context, token))

    @property
    def address(self) -> str:
        """Where it is on the network; empty for an engine that is reached by its socket."""
        return self._route.address

    def call(
        self, verb: str, *, answer_seconds: float = ANSWER_SECONDS, **fields: Any
    ) -> dict[str, Any]:
        """Send a request and return the fields of the answer; raises what the engine raised."""
        connection = self._route.opened(answer_seconds)
        try:
            response = self._asked(connection, verb, connect.UNARY, connect.message(fields))
            return self._answer(response)
        except TimeoutError:
            raise self._route.silent(answer_seconds) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._route.gone(error) from None
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
        connection = self._route.opened(None)
        try:
            data = connect.envelope(fields)
            response = self._asked(connection, verb, connect.STREAMING, data)
            if response.status != http.client.OK or not _is(response, connect.STREAMING):
                self._answer(response)
                raise self._route.strange(response.status)
            yield from connect.envelopes(response)
        except (OSError, EOFError, http.client.HTTPException) as error:
            raise self._route.gone(error) from None
        finally:
            connection.close()

    def _asked(
        self, connection: http.client.HTTPConnection, verb: str, kind: str, data: bytes
    ) -> http.client.HTTPResponse:
        headers = {"Content-Type": kind, "Connect-Protocol-Version": "1", **self._route.headers}
        connection.request("POST", f"{connect.SERVICE}{verb}", data, headers)
        return connection.getresponse()

    def _answer(self, response: http.client.HTTPResponse) -> dict[str, Any]:
        body = response.read()
        try:
            fields = json.loads(body)
        except ValueError:
            fields = None
        done = response.status == http.client.OK
        if not isinstance(fields, dict) or not (done or isinstance(fields.get("code"), str)):
            raise self._route.strange(response.status)
        if not done:
            raise connect.error_from(fields)
        return fields


def _is(response: http.client.HTTPResponse, kind: str) -> bool:
    return response.headers.get_content_type() == kind


# --- the ways to an engine ------------------------------------------------------------------------


class _Route(Protocol):
    """A way to an engine, and the errors for what happens on it."""

    @property
    def address(self) -> str: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def opened(self, timeout: float | None) -> http.client.HTTPConnection:
        """Return an open connection whose answers take at most `timeout` seconds."""
        ...

    def gone(self, error: Exception) -> HeadraceError:
        """Return the error for a connection that broke."""
        ...

    def silent(self, seconds: float) -> NoAnswer:
        """Return the error for an answer that did not come."""
        ...

    def strange(self, status: int) -> HeadraceError:
        """Return the error for an answer that no engine gives."""
        ...


@dataclass(frozen=True, slots=True)
class _LocalRoute:
    """The socket of an engine of this machine."""

    data: Path
    socket: Path

    @property
    def address(self) -> str:
        return ""

    @property
    def headers(self) -> Mapping[str, str]:
        return {}

    def opened(self, timeout: float | None) -> http.client.HTTPConnection:
        until = time.monotonic() + (ANSWER_SECONDS if timeout is None else timeout)
        while True:
            connection = _SocketConnection(self.socket, timeout)
            try:
                connection.connect()
            except BlockingIOError:
                # It has a socket, and takes no connection: too many wait to be answered.
                if time.monotonic() >= until:
                    raise self.silent(ANSWER_SECONDS if timeout is None else timeout) from None
                time.sleep(_FULL_SECONDS)
            except OSError:
                raise server.not_reached(self.data) from None
            else:
                return connection

    def gone(self, error: Exception) -> HeadraceError:
        return NoEngine(
            "The engine stopped before it answered",
            remedy="See logs/headrace.log in its data directory for the reason. Start it again:"
            " headrace run.",
            data=str(self.data),
        )

    def silent(self, seconds: float) -> NoAnswer:
        found = server.announced(self.data)
        process = "" if found is None else f", process {found.pid},"
        return NoAnswer(
            f"The engine{process} did not answer within {seconds:g} seconds", data=str(self.data)
        )

    def strange(self, status: int) -> HeadraceError:
        return ControlError("The engine sent an invalid answer", status=status)


class _SocketConnection(http.client.HTTPConnection):
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


_PROXY_SAYS = (502, 503, 504)
"""What a proxy answers if it does not reach the engine."""


class _NetworkRoute:
    """The address of an engine, and who we are there."""

    def __init__(self, where: Address, context: ssl.SSLContext | None, token: str | None) -> None:
        self._where = where
        self._context = context
        self._token = token

    @property
    def address(self) -> str:
        return str(self._where)

    @property
    def headers(self) -> Mapping[str, str]:
        return {} if self._token is None else {"Authorization": f"Bearer {self._token}"}

    def opened(self, timeout: float | None) -> http.client.HTTPConnection:
        secret = self._token is not None
        connection = NetworkConnection(self._where, self._context, timeout, secret=secret)
        connection.connect()
        return connection

    def gone(self, error: Exception) -> HeadraceError:
        if isinstance(error, ssl.SSLError) and error.reason:
            return tls_failed(self._where, error)
        if isinstance(error, http.client.BadStatusLine) and not isinstance(
            error, http.client.RemoteDisconnected
        ):
            return self._no_engine("it does not speak HTTP/1.1")
        hint = (
            "If it asks for a certificate, give yours in a profile: certificate = FILE."
            if self._where.tls
            else "If it uses TLS, write https://."
        )
        return Unreachable(
            f"The engine at {self._where} stopped, or the connection broke, before it answered",
            remedy=f"Check that it runs, and that this is its HTTP port. {hint}",
        )

    def silent(self, seconds: float) -> NoAnswer:
        return NoAnswer(f"The engine at {self._where} did not answer within {seconds:g} seconds")

    def strange(self, status: int) -> HeadraceError:
        if status in _PROXY_SAYS:
            return Unreachable(
                f"A proxy answers at {self._where}, and does not reach the engine", status=status
            )
        if status == http.client.UNAUTHORIZED:
            return Unauthenticated(f"{self._where} refuses the request without a token of its own")
        if status == http.client.FORBIDDEN:
            return Forbidden(f"{self._where} refuses the request")
        return self._no_engine(f"HTTP status {status}")

    def _no_engine(self, why: str) -> ControlError:
        return ControlError(
            f"What answers at {self._where} is not an engine: {why}",
            remedy="Check host and port: it is the HTTP port of the section server, 4080 by"
            " default, not the port of gRPC.",
        )
