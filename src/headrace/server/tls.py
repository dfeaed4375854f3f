"""
TLS: the files of a certificate, checked at the start and followed while the server runs.

`TlsFiles` reads the files and makes the contexts. At the start a file that cannot be used is an
error, because the server could not serve anybody: a handshake in memory tries the certificate with
its key, and finds one that is expired, or that is not for a server. A key must not be readable by
other users, by the rule of PostgreSQL: mode 0600, or 0640 if it belongs to root.

Certificates are replaced every few weeks. A context that serves (`context`) therefore only chooses
another one, made from the current files, in each handshake. Files that cannot be used any more are
reported, and the last good ones stay.
"""

from __future__ import annotations

import os
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import BadCertificate
from headrace.server.settings import TlsSettings


@dataclass(frozen=True, slots=True)
class Pem:
    """The contents of the files, for a server that takes bytes."""

    cert: bytes
    key: bytes
    client_ca: bytes | None

    def __repr__(self) -> str:
        return "Pem(***)"


class TlsFiles:
    """The files of one server's TLS. Raises `BadCertificate` if they cannot be used."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._seen = self._stamps()
        self._current = _checked_context(settings)
        self._pem = _pem(settings)
        self.context = _context(settings)
        # Called in every handshake, also if the client names no server.
        self.context.sni_callback = self._choose

    @property
    def pem(self) -> Pem:
        """The files as they were when they were last usable."""
        return self._pem

    def refresh(self) -> bool:
        """Read the files again if they have changed; raises `BadCertificate` and keeps the old."""
        seen = self._stamps()
        if seen == self._seen:
            return False
        # Only once for each state of the files: half of a replacement is followed by the rest.
        self._seen = seen
        current, pem = _checked_context(self._settings), _pem(self._settings)
        self._current, self._pem = current, pem
        return True

    def _choose(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        connection.context = self._current

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(Path(each)) for each in _files(self._settings))


def ssl_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return a context from the current files; raises `BadCertificate`."""
    return _checked_context(settings)


def _checked_context(settings: TlsSettings) -> ssl.SSLContext:
    _check_key(Path(settings.key))
    context = _context(settings)
    _shake_hands(settings)
    return context


def _context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client could make the server work by asking for new keys again and again.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    try:
        context.load_cert_chain(settings.cert, settings.key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise BadCertificate(
                "The key is not that of the certificate", cert=settings.cert, key=settings.key
            ) from None
        raise BadCertificate(
            "The certificate or its key cannot be read",
            cert=settings.cert,
            key=settings.key,
            reason=error.reason or "not PEM",
        ) from None
    except OSError as error:
        raise _unreadable(error, settings.cert) from None
    if settings.client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(cafile=settings.client_ca)
        except ssl.SSLError as error:
            raise BadCertificate(
                "The authorities of callers cannot be read",
                client_ca=settings.client_ca,
                reason=error.reason or "not PEM",
            ) from None
        except OSError as error:
            raise _unreadable(error, settings.client_ca) from None
    return context


def _no_password() -> str:
    # Otherwise OpenSSL would ask for it on the terminal.
    raise BadCertificate(
        "The key is encrypted with a password, which a server has no use for",
        remedy="Store it without a password, with mode 0600: openssl pkey -in KEY -out FILE.",
    )


def _check_key(path: Path) -> None:
    try:
        found = path.stat()
    except OSError as error:
        raise _unreadable(error, str(path)) from None
    if not stat.S_ISREG(found.st_mode):
        raise BadCertificate("The key is not a file", key=str(path))
    if found.st_uid not in (0, os.geteuid()):
        raise BadCertificate("The key belongs to another user", key=str(path))
    allowed = 0o640 if found.st_uid == 0 and os.geteuid() != 0 else 0o600
    if stat.S_IMODE(found.st_mode) & 0o077 & ~allowed:
        raise BadCertificate(
            "Other users can read the key",
            key=str(path),
            mode=f"{stat.S_IMODE(found.st_mode):04o}",
            remedy=f"Run chmod 600 {path}, and replace the key if others may have read it.",
        )


def _shake_hands(settings: TlsSettings) -> None:
    """Serve one client in memory, which trusts nothing but this certificate."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.load_verify_locations(cafile=settings.cert)
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(settings.cert, settings.key, password=_no_password)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server)
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    try:
        for side in (client, server, client, server):
            _step(side)
    except ssl.SSLCertVerificationError as error:
        raise BadCertificate(
            f"The certificate cannot be used: {error.verify_message}", cert=settings.cert
        ) from None
    except ssl.SSLError as error:
        raise BadCertificate(
            "A handshake with the certificate failed",
            cert=settings.cert,
            reason=error.reason or "unknown",
        ) from None


def _step(side: ssl.SSLObject) -> None:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return


def _pem(settings: TlsSettings) -> Pem:
    cert, key, *authorities = (Path(each).read_bytes() for each in _files(settings))
    return Pem(cert, key, authorities[0] if authorities else None)


def _files(settings: TlsSettings) -> tuple[str, ...]:
    return tuple(each for each in (settings.cert, settings.key, settings.client_ca) if each)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _unreadable(error: OSError, path: str) -> BadCertificate:
    return BadCertificate(
        "The file cannot be read",
        path=str(error.filename or path),
        reason=error.strerror or type(error).__name__,
    )
