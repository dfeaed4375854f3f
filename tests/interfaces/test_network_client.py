"""The client of an engine on the network: addresses, TLS, tokens, and why a call failed."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from headrace.api import address as network
from headrace.api.address import Address, is_here, not_connected
from headrace.api.client import Control
from headrace.errors import (
    BadAddress,
    BadCertificate,
    ControlError,
    Forbidden,
    HeadraceError,
    InsecureAddress,
    NoAnswer,
    NoEngine,
    NotTrusted,
    Unauthenticated,
    UnknownPipeline,
    Unreachable,
)
from tests.interfaces.network_front import answering, front, served_with, service_of
from tests.server.certificates import Authority

TOKEN = "t0ken-of-nobody"

SERVICE = service_of(Status=lambda _: {"ready": True})


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def ours(authority: Authority) -> ssl.SSLContext:
    return served_with(authority.sign("engine"))


# --- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("localhost", "http://localhost:4080"),
        ("127.0.0.1:99", "http://127.0.0.1:99"),
        ("[::1]:99", "http://[::1]:99"),
        ("engine.example.com", "https://engine.example.com:4080"),
        (" engine.example.com:443/ ", "https://engine.example.com:443"),
        ("http://engine.example.com", "http://engine.example.com:4080"),
        ("https://localhost:1", "https://localhost:1"),
        ("[2001:db8::7]", "https://[2001:db8::7]:4080"),
        ("https://münchen.example", "https://xn--mnchen-3ya.example:4080"),
    ],
)
def test_an_address_is_encrypted_unless_it_is_this_machine(text: str, shown: str) -> None:
    assert str(Address.parse(text)) == shown
    assert str(Address.parse(shown)) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ftp://host",
        "host:port",
        "host:0",
        "host:65536",
        "::1",
        "[127.0.0.1:4080",
        "[nothing]:1",
        "https://host/path",
        "host?query",
        "two words",
        "a..b",
        f"{'x' * 64}.example",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadAddress):
        Address.parse(text)


def test_a_password_in_an_address_is_not_quoted() -> None:
    with pytest.raises(BadAddress) as caught:
        Address.parse("https://me:pa55word@host")
    assert "pa55word" not in f"{caught.value} {caught.value.remedy}"


@pytest.mark.parametrize(
    ("host", "here"),
    [("::1", True), ("127.8.9.1", True), ("Localhost", True), ("10.0.0.1", False), ("x", False)],
)
def test_this_machine_is_its_loopback_address(host: str, here: bool) -> None:
    assert is_here(host) is here


# --- tokens ---------------------------------------------------------------------------------------


def test_a_token_is_sent_with_every_call() -> None:
    with front(SERVICE, tokens={TOKEN: "read"}) as served:
        assert Control.at(served.address, token=TOKEN).status() == {"ready": True}
        assert served.asked[0][1]["Authorization"] == f"Bearer {TOKEN}"
        assert Control.at(served.address, token=TOKEN).address == served.address


def test_without_a_right_token_a_call_is_refused() -> None:
    with front(SERVICE, tokens={TOKEN: "read"}) as served:
        for token in (None, "another"):
            with pytest.raises(Unauthenticated, match="valid token") as caught:
                Control.at(served.address, token=token).status()
            assert caught.value.exit_code == 5
            assert "HEADRACE_TOKEN" in caught.value.remedy
        with pytest.raises(Forbidden, match="needs the role operate") as caught_too:
            Control.at(served.address, token=TOKEN).call("Pause", pipeline="orders")
        assert caught_too.value.exit_code == 5


@pytest.mark.parametrize("address", ["http://engine.example.com", "http://10.0.0.1:80"])
def test_a_token_never_goes_to_another_machine_unencrypted(address: str) -> None:
    with pytest.raises(InsecureAddress) as caught:
        Control.at(address, token=TOKEN)
    assert "https://" in caught.value.remedy
    assert TOKEN not in str(caught.value)
    Control.at(address)


def test_a_name_of_this_machine_that_leads_elsewhere_gets_no_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What `localhost` means is a setting of the machine.
    monkeypatch.setattr(network, "is_here", lambda host: host == "localhost")
    with front(SERVICE, tokens={TOKEN: "read"}) as served:
        with pytest.raises(InsecureAddress, match=r"127\.0\.0\.1"):
            Control.at(f"http://localhost:{served.port}", token=TOKEN).status()
        assert served.asked == []


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "schlüssel", "\x00"])
def test_a_token_with_other_characters_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(BadAddress) as caught:
        Control.at("localhost", token=token)
    assert not token or token not in str(caught.value)


# --- TLS ------------------------------------------------------------------------------------------


def test_an_engine_with_a_certificate_of_our_authority_is_reached(
    authority: Authority, ours: ssl.SSLContext
) -> None:
    with front(SERVICE, ours, tokens={TOKEN: "read"}) as served:
        for host in ("127.0.0.1", "localhost"):
            control = Control.at(f"https://{host}:{served.port}", token=TOKEN, ca=authority.cert)
            assert control.status() == {"ready": True}


def test_a_certificate_that_is_not_trusted_is_refused_before_anything_is_sent(
    ours: ssl.SSLContext,
) -> None:
    with front(SERVICE, ours) as served:
        with pytest.raises(NotTrusted, match="authority that is not trusted") as caught:
            Control.at(served.address, token=TOKEN).status()
        assert caught.value.exit_code == 4
        assert served.asked == []


def test_a_certificate_for_another_host_is_refused(
    authority: Authority, ours: ssl.SSLContext
) -> None:
    # The same machine, by a name that the certificate does not have.
    with front(SERVICE, ours) as served, pytest.raises(NotTrusted, match="is for another host"):
        Control.at(f"https://127.1:{served.port}", ca=authority.cert).status()


@pytest.mark.parametrize(
    ("days", "said"), [((-2, -1), "has expired"), ((1, 2), "is not valid yet")]
)
def test_a_certificate_is_trusted_only_in_its_time(
    authority: Authority, days: tuple[float, float], said: str
) -> None:
    context = served_with(authority.sign("untimely", days=days))
    with front(SERVICE, context) as served, pytest.raises(NotTrusted, match=said):
        Control.at(served.address, ca=authority.cert).status()


def test_a_server_that_asks_for_a_certificate_gets_ours(authority: Authority) -> None:
    context = served_with(authority.sign("mutual"), clients=authority.cert)
    mine = authority.sign("me", client=True)
    with front(SERVICE, context) as served:
        known = Control.at(served.address, ca=authority.cert, certificate=mine.cert, key=mine.key)
        assert known.status() == {"ready": True}
        # The refusal may be lost: who refuses closes the connection while we still send.
        with pytest.raises((Unauthenticated, Unreachable)) as caught:
            Control.at(served.address, ca=authority.cert).status()
        assert "certificate = FILE" in caught.value.remedy


@pytest.mark.parametrize("name", ["nothing.pem", "empty.pem"])
def test_files_that_are_no_certificates_are_named(
    authority: Authority, tmp_path: Path, name: str
) -> None:
    (tmp_path / "empty.pem").touch()
    file = tmp_path / name
    with pytest.raises(BadCertificate, match=name):
        Control.at("https://localhost", ca=file)
    with pytest.raises(BadCertificate, match=name):
        Control.at("https://localhost", ca=authority.cert, certificate=file)


def test_plain_and_encrypted_are_told_apart(authority: Authority, ours: ssl.SSLContext) -> None:
    with front(SERVICE) as plain, pytest.raises(Unreachable, match="does not use TLS") as caught:
        Control.at(f"https://127.0.0.1:{plain.port}", ca=authority.cert).status()
    assert f"http://127.0.0.1:{plain.port}" in caught.value.remedy
    with front(SERVICE, ours) as served, pytest.raises(HeadraceError) as other:
        Control.at(f"http://127.0.0.1:{served.port}").status()
    assert isinstance(other.value, Unreachable)
    assert "https://" in other.value.remedy


# --- what else may go wrong -----------------------------------------------------------------------


def http(status: str, body: str, kind: str = "text/html") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (http("200 OK", "<p>hello"), ControlError, "is not an engine: HTTP status 200"),
        (http("200 OK", "[]", "application/json"), ControlError, "is not an engine"),
        (http("404 Not Found", '{"detail": 1}'), ControlError, "HTTP status 404"),
        (http("302 Found", ""), ControlError, "HTTP status 302"),
        (http("401 Unauthorized", "<p>no"), Unauthenticated, "without a token"),
        (http("403 Forbidden", "<p>no"), Forbidden, "refuses the request"),
        (http("502 Bad Gateway", "<p>no"), Unreachable, "A proxy answers"),
        (http("401 Unauthorized", '{"code": "unauthenticated"}'), Unauthenticated, "refused"),
        (http("403 Forbidden", '{"code": "permission_denied"}'), Forbidden, "refused"),
        (b"\x00\x00\x12\x04 of gRPC\r\n", ControlError, "does not speak HTTP/1.1"),
        (b"", Unreachable, "the connection broke"),
    ],
)
def test_what_is_no_engine_is_told(answer: bytes, kind: type[HeadraceError], said: str) -> None:
    with answering(answer) as address, pytest.raises(kind, match=said) as caught:
        Control.at(address).call("Status")
    assert type(caught.value) is kind


def test_a_stream_of_something_else_is_told() -> None:
    with (
        answering(http("200 OK", "{}", "application/json")) as address,
        pytest.raises(ControlError, match="is not an engine"),
    ):
        next(Control.at(address).stream("Watch", pipeline="orders"))


def test_a_stream_that_breaks_is_no_end() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/connect+json\r\n\r\n"
    with answering(head + b"\0\0\0\0\2{}\0\0") as address:
        told = Control.at(address).stream("Watch", pipeline="orders")
        assert next(told) == {}
        with pytest.raises(NoEngine, match="the connection broke"):
            next(told)


def test_an_engine_that_does_not_answer_is_waited_for_no_longer_than_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        control = Control.at(f"127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(NoAnswer, match=r"did not answer within 0\.05 seconds"):
            control.call("Status", answer_seconds=0.05)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(Unreachable, match="nothing accepts connections") as caught:
        Control.at(f"127.0.0.1:{port}").status()
    assert caught.value.exit_code == 4
    assert "section server" in caught.value.remedy


def test_every_cause_of_a_failed_connection_is_told() -> None:
    where = Address.parse("engine.example.com")
    for error, said in (
        (socket.gaierror(-2, "unknown"), "no machine has the name engine.example.com"),
        (TimeoutError(), "no answer within 5 seconds"),
        (OSError(113, "No route to host"), "No route to host"),
        (ConnectionResetError(), "ConnectionResetError"),
    ):
        found = not_connected(where, error, 5.0)
        assert isinstance(found, Unreachable)
        assert said in found.message
        assert str(where) in found.message


def test_an_error_of_the_engine_arrives_as_what_it_is() -> None:
    def unknown(_: object) -> None:
        raise UnknownPipeline("There is no pipeline order", pipelines=["orders"])

    with front(service_of(Explain=unknown)) as served:
        with pytest.raises(UnknownPipeline) as caught:
            Control.at(served.address).call("Explain", pipeline="order")
        assert caught.value.facts == {"pipelines": ["orders"]}
        with pytest.raises(ControlError, match="Unknown command Nothing"):
            Control.at(served.address).call("Nothing")
