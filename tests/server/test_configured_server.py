"""The section `server` of a configuration, and `headrace run` that serves it."""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path

import httpx
import pytest

from headrace.cli import main
from headrace.config.load import load
from headrace.engine.from_config import configured
from headrace.errors import InvalidConfiguration
from headrace.server.settings import Access, ServerSettings, configured_server, token_hash
from tests.interfaces.at_work import CONFIGURATION, lines_of
from tests.interfaces.inside import Begin, inside
from tests.support.shop import Shop, await_seen

__all__ = ["inside"]

TOKEN = "t" * 43


def settings(folder: Path, section: str, *, read: bool = False) -> ServerSettings:
    file = folder / "headrace.conf"
    file.write_text(f"{CONFIGURATION}\n{section}\n")
    found = configured(load(file, environment={}))
    assert found.server is not None
    return configured_server(found.server, read=read)


def test_without_the_section_there_is_no_server_and_an_empty_one_is_local(tmp_path: Path) -> None:
    file = tmp_path / "headrace.conf"
    file.write_text(CONFIGURATION)
    assert configured(load(file, environment={})).server is None
    assert settings(tmp_path, "server {}") == ServerSettings()


def test_every_key_is_a_setting(tmp_path: Path) -> None:
    found = settings(
        tmp_path,
        f"""
        server {{
          http_port = 5080, grpc_port = 0, hosts = [proxy.example.com], compat = laredo
          host = "0.0.0.0"
          tls {{ cert = server.pem, key = "/etc/server.key", client_ca = clients.pem }}
          tokens.grafana {{ role = read, hash = "{token_hash(TOKEN)}", tables = ["orders"] }}
          tokens.ingest {{ role = operate, certificate = ingest, expires = "2027-12-31" }}
          limits {{ largest_request = 1MiB, stalled_timeout = 2500ms }}
        }}
        """,
    )
    assert (found.http_port, found.grpc_port, found.host) == (5080, 0, "0.0.0.0")
    assert found.tls is not None
    # Relative to the file.
    assert (found.tls.cert, found.tls.key) == (str(tmp_path / "server.pem"), "/etc/server.key")
    assert found.tokens["grafana"] == Access("read", token_hash(TOKEN), tables=("orders",))
    assert found.tokens["ingest"].certificate == "ingest"
    assert (found.limits.largest_request, found.limits.stalled_seconds) == (1 << 20, 2.5)
    assert (found.compat, found.hosts) == ("laredo", ("proxy.example.com",))


def test_a_token_may_be_where_secrets_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = 'server.tokens.grafana { role = read, token_ref = "env:GRAFANA_TOKEN" }'
    # A check of the configuration does not need it.
    settings(tmp_path, section)
    monkeypatch.setenv("GRAFANA_TOKEN", TOKEN)
    found = settings(tmp_path, section, read=True)
    assert found.tokens["grafana"].hash == token_hash(TOKEN)
    monkeypatch.setenv("GRAFANA_TOKEN", "short")
    with pytest.raises(InvalidConfiguration, match="fewer than 32 characters"):
        settings(tmp_path, section, read=True)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ('server { host = "0.0.0.0" }', "no TLS and no token"),
        ("server { http_port = 4081 }", "must be another port"),
        ("server { port = 4080 }", "not a known key"),
        ("server.tokens.a { role = read }", "must have one of hash, token_ref and certificate"),
        ("server.tokens.a { role = read, hash = secret }", "64 hexadecimal digits"),
        ("server.tokens.a { role = root, hash = secret }", "role"),
        ('server.tokens.a { role = read, hash = "x", token_ref = "env:X" }', "must have one of"),
        ("server.tokens.a { role = read, certificate = a, expires = soon }", "a day or a time"),
    ],
)
def test_a_section_that_is_not_valid_is_refused_where_it_is_written(
    tmp_path: Path, section: str, message: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=message) as caught:
        settings(tmp_path, section)
    assert f"{tmp_path / 'headrace.conf'}:" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_validate_finds_what_is_wrong_in_the_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headrace.conf").write_text(f'{CONFIGURATION}\nserver {{ host = "0.0.0.0" }}\n')
    assert main.exit_code(["validate", "--offline"]) == 2
    assert "server.host is 0.0.0.0" in capsys.readouterr().err


def test_a_port_that_is_taken_is_named_by_run_and_by_status(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    inside: Begin,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    shop = Shop(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        section = f"server {{ http_port = {port}, grpc_port = 0 }}"
        (tmp_path / "headrace.conf").write_text(f"{CONFIGURATION}\n{section}\n")
        with inside("run") as run:
            run.ready()
            run.said(f"the server cannot listen: Port {port} is taken")
            run.said(f"ss -ltnp 'sport = :{port}'")
            run.said("serving.port_taken")
            capsys.readouterr()
            assert main.exit_code(["status"]) == 0
            shown = capsys.readouterr().out
            code, _, _ = run.ended()
    assert code == 0
    assert "the server cannot listen since" in shown
    assert f"Port {port} is taken" in shown
    shop.close()


@pytest.mark.process
def test_run_serves_the_section_and_prints_the_address(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    inside: Begin,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headrace.conf").write_text(
        f"{CONFIGURATION}\nserver {{ http_port = 0, grpc_port = 0 }}\n"
    )
    shop = Shop(tmp_path)
    with inside("run", "--json") as run:
        run.ready()
        run.until(lambda: '"event": "server"' in run.told())
        [shown] = [each for each in lines_of(run.out.getvalue()) if each["event"] == "server"]
        assert shown["state"] == "serving"
        answer = httpx.post(f"{shown['http']}/headrace.v1.ControlService/Status", json={})
        assert answer.json()["service"] == "shop"
        # The verbs of this command are there, too.
        plan = httpx.post(f"{shown['http']}/headrace.v1.ControlService/Apply", json={})
        assert plan.json()["steps"] == []
        assert await_seen(lambda: httpx.get(f"{shown['http']}/health/ready").status_code == 200)
        capsys.readouterr()
        assert main.exit_code(["status"]) == 0
        assert f"serving on {shown['http']}" in capsys.readouterr().out
        code, _, err = run.ended()
    assert (code, err) == (0, "")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{shown['http']}/health/live")
    audit = tmp_path / "data" / "logs" / "audit.log"
    assert [json.loads(line)["method"] for line in audit.read_text().splitlines()] == [
        "ControlService/Apply"
    ]
    shop.close()


@pytest.mark.process
def test_a_token_that_is_taken_out_of_the_configuration_is_refused_once_that_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: Begin
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "headrace.conf"

    def write(*names: str) -> None:
        tokens = " ".join(
            f'server.tokens.{name} {{ role = admin, hash = "{token_hash(TOKEN + name)}" }}\n'
            for name in names
        )
        file.write_text(f"{CONFIGURATION}\nserver {{ http_port = 0, grpc_port = 0 }}\n{tokens}")

    write("leaked", "ops")
    shop = Shop(tmp_path)
    with inside("run", "--json") as run:
        run.ready()
        run.until(lambda: '"state": "serving"' in run.told())
        [shown] = [each for each in lines_of(run.out.getvalue()) if each["event"] == "server"]
        leaked, ops, new = (
            httpx.Client(
                base_url=f"{shown['http']}/headrace.v1.ControlService",
                headers={"authorization": f"Bearer {TOKEN}{name}"},
            )
            for name in ("leaked", "ops", "new")
        )
        watch = struct.pack(">BI", 0, 22) + b'{"pipeline": "orders"}'
        streaming = {"content-type": "application/connect+json"}
        with leaked.stream("POST", "/Watch", content=watch, headers=streaming) as stream:
            assert stream.status_code == 200
            write("ops", "new")
            plan = ops.post("/Apply", json={}).json()
            assert [(each["kind"], each["what"]) for each in plan["steps"]] == [
                ("change", "server.tokens")
            ]
            # A token that could not be used would change nothing.
            write("ops", "ops2")
            file.write_text(file.read_text().replace("ops2", "local"))
            assert ops.post("/Apply", json={}).status_code == 400
            write("ops", "new")
            assert ops.post("/Apply", json={"plan": plan["plan"]}).json()["done"]
            assert b"unauthenticated" in stream.read()
        assert await_seen(lambda: leaked.post("/Status", json={}).status_code == 401)
        assert ops.post("/Status", json={}).status_code == 200
        assert new.post("/Status", json={}).status_code == 200
        assert ops.post("/Apply", json={}).json()["steps"] == []
        for client in (leaked, ops, new):
            client.close()
        run.ended()
    shop.close()
