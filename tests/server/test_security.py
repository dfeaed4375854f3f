"""Who calls, what they may do, and what another site may not make a browser send."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.api.methods import METHODS, ROLES
from headrace.api.services import Caller
from headrace.errors import Forbidden, LimitReached, Unauthenticated, WrongValue
from headrace.server import security, settings
from headrace.server.security import Gate, certificate_name, request_headers
from headrace.server.settings import (
    Access,
    ServerLimits,
    ServerSettings,
    TlsSettings,
    is_loopback,
    moment,
    token_hash,
)

HERE = "127.0.0.1"
THERE = "192.0.2.7"
SECRET = "hrt_" + "s" * 43
TLS = TlsSettings("server.pem", "server.key")
MUTUAL = TlsSettings("server.pem", "server.key", "clients.pem")


def access(secret: str = SECRET, role: str = "read", **others: Any) -> Access:
    return Access(role, token_hash(secret), **others)


def gate(now: float = 0.0, **settings: Any) -> Gate:
    return Gate(ServerSettings(**settings), clock=lambda: now)


def bearer(secret: str = SECRET) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.com", False),
        ("127.0.0.1.nip.io", False),
    ],
)
def test_only_addresses_of_this_machine_are_loopback(host: str, local: bool) -> None:
    assert is_loopback(host) is local


@pytest.mark.parametrize(
    ("settings", "lacks"),
    [
        ({"host": "0.0.0.0"}, "no TLS and no token"),
        ({"host": "0.0.0.0", "tls": TLS}, "no token"),
        ({"host": "0.0.0.0", "tokens": {"ci": access()}}, "no TLS"),
        ({"hosts": ("cdc.example.com",)}, "no token"),
    ],
)
def test_an_address_that_others_reach_needs_tls_and_a_token(
    settings: dict[str, Any], lacks: str
) -> None:
    with pytest.raises(WrongValue, match=f"there is {lacks},"):
        ServerSettings(**settings)
    assert ServerSettings(insecure=True, **settings).insecure


def test_an_address_that_others_reach_is_served_with_tls_and_a_token() -> None:
    settings = ServerSettings(host="0.0.0.0", tls=TLS, tokens={"ci": access()})
    assert not settings.is_local
    assert not settings.is_open


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"http_port": 65_536}, "must be from 0 to 65535"),
        ({"http_port": 4081}, "another port than http_port"),
        ({"compat": "other"}, "must be laredo"),
        ({"host": ""}, "must not be empty"),
        ({"tokens": {"local": access()}}, "which is not possible"),
        ({"tokens": {"A b": access()}}, "which is not possible"),
        ({"tokens": {"a": access(), "b": access()}}, "two entries for the same"),
        ({"tls": MUTUAL}, "must have an entry"),
        (
            {"tls": TLS, "tokens": {"app": Access("read", certificate="app")}},
            "callers are not asked for one",
        ),
    ],
)
def test_settings_that_make_no_sense_cannot_exist(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(WrongValue, match=message):
        ServerSettings(**settings)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"role": "root", "hash": token_hash(SECRET)}, "ci.role must be one of read, operate"),
        ({"role": "read"}, "ci must have either a token or the name of a certificate"),
        ({"role": "read", "hash": token_hash(SECRET), "certificate": "x"}, "must have either"),
        ({"role": "read", "hash": SECRET}, "ci.hash must be sha256: and 64 hexadecimal digits"),
        (
            {"role": "read", "hash": token_hash(SECRET), "expires": datetime(2027, 1, 1)},
            "ci.expires must have an offset from UTC",
        ),
    ],
)
def test_an_entry_for_a_caller_is_complete(given: dict[str, Any], message: str) -> None:
    with pytest.raises(WrongValue, match=message) as raised:
        ServerSettings(tokens={"ci": Access(**given)})
    assert SECRET not in f"{raised.value} {raised.value.remedy}"


def test_the_roles_of_tokens_are_those_of_the_calls() -> None:
    assert settings.ROLES == ROLES


def test_limits_are_never_without_end() -> None:
    with pytest.raises(WrongValue, match=r"server\.limits\.open_requests must be more than 0"):
        ServerLimits(open_requests=0)


# --- who calls ------------------------------------------------------------------------------------


def test_on_loopback_without_tokens_every_caller_is_the_local_administrator() -> None:
    assert gate().caller({}, HERE) == Caller("local", "admin", HERE)
    assert gate().caller({}, "::1").name == "local"


def test_without_tokens_no_other_machine_is_served() -> None:
    with pytest.raises(Unauthenticated, match="its own machine only"):
        gate().caller({}, THERE)


@pytest.mark.parametrize("header", ["forwarded", "x-forwarded-for", "x-real-ip"])
def test_without_tokens_what_comes_through_a_proxy_is_not_local(header: str) -> None:
    with pytest.raises(Unauthenticated, match="through a proxy"):
        gate().caller({header: THERE}, HERE)


def test_everybody_is_served_only_where_that_was_asked_for() -> None:
    caller = gate(host="0.0.0.0", insecure=True).caller({}, THERE)
    assert (caller.name, caller.role) == ("anonymous", "admin")


def test_a_token_names_its_caller() -> None:
    found = gate(tokens={"ci": access(role="operate", tables=("orders",)), "b": access("b" * 40)})
    assert found.caller(bearer(), THERE) == Caller("ci", "operate", THERE, ("orders",))
    assert found.caller({"authorization": f"bearer  {SECRET} "}, THERE).name == "ci"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("x" * 47),
        bearer(SECRET[:-1]),
        bearer(SECRET + "s"),
        bearer(token_hash(SECRET)),
        bearer(SECRET.upper()),
        bearer("\x00é"),
        {"authorization": SECRET},
        {"authorization": f"Basic {SECRET}"},
        {"authorization": "Bearer "},
        {"authorization": ""},
        {"cookie": f"headrace-4080={SECRET}"},
        {"cookie": "headrace-4080"},
        {"cookie": "headrace-4080="},
    ],
)
def test_what_is_not_a_token_of_the_server_is_refused(headers: Mapping[str, str]) -> None:
    with pytest.raises(Unauthenticated) as raised:
        gate(tokens={"ci": access()}).caller(headers, HERE)
    assert SECRET not in f"{raised.value} {raised.value.remedy}"


def test_a_wrong_token_is_refused_where_none_is_needed() -> None:
    with pytest.raises(Unauthenticated):
        gate().caller(bearer(), HERE)


def test_a_token_is_refused_from_its_expiry_on() -> None:
    at = moment("2027-01-31")
    tokens = {"ci": access(expires=at)}
    assert gate(at.timestamp() - 1, tokens=tokens).caller(bearer(), HERE).name == "ci"
    with pytest.raises(Unauthenticated, match="The token ci expired on 2027-01-31 00:00 UTC"):
        gate(at.timestamp(), tokens=tokens).caller(bearer(), HERE)


def test_the_time_of_an_expiry_has_an_offset() -> None:
    assert moment("2027-01-31") == datetime(2027, 1, 31, tzinfo=UTC)
    assert moment("2027-01-31T12:00:00+02:00") == datetime(2027, 1, 31, 10, tzinfo=UTC)


def test_a_certificate_names_its_caller() -> None:
    tokens = {"app": Access("operate", certificate="app.example.com"), "ci": access()}
    found = gate(tls=MUTUAL, tokens=tokens)
    assert found.caller({}, THERE, "app.example.com") == Caller("app", "operate", THERE)
    # A token is more than a certificate: that of the machine, say, and it must be valid.
    assert found.caller(bearer(), THERE, "app.example.com").name == "ci"
    with pytest.raises(Unauthenticated):
        found.caller(bearer("x" * 40), THERE, "app.example.com")
    with pytest.raises(Unauthenticated, match="not one of this server's callers"):
        found.caller({}, THERE, "other.example.com")
    with pytest.raises(Unauthenticated):
        found.caller({}, THERE, "")


def test_the_common_name_of_a_certificate_is_its_name() -> None:
    subject = ((("organizationName", "x"),), (("commonName", "app"),))
    assert certificate_name({"subject": subject}) == "app"
    assert certificate_name({"subject": ()}) is None
    assert certificate_name({}) is None
    assert certificate_name(None) is None


def test_a_role_may_do_what_the_ones_below_it_may() -> None:
    found = gate()
    for method in METHODS.values():
        for role in ROLES:
            caller = Caller("ci", role, HERE)
            if ROLES.index(role) >= ROLES.index(method.role):
                found.allow(caller, method)
            else:
                with pytest.raises(Forbidden, match=f"{method.name} needs the role {method.role}"):
                    found.allow(caller, method)


def test_a_token_with_tables_sees_no_others() -> None:
    caller = gate(tokens={"ci": access(tables=("orders", "public.items"))}).caller(bearer(), HERE)
    assert caller.sees("orders")
    assert caller.sees("public.items")
    for other in ("orders2", "private.orders", "Orders", "items", "*", ""):
        with pytest.raises(Forbidden, match="ci has no right to"):
            caller.check_table(other)
    assert gate().caller({}, HERE).sees("anything")


def test_headers_that_decide_who_calls_come_once() -> None:
    raw = [(b"Cookie", b"a=1"), (b"cookie", b"b=2"), (b"Accept", b"x"), (b"accept", b"y")]
    assert request_headers(raw) == {"cookie": "a=1; b=2", "accept": "x, y"}
    with pytest.raises(Forbidden, match="two headers authorization"):
        request_headers([(b"Authorization", b"Bearer a"), (b"authorization", b"Bearer b")])


# --- logins ---------------------------------------------------------------------------------------


def cookie_of(header: str) -> dict[str, str]:
    return {"cookie": f"theme=dark; {header.partition(';')[0]}"}


def test_a_browser_trades_a_token_for_a_cookie() -> None:
    found = gate(tokens={"ci": access(tables=("orders",))})
    login = found.log_in(SECRET, HERE)
    assert login.caller == Caller("ci", "read", HERE, ("orders",))
    assert SECRET not in f"{login.cookie} {login!r}"
    assert login.cookie.partition("=")[2].partition(";")[0] not in repr(login)
    attributes = login.cookie.split("; ")[1:]
    assert attributes == ["Path=/", "Max-Age=43200", "HttpOnly", "SameSite=Strict"]
    assert found.caller(cookie_of(login.cookie), HERE) == login.caller
    assert "Max-Age=0" in found.log_out(cookie_of(login.cookie))
    with pytest.raises(Unauthenticated, match="login has ended"):
        found.caller(cookie_of(login.cookie), HERE)


def test_a_cookie_over_tls_is_never_sent_without_it() -> None:
    header = gate(tls=TLS, tokens={"ci": access()}).log_in(SECRET, HERE).cookie
    assert header.startswith("__Host-headrace-4080=")
    assert header.endswith("; Secure")


def test_a_login_ends_with_its_time_and_with_its_token() -> None:
    now = [1_000.0]
    short = access(expires=datetime.fromtimestamp(1_100, UTC))
    found = Gate(ServerSettings(tokens={"ci": short}), clock=lambda: now[0])
    login = found.log_in(SECRET, HERE)
    assert "Max-Age=100;" in login.cookie
    now[0] = 1_100.0
    with pytest.raises(Unauthenticated, match="login has ended"):
        found.caller(cookie_of(login.cookie), HERE)
    now[0] = 0.0
    limits = ServerLimits(session_seconds=60)
    found = Gate(ServerSettings(tokens={"ci": access()}, limits=limits), clock=lambda: now[0])
    login = found.log_in(SECRET, HERE)
    now[0] = 59.0
    assert found.caller(cookie_of(login.cookie), HERE).name == "ci"
    now[0] = 60.0
    with pytest.raises(Unauthenticated):
        found.caller(cookie_of(login.cookie), HERE)


@pytest.mark.parametrize("after", [{}, {"ci": access("n" * 40)}, {"other": access()}])
def test_a_login_ends_when_its_token_is_revoked_or_replaced(after: dict[str, Access]) -> None:
    found = gate(tokens={"ci": access()})
    login = found.log_in(SECRET, HERE)
    found.renew(ServerSettings(tokens=after))
    with pytest.raises(Unauthenticated):
        found.caller(cookie_of(login.cookie), HERE)


def test_who_was_let_in_stays_only_with_the_same_rights() -> None:
    found = gate(tokens={"ci": access(role="operate")})
    caller = found.caller(bearer(), HERE)
    assert found.is_valid(caller)
    found.renew(ServerSettings(tokens={"ci": access(role="read")}))
    assert not found.is_valid(caller)
    found.renew(ServerSettings())
    assert not found.is_valid(caller)
    assert found.is_valid(found.caller({}, HERE))


def test_logins_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "MOST_SESSIONS", 2)
    now = [0.0]
    found = Gate(ServerSettings(tokens={"ci": access()}), clock=lambda: now[0])
    for _ in range(2):
        found.log_in(SECRET, HERE)
    with pytest.raises(LimitReached):
        found.log_in(SECRET, HERE)
    now[0] = 43_200.0
    assert found.log_in(SECRET, HERE).caller.name == "ci"


# --- requests that another site makes a browser send ----------------------------------------------

GUARDED = {"host": "0.0.0.0", "tls": TLS, "tokens": {"ci": access()}}
OPEN = {"host": "0.0.0.0", "insecure": True}


@pytest.mark.parametrize(
    ("settings", "host"),
    [
        ({}, "127.0.0.1:4080"),
        ({}, "localhost:4080"),
        ({}, "LOCALHOST"),
        ({}, "[::1]:4080"),
        ({"hosts": ("cdc.example.com",), "tokens": {"ci": access()}}, "cdc.example.com"),
        (GUARDED, "cdc.example.com:4080"),
        (OPEN, "192.0.2.1:4080"),
        (OPEN, "localhost:9"),
    ],
)
def test_the_server_answers_to_its_own_names(settings: dict[str, Any], host: str) -> None:
    gate(**settings).check_request(host, None, None)


@pytest.mark.parametrize(
    ("settings", "host"),
    [
        ({}, None),
        ({}, ""),
        ({}, "evil.example.com:4080"),
        ({}, "127.0.0.1.evil.example.com"),
        ({}, "192.0.2.1:4080"),
        ({}, "127.0.0.1@evil.example.com"),
        ({}, "[::1"),
        (OPEN, "evil.example.com"),
        (GUARDED, "x" * 301),
        (OPEN, ""),
    ],
)
def test_a_name_that_leads_here_from_elsewhere_is_refused(
    settings: dict[str, Any], host: str | None
) -> None:
    with pytest.raises(Forbidden, match="a name that is not its own"):
        gate(**settings).check_request(host, None, None)


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:4080", "http://127.0.0.1:4080"),
        ("localhost:4080", "http://localhost:4080"),
        ("localhost", "http://localhost:80"),
        ("localhost", "https://localhost"),
        ("[::1]:4080", "http://[::1]:4080"),
    ],
)
def test_a_page_of_the_server_may_call_it(host: str, origin: str) -> None:
    gate().check_request(host, origin, "same-origin")


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "file://",
        "http://evil.example.com",
        "http://localhost:4080",
        "http://127.0.0.1:3000",
        "http://127.0.0.1",
        "https://127.0.0.1:4080.evil.example.com",
        "http://127.0.0.1:99999",
        "chrome-extension://127.0.0.1:4080",
    ],
)
def test_a_page_of_another_site_may_not(origin: str) -> None:
    with pytest.raises(Forbidden, match="a page of another site"):
        gate().check_request("127.0.0.1:4080", origin, None)


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_a_browser_says_itself_that_another_site_asks(site: str) -> None:
    with pytest.raises(Forbidden, match="a page of another site"):
        gate().check_request("127.0.0.1:4080", None, site)
    # A link to the console is no harm: it has no data.
    gate().check_request("127.0.0.1:4080", None, site, page=True)
    gate().check_request("127.0.0.1:4080", None, "none")
