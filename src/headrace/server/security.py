"""
Who calls, and what they may do.

`Gate` finds the caller of a request: by a token (`Authorization: Bearer …`), by the cookie of a
browser that has traded a token for it, by the certificate of its connection, or, on the loopback
address of a server without tokens, as the administrator `local`. What is given must be valid: a
wrong token is refused even if a certificate would do.

A token is kept as its SHA-256 hash and compared in constant time. Tokens are random, so a hash
needs no salt. A cookie is random, too, and only this process knows it: a new child asks for the
token again. It ends with its time, with its token, and with a logout.

`check_request` refuses what another site makes a browser send. A page can send requests to any
address that its browser reaches, loopback included, so this is checked before who calls: the name
by which the server was called (DNS rebinding) and the page that called (cross-site requests).
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headrace.api.services import Caller
from headrace.errors import Forbidden, LimitReached, Unauthenticated
from headrace.server.settings import Access, ServerSettings, is_loopback, token_hash

if TYPE_CHECKING:
    from headrace.api.methods import Method

MOST_SESSIONS = 1_000
"""Logins at a time, of all tokens together."""

_ONCE = ("authorization", "host", "origin", "sec-fetch-site")

_LONGEST_HOST = 300
"""In characters; a name has at most 253."""

_PROXIED = ("forwarded", "x-forwarded-for", "x-real-ip")
"""Headers that a proxy adds: the caller is not the process that connected."""


@dataclass(frozen=True, slots=True)
class Session:
    """A login of a browser."""

    token: str
    """The name of the token that was traded for it."""

    hash: str
    """Its hash at that time: a token that was replaced ends its sessions."""

    ends: float


@dataclass(frozen=True, slots=True)
class Login:
    """A new session: who it is, and the header `Set-Cookie` for the browser."""

    caller: Caller
    cookie: str = field(repr=False)


class Gate:
    """Finds and checks the callers of one server. Used by one thread."""

    def __init__(self, settings: ServerSettings, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._tokens: Mapping[str, Access] = {}
        self.renew(settings)

    def renew(self, settings: ServerSettings) -> set[str]:
        """
        Use these settings from now on; sessions of tokens that are gone or replaced end.

        Returns the names of tokens that are not the same as before.
        """
        before = self._tokens
        self._settings = settings
        self._tokens = settings.tokens
        self._names = _names(settings)
        prefix = "__Host-" if settings.tls is not None else ""
        # Cookies do not distinguish ports, and two engines may run on a machine.
        self._cookie = f"{prefix}headrace-{settings.http_port}"
        for key, session in list(self._sessions.items()):
            if self._access_of(session) is None:
                del self._sessions[key]
        return {name for name, access in before.items() if self._tokens.get(name) != access}

    # --- who calls --------------------------------------------------------------------------------

    def caller(
        self, headers: Mapping[str, str], address: str, certificate_name: str | None = None
    ) -> Caller:
        """
        Return who sent a request with these headers, whose names are lowercase.

        Raises `Unauthenticated`. `certificate_name` is the common name of the certificate that
        the connection was made with, if TLS has verified one.
        """
        if "authorization" in headers:
            return self._by_token(_bearer(headers["authorization"]), address)
        if (key := self._cookie_in(headers)) is not None:
            return self._by_cookie(key, address)
        if certificate_name is not None:
            return self._by_certificate(certificate_name, address)
        if not self._settings.is_open:
            raise Unauthenticated("The server needs a token, and the request has none")
        return self._without_token(headers, address)

    def allow(self, caller: Caller, method: Method) -> None:
        """Raise `Forbidden` unless the caller's role is enough for the method."""
        method.check(caller.role)

    def _by_token(self, token: str, address: str) -> Caller:
        name, access = self._token(token)
        return _caller(name, access, address)

    def _token(self, token: str) -> tuple[str, Access]:
        given, found = token_hash(token), None
        # All of them are compared, so that the time does not tell which one is close.
        for name, access in self._tokens.items():
            if access.hash and hmac.compare_digest(given, access.hash):
                found = (name, access)
        if found is None:
            raise Unauthenticated("The token is not one of this server's")
        self._check_expiry(f"The token {found[0]}", found[1])
        return found

    def _by_cookie(self, key: str, address: str) -> Caller:
        session = self._sessions.get(token_hash(key))
        access = None if session is None else self._access_of(session)
        if session is None or access is None:
            raise Unauthenticated("The login has ended", remedy="Log in again, with a token.")
        return _caller(session.token, access, address)

    def _by_certificate(self, certificate: str, address: str) -> Caller:
        for name, access in self._tokens.items():
            if access.certificate and access.certificate == certificate:
                self._check_expiry(f"The entry {name}", access)
                return _caller(name, access, address)
        raise Unauthenticated(
            "The certificate is not one of this server's callers",
            remedy="Add server.tokens.NAME { certificate, role } with its common name, or send a"
            " token.",
            certificate=certificate,
        )

    def _without_token(self, headers: Mapping[str, str], address: str) -> Caller:
        if self._settings.insecure:
            return Caller("anonymous", "admin", address)
        if not is_loopback(address):
            raise Unauthenticated("The server has no tokens, and serves its own machine only")
        # Behind a proxy, every machine would look like this one.
        if any(each in headers for each in _PROXIED):
            raise Unauthenticated(
                "The request came through a proxy, and the server has no tokens",
                remedy="Add a token: headrace token new NAME --role read.",
            )
        return Caller("local", "admin", address)

    def _check_expiry(self, what: str, access: Access) -> None:
        if access.has_expired(self._clock()):
            assert access.expires is not None
            raise Unauthenticated(f"{what} expired on {access.expires:%Y-%m-%d %H:%M %Z}")

    # --- sessions of browsers ---------------------------------------------------------------------

    def log_in(self, token: str, address: str) -> Login:
        """Trade a token for a session; raises `Unauthenticated`."""
        name, access = self._token(token)
        now = self._clock()
        seconds = self._settings.limits.session_seconds
        if access.expires is not None:
            seconds = min(seconds, access.expires.timestamp() - now)
        self._make_room(now)
        key = secrets.token_urlsafe(32)
        self._sessions[token_hash(key)] = Session(name, access.hash, now + seconds)
        return Login(_caller(name, access, address), self._set_cookie(key, int(seconds)))

    def log_out(self, headers: Mapping[str, str]) -> str:
        """End the session of a request, if any; return the header `Set-Cookie` that forgets it."""
        if (key := self._cookie_in(headers)) is not None:
            self._sessions.pop(token_hash(key), None)
        return self._set_cookie("", 0)

    def is_valid(self, caller: Caller) -> bool:
        """Whether a caller that was let in, to a stream for example, still would be."""
        if self._settings.is_open:
            return caller.name in ("local", "anonymous")
        access = self._tokens.get(caller.name)
        return (
            access is not None
            and not access.has_expired(self._clock())
            and (access.role, access.tables) == (caller.role, caller.tables)
        )

    def _make_room(self, now: float) -> None:
        for key, session in list(self._sessions.items()):
            if session.ends <= now:
                del self._sessions[key]
        if len(self._sessions) >= MOST_SESSIONS:
            raise LimitReached(f"There are {MOST_SESSIONS} logins, and no more are possible")

    def _access_of(self, session: Session) -> Access | None:
        """Return the rights of a session; None if it has ended."""
        access = self._tokens.get(session.token)
        now = self._clock()
        if access is None or access.hash != session.hash or access.has_expired(now):
            return None
        return access if now < session.ends else None

    def _cookie_in(self, headers: Mapping[str, str]) -> str | None:
        for each in headers.get("cookie", "").split(";"):
            name, _, value = each.strip().partition("=")
            if name == self._cookie and value:
                return value
        return None

    def _set_cookie(self, key: str, seconds: int) -> str:
        secure = "; Secure" if self._settings.tls is not None else ""
        return f"{self._cookie}={key}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"

    # --- requests that another site makes a browser send ------------------------------------------

    def check_request(
        self,
        host: str | None,
        origin: str | None,
        fetch_site: str | None,
        *,
        page: bool = False,
    ) -> None:
        """
        Raise `Forbidden` for a request that another site made a browser send.

        The arguments are the headers Host, Origin and Sec-Fetch-Site. `page` says that a page
        without data is asked for, which a link on another site may lead to.
        """
        if host is None or len(host) > _LONGEST_HOST or not self._is_name(_host_in(host)):
            raise Forbidden(
                "The server was called by a name that is not its own",
                remedy="Call it by its address, or add the name to server.hosts.",
                host=(host or "")[:255],
            )
        if origin is not None and _authority(origin) != _with_port(host, origin):
            raise Forbidden(
                "The request comes from a page of another site",
                remedy="Open the console at the server's own address.",
                origin=origin[:255],
            )
        if fetch_site not in (None, "same-origin", "none") and not page:
            raise Forbidden(
                "The request comes from a page of another site",
                remedy="Open the console at the server's own address.",
                site=fetch_site[:32],
            )

    def _is_name(self, name: str) -> bool:
        if name in self._names:
            return True
        if self._settings.is_local:
            return is_loopback(name)
        # A page of another site always has another name here, never the address itself. With
        # tokens, its browser has no cookie for that name.
        return not self._settings.is_open or _is_address(name)


def request_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """
    Return headers by lowercase name.

    Raises `Forbidden` if one that decides who calls is sent twice: a proxy may have checked the
    other one.
    """
    found: dict[str, str] = {}
    for key, value in raw:
        name = key.decode("latin-1").lower()
        if name in found and name in _ONCE:
            raise Forbidden(f"The request has two headers {name}", remedy="Send it once.")
        # Browsers may send cookies in several headers; for others it is how lists are joined.
        joint = "; " if name == "cookie" else ", "
        text = value.decode("latin-1")
        found[name] = f"{found[name]}{joint}{text}" if name in found else text
    return found


def certificate_name(certificate: Mapping[str, object] | None) -> str | None:
    """Return the common name in the result of `getpeercert()`; None if there is none."""
    subject = (certificate or {}).get("subject", ())
    names = [
        str(value)
        for each in (subject if isinstance(subject, tuple) else ())
        for key, value in each
        if key == "commonName"
    ]
    return names[-1] if names else None


def _caller(name: str, access: Access, address: str) -> Caller:
    return Caller(name, access.role, address, access.tables)


def _bearer(header: str) -> str:
    scheme, _, token = header.strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated(
            "The header Authorization has no token", remedy="Send Authorization: Bearer TOKEN."
        )
    return token.strip()


def _names(settings: ServerSettings) -> frozenset[str]:
    """Return the names by which the server may be called, besides its addresses."""
    own = {settings.host.lower(), *(each.lower() for each in settings.hosts), "localhost"}
    if not is_loopback(settings.host):
        own |= {socket.gethostname().lower()}
    return frozenset(own)


def _host_in(header: str) -> str:
    """Return the name in a header Host, without its port; empty if it is not one."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


_PORTS = {"http": 80, "https": 443}


def _authority(origin: str) -> tuple[str, int | None] | None:
    """Return name and port of an origin; None for one without, such as `null`."""
    try:
        parts = urlsplit(origin)
        if parts.scheme not in _PORTS or not parts.hostname:
            return None
        return parts.hostname.rstrip("."), parts.port or _PORTS[parts.scheme]
    except ValueError:
        return None


def _with_port(host: str, origin: str) -> tuple[str, int | None]:
    """Return name and port of a header Host, whose port may be the usual one of the origin."""
    try:
        parts = urlsplit(f"//{host}")
        return (parts.hostname or "").rstrip("."), parts.port or _PORTS.get(urlsplit(origin).scheme)
    except ValueError:
        return "", None
