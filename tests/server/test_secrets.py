"""Secrets of a configuration: searched in everything that a server and its engine say or leave."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import httpx
import pytest

from headrace.api.methods import METHODS, OAM
from headrace.cli import main
from headrace.server.settings import token_hash
from tests.interfaces.at_work import CONFIGURATION, lines_of
from tests.interfaces.inside import Begin, inside
from tests.server.certificates import Authority
from tests.support.patience import patience
from tests.support.shop import Shop

__all__ = ["inside"]

PLANTED = {
    name: f"planted-{name}-4711" for name in ("password", "spark", "bucket", "environment")
} | {"token": "hrt_" + "planted4711" * 4, "row": "471147114711"}

CONNECTION = f"postgresql://app:{PLANTED['password']}@127.0.0.1:1/none"


@pytest.mark.process
def test_no_output_has_a_secret_of_the_configuration(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    inside: Begin,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPS_TOKEN", PLANTED["token"])
    monkeypatch.setenv("DATABASE_PASSWORD", PLANTED["environment"])
    server = Authority(tmp_path).sign("server")
    key = server.key.read_text().splitlines()[1]
    (tmp_path / "headrace.conf").write_text(
        f"""{CONFIGURATION}
        server {{
          http_port = 0, grpc_port = 0
          tls {{ cert = server.pem, key = server.key }}
          tokens.ops {{ role = admin, token_ref = "env:OPS_TOKEN" }}
        }}
        # It is not reachable, so what is said about that is searched, too.
        sources.away {{
          type = postgres, connection = "{CONNECTION}", record = [orders]
          password_ref = "env:DATABASE_PASSWORD"
        }}
        spark.conf {{
          "spark.hadoop.fs.s3a.secret.key" = "{PLANTED["bucket"]}"
          "spark.ssl.keyPassword" = "{PLANTED["spark"]}"
        }}
        """
    )
    shop = Shop(tmp_path)
    shop.app.execute("insert into orders values (99, ?, 'paid', 'x')", [PLANTED["row"]])
    trusting = ssl.create_default_context(cafile=tmp_path / "authority.pem")
    told: dict[str, str] = {}
    with inside("run", "--json") as run:
        run.until(lambda: '"state": "serving"' in run.told())
        [shown] = [each for each in lines_of(run.out.getvalue()) if each["event"] == "server"]
        with httpx.Client(base_url=shown["http"], verify=trusting, timeout=patience()) as client:
            for token in (PLANTED["token"], PLANTED["token"] + "x", None):
                headers = {} if token is None else {"authorization": f"Bearer {token}"}
                for path, method in METHODS.items():
                    if not method.streams and not method.changes and method.name != "Query":
                        answer = client.post(path, json={}, headers=headers)
                        told[f"{path} {token}"] = answer.text
                for path in ("/metrics", "/health/ready", "/session"):
                    told[f"{path} {token}"] = client.get(path, headers=headers).text
            body = {"token": PLANTED["token"]}
            told["login"] = str(client.post("/session", json=body).headers)
            # A configuration that is wrong is reported to who applies it.
            with (tmp_path / "headrace.conf").open("a") as file:
                file.write(f'server.tokens.bad {{ role = read, hash = "{PLANTED["token"]}" }}\n')
            client.headers["authorization"] = f"Bearer {PLANTED['token']}"
            told["apply"] = client.post("/headrace.v1.ControlService/Apply", json={}).text
        for command in ("status", "metrics", "health", "config", "validate", "doctor"):
            main.exit_code([command])
            told[command] = "".join(capsys.readouterr())
        run.ended()
        told["run"] = run.out.getvalue() + run.err.getvalue()
    shop.close()
    for log in (tmp_path / "data" / "logs").iterdir():
        told[log.name] = log.read_text()

    assert "hash must be" in told["apply"]
    assert json.loads(told[f"/{OAM}/GetStatus {PLANTED['token']}"])["pipelines"]
    assert {"server.log", "audit.log", "headrace.log"} <= set(told)
    assert "***" in told[f"/{OAM}/GetConfiguration {PLANTED['token']}"]
    secrets = [*PLANTED.values(), token_hash(PLANTED["token"]), key]
    found = [(name, each) for name, text in told.items() for each in secrets if each in text]
    assert found == []
