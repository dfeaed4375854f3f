"""The section `server` of a configuration, and the command that makes a token for it."""

from __future__ import annotations

import json
import os
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import exit_code
from headrace.config.load import load
from headrace.engine.from_config import configured
from headrace.errors import InvalidConfiguration
from headrace.server.security import Gate
from headrace.server.settings import (
    ServerLimits,
    ServerSettings,
    TlsSettings,
    configured_server,
    token_hash,
)
from tests.server.certificates import Authority

SOURCE = "sources.shop { type = sqlite, path = shop.db, record = [orders] }\n"
TOKEN = "hrt_" + "t" * 43
HASH = token_hash(TOKEN)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("HEADRACE_"):
            monkeypatch.delenv(name)


def read(text: str) -> ServerSettings | None:
    Path("headrace.conf").write_text(SOURCE + text)
    found = configured(load(Path("headrace.conf"), environment={})).server
    return None if found is None else configured_server(found, read=True)


def test_without_the_section_there_is_no_server() -> None:
    assert read("") is None


def test_an_empty_section_is_a_server_with_all_defaults() -> None:
    assert read("server {}") == ServerSettings()


def test_every_key_of_the_section_is_taken_over() -> None:
    found = read(
        f"""
        server {{
          host = "0.0.0.0", http_port = 80, grpc_port = 0, hosts = ["cdc.example.com"]
          tls {{ cert = tls/server.pem, key = /keys/server.key, client_ca = clients.pem }}
          tokens {{
            ci {{ role = read, hash = "{HASH}", tables = [orders], expires = "2027-01-31" }}
            app {{ role = operate, certificate = "app.example.com" }}
          }}
          insecure = true, compat = laredo, hold = [orders]
          limits {{
            largest_request = 1MiB, largest_head = 8KiB, connections = 1, open_requests = 2,
            streams_per_token = 3, head_timeout = 1s, body_timeout = 2s, stalled_timeout = 3s,
            idle_timeout = 4s, session_timeout = 1h
          }}
        }}
        """
    )
    assert found is not None
    here = Path.cwd()
    assert (found.host, found.http_port, found.grpc_port) == ("0.0.0.0", 80, 0)
    assert found.hosts == ("cdc.example.com",)
    assert found.tls == TlsSettings(
        str(here / "tls/server.pem"), "/keys/server.key", str(here / "clients.pem")
    )
    ci, app = found.tokens["ci"], found.tokens["app"]
    assert (ci.role, ci.hash, ci.tables) == ("read", HASH, ("orders",))
    assert ci.expires == datetime(2027, 1, 31, tzinfo=UTC)
    assert (app.role, app.hash, app.certificate) == ("operate", "", "app.example.com")
    assert (found.insecure, found.compat, found.hold) == (True, "laredo", ("orders",))
    assert found.limits == ServerLimits(1 << 20, 8 << 10, 1, 2, 3, 1.0, 2.0, 3.0, 4.0, 3600.0)


def test_a_token_by_reference_becomes_its_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_TOKEN", TOKEN)
    Path("token").write_text(f"{TOKEN}2\n")
    found = read(
        'server.tokens { ci { role = read, token_ref = "env:CI_TOKEN" }, '
        'ops { role = admin, token_ref = "file:token" } }'
    )
    assert found is not None
    assert found.tokens["ci"].hash == HASH
    assert found.tokens["ops"].hash == token_hash(f"{TOKEN}2")
    assert TOKEN not in repr(found)


def test_a_check_needs_no_token_that_is_only_referred_to() -> None:
    section = 'server.tokens.ci { role = read, token_ref = "env:NOT_SET" }'
    Path("headrace.conf").write_text(SOURCE + section)
    assert exit_code(["validate", "--offline"]) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("host = 0.0.0.0", r"headrace.conf:2:1\d: server.host is 0.0.0.0, which other machines"),
        ("http_port = 1, grpc_port = 1", "another port than http_port"),
        ("tokens { ci { role = read } }", "server.tokens.ci must have one of hash, token_ref"),
        (
            f'tokens {{ ci {{ role = read, hash = "{HASH}", certificate = x }} }}',
            "server.tokens.ci must have one of",
        ),
        (f'tokens {{ ci {{ role = read, hash = "{TOKEN}" }} }}', "server.tokens.ci.hash must be"),
        (f'tokens {{ local {{ role = read, hash = "{HASH}" }} }}', "has the name 'local'"),
        (
            f'tokens {{ ci {{ role = read, hash = "{HASH}", expires = soon }} }}',
            "server.tokens.ci.expires must be a day or a time",
        ),
        ("tls { cert = a, key = b, client_ca = c }", "server.tokens must have an entry"),
    ],
)
def test_settings_that_are_not_safe_or_make_no_sense_are_errors_with_a_place(
    text: str, message: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=message) as raised:
        read(f"server {{ {text} }}")
    (error,) = raised.value.errors
    assert TOKEN not in f"{raised.value}{error}{error.remedy}{error.facts}"
    assert "headrace.conf:2:" in str(error)


def test_a_short_token_is_refused_because_its_hash_would_tell_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CI_TOKEN", "swordfish")
    with pytest.raises(InvalidConfiguration, match="fewer than 32 characters") as raised:
        read('server.tokens.ci { role = read, token_ref = "env:CI_TOKEN" }')
    assert "swordfish" not in str(raised.value)


def test_a_reference_that_leads_nowhere_is_an_error() -> None:
    with pytest.raises(InvalidConfiguration, match="leads to no secret"):
        read('server.tokens.ci { role = read, token_ref = "env:NOT_SET" }')


@pytest.mark.parametrize(
    "text", ["hostname = x", "tls { cert = a }", "tokens.ci { rolle = read }", "limits.x = 1"]
)
def test_unknown_and_missing_keys_are_errors(text: str) -> None:
    with pytest.raises(InvalidConfiguration):
        read(f"server {{ {text} }}")


def test_a_hash_and_a_token_in_the_wrong_place_are_never_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    read(f'server.tokens {{ ci {{ role = read, hash = "{HASH}" }} }}')
    assert exit_code(["config"]) == 0
    told = capsys.readouterr().out
    assert 'server.tokens.ci.hash = "***"' in told
    assert HASH not in told
    Path("headrace.conf").write_text(
        f'{SOURCE}server.tokens.ci {{ role = read, token_ref = "{TOKEN}" }}'
    )
    assert exit_code(["config"]) == 2
    told = "".join(capsys.readouterr())
    assert TOKEN not in told


def test_validate_checks_the_server_and_its_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = Authority(tmp_path).sign("server", days=(-2, -1))
    read(f"server.tls {{ cert = {files.cert.name}, key = {files.key.name} }}")
    assert exit_code(["validate", "--offline"]) == 2
    assert "certificate has expired" in capsys.readouterr().err
    Authority(tmp_path).sign("server")
    assert exit_code(["validate", "--offline"]) == 0
    Path("headrace.conf").write_text(SOURCE + "server.host = 0.0.0.0")
    assert exit_code(["validate", "--offline"]) == 2
    assert "no TLS and no token" in " ".join(capsys.readouterr().err.split())


# --- headrace token new ---------------------------------------------------------------------------


def new(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert exit_code(["token", "new", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_new_token_opens_the_server_that_is_configured_with_its_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = new(
        capsys, "ci", "--role", "operate", "--table", "orders", "--expires", "2127-01-31T12:00Z"
    )
    settings = read("\n".join(made["configuration"]))
    assert settings is not None
    caller = Gate(settings).caller({"authorization": f"Bearer {made['token']}"}, "127.0.0.1")
    assert (caller.name, caller.role, caller.tables) == ("ci", "operate", ("orders",))
    assert made["token"] not in "".join(made["configuration"])
    assert made["token"] != new(capsys, "ci", "--role", "operate")["token"]


def test_a_token_is_alone_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["token", "new", "ci", "--role", "read"]) == 0
    told = capsys.readouterr()
    token = told.out.strip()
    assert token.startswith("hrt_")
    assert len(token) == 47
    assert token not in told.err
    assert token_hash(token) in told.err


def test_a_token_can_be_written_to_a_file_for_its_owner(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["token", "new", "ci", "--role", "read", "--output", "ci.token"]
    assert exit_code(arguments) == 0
    token = Path("ci.token").read_text().strip()
    assert stat.S_IMODE(Path("ci.token").stat().st_mode) == 0o600
    told = capsys.readouterr()
    assert token not in told.out + told.err
    assert token_hash(token) in told.out
    assert exit_code(arguments) == 2
    assert exit_code([*arguments, "--force"]) == 0
    assert Path("ci.token").read_text().strip() != token


@pytest.mark.parametrize(
    "arguments",
    [
        ["ci"],
        ["ci", "--role", "root"],
        ["local", "--role", "read"],
        ["A b", "--role", "read"],
        ["ci", "--role", "read", "--expires", "soon"],
    ],
)
def test_a_token_that_no_server_would_take_is_not_made(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["token", "new", *arguments]) == 2
    assert capsys.readouterr().out == ""
