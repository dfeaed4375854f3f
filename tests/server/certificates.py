"""Certificates for tests: an authority of our own, and what it signs. EC keys, made in no time."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headrace.server.settings import TlsSettings

NOW = datetime.now(UTC)


@dataclass(frozen=True)
class Files:
    cert: Path
    key: Path

    def tls(self, client_ca: Path | None = None) -> TlsSettings:
        return TlsSettings(str(self.cert), str(self.key), str(client_ca or ""))


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


class Authority:
    """Signs certificates into a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        cert = (
            self._builder(self._name, NOW - timedelta(days=1), NOW + timedelta(days=1))
            .public_key(self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_signs(), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.cert = folder / f"{name}.pem"
        self.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))

    def sign(
        self,
        name: str,
        *,
        days: tuple[float, float] = (-1, 1),
        client: bool = False,
        password: bytes | None = None,
    ) -> Files:
        """Write a certificate that is valid between these days, counted from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        use = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        first, last = (NOW + timedelta(days=each) for each in days)
        cert = (
            self._builder(_name(name), first, last)
            .public_key(key.public_key())
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
            .add_extension(
                x509.SubjectAlternativeName(
                    [
                        x509.DNSName("localhost"),
                        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
                    ]
                ),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        files = Files(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        files.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        write_key(files.key, key, password)
        return files

    def _builder(
        self, subject: x509.Name, first: datetime, last: datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .serial_number(x509.random_serial_number())
            .not_valid_before(first)
            .not_valid_after(last)
        )


def write_key(path: Path, key: ec.EllipticCurvePrivateKey, password: bytes | None = None) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(password)
                if password
                else serialization.NoEncryption(),
            )
        )


def _signs() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
