"""The files of TLS: what is refused at the start, what is followed later, and who may connect."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from headrace.errors import BadCertificate
from headrace.server.security import certificate_name
from headrace.server.settings import TlsSettings
from headrace.server.tls import TlsFiles
from tests.server.certificates import Authority, Files


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def connected(
    context: ssl.SSLContext, trusted: Path, client: Files | None = None, **versions: ssl.TLSVersion
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Return client and server after a handshake in memory; raises its error."""
    asking = ssl.create_default_context(cafile=str(trusted))
    for name, version in versions.items():
        setattr(asking, name, version)
    if client is not None:
        asking.load_cert_chain(client.cert, client.key)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = asking.wrap_bio(back, there, server_hostname="localhost")
    two = context.wrap_bio(there, back, server_side=True)
    for side in (one, two, one, two):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return one, two


def test_a_good_certificate_serves(authority: Authority) -> None:
    files = TlsFiles(authority.sign("server").tls())
    one, two = connected(files.context, authority.cert)
    assert one.version() == "TLSv1.3"
    assert certificate_name(two.getpeercert()) is None
    assert files.pem.cert.startswith(b"-----BEGIN")
    assert "BEGIN" not in repr(files.pem)


@pytest.mark.filterwarnings("ignore:.*TLSVersion.*deprecated:DeprecationWarning")
def test_old_versions_of_tls_are_refused(authority: Authority) -> None:
    files = TlsFiles(authority.sign("server").tls())
    with pytest.raises(ssl.SSLError):
        connected(
            files.context,
            authority.cert,
            minimum_version=ssl.TLSVersion.TLSv1_1,
            maximum_version=ssl.TLSVersion.TLSv1_1,
        )


def unusable(authority: Authority, folder: Path, what: str) -> TlsSettings:
    good = authority.sign("server")
    match what:
        case "expired":
            return authority.sign("old", days=(-2, -1)).tls()
        case "not yet valid":
            return authority.sign("new", days=(1, 2)).tls()
        case "of a client":
            return authority.sign("app", client=True).tls()
        case "of another key":
            return TlsSettings(str(good.cert), str(authority.sign("other").key))
        case "encrypted":
            return authority.sign("locked", password=b"secret").tls()
        case "no file":
            return TlsSettings(str(folder / "none.pem"), str(good.key))
        case "no key file":
            return TlsSettings(str(good.cert), str(folder / "none.key"))
        case "key is a folder":
            return TlsSettings(str(good.cert), str(folder))
        case "no PEM":
            (folder / "text.pem").write_text("hello")
            return TlsSettings(str(folder / "text.pem"), str(good.key))
        case "no authorities":
            (folder / "text.pem").write_text("hello")
            return good.tls(folder / "text.pem")
        case "no file of authorities":
            return good.tls(folder / "none.pem")
    good.key.chmod(int(what, 8))
    return good.tls()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("expired", "certificate has expired"),
        ("not yet valid", "not yet valid"),
        ("of a client", "purpose"),
        ("of another key", "not that of the certificate"),
        ("encrypted", "encrypted with a password"),
        ("no file", "cannot be read"),
        ("no key file", "cannot be read"),
        ("key is a folder", "not a file"),
        ("no PEM", "cannot be read"),
        ("no authorities", "authorities of callers cannot be read"),
        ("no file of authorities", "cannot be read"),
        ("0640", "Other users can read the key"),
        ("0604", "Other users can read the key"),
        ("0644", "Other users can read the key"),
    ],
)
def test_files_that_cannot_serve_are_refused_at_the_start(
    authority: Authority, tmp_path: Path, what: str, message: str
) -> None:
    with pytest.raises(BadCertificate, match=message) as raised:
        TlsFiles(unusable(authority, tmp_path, what))
    assert str(tmp_path) in str(raised.value) + raised.value.remedy or what == "encrypted"


def test_a_key_of_root_may_be_read_by_the_group_of_the_engine(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = authority.sign("server")
    files.key.chmod(0o640)
    mine = os.geteuid()
    if mine != 0:
        pytest.skip("the file cannot be given to root")
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    TlsFiles(files.tls())
    files.key.chmod(0o644)
    with pytest.raises(BadCertificate):
        TlsFiles(files.tls())
    os.chown(files.key, 1_001, -1)
    files.key.chmod(0o600)
    with pytest.raises(BadCertificate, match="belongs to another user"):
        TlsFiles(files.tls())


def test_a_caller_shows_a_certificate_of_the_right_authority(
    authority: Authority, tmp_path: Path
) -> None:
    clients = Authority(tmp_path, "clients")
    context = TlsFiles(authority.sign("server").tls(clients.cert)).context
    _, two = connected(context, authority.cert, clients.sign("app", client=True))
    assert certificate_name(two.getpeercert()) == "app"
    refused = (
        None,
        authority.sign("stranger", client=True),
        clients.sign("late", client=True, days=(-2, -1)),
        clients.sign("serves"),
    )
    for each in refused:
        with pytest.raises(ssl.SSLError):
            connected(context, authority.cert, each)


def test_a_new_certificate_is_used_without_a_restart(authority: Authority, tmp_path: Path) -> None:
    clients = Authority(tmp_path, "clients")
    server = authority.sign("server")
    (tmp_path / "trusted.pem").write_bytes(clients.cert.read_bytes())
    files = TlsFiles(server.tls(tmp_path / "trusted.pem"))
    app = clients.sign("app", client=True)
    assert not files.refresh()
    before, _ = connected(files.context, authority.cert, app)
    # As tools do it: a new file in the place of the old one. Callers get another authority, too.
    others = Authority(tmp_path, "others")
    (tmp_path / "trusted.pem").write_bytes(others.cert.read_bytes())
    renewed = authority.sign("renewed")
    renewed.cert.replace(server.cert)
    renewed.key.replace(server.key)
    assert files.refresh()
    after, two = connected(files.context, authority.cert, others.sign("new", client=True))
    assert certificate_name(before.getpeercert()) == "server"
    assert certificate_name(after.getpeercert()) == "renewed"
    assert certificate_name(two.getpeercert()) == "new"
    with pytest.raises(ssl.SSLError):
        connected(files.context, authority.cert, app)


def test_a_bad_new_certificate_leaves_the_good_one(authority: Authority) -> None:
    server = authority.sign("server")
    files = TlsFiles(server.tls())
    server.cert.write_text("half of a file")
    with pytest.raises(BadCertificate):
        files.refresh()
    assert not files.refresh()
    one, _ = connected(files.context, authority.cert)
    assert certificate_name(one.getpeercert()) == "server"
    server.cert.unlink()
    with pytest.raises(BadCertificate):
        files.refresh()
    authority.sign("server")
    assert files.refresh()
