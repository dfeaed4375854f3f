"""
Attacks on a real server: each is refused with the right code, and nothing is told or leaks.

One engine has three servers, each with a child of its own: with tokens, with TLS and certificates
of callers, and open on the loopback address. No attack may end a child.
"""

from __future__ import annotations

import gzip
import http.client
import json
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest

from headrace.api.methods import METHODS, ROLES
from headrace.errors import BadCertificate
from headrace.server.network import NetworkServer, serve
from headrace.server.settings import token_hash
from tests.server.certificates import Authority, Files
from tests.server.serving import CONTROL, OAM, QUERY, Served, await_child, enveloped, served
from tests.support.patience import patience

pytestmark = pytest.mark.process

TOKENS = {name: f"hrt_{name:-<43}" for name in ("reader", "operator", "admin", "other", "late")}
RIGHTS: dict[str, dict[str, Any]] = {
    "reader": {"role": "read"},
    "operator": {"role": "operate"},
    "admin": {"role": "admin"},
    "other": {"role": "admin", "tables": ["invoices"]},
    "late": {"role": "admin", "expires": "2020-01-01T00:00:00Z"},
}
LIMITS: dict[str, float] = {
    "largest_request": 100_000,
    "largest_head": 8_192,
    "connections": 40,
    "streams_per_token": 2,
    "head_seconds": 0.4,
    "body_seconds": 0.4,
    "stalled_seconds": 1.0,
}
PLANTED = 471_147_114_711
"""A customer's id: a value that may be nowhere but in answers with rows."""


class Attacked:
    """An engine with three servers."""

    def __init__(
        self, here: Served, tls: NetworkServer, opened: NetworkServer, authority: Authority
    ) -> None:
        self.engine = here.engine
        self.data = here.shop.data
        self.guarded = here.server
        self.tls = tls
        self.opened = opened
        self.authority = authority


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    folder = tmp_path_factory.mktemp("attacked")
    authority = Authority(folder)
    tokens = {name: {**RIGHTS[name], "hash": token_hash(TOKENS[name])} for name in TOKENS}
    server = authority.sign("server")
    tls: dict[str, Any] = {
        "tls": {"cert": str(server.cert), "key": str(server.key), "client_ca": str(authority.cert)},
        "tokens": {"app": {"role": "read", "certificate": "app"}, **tokens},
    }
    ports: dict[str, Any] = {"http_port": 0, "grpc_port": 0, "limits": LIMITS}
    with served(folder, tokens=tokens, limits=LIMITS) as here:
        here.shop.app.execute("insert into orders values (99, ?, 'paid', 'x')", [PLANTED])
        # Enough for answers that no buffer takes.
        here.shop.insert(range(1_000, 9_000))
        with serve(here.engine, **ports, **tls) as second, serve(here.engine, **ports) as third:
            for each in (second, third):
                await_child(each, lambda info: info.state == "serving", here.shop.data)
            found = Attacked(here, second, third, authority)
            pids = [each.info.pid for each in (here.server, second, third)]
            yield found
            assert [each.info.pid for each in (here.server, second, third)] == pids
            assert [each.info.restarts for each in (here.server, second, third)] == [0, 0, 0]


# --- ways to ask ----------------------------------------------------------------------------------


class Answer:
    """What came back."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def code(self) -> str:
        """The Connect code of an error, of a stream, too."""
        body = self.body
        if self.headers.get("content-type", "").startswith("application/connect+"):
            body = json.dumps(json.loads(body[5:])["error"]).encode()
        return str(json.loads(body)["code"])


def where(server: NetworkServer) -> tuple[str, int]:
    parts = urlsplit(server.info.http)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def ask(
    server: NetworkServer,
    path: str,
    body: bytes = b"{}",
    *,
    method: str = "POST",
    token: str | None = None,
    headers: dict[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> Answer:
    host, port = where(server)
    connection = (
        http.client.HTTPConnection(host, port, timeout=patience())
        if context is None
        else http.client.HTTPSConnection(host, port, timeout=patience(), context=context)
    )
    sent = {"content-type": "application/json", **(headers or {})}
    if token is not None:
        sent["authorization"] = f"Bearer {token}"
    with closing(connection):
        connection.request(method, path, body if method == "POST" else None, sent)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read())


def call(server: NetworkServer, method_path: str, **options: Any) -> Answer:
    """Call a method with an empty message, in JSON."""
    if not METHODS[method_path].streams:
        return ask(server, method_path, **options)
    headers = {**options.pop("headers", {}), "content-type": "application/connect+json"}
    return ask(server, method_path, enveloped(b"{}"), headers=headers, **options)


@contextmanager
def connected(server: NetworkServer, buffer: int = 0) -> Iterator[socket.socket]:
    """A connection that says what it wants."""
    with socket.socket() as found:
        if buffer:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        found.settimeout(patience())
        found.connect(where(server))
        yield found


def until_end(connection: socket.socket) -> bytes:
    """Return what comes until the server has closed the connection."""
    data = b""
    with suppress(ConnectionError):
        while piece := connection.recv(64 << 10):
            data += piece
    return data


def answer_on(connection: socket.socket) -> Answer:
    """Return the next answer."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    found = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, found, response.read())


def request(path: str, *headers: str, host: str = "127.0.0.1") -> bytes:
    """The head of a POST."""
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def grpc_code(
    server: NetworkServer,
    path: str,
    body: bytes = b"",
    token: str | None = None,
    credentials: grpc.ChannelCredentials | None = None,
) -> grpc.StatusCode:
    """Call over gRPC; return the status."""
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    target, options = server.info.grpc, (("grpc.enable_retries", 0),)
    with (
        grpc.insecure_channel(target, options)
        if credentials is None
        else grpc.secure_channel(target, credentials, options)
    ) as channel:
        if METHODS[path].streams:
            stream = channel.unary_stream(path)(body, metadata=metadata, timeout=patience())
            with suppress(grpc.RpcError):
                next(stream)
                stream.cancel()
                return grpc.StatusCode.OK
            return stream.code()
        try:
            channel.unary_unary(path)(body, metadata=metadata, timeout=patience())
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


OVER_GRPC = [path for path, method in METHODS.items() if method.request is not None]
PAUSE = f"{OAM}PauseSync"
STATUS = f"{CONTROL}Status"


# --- who calls ------------------------------------------------------------------------------------


def test_no_call_is_answered_without_a_token(attacked: Attacked) -> None:
    for path in METHODS:
        answer = call(attacked.guarded, path)
        assert answer.code == "unauthenticated", path
        assert b"orders" not in answer.body
        assert answer.status == (200 if METHODS[path].streams else 401)
    for path in OVER_GRPC:
        assert grpc_code(attacked.guarded, path) == grpc.StatusCode.UNAUTHENTICATED, path
    for path in ("/metrics", "/events"):
        assert ask(attacked.guarded, path, method="GET").code == "unauthenticated"


def test_health_without_a_token_names_nothing(attacked: Attacked) -> None:
    attacked.engine.pause("orders")
    try:
        answer = ask(attacked.guarded, "/health/ready", method="GET")
        assert b"orders" not in answer.body
    finally:
        attacked.engine.resume("orders")


@pytest.mark.parametrize(
    "token",
    [
        TOKENS["late"],
        TOKENS["reader"][:-1],
        TOKENS["reader"] + "x",
        token_hash(TOKENS["admin"]),
        "",
        "\xe9" * 47,
        "x" * 4_000,
    ],
)
def test_a_token_that_is_wrong_or_has_expired_is_refused(attacked: Attacked, token: str) -> None:
    answer = ask(attacked.guarded, STATUS, headers={"authorization": f"Bearer {token}"})
    assert (answer.status, answer.code) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert not token or token.encode("latin-1") not in answer.body


def test_a_call_needs_its_role(attacked: Attacked) -> None:
    names = {"read": "reader", "operate": "operator"}
    seen = 0
    for path, method in METHODS.items():
        for role in ROLES[: ROLES.index(method.role)]:
            token = TOKENS[names[role]]
            assert call(attacked.guarded, path, token=token).code == "permission_denied", path
            if method.request is not None:
                found = grpc_code(attacked.guarded, path, token=token)
                assert found == grpc.StatusCode.PERMISSION_DENIED, path
            seen += 1
    assert seen > 10


def test_two_tokens_in_a_request_are_refused(attacked: Attacked) -> None:
    first, second = (f"Authorization: Bearer {TOKENS[each]}" for each in ("admin", "reader"))
    with connected(attacked.guarded) as connection:
        connection.sendall(request(STATUS, first, second, "Content-Length: 2") + b"{}")
        assert answer_on(connection).code == "permission_denied"


FIELDS = {
    "pipeline": "orders",
    "pipeline_id": "orders",
    "table": "orders",
    "source": "shop",
    "source_id": "shop",
    "position": "0001-0000000000000001-00000000",
}


def plausible(path: str) -> bytes:
    """A request for the table orders, as JSON."""
    method = METHODS[path]
    if method.request is None:
        wanted = {"Explain": ["pipeline"], "Log": ["source"]}.get(
            method.name, ["pipeline", "table"]
        )
        if method.name in ("Status", "Health", "Metrics", "Me", "Configuration"):
            wanted = []
        return json.dumps({name: FIELDS[name] for name in wanted}).encode()
    known = method.request.DESCRIPTOR.fields_by_name
    return json.dumps({name: FIELDS[name] for name in FIELDS if name in known}).encode()


def test_rows_are_only_for_tokens_with_their_table(attacked: Attacked) -> None:
    key = {"pipeline": "orders", "index": "by_customer", "values": [PLANTED]}
    found = ask(
        attacked.guarded, f"{CONTROL}Query", json.dumps(key).encode(), token=TOKENS["reader"]
    )
    assert str(PLANTED).encode() in found.body
    refused = set()
    for path, method in METHODS.items():
        if method.changes or method.name == "WatchStatus":
            continue  # which is silent until something happens, and has no rows
        body, kind = plausible(path), "application/json"
        if method.streams:
            body, kind = enveloped(body), "application/connect+json"
        headers = {"content-type": kind}
        answer = ask(attacked.guarded, path, body, token=TOKENS["other"], headers=headers)
        assert str(PLANTED).encode() not in answer.body, path
        if b"permission_denied" in answer.body:
            refused.add(method.name)
    rows = {"Query", "Rows", "Watch", "DeadLetters", "DeadLetterRecords", "ShowDeadLetter"}
    queries = {method.name for method in METHODS.values() if method.service == QUERY.strip("/")}
    assert refused >= rows | queries | {"ListEvents", "WatchEvents", "Events"}
    events = ask(attacked.guarded, "/events", method="GET", token=TOKENS["other"])
    assert events.code == "permission_denied"


# --- certificates ---------------------------------------------------------------------------------


def trusting(authority: Authority, client: Files | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.cert))
    if client is not None:
        context.load_cert_chain(client.cert, client.key)
    return context


def test_a_certificate_opens_what_its_entry_says(attacked: Attacked) -> None:
    context = trusting(attacked.authority, attacked.authority.sign("app", client=True))
    assert ask(attacked.tls, STATUS, context=context).status == 200
    assert ask(attacked.tls, f"{CONTROL}Pause", context=context).code == "permission_denied"
    token = TOKENS["admin"]
    assert ask(attacked.tls, STATUS, context=context, token=token).status == 200
    stranger = trusting(attacked.authority, attacked.authority.sign("stranger", client=True))
    assert ask(attacked.tls, STATUS, context=stranger).code == "unauthenticated"
    assert ask(attacked.tls, STATUS, context=stranger, token=token).status == 200


def test_without_a_right_certificate_nobody_gets_in(attacked: Attacked, tmp_path: Path) -> None:
    authority, token = attacked.authority, TOKENS["admin"]
    wrong = (
        None,
        Authority(tmp_path, "elsewhere").sign("app", client=True),
        authority.sign("expired", client=True, days=(-2, -1)),
    )
    for each in wrong:
        with pytest.raises(OSError, match=r"alert|reset|closed|EOF|Broken pipe"):
            ask(attacked.tls, STATUS, context=trusting(authority, each), token=token)
        keys = () if each is None else (each.key.read_bytes(), each.cert.read_bytes())
        credentials = grpc.ssl_channel_credentials(authority.cert.read_bytes(), *keys)
        found = grpc_code(attacked.tls, PAUSE, token=token, credentials=credentials)
        assert found == grpc.StatusCode.UNAVAILABLE
    with connected(attacked.tls) as connection:
        connection.sendall(request(STATUS, f"Authorization: Bearer {token}", "Content-Length: 0"))
        assert b"HTTP/1.1" not in until_end(connection)


def test_grpc_finds_the_name_in_a_certificate(attacked: Attacked) -> None:
    client = attacked.authority.sign("app", client=True)
    credentials = grpc.ssl_channel_credentials(
        attacked.authority.cert.read_bytes(), client.key.read_bytes(), client.cert.read_bytes()
    )
    found = grpc_code(attacked.tls, PAUSE, credentials=credentials)
    assert found == grpc.StatusCode.PERMISSION_DENIED


def test_a_certificate_that_cannot_serve_stops_the_server_and_not_the_engine(
    attacked: Attacked,
) -> None:
    files = attacked.authority.sign("old", days=(-2, -1))
    tls = {"cert": str(files.cert), "key": str(files.key)}
    with pytest.raises(BadCertificate, match="has expired"):
        serve(attacked.engine, http_port=0, grpc_port=0, tls=tls)
    assert attacked.engine.is_ready()


def test_a_handshake_that_does_not_begin_is_ended(attacked: Attacked) -> None:
    with connected(attacked.tls) as connection:
        assert until_end(connection) == b""


# --- requests that are too large or too slow ------------------------------------------------------


def test_a_body_that_is_too_large_is_refused(attacked: Attacked) -> None:
    authorized = f"Authorization: Bearer {TOKENS['admin']}"
    with connected(attacked.guarded) as connection:
        connection.sendall(request(STATUS, authorized, "Content-Length: 100001"))
        assert answer_on(connection).code == "resource_exhausted"
    with connected(attacked.guarded) as connection:
        connection.sendall(request(STATUS, authorized, "Transfer-Encoding: chunked"))
        connection.sendall(b"".join(b"2710\r\n" + b"x" * 10_000 + b"\r\n" for _ in range(11)))
        assert answer_on(connection).code == "resource_exhausted"
    found = grpc_code(attacked.guarded, f"{OAM}GetStatus", b"x" * 100_001, TOKENS["admin"])
    assert found == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_body_without_end_ends_with_its_connection(attacked: Attacked) -> None:
    for authorized in ((), (f"Authorization: Bearer {TOKENS['admin']}",)):
        with connected(attacked.guarded) as connection:
            connection.sendall(request(STATUS, *authorized, "Transfer-Encoding: chunked"))
            with pytest.raises(ConnectionError):
                while True:
                    connection.sendall(b"1\r\nx\r\n")


def test_a_login_is_read_only_as_far_as_a_token_goes(attacked: Attacked) -> None:
    answer = ask(attacked.guarded, "/session", b'"' + b"x" * 20_000)
    assert (answer.status, answer.code) == (429, "resource_exhausted")


def test_a_head_without_end_is_refused(attacked: Attacked) -> None:
    with connected(attacked.guarded) as connection:
        connection.sendall(request(STATUS, f"X-Long: {'x' * 9_000}")[:-2])
        assert until_end(connection).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("sent", [b"", b"POST ", b"POST / HTTP/1.1\r\nHost: x\r\n"])
def test_a_head_that_does_not_come_ends_its_connection(attacked: Attacked, sent: bytes) -> None:
    with connected(attacked.guarded) as connection:
        connection.sendall(sent)
        assert until_end(connection) == b""


def test_a_body_that_does_not_come_is_told_so(attacked: Attacked) -> None:
    authorized = f"Authorization: Bearer {TOKENS['admin']}"
    with connected(attacked.guarded) as connection:
        connection.sendall(request(STATUS, authorized, "Content-Length: 10") + b"{")
        answer = answer_on(connection)
        assert (answer.status, answer.code) == (504, "deadline_exceeded")
        until_end(connection)


def test_a_reader_that_takes_nothing_is_disconnected(attacked: Attacked) -> None:
    # Answers of 60 kB each to requests that are sent without a wait for them.
    body = b'{"pipeline": "orders", "index": "by_customer", "values": [1]}'
    authorized = f"Authorization: Bearer {TOKENS['reader']}"
    one = request(f"{CONTROL}Query", authorized, f"Content-Length: {len(body)}") + body
    before = attacked.guarded.info.clients.stalled
    with connected(attacked.guarded, buffer=4_096) as connection:
        connection.sendall(one * 150)
        await_child(attacked.guarded, lambda info: info.clients.stalled > before, attacked.data)


def test_connections_and_streams_are_limited(attacked: Attacked) -> None:
    headers = {"content-type": "application/connect+json"}
    body = enveloped(b'{"pipeline": "orders"}')
    host, port = where(attacked.guarded)
    streams = [http.client.HTTPConnection(host, port, timeout=patience()) for _ in range(2)]
    sent = {**headers, "authorization": f"Bearer {TOKENS['reader']}"}
    for each in streams:
        each.request("POST", f"{CONTROL}Watch", body, sent)
        assert each.getresponse().status == 200
    answer = ask(attacked.guarded, f"{CONTROL}Watch", body, token=TOKENS["reader"], headers=headers)
    assert answer.code == "resource_exhausted"
    for each in streams:
        each.close()
    many = [socket.create_connection((host, port)) for _ in range(int(LIMITS["connections"]) + 5)]
    many[-1].settimeout(patience())
    assert until_end(many[-1]) == b""
    for one in many:
        one.close()


# --- requests that are not what they seem ---------------------------------------------------------

SMUGGLED = (
    ("Content-Length: 2", "Transfer-Encoding: chunked"),
    ("Content-Length: 2", "Content-Length: 3"),
    ("Transfer-Encoding: chunked, identity",),
    ("Content-Length: -1",),
    ("Content-Length: 99999999999999999999",),
    ("X-Bad\x00: x", "Content-Length: 2"),
)


@pytest.mark.parametrize("headers", SMUGGLED)
def test_a_request_with_two_lengths_is_refused(
    attacked: Attacked, headers: tuple[str, ...]
) -> None:
    with connected(attacked.opened) as connection:
        connection.sendall(request(STATUS, *headers) + b"{}")
        status = re.match(rb"HTTP/1.1 (\d+)", until_end(connection))
        assert status is None or status[1] in (b"400", b"429")


@pytest.mark.parametrize("follows", [b"\0\0", b"GET / HTTP/9\r\n\r\n", b"x" * 9_000])
def test_what_follows_a_request_and_is_none_leaves_nothing_in_the_log(
    attacked: Attacked, follows: bytes
) -> None:
    log = attacked.data / "logs" / "server.log"
    authorized = f"Authorization: Bearer {TOKENS['admin']}"
    body = b'{"pipeline": "none"}'
    for headers in ((), (authorized,)):
        with connected(attacked.guarded) as connection:
            head = request(f"{CONTROL}Pause", *headers, f"Content-Length: {len(body)}")
            connection.sendall(head + body + follows)
            until_end(connection)
    assert ask(attacked.guarded, STATUS, token=TOKENS["admin"]).status == 200
    assert "Traceback" not in log.read_text()
    # Without its body, the request would be for all pipelines.
    assert [each.state for each in attacked.engine.pipelines()] == ["live"]


PATHS = (
    "/../../../../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/..%2f..%2fetc/passwd",
    "//etc/passwd",
    "/console/../../../etc/passwd",
    "/static/..\\..\\etc\\passwd",
    "/index.html%00.png",
    "/.git/config",
    "/%c0%ae%c0%ae/etc/passwd",
    "http://127.0.0.1/etc/passwd",
    "/server.log",
)


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leads_out_of_the_console(attacked: Attacked, path: str) -> None:
    with connected(attacked.opened) as connection:
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode("latin-1"))
        answer = until_end(connection)
    assert re.match(rb"HTTP/1.1 40[04]", answer), answer
    assert b"root:" not in answer


BODIES = (
    b"{" * 16_000,
    b"[" * 16_000,
    b'{"a":' * 3_000,
    b"\xff\xfe",
    b"null",
    b'"\\ud800"',
    b'{"pipeline": 1e999}',
    b'{"pipeline": "\\u0000"}',
)


@pytest.mark.parametrize("body", BODIES)
def test_a_body_that_is_no_request_is_refused_by_every_service(
    attacked: Attacked, body: bytes
) -> None:
    for path in (f"{CONTROL}Query", f"{OAM}GetPipelineStatus", f"{QUERY}ListRows", "/session"):
        answer = ask(attacked.opened, path, body)
        assert answer.code in ("invalid_argument", "not_found", "unauthenticated"), answer.body
        assert b"Traceback" not in answer.body


def test_a_small_body_does_not_become_a_large_one(attacked: Attacked) -> None:
    bomb = gzip.compress(b" " * 10_000_000)
    assert len(bomb) < LIMITS["largest_request"]
    headers = {"content-encoding": "gzip"}
    assert ask(attacked.opened, STATUS, bomb, headers=headers).code == "resource_exhausted"
    broken = ask(attacked.opened, STATUS, b"\x1f\x8b", headers=headers)
    assert broken.code == "invalid_argument"


# --- other sites ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example.com"},
        {"host": "127.0.0.1.evil.example.com:4080"},
        {"origin": "https://evil.example.com"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:3000"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_another_site_cannot_use_a_browser(attacked: Attacked, headers: dict[str, str]) -> None:
    for path in METHODS:
        answer = call(attacked.opened, path, headers=headers)
        assert answer.status == 403, path
    for path in ("/metrics", "/events"):
        assert ask(attacked.opened, path, method="GET", headers=headers).code == "permission_denied"
    for method in ("POST", "DELETE"):
        answer = ask(attacked.opened, "/session", method=method, headers=headers)
        assert answer.code == "permission_denied"
    if "sec-fetch-site" not in headers:
        assert ask(attacked.opened, "/", method="GET", headers=headers).status in (403, 404)


def test_no_answer_allows_another_site_anything(attacked: Attacked) -> None:
    wanted = {
        "origin": "https://evil.example.com",
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type",
    }
    for method in ("OPTIONS", "GET", "POST"):
        answer = ask(attacked.opened, STATUS, method=method, headers=wanted)
        assert answer.status in (403, 405)
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_a_form_of_another_site_is_not_a_request(attacked: Attacked) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = ask(attacked.opened, f"{CONTROL}Pause", headers={"content-type": kind})
        assert answer.status == 415


def test_a_cookie_works_for_the_page_of_the_server_alone(attacked: Attacked) -> None:
    body = json.dumps({"token": TOKENS["operator"]}).encode()
    login = ask(attacked.guarded, "/session", body)
    cookie = login.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKENS["operator"] not in str(login.headers) + login.body.decode()
    sent = {"cookie": cookie.partition(";")[0]}
    own = {**sent, "origin": attacked.guarded.info.http, "sec-fetch-site": "same-origin"}
    assert ask(attacked.guarded, STATUS, headers=own).status == 200
    for other in ({"origin": "http://127.0.0.1:1"}, {"sec-fetch-site": "same-site"}):
        answer = ask(attacked.guarded, f"{CONTROL}Pause", headers={**sent, **other})
        assert answer.code == "permission_denied"
    assert ask(attacked.guarded, "/session", method="DELETE", headers=own).status == 200
    assert ask(attacked.guarded, STATUS, headers=own).code == "unauthenticated"


# --- what is left behind --------------------------------------------------------------------------


def test_who_was_refused_and_who_changed_something_is_recorded(attacked: Attacked) -> None:
    log = attacked.data / "logs" / "audit.log"
    assert ask(attacked.guarded, f"{CONTROL}Status", b"{}").status == 401
    pause = b'{"pipeline": "orders"}'
    assert ask(attacked.guarded, f"{CONTROL}Pause", pause, token=TOKENS["reader"]).status == 403
    answer = ask(attacked.guarded, f"{CONTROL}Pause", pause, token=TOKENS["operator"])
    assert answer.status == 200
    answer = ask(
        attacked.guarded,
        f"{CONTROL}Resume",
        b'{"pipeline": "orders"}',
        token=TOKENS["operator"],
    )
    assert answer.status == 200
    lines = [json.loads(each) for each in log.read_text().splitlines()]
    done = [each for each in lines if each["outcome"] == "ok" and "pipeline" in each]
    assert [each["method"] for each in done[-2:]] == [
        "ControlService/Pause",
        "ControlService/Resume",
    ]
    assert {each["caller"] for each in done} == {"operator"}
    refused = {(each["method"], each["outcome"]) for each in lines if each["outcome"] != "ok"}
    assert ("ControlService/Status", "serving.unauthenticated") in refused
    assert ("ControlService/Pause", "control.forbidden") in refused
    assert log.stat().st_mode & 0o777 == 0o600


def test_no_secret_and_no_value_of_a_row_is_told_or_left_behind(attacked: Attacked) -> None:
    # After all tests above: what they sent and what their rows had.
    secrets = [*TOKENS.values(), *(token_hash(each) for each in TOKENS.values())]
    secrets.append(str(PLANTED))
    told = {
        path: call(attacked.opened, path).body
        for path, method in METHODS.items()
        if method.role == "read" and not method.streams and method.name != "Query"
    }
    told["/metrics"] = ask(attacked.opened, "/metrics", method="GET").body
    told["server"] = repr(attacked.guarded._supervisor.fields()).encode()
    for file in (attacked.data / "logs").rglob("*"):
        told[file.name] = file.read_bytes()
    for server in (attacked.guarded, attacked.tls):
        pid = server.info.pid
        told[f"environ {pid}"] = Path(f"/proc/{pid}/environ").read_bytes()
        told[f"cmdline {pid}"] = Path(f"/proc/{pid}/cmdline").read_bytes()
    assert {"server.log", "audit.log", "/metrics"} <= set(told)
    found = [
        (name, each) for name, data in told.items() for each in secrets if each.encode() in data
    ]
    assert found == []
