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
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import InvalidConfiguration, NoSecret, WrongValue

if TYPE_CHECKING:
    from headrace.config.schema import Values
    from headrace.config.text import SourceLocation

ROLES = ("read", "operate", "admin")
"""Those of `headrace.api.methods`, without protobuf: commands read a configuration without it."""

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


@lru_cache(maxsize=1_000)  # asked for each request
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
    """The tables of which the server keeps a copy, as their sources name them."""

    limits: ServerLimits = ServerLimits()

    def __post_init__(self) -> None:
        for name in ("http_port", "grpc_port"):
            if not 0 <= getattr(self, name) <= 65_535:
                raise _wrong(name, "must be from 0 to 65535")
        if self.http_port == self.grpc_port != 0:
            raise _wrong(
                "grpc_port",
                f"must be another port than http_port, {self.http_port}",
                "Give each a port of its own, or leave one out: 4080 and 4081 are the defaults.",
            )
        if self.compat not in ("", "laredo"):
            raise _wrong("compat", "must be laredo")
        if not self.host:
            raise _wrong("host", "must not be empty", "Write 0.0.0.0 for all addresses.")
        self._check_tokens()
        self._check_certificates()
        self._check_safety()

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine can reach it, and by no other name."""
        return is_loopback(self.host) and all(is_loopback(each) for each in self.hosts)

    @property
    def is_open(self) -> bool:
        """Whether callers need to prove nothing."""
        return not self.tokens

    def _check_tokens(self) -> None:
        for name, access in self.tokens.items():
            if not _NAME.fullmatch(name) or name in RESERVED:
                raise _wrong(
                    "tokens",
                    f"has the name {name!r}, which is not possible",
                    "Use at most 64 of a-z, 0-9, dot, dash and underscore, and not local or"
                    " anonymous.",
                )
            at = f"tokens.{name}"
            if access.role not in ROLES:
                raise _wrong(f"{at}.role", f"must be one of {', '.join(ROLES)}")
            if bool(access.hash) == bool(access.certificate):
                raise _wrong(
                    at,
                    "must have either a token or the name of a certificate",
                    "Make a token and its hash: headrace token new NAME --role read.",
                )
            if access.hash and not HASH.fullmatch(access.hash):
                # The value is not repeated: it may be the token.
                raise _wrong(
                    f"{at}.hash",
                    "must be sha256: and 64 hexadecimal digits",
                    "Make a token and its hash: headrace token new NAME --role read.",
                )
            if access.expires is not None and access.expires.tzinfo is None:
                raise _wrong(f"{at}.expires", "must have an offset from UTC")

    def _check_certificates(self) -> None:
        certificates = [each.certificate for each in self.tokens.values() if each.certificate]
        hashes = [each.hash for each in self.tokens.values() if each.hash]
        for found in (certificates, hashes):
            if len(set(found)) < len(found):
                raise _wrong("tokens", "has two entries for the same token or certificate")
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


# --- from plain values, and from a configuration --------------------------------------------------


def settings_of(given: Mapping[str, Any]) -> ServerSettings:
    """Return settings from plain values; raises `WrongValue`."""
    try:
        return msgspec.convert(given, ServerSettings)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, WrongValue):
            raise error.__cause__ from None
        # Its text names keys and types, never values.
        raise WrongValue(f"The settings of the server are not valid: {error}") from None


def configured_server(server: Values, *, read: bool = False) -> ServerSettings:
    """
    Return the settings that the section `server` of a configuration says.

    Only with `read` are tokens read where their references lead, and their hashes kept: where a
    configuration is only checked, they may be missing. Raises `InvalidConfiguration` with the
    location of what is wrong.
    """
    from headrace.config.schema import located

    try:
        tls: Values | None = server["tls"]
        limits: Values = server["limits"]
        tokens: Mapping[str, Values] = server["tokens"] or {}
        return ServerSettings(
            host=server["host"],
            http_port=server["http_port"],
            grpc_port=server["grpc_port"],
            hosts=server["hosts"],
            tls=None
            if tls is None
            # Absolute: the child's current folder may be another one.
            else TlsSettings(*(str(each.absolute()) if each else "" for each in tls.values())),
            tokens={name: _access(name, each, read=read) for name, each in tokens.items()},
            insecure=server["insecure"],
            compat=server["compat"] or "",
            hold=tuple(server["hold"]),
            limits=ServerLimits(
                **{name.replace("_timeout", "_seconds"): each for name, each in limits.items()}
            ),
        )
    except (WrongValue, NoSecret) as error:
        location = _location(server, str(error.facts.get("key", "")))
        raise InvalidConfiguration.of([located(error, location)]) from None


def _access(name: str, given: Values, *, read: bool) -> Access:
    at = f"tokens.{name}"
    if sum(given[key] is not None for key in ("hash", "token_ref", "certificate")) != 1:
        raise _wrong(
            at,
            "must have one of hash, token_ref and certificate",
            f"Make a token and its hash: headrace token new {name} --role {given['role']}.",
        )
    hashed: str = given["hash"] or ""
    if given["token_ref"] is not None:
        token = given["token_ref"].read() if read else given["token_ref"].reference
        if read and len(token) < SHORTEST_TOKEN:
            raise _wrong(
                f"{at}.token_ref",
                f"leads to a token of fewer than {SHORTEST_TOKEN} characters",
                f"Use a random one: headrace token new {name} --role {given['role']}.",
            )
        hashed = token_hash(token)
    try:
        expires = None if given["expires"] is None else moment(given["expires"])
    except ValueError:
        raise _wrong(
            f"{at}.expires", "must be a day or a time", "Write 2027-01-31, or 2027-01-31T12:00Z."
        ) from None
    return Access(given["role"], hashed, given["certificate"] or "", given["tables"] or (), expires)


def _location(values: Any, key: str) -> SourceLocation:
    """Return where a key of the section is written, or else the section that it is missing from."""
    location: SourceLocation = values.location
    for part in key.split(".")[1:]:
        if not isinstance(values, Mapping) or part not in values:
            break
        location = getattr(values, "locations", {}).get(part, location)
        values = values[part]
        location = getattr(values, "location", location)
    return location


def moment(text: str) -> datetime:
    """Return a day, which begins at midnight UTC, or a time; raises `ValueError`."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _wrong(key: str, message: str, remedy: str | None = None) -> WrongValue:
    at = f"server.{key}"
    return WrongValue(f"{at} {message}", key=at, remedy=remedy)
