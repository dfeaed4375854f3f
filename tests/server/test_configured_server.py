"""`headrace run` with a section `server` in its configuration."""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path

import httpx
import pytest

from headrace.cli import main
from headrace.server.settings import token_hash
from tests.interfaces.at_work import CONFIGURATION, lines_of
from tests.interfaces.inside import Begin, inside
from tests.support.shop import Shop, await_seen

__all__ = ["inside"]

TOKEN = "t" * 43


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
        # So are those of the local socket, in the audit log.
        assert main.exit_code(["pause", "orders"]) == 0
        assert main.exit_code(["resume", "none"]) == 2
        code, _, err = run.ended()
    assert (code, err) == (0, "")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{shown['http']}/health/live")
    audit = tmp_path / "data" / "logs" / "audit.log"
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(each["method"], each["address"], each["outcome"]) for each in lines] == [
        ("ControlService/Apply", "127.0.0.1", "ok"),
        ("ControlService/Pause", "local socket", "ok"),
        ("ControlService/Resume", "local socket", "control.unknown_pipeline"),
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
