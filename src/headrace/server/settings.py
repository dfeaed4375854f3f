"""
The settings of a server. They are valid once they exist: unsafe ones cannot be made.

An address that other machines can reach needs TLS, and somebody who may call: a token or a
certificate. `insecure` turns this off. A server on the loopback address without tokens serves
every process of the machine as an administrator, so a name from outside (`hosts`, for a proxy)
needs tokens, too.

A token is known by its SHA-256 hash. The token itself never gets here.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from headrace.api.methods import ROLES
from headrace.errors import WrongValue

HASH = re.compile(r"sha256:[0-9a-f]{64}")
"""How the hash of a token is written."""

RESERVED = ("local", "anonymous")
"""The names of callers without a token."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")

SHORTEST_TOKEN = 32
"""In characters. A shorter one could be guessed from its hash."""


def token_hash(token: str) -> str:
    """Return the hash of a token, as a configuration has it."""
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine can reach the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class TlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The files of TLS, in PEM."""

    cert: str
    """The server's certificate, followed by those of the authorities between it and the root."""

    key: str
    client_ca: str = ""
    """The authorities whose certificates callers must have; empty: callers need none."""


class Access(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What proves that a caller is somebody, and what this one may do."""

    role: str
    hash: str = ""
    """The hash of a token, `sha256:…`; empty for a certificate."""

    certificate: str = ""
    """The common name of a client's certificate; empty for a token."""

    tables: tuple[str, ...] = ()
    """The names of the tables whose rows may be read; empty for all."""

    expires: datetime | None = None

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise _wrong("role", f"must be one of {', '.join(ROLES)}")
        if bool(self.hash) == bool(self.certificate):
            raise _wrong("token", "needs either the hash of a token or the name of a certificate")
        if self.hash and not HASH.fullmatch(self.hash):
            # The value is not repeated: it may be the token.
            raise _wrong(
                "hash",
                "must be sha256: and 64 hexadecimal digits",
                "Make a token and its hash: headrace token new NAME --role read.",
            )
        if self.expires is not None and self.expires.tzinfo is None:
            raise _wrong("expires", "must have an offset from UTC")

    def has_expired(self, now: float) -> bool:
        """Whether it is not valid any more at `now`, in seconds since 1970."""
        return self.expires is not None and now >= self.expires.timestamp()


class ServerLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What callers may use up. Everything beyond is refused, and nothing is queued without end."""

    largest_request: int = 4 << 20
    """In bytes, for the body of one request."""

    largest_head: int = 64 << 10
    """In bytes, for the request line and headers of one request."""

    connections: int = 2_000
    open_requests: int = 1_000
    """Requests that are being answered, without streams."""

    streams_per_token: int = 1_000
    head_seconds: float = 10.0
    """How long the head of a request may take, from the first byte; and the TLS handshake."""

    body_seconds: float = 30.0
    """How long the body of a request may take."""

    stalled_seconds: float = 30.0
    """How long a reader may take no byte of its answer."""

    idle_seconds: float = 75.0
    """How long a connection may stay open between two requests."""

    session_seconds: float = 12 * 3600.0
    """How long a login of the console lasts."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise _wrong(f"limits.{name}", "must be more than 0")


class ServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a server listens, who may call it, and what it serves."""

    host: str = "127.0.0.1"
    http_port: int = 4080
    grpc_port: int = 4081
    hosts: tuple[str, ...] = ()
    """More names by which callers reach it, for example that of a proxy in front of it."""

    tls: TlsSettings | None = None
    tokens: Mapping[str, Access] = {}
    insecure: bool = False
    """Serve other machines without TLS or without tokens: everybody who reaches the port."""

    compat: str = ""
    """`laredo` to serve its services, too."""

    hold: tuple[str, ...] = ()
    """The tables of which the server keeps a copy."""

    limits: ServerLimits = ServerLimits()

    def __post_init__(self) -> None:
        for name in ("http_port", "grpc_port"):
            if not 0 <= getattr(self, name) <= 65_535:
                raise _wrong(name, "must be from 0 to 65535")
        if self.http_port == self.grpc_port != 0:
            raise _wrong("grpc_port", f"must be another port than http_port, {self.http_port}")
        if self.compat not in ("", "laredo"):
            raise _wrong("compat", "must be laredo")
        self._check_names()
        self._check_safety()

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine can reach it, and by no other name."""
        return is_loopback(self.host) and all(is_loopback(each) for each in self.hosts)

    @property
    def is_open(self) -> bool:
        """Whether callers need to prove nothing."""
        return not self.tokens

    def _check_names(self) -> None:
        if not self.host:
            raise _wrong("host", "must not be empty", "Write 0.0.0.0 for all addresses.")
        certificates = [each.certificate for each in self.tokens.values() if each.certificate]
        hashes = [each.hash for each in self.tokens.values() if each.hash]
        for found in (certificates, hashes):
            if len(set(found)) < len(found):
                raise _wrong("tokens", "has two entries for the same token or certificate")
        for name in self.tokens:
            if not _NAME.fullmatch(name) or name in RESERVED:
                raise _wrong(
                    "tokens",
                    f"has the name {name!r}, which is not possible",
                    "Use at most 64 of a-z, 0-9, dot, dash and underscore, and not local or"
                    " anonymous.",
                )
        if self.tls is not None and self.tls.client_ca and not self.tokens:
            raise _wrong(
                "tokens",
                "must have an entry: tls.client_ca alone does not say what a caller may do",
                "Add server.tokens.NAME { certificate, role } with the common name of a caller.",
            )
        if certificates and (self.tls is None or not self.tls.client_ca):
            raise _wrong(
                "tokens",
                "names a certificate, and callers are not asked for one",
                "Set tls.client_ca to the authority of the callers' certificates.",
            )

    def _check_safety(self) -> None:
        if self.insecure or self.is_local:
            return
        where = self.host if not is_loopback(self.host) else ", ".join(self.hosts)
        lacks = [] if self.tls or is_loopback(self.host) else ["TLS"]
        lacks += [] if self.tokens else ["token"]
        if lacks:
            raise _wrong(
                "host" if not is_loopback(self.host) else "hosts",
                f"is {where}, which other machines can reach, and there is no "
                + " and no ".join(lacks),
                "Set tls { cert, key }, and add a token: headrace token new NAME --role read."
                " Or serve this machine only: host = 127.0.0.1. insecure = true serves everybody"
                " who reaches the port.",
            )


def moment(text: str) -> datetime:
    """Return a day, which begins at midnight UTC, or a time; raises `ValueError`."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _wrong(key: str, message: str, remedy: str | None = None) -> WrongValue:
    at = f"server.{key}"
    return WrongValue(f"{at} {message}", key=at, remedy=remedy)
