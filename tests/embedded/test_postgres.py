"""A server of our own starts, obeys, and is gone when we are."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.embedded import postgres
from headrace.embedded.binaries import (
    PACKAGED,
    VARIABLE,
    Account,
    find_binaries,
    packaged,
    server_account,
    within_reach,
)
from headrace.embedded.postgres import PostgresServer, children_of, until_gone
from headrace.errors import SourceRefused
from tests.postgres.servers import stops_by_itself
from tests.support.patience import patience

pytestmark = pytest.mark.server

ROOT = Path(__file__).parent.parent.parent
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")


def ask(server: PostgresServer, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


def runs(pid: int) -> bool:
    return not until_gone([pid], seconds=0)


def user_of(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def users_of(pids: Iterable[int]) -> list[int]:
    """Return whom each belongs to that is still there: some of a server's live for a moment."""
    found = []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError):
            found.append(user_of(pid))
    return found


def pid_of(server: PostgresServer) -> int:
    assert server.pid is not None
    return server.pid


@pytest.fixture(scope="module")
def shared() -> Iterator[PostgresServer]:
    """One for all tests that leave a server which can be started again: making one takes long."""
    with PostgresServer() as running:
        yield running


@pytest.fixture
def server(shared: PostgresServer) -> PostgresServer:
    shared.start()
    ask(shared, "drop table if exists kept")
    return shared


@pytest.mark.parametrize("major", PACKAGED)
def test_each_packaged_major_starts(major: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_PG_BIN", raising=False)
    with PostgresServer(version=major) as running:
        [(number,)] = ask(running, "show server_version_num")
    assert int(number) // 10_000 == running.version == major


def test_it_is_set_up_for_logical_replication(server: PostgresServer) -> None:
    wanted = {
        "wal_level": "logical",
        "max_replication_slots": "20",
        "max_wal_senders": "20",
        "fsync": "off",
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "server_encoding": "UTF8",
        "lc_messages": "C.UTF-8",
        "TimeZone": "UTC",
    }
    assert {name: ask(server, f"show {name}")[0][0] for name in wanted} == wanted


def test_it_listens_on_loopback_alone(server: PostgresServer) -> None:
    # In the kernel's table an address is hexadecimal, and state 0A means listening.
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    port = f"{server.port:04X}"
    listening = [x[1] for x in lines if x[1].endswith(f":{port}") and x[3] == "0A"]
    assert listening == [f"0100007F:{port}"]


def test_it_runs_as_nobody_for_root_and_as_ourselves_otherwise(server: PostgresServer) -> None:
    account = server_account()
    expected = account.user if account else os.geteuid()
    assert expected != 0
    family = [pid_of(server), *children_of(pid_of(server))]
    users = users_of(family)
    assert len(users) > 3
    assert set(users) == {expected}


def test_settings_go_over_the_defaults_and_are_read_at_every_start() -> None:
    with PostgresServer(settings={"wal_level": "replica", "work_mem": "7MB"}) as running:
        assert ask(running, "show wal_level") == [("replica",)]
        assert ask(running, "show work_mem") == [("7MB",)]
        running.settings["work_mem"] = "9MB"
        running.restart()
        assert ask(running, "show work_mem") == [("9MB",)]


def test_a_restart_keeps_port_and_rows_and_is_another_process(server: PostgresServer) -> None:
    ask(server, "create table kept as select 1 as id")
    before = (server.pid, server.port)
    server.restart()
    assert server.port == before[1]
    assert server.pid != before[0]
    assert ask(server, "select id from kept") == [(1,)]


def test_starting_twice_is_starting_once(server: PostgresServer) -> None:
    pid = server.pid
    server.start()
    assert server.pid == pid


def test_a_fast_stop_does_not_wait_for_clients(server: PostgresServer) -> None:
    pid = pid_of(server)
    with psycopg.connect(server.dsn) as client:
        client.execute("select 1")  # leaves its transaction open
        assert stops_by_itself(server)
        assert server.pid is None
        assert not runs(pid)
        with pytest.raises(psycopg.OperationalError):
            client.execute("select 1")
    assert not stops_by_itself(server), "a second stop has nothing to do"


def test_an_unknown_way_to_stop_leaves_it_running(server: PostgresServer) -> None:
    with pytest.raises(KeyError):
        server.stop("slowly")
    assert ask(server, "select 1") == [(1,)]


def test_after_a_kill_nothing_runs_and_committed_rows_come_back(server: PostgresServer) -> None:
    ask(server, "create table kept as select 1 as id")
    client = psycopg.connect(server.dsn)
    client.execute("insert into kept values (2)")
    family = [pid_of(server), *children_of(pid_of(server))]
    server.kill()
    client.close()
    assert server.pid is None
    assert [pid for pid in family if runs(pid)] == []
    server.start()
    assert ask(server, "select id from kept") == [(1,)]
    assert "was not properly shut down" in server.log


def test_reloading_takes_up_a_changed_rule_for_clients(server: PostgresServer) -> None:
    rules = server.data / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text("host all all 127.0.0.1/32 reject\n")
    server.reload()
    try:
        with pytest.raises(psycopg.OperationalError, match="rejects"):
            for _ in range(2000):  # it takes the signal between two connections
                psycopg.connect(server.dsn).close()
    finally:
        rules.write_text(before)
        server.stop()


def test_leaving_the_context_leaves_nothing_behind() -> None:
    with PostgresServer() as running:
        family = [pid_of(running), *children_of(pid_of(running))]
        assert running._watcher is not None
        family.append(running._watcher.pid)
        assert running.folder.exists()
    assert [pid for pid in family if runs(pid)] == []
    assert not running.folder.exists()


def test_a_folder_of_the_callers_is_kept_and_serves_again(open_folder: Path) -> None:
    place = open_folder / "server"
    with PostgresServer(place) as running:
        ask(running, "create table kept as select 1 as id")
    assert (place / "data").is_dir()
    with PostgresServer(place) as again:
        assert ask(again, "select id from kept") == [(1,)]


@needs_root
def test_a_folder_that_nobody_cannot_reach_is_refused_and_not_opened(open_folder: Path) -> None:
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(SourceRefused, match="cannot reach the folder") as caught:
        PostgresServer(closed / "server")
    assert "/var/tmp" in caught.value.remedy
    assert closed.stat().st_mode & 0o777 == 0o700
    assert list(closed.iterdir()) == []


@needs_root
@pytest.mark.parametrize(
    "closing", ["the folder above", pytest.param("every file", marks=pytest.mark.ci)]
)
def test_programs_that_nobody_cannot_reach_are_doubled(open_folder: Path, closing: str) -> None:
    found = packaged(16)
    assert found is not None
    package = found.parent.parent
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    for name in (f"{package.name}/{found.parent.name}", f"{package.name}.libs"):
        without = shutil.ignore_patterns("include", "*.a")
        shutil.copytree(package.parent / name, closed / name, ignore=without)
    if closing == "every file":
        closed.chmod(0o755)
        for path in closed.rglob("*"):
            path.chmod(path.stat().st_mode & 0o700)
    rights = {path: (path.stat().st_mode, path.stat().st_uid) for path in closed.rglob("*")}
    with PostgresServer(binaries=closed / found.relative_to(package.parent)) as running:
        assert ask(running, "select 1") == [(1,)]
        assert running.binaries.is_relative_to(running.folder)
        folders = [path for path in (running.folder / "programs").rglob("*") if path.is_dir()]
        assert {path.stat().st_uid for path in folders} == {user_of(pid_of(running))}
    assert not running.folder.exists()
    assert rights == {path: (path.stat().st_mode, path.stat().st_uid) for path in rights}


def test_a_setting_the_server_does_not_take_is_told_in_its_words(server: PostgresServer) -> None:
    good = server.settings["shared_buffers"]
    server.stop()
    server.settings["shared_buffers"] = "much"
    try:
        with pytest.raises(SourceRefused, match='"shared_buffers"'):
            server.start()
    finally:
        server.settings["shared_buffers"] = good
    assert server.pid is None


def test_a_port_taken_at_the_last_moment_is_exchanged(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.stop()
    server.port = 0
    with socket.create_server(("127.0.0.1", 0)) as other:
        free = postgres._free_port()
        ports = iter([other.getsockname()[1], free])
        monkeypatch.setattr(postgres, "_free_port", lambda: next(ports))
        server.start()
    assert server.port == free
    assert ask(server, "select 1") == [(1,)]


def test_a_port_the_caller_named_is_not_exchanged() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        server = PostgresServer(port=other.getsockname()[1])
        with pytest.raises(SourceRefused, match="did not start"), server:
            raise AssertionError("it started")
    assert not server.folder.exists()


def test_the_server_stays_when_the_thread_that_started_it_ends(server: PostgresServer) -> None:
    server.stop()
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    assert ask(server, "select 1") == [(1,)]


PROGRAM = """
import os, sys
from headrace.embedded.postgres import PostgresServer
{first}
server = PostgresServer()
server.start()
print(server.pid, server._watcher.pid, server.folder, flush=True)
{then}
"""


def child(then: str, first: str = "", **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(first=first, then=then)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            **environ,
        },
    )


def told(process: subprocess.Popen[str]) -> tuple[list[int], Path]:
    assert process.stdout is not None
    server, watcher, folder = process.stdout.readline().split()
    return [int(server), int(watcher)], Path(folder)


def test_a_killed_program_takes_its_server_and_folder_along() -> None:
    with child("sys.stdin.read()") as program:
        pids, folder = told(program)
        assert all(runs(pid) for pid in pids)
        program.send_signal(signal.SIGKILL)
    assert until_gone(pids, patience())
    assert not folder.exists()


def test_a_program_that_ends_without_a_word_stops_its_server() -> None:
    with child("") as program:
        pids, folder = told(program)
    assert [pid for pid in pids if runs(pid)] == []
    assert not folder.exists()


def test_a_forked_child_that_ends_leaves_the_server_alone() -> None:
    forking = """
if (other := os.fork()) == 0:
    sys.exit()
os.waitpid(other, 0)
print(server.pid is not None, flush=True)
"""
    with child(forking) as program:
        told(program)
        assert program.stdout is not None
        assert program.stdout.readline() == "True\n"


def readable_programs(home: Path, account: Account) -> dict[str, str]:
    """Return an environment for a user who can read neither root's home nor root's cache."""
    home.chmod(0o755)
    account.own(home)
    found = within_reach(find_binaries(), account, home)
    return {"HOME": str(home), "XDG_CACHE_HOME": str(home), VARIABLE: str(found)}


@needs_root
def test_a_user_who_is_not_root_runs_it_as_himself() -> None:
    account = server_account()
    assert account is not None
    group, user = account.group, account.user
    become = f"os.setgroups([]); os.setgid({group}); os.setuid({user})"
    with (
        tempfile.TemporaryDirectory(prefix="headrace-other-user-") as home,
        child("sys.stdin.read()", become, **readable_programs(Path(home), account)) as program,
    ):
        pids, _ = told(program)
        assert {user_of(pid) for pid in pids} == {account.user}
        program.communicate("")
    assert [pid for pid in pids if runs(pid)] == []
