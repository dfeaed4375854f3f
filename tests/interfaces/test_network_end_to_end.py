"""The command line, an engine and its server: one machine asks another, over TLS, with a token."""

from __future__ import annotations

import json
import sqlite3
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headrace.server.settings import token_hash
from tests.interfaces.at_work import lines_of, printed
from tests.server.certificates import Authority
from tests.server.serving import Served, served
from tests.support.patience import patience
from tests.support.shop import await_seen

pytestmark = pytest.mark.process

OPERATOR, READER, CLERK = "hrt_" + "o" * 43, "hrt_" + "r" * 43, "hrt_" + "c" * 43


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    """An engine that is served, and a folder with profiles of its callers."""
    folder = tmp_path_factory.mktemp("served")
    authority = Authority(folder)
    files = authority.sign("engine")
    tokens = {
        "operator": {"role": "operate", "hash": token_hash(OPERATOR)},
        "reader": {"role": "read", "hash": token_hash(READER)},
        "clerk": {"role": "read", "hash": token_hash(CLERK), "tables": ["bills"]},
    }
    client = {"verify": ssl.create_default_context(cafile=authority.cert)}
    tls = {"cert": str(files.cert), "key": str(files.key)}
    with served(folder, client, tls=tls, tokens=tokens) as found:
        home = folder / "config"
        file = home / "headrace" / "profiles.conf"
        file.parent.mkdir(parents=True)
        address = found.server.info.http
        file.write_text(
            "\n".join(
                f'{name} {{ address = "{address}", ca = "{authority.cert}"{more} }}'
                for name, more in (
                    ("operator", f", token = {OPERATOR}"),
                    ("reader", f", token = {READER}"),
                    ("clerk", f", token = {CLERK}"),
                    ("stranger", f", token = {'x' * 43}"),
                    ("nobody", ""),
                )
            )
        )
        file.chmod(0o600)
        yield found, home


@pytest.fixture
def here(profiles: tuple[Served, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """The engine, with a person who has nothing but the profiles."""
    found, home = profiles
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    monkeypatch.delenv("HEADRACE_TOKEN", raising=False)
    return found


def test_an_engine_is_looked_at_and_worked_with_from_another_machine(
    here: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = printed(capsys, "status", "--wait", "60s", "--profile", "operator")
    assert (code, err) == (0, "")
    assert "orders" in out
    assert "✓ ready" in out
    code, out, _ = printed(capsys, "query", "orders", "--key", "7", "--json", "--address", "reader")
    assert (code, json.loads(out)["id"]) == (0, 7)
    code, out, _ = printed(capsys, "query", "orders", "--all", "--json", "--profile", "reader")
    assert len(lines_of(out)) == len(here.shop.truth())
    code, out, _ = printed(capsys, "dead-letters", "list", "orders", "--profile", "reader")
    assert (code, out) == (0, "No dead letters.\n")
    code, out, _ = printed(capsys, "metrics", "--profile", "reader")
    assert "headrace_pipeline_rows" in out
    assert printed(capsys, "pause", "orders", "--profile", "operator")[:2] == (
        0,
        "orders is paused\n",
    )
    assert here.engine.pipelines()[0].state == "paused"
    assert printed(capsys, "health", "--ready", "--profile", "reader")[0] == 1
    assert printed(capsys, "resume", "orders", "--profile", "operator")[0] == 0
    assert here.engine.await_ready(patience())
    code, out, _ = printed(
        capsys, "reload", "orders", "--wait", "60s", "--json", "--profile", "operator"
    )
    assert (code, [each["done"] for each in json.loads(out)["tables"]]) == (0, [True])


def test_changes_are_watched_as_they_happen(
    here: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[bool] = []

    def insert() -> None:
        feed = here.engine.target("orders")._feeds["orders"]  # type: ignore[attr-defined]
        begun.append(await_seen(lambda: feed.wanted, patience()))
        # A connection of its own: that of the shop is of another thread.
        with closing(sqlite3.connect(here.shop.path, timeout=patience())) as app, app:
            rows = [(key, 1, "paid", "x") for key in (2000, 2001, 2002)]
            app.executemany("insert into orders values (?, ?, ?, ?)", rows)

    writer = threading.Thread(target=insert)
    writer.start()
    code, out, err = printed(
        capsys, "watch", "orders", "--limit", "3", "--json", "--profile", "reader"
    )
    writer.join()
    assert begun == [True]
    assert (code, err) == (0, "")
    assert [each["key"] for each in lines_of(out)] == [[2000], [2001], [2002]]


@pytest.mark.parametrize(
    ("line", "who", "said"),
    [
        ("status", "nobody", "serving.unauthenticated"),
        ("status", "stranger", "serving.unauthenticated"),
        ("watch orders", "nobody", "serving.unauthenticated"),
        ("pause orders", "reader", "needs the role operate"),
        ("reset shop --dry-run", "operator", "needs the role admin"),
        ("dead-letters purge orders --dry-run", "operator", "needs the role admin"),
        ("query orders", "clerk", "control.forbidden"),
        ("dead-letters list orders", "clerk", "control.forbidden"),
    ],
)
def test_who_may_not_is_told_with_exit_code_5(
    here: Served, line: str, who: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = printed(capsys, *line.split(), "--profile", who)
    assert (code, out) == (5, "")
    assert said in " ".join(err.split())


def test_a_certificate_of_an_unknown_authority_is_not_trusted(
    here: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_TOKEN", OPERATOR)
    code, _, err = printed(capsys, "status", "--address", here.server.info.http)
    assert (code, "control.not_trusted" in err) == (4, True)


def test_the_port_of_grpc_is_told_from_that_of_http(
    here: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = printed(capsys, "status", "--address", here.server.info.grpc)
    assert code == 4
    assert "that this is its HTTP port" in err
