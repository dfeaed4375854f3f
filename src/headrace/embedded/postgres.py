"""
A PostgreSQL server of our own, for the demo and for tests.

It listens on loopback only, trusts every client that connects there, and does not wait for the
disk: nothing that matters may be kept in it. It is set up for logical replication.

It does not outlive us. A context manager ends it, as does leaving the interpreter; and should
we be killed, a shell that waits at the other end of a pipe notices and stops it. The kernel's
own way (a signal at the parent's death) is not used: it goes by the thread that started the
process, and would stop the server when merely that thread ends. Processes that are not our own
children are found as Linux lists them under /proc.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType, TracebackType

from headrace.embedded.binaries import (
    Account,
    as_account,
    find_binaries,
    major_of,
    server_account,
    within_reach,
)
from headrace.errors import SourceRefused

# --- processes that are not our own children ------------------------------------------------------

_PROC = Path("/proc")
_PROCESS_LOOK_SECONDS = 0.005


def children_of(parent: int) -> list[int]:
    """Return the ids of the processes that `parent` started and that still run."""
    found = []
    for folder in _PROC.iterdir():
        if folder.name.isdigit() and (facts := _facts(int(folder.name))) is not None:
            state, its_parent = facts
            if its_parent == parent and state != "Z":
                found.append(int(folder.name))
    return found


def until_gone(pids: Iterable[int], seconds: float = 30.0) -> bool:
    """Wait until none of `pids` runs any more; return whether that came true in time."""
    until = time.monotonic() + seconds
    left = list(pids)
    while left := [pid for pid in left if (facts := _facts(pid)) is not None and facts[0] != "Z"]:
        if time.monotonic() > until:
            return False
        time.sleep(_PROCESS_LOOK_SECONDS)
    return True


def _facts(pid: int) -> tuple[str, int] | None:
    """Return state and parent of a process; None where it is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name comes in brackets and may hold anything, brackets and blanks too.
    state, parent = text.rpartition(")")[2].split()[:2]
    return state, int(parent)


# --- the server -----------------------------------------------------------------------------------

DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "wal_level": "logical",
        "max_replication_slots": "20",
        "max_wal_senders": "20",
        "fsync": "off",
        "shared_buffers": "32MB",
    }
)
"""Settings unless others are given."""

STOPS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
"""Smart waits until clients are gone, fast ends their sessions, immediate skips the checkpoint."""

_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
_MAKE = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
_START_SECONDS = 120.0  # a server that was killed reads its log again first
_STOP_SECONDS = 60.0
_LOOK_SECONDS = 0.01
_PORTS = range(10_240, 32_768)
"""Beneath those the kernel gives to clients: a port of theirs may be gone after a restart."""

_TRIES = 5
_WATCH = """
read -r _
kill -INT "$1"
n=0
while kill -0 "$1" && [ $n -lt 100 ]; do sleep 0.1; n=$((n + 1)); done
[ $n -lt 100 ] || kill -KILL "$1"
[ -z "$2" ] || rm -rf -- "$2"
"""
"""Waits for the end of its input, which comes when we are gone, however we went."""


class PostgresServer:
    """
    A server in a folder of its own; a context manager that starts and removes it.

    `folder` keeps its data, so that it can be started again later; without one there is a
    temporary folder, removed by `close`. `version` is a major, `settings` go over `DEFAULTS`,
    and `port` 0 means a free one, which then stays the same over restarts. `binaries` names
    the programs' folder where it is known already.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        version: int | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
        port: int = 0,
        binaries: Path | None = None,
    ) -> None:
        found = binaries or find_binaries(version)
        self.version = version or major_of(found)
        self.settings = {**DEFAULTS, **settings}
        """Read at every start: change them, then `restart`."""

        self.port = port
        self._any_port = port == 0
        self._account = server_account()
        self._temporary = folder is None
        self.folder = _folder(folder, self._account)
        self._maker = os.getpid()
        self._server: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        atexit.register(self._at_exit)
        self.binaries = within_reach(found, self._account, self.folder)

    @property
    def dsn(self) -> str:
        """How to connect: as the superuser, to its first database."""
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    @property
    def data(self) -> Path:
        """The server's data folder, with `pg_hba.conf` in it."""
        return self.folder / "data"

    @property
    def pid(self) -> int | None:
        """The id of the server's first process; None while none is running."""
        return self._server.pid if self._server and self._server.poll() is None else None

    @property
    def log(self) -> str:
        """What the server has logged, over all its starts."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def __enter__(self) -> PostgresServer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start it and return when it takes connections; nothing to do where it runs."""
        if self.pid is not None:
            return
        if not (self.data / "PG_VERSION").exists():
            self._make()
        for left in reversed(range(_TRIES)):
            if self._any_port and self.port == 0:
                self.port = _free_port()
            told = len(self.log)
            if self._launch():
                return
            news = self.log[told:]
            if self._any_port and "Address already in use" in news and left:
                self.port = 0  # somebody took it between our look and the server's
                continue
            raise SourceRefused(
                "The PostgreSQL server did not start: " + _last_words(news),
                remedy="See its log, and mend the setting it names.",
                log=str(self.folder / "log"),
            )

    def stop(self, mode: str = "fast") -> float:
        """Stop it, return the seconds it took; its data stays. See `STOPS` for the modes."""
        began = time.monotonic()
        if self._server is not None:
            if self.pid is not None:
                self._server.send_signal(STOPS[mode])
                try:
                    self._server.wait(_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    self.kill()
            self._forget()
        return time.monotonic() - began

    def restart(self, mode: str = "fast") -> None:
        """Stop and start it, on the same port and with `settings` as they are now."""
        self.stop(mode)
        self.start()

    def reload(self) -> None:
        """Have it read `pg_hba.conf` and `postgresql.conf` again; it does so a moment later."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGHUP)

    def kill(self) -> None:
        """Kill all its processes at once, as a power cut would; `start` makes it recover."""
        if (pid := self.pid) is not None and self._server is not None:
            # Standing still, it can neither start another child nor mourn the dead ones.
            self._server.send_signal(signal.SIGSTOP)
            family = children_of(pid)
            for child in family:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            self._server.kill()
            self._server.wait()
            until_gone(family)
        self._forget()

    def close(self) -> None:
        """Stop it, and remove its folder where that was a temporary one."""
        try:
            self.stop()
        finally:
            if self._temporary:
                shutil.rmtree(self.folder, ignore_errors=True)
            atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        # A forked child also runs this on its way out; the server is not its to stop.
        if os.getpid() == self._maker:
            self.close()

    def _make(self) -> None:
        done = subprocess.run(
            [self.binaries / "initdb", "-D", self.data, *_MAKE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=_ENVIRONMENT,
            cwd="/",
            check=False,
            **as_account(self._account),
        )
        if done.returncode != 0:
            raise SourceRefused(
                "A PostgreSQL database could not be made: " + _last_words(done.stderr),
                remedy="Mend what the message names, or choose another folder.",
                folder=str(self.data),
            )

    def _launch(self) -> bool:
        """Start the processes; return whether the server is ready, false where it ended."""
        settings = {**self.settings, "port": str(self.port)}
        arguments = [part for name in settings for part in ("-c", f"{name}={settings[name]}")]
        with (self.folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [self.binaries / "postgres", "-D", self.data, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_ENVIRONMENT,
                cwd="/",
                start_new_session=True,  # Ctrl-C is for us, who still need the server
                **as_account(self._account),
            )
        removed = str(self.folder) if self._temporary else ""
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "sh", str(self._server.pid), removed],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
            **as_account(self._account),
        )
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            if self._server.poll() is not None:
                self._forget()
                return False
            if self._ready():
                return True
            time.sleep(_LOOK_SECONDS)
        self.kill()
        return False

    def _ready(self) -> bool:
        """Return whether the server says so, in the file where its own `pg_ctl` looks."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        ours = self._server is not None and lines[:1] == [str(self._server.pid)]
        return ours and len(lines) > 7 and lines[7].strip() in ("ready", "standby")

    def _forget(self) -> None:
        """Let go of processes that are gone; the watcher goes with them, before it can act."""
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()
        self._server = self._watcher = None


def _folder(folder: Path | None, account: Account | None) -> Path:
    """Make the folder a server lives in, such that `account` can use it."""
    if folder is None:
        made = Path(tempfile.mkdtemp(prefix="headrace-postgres-", dir=_temporary(account)))
    else:
        made = folder.resolve()
        nearest = next(path for path in (made, *made.parents) if path.exists())
        if account is not None and not account.reaches(nearest):
            raise SourceRefused(
                "PostgreSQL does not run as root, and `nobody` cannot reach the folder",
                remedy="Choose a folder under /var/tmp, or start as a user who is not root.",
                folder=str(made),
            )
        if nearest == made:
            return made
        made.mkdir(parents=True)
    if account is not None:
        account.own(made)
    return made


def _temporary(account: Account | None) -> str:
    """Return the folder for temporary ones; root's own may be closed to others."""
    usual = tempfile.gettempdir()
    return usual if account is None or account.reaches(Path(usual)) else "/var/tmp"


def _free_port() -> int:
    for port in random.sample(_PORTS, 100):
        with socket.socket() as trial, suppress(OSError):
            trial.bind(("127.0.0.1", port))
            return port
    raise SourceRefused("No port is free on loopback", remedy="Name one with port=.")


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "FATAL" in line or "error:" in line] or lines[-1:]
    return telling[-1] if telling else "it said nothing"
