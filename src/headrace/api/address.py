"""
Where an engine is on the network: its address, connections to it, and why one failed.

A connection is HTTP/1.1 over TCP, with TLS unless the address begins with `http://` or is on this
machine. A token goes to another machine only through TLS. No proxy is used and no redirect is
followed: both would send the token to somebody else.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from headrace.errors import (
    BadAddress,
    BadCertificate,
    HeadraceError,
    InsecureAddress,
    NotTrusted,
    Unauthenticated,
    Unreachable,
)

DEFAULT_PORT = 4080

CONNECT_SECONDS = 10.0
"""How long a connection may take, TLS included; less if an answer may take less."""

_WRITTEN = re.compile(
    r"(?:(?P<scheme>https?)://)?(?:\[(?P<v6>[^\]]+)\]|(?P<name>[^\s:/?#\[\]]+))(?::(?P<port>\d+))?/?"
)

_SILENT_SECONDS, _PROBE_SECONDS, _PROBES = 60, 15, 4
"""When the kernel asks whether the other side of a quiet stream still exists, and how often."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine listens."""

    host: str
    port: int
    tls: bool

    @classmethod
    def parse(cls, text: str) -> Address:
        """
        Return the address that is written as `HOST:PORT`, `http://…` or `https://…`.

        Without a scheme it is `https`, and `http` on this machine. Raises `BadAddress`.
        """
        text = text.strip()
        if "@" in text:
            # Not quoted: what is before the @ may be a password.
            raise BadAddress(
                "An address has no user and no password",
                remedy="Write HOST:PORT, and give the token in HEADRACE_TOKEN or in a profile.",
            )
        if (found := _WRITTEN.fullmatch(text)) is None:
            raise BadAddress(f"{text!r} is not the address of an engine")
        port = int(found["port"] or DEFAULT_PORT)
        if not 0 < port < 1 << 16:
            raise BadAddress(f"{text!r} has no valid port: ports are 1 to 65535")
        host = _host(found["name"], found["v6"], text)
        tls = found["scheme"] == "https" if found["scheme"] else not is_here(host)
        return cls(host, port, tls)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def _host(name: str | None, v6: str | None, text: str) -> str:
    try:
        if v6 is not None:
            return str(ip_address(v6))
        return (name or "").encode("idna").decode()
    except ValueError:
        raise BadAddress(f"{text!r} has no valid host") from None


def is_here(host: str) -> bool:
    """Whether only this machine can be meant."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def checked_token(address: Address, token: str) -> str:
    """Return a token that may be sent to this address; no message contains it."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise BadAddress(
            "The token is empty, or has characters that a token cannot have",
            remedy="Check the variable or the file that it comes from: it has one token, in one"
            " line.",
        )
    if not address.tls and not is_here(address.host):
        raise InsecureAddress(f"The token would be sent to {address} without encryption")
    return token


def tls_context(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    """
    Return what TLS trusts: the authorities in `ca`, or those of the system.

    `certificate` and `key` prove who we are; a file may have both. Raises `BadCertificate`.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        raise _bad_file(ca, "authorities", error) from None
    if certificate is not None:
        try:
            # Without a password, OpenSSL would ask for one on the terminal.
            context.load_cert_chain(certificate, key, password=lambda: "")
        except (OSError, ValueError) as error:
            raise _bad_file(certificate, "a certificate and its key", error) from None
    return context


def _bad_file(path: Path | None, what: str, error: Exception) -> BadCertificate:
    why = (
        error.strerror if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else ""
    )
    return BadCertificate(
        f"{path} is not a file with {what}{f': {why}' if why else ''}",
        remedy="Use files in PEM that you can read; the key must not need a passphrase.",
    )


class NetworkConnection(http.client.HTTPConnection):
    """HTTP over TCP, with TLS if there is a context; every failure is one of ours."""

    def __init__(
        self,
        address: Address,
        context: ssl.SSLContext | None,
        timeout: float | None,
        *,
        secret: bool,
    ) -> None:
        """`timeout` limits every answer; with `secret`, a token will be sent."""
        super().__init__(address.host, address.port)
        self._address = address
        self._context = context
        self._answer_seconds = timeout
        self._secret = secret

    def connect(self) -> None:
        limit = self._answer_seconds
        seconds = CONNECT_SECONDS if limit is None else min(CONNECT_SECONDS, limit)
        where = (self._address.host, self._address.port)
        try:
            self.sock = socket.create_connection(where, timeout=seconds)
            self._prepare()
            if self._context is not None:
                self.sock = self._context.wrap_socket(self.sock, server_hostname=self._address.host)
        except (OSError, UnicodeError) as error:
            self.close()
            raise not_connected(self._address, error, seconds) from None
        except HeadraceError:
            self.close()
            raise
        self.sock.settimeout(limit)

    def _prepare(self) -> None:
        peer = str(self.sock.getpeername()[0])
        if self._secret and self._context is None and not is_here(peer):
            # A name that means this machine by its text, and another by this machine's settings.
            raise InsecureAddress(f"The token would be sent to {peer} without encryption")
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A stream may be quiet for days: without this, nobody notices a machine that is gone.
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", _SILENT_SECONDS),
            ("TCP_KEEPINTVL", _PROBE_SECONDS),
            ("TCP_KEEPCNT", _PROBES),
        ):
            if hasattr(socket, name):  # macOS has other names
                self.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# --- why a connection failed ----------------------------------------------------------------------

_EXPIRED, _NOT_YET, _OTHER_NAME = 10, 9, (62, 63, 64)
"""Codes of OpenSSL's verification."""

_PLAIN = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")
"""What OpenSSL says about an answer that is not TLS."""

_REFUSES = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "BAD_CERTIFICATE", "UNKNOWN_CA")
"""What a server says that asks for a certificate, and gets none that it knows."""


def not_connected(address: Address, error: Exception, seconds: float) -> HeadraceError:
    """Return the error for a connection that failed, with its cause."""
    match error:
        case ssl.SSLError():
            return tls_failed(address, error)
        case socket.gaierror() | UnicodeError():
            return Unreachable(
                f"{address} was not reached: no machine has the name {address.host}",
                remedy="Check the name, and the DNS of this machine.",
            )
        case TimeoutError():
            return Unreachable(
                f"{address} was not reached: no answer within {seconds:g} seconds",
                remedy="Check the host, and firewalls on the way to it.",
            )
        case ConnectionRefusedError():
            return Unreachable(
                f"{address} was not reached: nothing accepts connections on this port"
            )
        case OSError(strerror=str(why)):
            return Unreachable(f"{address} was not reached: {why}")
    return Unreachable(f"{address} was not reached: {type(error).__name__}")


def tls_failed(address: Address, error: ssl.SSLError) -> HeadraceError:
    """Return the error for what TLS refused, on our side or theirs."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _EXPIRED:
            return NotTrusted(
                f"The certificate of {address} has expired",
                remedy="Renew it on the server. If it is valid, check the clock of this machine.",
            )
        if error.verify_code == _NOT_YET:
            return NotTrusted(
                f"The certificate of {address} is not valid yet",
                remedy="Check the clocks of this machine and of the server.",
            )
        if error.verify_code in _OTHER_NAME:
            return NotTrusted(
                f"The certificate of {address} is for another host",
                remedy="Use the host that the certificate names, or add this one to it.",
            )
        return NotTrusted(
            f"The certificate of {address} is from an authority that is not trusted here",
            reason=error.verify_message,
        )
    if any(each in reason for each in _PLAIN):
        return Unreachable(
            f"{address} does not use TLS",
            remedy=f"Write http://, if it is on this machine: http://{str(address)[8:]}. Port 4081"
            " is only for gRPC.",
        )
    if any(each in reason for each in _REFUSES):
        return Unauthenticated(
            f"{address} asks for a certificate of yours that it trusts",
            remedy="Give one in a profile: certificate = FILE and key = FILE.",
        )
    return NotTrusted(f"TLS with {address} failed", reason=reason or type(error).__name__)
