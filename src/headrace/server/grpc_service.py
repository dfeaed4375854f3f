"""
gRPC: the same services on HTTP/2, with health and reflection.

One handler serves every method of the registry. Messages go to the engine, and back, as the bytes
that they are. An error has the status code that belongs to its Connect code, and the same detail,
in `grpc-status-details-bin`.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias
from urllib.parse import unquote

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from headrace.api.methods import METHODS, Method
from headrace.api.services import Caller
from headrace.errors import FellBehind, HeadraceError
from headrace.server.channel import CallFailure
from headrace.server.link import ended, failure
from headrace.server.security import Gate, request_headers

if TYPE_CHECKING:
    from headrace.server.link import EngineLink
    from headrace.server.settings import ServerSettings
    from headrace.server.tls import TlsFiles

_CODES = {code.value[1].replace(" ", "_"): code for code in grpc.StatusCode} | {
    "canceled": grpc.StatusCode.CANCELLED
}

SERVICES = sorted({method.service for method in METHODS.values() if method.request is not None})
"""The full names of the services that have messages in protobuf."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class GrpcServer:
    """The gRPC server of one child; `start` once, then `stop`."""

    def __init__(
        self, link: EngineLink, gate: Gate, settings: ServerSettings, files: TlsFiles | None
    ) -> None:
        self._settings = settings
        self._files = files
        self._health = health.aio.HealthServicer()
        self._ready = False
        self._handlers = _Handlers(link, gate, settings.limits.stalled_seconds)
        self._gate = gate
        self._server: grpc.aio.Server | None = None

    async def start(self, port: int) -> int:
        """Serve, and return the port; raises `OSError` if it cannot be had."""
        limits = self._settings.limits
        server = grpc.aio.server(
            interceptors=[_ForCallers(self._gate)],
            options=[
                # With it, a second server could take half of the connections.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", limits.largest_request),
                ("grpc.max_metadata_size", limits.largest_head),
                ("grpc.max_concurrent_streams", limits.streams_per_token),
                ("grpc.absolute_max_metadata_size", limits.largest_head),
                ("grpc.max_concurrent_streams", limits.open_requests),
                ("grpc.server_handshake_timeout_ms", int(limits.head_seconds * 1000)),
                ("grpc.keepalive_time_ms", int(limits.idle_seconds * 1000)),
                ("grpc.keepalive_timeout_ms", int(limits.stalled_seconds * 1000)),
            ],
        )
        server.add_generic_rpc_handlers((self._handlers,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
        host = self._settings.host
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._files is None:
                found = int(server.add_insecure_port(where))
            else:
                found = int(server.add_secure_port(where, _credentials(self._files)))
        except RuntimeError as error:
            await server.stop(None)
            raise OSError(str(error)) from None
        # A service whose state nobody has set would be told as unknown.
        await self.set_ready(self._ready)
        await server.start()
        self._server = server
        return found

    async def set_ready(self, ready: bool) -> None:
        """Tell those who watch the health of the services."""
        self._ready = ready
        status = health_pb2.HealthCheckResponse.SERVING
        if not ready:
            status = health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *SERVICES):
            await self._health.set(name, status)

    async def stop(self, seconds: float) -> None:
        """Take no new call, and end those that are open after a while."""
        if (server := self._server) is not None:
            self._server = None
            await server.stop(seconds)


class _ForCallers(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Reflection tells the names of everything: it is for callers."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def intercept_service(
        self, continuation: Any, details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler: grpc.RpcMethodHandler[Any, Any] | None = await continuation(details)
        if handler is None or not details.method.startswith("/grpc.reflection."):
            return handler
        return _checked(handler, self._gate)


def _checked(handler: Any, gate: Gate) -> Any:
    async def stream(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        try:
            _caller(gate, context)
        except HeadraceError as error:
            await _abort(context, failure(error))
        async for each in handler.stream_stream(requests, context):
            yield each

    return grpc.stream_stream_rpc_method_handler(
        stream, handler.request_deserializer, handler.response_serializer
    )


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Every method of the registry."""

    def __init__(self, link: EngineLink, gate: Gate, stalled_seconds: float) -> None:
        self._link = link
        self._gate = gate
        self._stalled_seconds = stalled_seconds

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a method; None if there is no such method."""
        method = METHODS.get(details.method)
        if method is None or method.request is None:
            return None
        if method.streams:

            async def stream(body: bytes, context: Context) -> None:
                await self._stream(method, body, context)

            return grpc.unary_stream_rpc_method_handler(stream)

        async def unary(body: bytes, context: Context) -> bytes:
            return await self._unary(method, body, context)

        return grpc.unary_unary_rpc_method_handler(unary)

    async def _allowed(self, method: Method, context: Context) -> Caller:
        caller = None
        try:
            caller = _caller(self._gate, context)
            self._gate.allow(caller, method)
        except HeadraceError as error:
            self._link.audit(method, error.code, caller, _address(context.peer()))
            await _abort(context, failure(error))
        return caller

    async def _unary(self, method: Method, body: bytes, context: Context) -> bytes:
        caller = await self._allowed(method, context)
        answer = await self._link.ask(method.path, caller, body, context.time_remaining())
        if isinstance(answer, CallFailure):
            await _abort(context, answer)
        return answer

    async def _stream(self, method: Method, body: bytes, context: Context) -> None:
        caller = await self._allowed(method, context)
        stream = self._link.open(method.path, caller, body)
        if isinstance(stream, CallFailure):
            await _abort(context, stream)
        try:
            while messages := await stream.messages():
                if not self._gate.is_valid(caller):
                    await _abort(context, failure(ended(caller.name)))
                async with asyncio.timeout(self._stalled_seconds):
                    for each in messages:
                        await context.write(each)
        except TimeoutError:
            self._link.stalled += 1
            await _abort(context, failure(FellBehind("The reader took nothing for too long")))
        finally:
            # Also when the caller has left: the call is cancelled then.
            stream.close()
        if stream.failure is not None:
            await _abort(context, stream.failure)


def _caller(gate: Gate, context: Context) -> Caller:
    """Return who calls; raises `Unauthenticated`."""
    raw = [
        (key.encode(), value if isinstance(value, bytes) else value.encode("latin-1", "replace"))
        for key, value in context.invocation_metadata() or ()
    ]
    names = context.auth_context().get("x509_common_name", ())
    certificate = next((name.decode("utf-8", "replace") for name in names), None)
    return gate.caller(request_headers(raw), _address(context.peer()), certificate)


def _address(peer: str) -> str:
    """Return the address in `ipv4:127.0.0.1:51234` or `ipv6:%5B::1%5D:51234`."""
    return unquote(peer.partition(":")[2]).rpartition(":")[0].strip("[]")


async def _abort(context: Context, why: CallFailure) -> NoReturn:
    fields = json.loads(why.error)
    code = _CODES.get(fields["code"], grpc.StatusCode.UNKNOWN)
    details = (("grpc-status-details-bin", _status(code, fields)),)
    await context.abort(code, fields["message"], details)
    raise AssertionError  # `abort` raises, which its declaration does not say


def _status(code: grpc.StatusCode, fields: Mapping[str, Any]) -> bytes:
    """Return an error as `google.rpc.Status`: code 1, message 2, details 3, each an `Any`."""
    data = b"\x08" + bytes([code.value[0]]) + _field(2, fields["message"].encode())
    for each in fields.get("details", ()):
        value = base64.b64decode(each["value"] + "=" * (-len(each["value"]) % 4))
        name = f"type.googleapis.com/{each['type']}".encode()
        data += _field(3, _field(1, name) + _field(2, value))
    return data


def _field(number: int, data: bytes) -> bytes:
    """Return a length-delimited protobuf field."""
    length, size = b"", len(data)
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


def _credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Return the files of TLS; new connections use new ones."""
    given = None

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal given
        if files.pem is given:
            return None
        given = pem = files.pem
        return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.client_ca)

    first = changed()
    with_certificate = files.pem.client_ca is not None
    return grpc.dynamic_ssl_server_credentials(first, changed, with_certificate)
