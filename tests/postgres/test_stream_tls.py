"""Encrypted connections: certificates are checked, and the stream goes by way of libpq."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.capture.postgres.connection import connect
from headrace.capture.postgres.options import PostgresOptions
from headrace.capture.postgres.stream.stream import ReplicationStream
from headrace.capture.postgres.stream.wire import LibpqWire
from headrace.embedded.postgres import PostgresServer
from headrace.errors import SourceRefused
from tests.postgres.servers import Database, fresh_database
from tests.postgres.test_stream import take

REQUEST = (
    *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
    *("-addext", "subjectAltName=DNS:localhost"),
)


@pytest.fixture(scope="module")
def encrypted(
    server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Database, Path]]:
    """A database whose server has a certificate for `localhost`, and that certificate."""
    binaries = [server.binaries, *Path("/usr/lib/postgresql").glob("*/bin")]
    able = [folder for folder in binaries if knows_tls(folder)]
    openssl = shutil.which("openssl")
    if not able or openssl is None:
        pytest.skip("no server here knows TLS, or there is no openssl to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "server.crt", folder / "server.key"
    subprocess.run(
        [openssl, *REQUEST, "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    with PostgresServer(binaries=able[0]) as own:
        owner = own.data.stat()
        for file in (certificate, key):
            there = own.data / file.name
            shutil.copy(file, there)
            there.chmod(0o600)
            os.chown(there, owner.st_uid, owner.st_gid)
        own.settings["ssl"] = "on"
        own.restart()
        with fresh_database(own) as database:
            yield database, certificate


def knows_tls(binaries: Path) -> bool:
    linked = subprocess.run(
        ["ldd", str(binaries / "postgres")], capture_output=True, text=True, check=False
    )
    return "libssl" in linked.stdout


def options_for(database: Database, host: str, extra: str) -> PostgresOptions:
    string = f"{database.dsn.replace('host=127.0.0.1', f'host={host} hostaddr=127.0.0.1')} {extra}"
    return PostgresOptions(name="shop", connection=string)


def test_a_certificate_is_checked_as_far_as_was_asked(encrypted: tuple[Database, Path]) -> None:
    database, certificate = encrypted
    full = f"sslmode=verify-full sslrootcert={certificate}"
    with connect(options_for(database, "localhost", full)) as connection:
        assert connection.pgconn.ssl_in_use
    with pytest.raises(SourceRefused, match="encrypted connection"):
        connect(options_for(database, "somebody-else", full))
    with pytest.raises(SourceRefused, match="encrypted connection"):
        connect(options_for(database, "localhost", "sslmode=verify-full sslrootcert=system"))


def test_an_encrypted_stream_gives_the_servers_very_bytes(
    encrypted: tuple[Database, Path],
) -> None:
    database, _ = encrypted
    database.execute("create table numbers (id int primary key, text text)")
    database.execute("create publication everything for all tables")
    for slot in ("one", "other"):
        database.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
    for number in range(200):
        # Lengths around those of TLS's records, and of what libpq takes at once.
        database.execute("insert into numbers values (%s, repeat('x', %s))", number, number * 173)
    database.execute("insert into numbers select n, 'y' from generate_series(1000, 30000) n")
    expected = database.rows(
        "select data from pg_logical_slot_peek_binary_changes('other', null, null,"
        " 'proto_version', '1', 'publication_names', 'everything', 'messages', 'true')"
    )
    connection = connect(options_for(database, "localhost", "sslmode=require"), replication=True)
    stream = ReplicationStream(connection, "one", 0, "everything", streaming=False)
    try:
        assert isinstance(stream._wire, LibpqWire)
        assert take(stream, len(expected)) == [data for (data,) in expected]
        # Messages one by one, each longer than libpq's buffer begins with.
        for number in range(20):
            size = 4000 + number * 1700
            database.execute("update numbers set text = repeat('z', %s) where id = 1", size)
            found = take(stream, 3)
            assert [message[:1] for message in found] == [b"B", b"U", b"C"]
            assert len(found[1]) > size
    finally:
        stream.close()
