"""
An embedded PostgreSQL server, for the demo and for tests.

It listens on loopback only, trusts every client that connects there, and runs with `fsync = off`:
it must not hold important data. It is configured for logical replication.

It does not outlive this process. The context manager stops it, as does the end of the interpreter;
and if this process is killed, a shell at the other end of a pipe notices and stops the server. The
kernel's own way (a signal at the parent's death) is not used: it depends on the thread that started
the process, and would stop the server when only that thread ends. Processes that are not our own
children are found under Linux's /proc.
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
    """Wait until all of `pids` have ended; return false on a timeout."""
    until = time.monotonic() + seconds
    left = list(pids)
    while left := [pid for pid in left if (facts := _facts(pid)) is not None and facts[0] != "Z"]:
        if time.monotonic() > until:
            return False
        time.sleep(_PROCESS_LOOK_SECONDS)
    return True


def _facts(pid: int) -> tuple[str, int] | None:
    """Return state and parent of a process; None if it has ended."""
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
"""Default settings."""

STOPS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
"""Smart waits for clients to disconnect, fast ends sessions, immediate skips the checkpoint."""

_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
_MAKE = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
_START_SECONDS = 120.0  # a killed server replays its WAL first
_STOP_SECONDS = 60.0
_LOOK_SECONDS = 0.01
_PORTS = range(10_240, 32_768)
"""Below the ephemeral ports: one of those may be in use after a restart."""

_TRIES = 5
_WATCH = """
read -r _
kill -INT "$1"
n=0
while kill -0 "$1" && [ $n -lt 100 ]; do sleep 0.1; n=$((n + 1)); done
[ $n -lt 100 ] || kill -KILL "$1"
[ -z "$2" ] || rm -rf -- "$2"
"""
"""Waits for the end of its input, which comes when this process ends for any reason."""


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
        """Start it and return when it accepts connections; does nothing if it is running."""
        if self.pid is not None:
            return
        if not (self.data / "PG_VERSION").exists():
            self._make()
        for left in reversed(range(_TRIES)):
            if self._any_port and self.port == 0:
                self.port = _free_port()
            log_start = len(self.log)
            if self._launch():
                return
            new_lines = self.log[log_start:]
            if self._any_port and "Address already in use" in new_lines and left:
                self.port = 0  # another process took it in between
                continue
            raise SourceRefused(
                "The PostgreSQL server did not start: " + _last_words(new_lines),
                remedy="See its log, and fix the setting it names.",
                log=str(self.folder / "log"),
            )

    def stop(self, mode: str = "fast") -> float:
        """Stop it and return the seconds it took; its data is kept. See `STOPS` for the modes."""
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
            # A stopped server can neither start another child nor react to those that died.
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
        """Stop it, and remove its folder if that is temporary."""
        try:
            self.stop()
        finally:
            if self._temporary:
                shutil.rmtree(self.folder, ignore_errors=True)
            atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        # A forked child also runs this at exit, and must not stop the server.
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
                "initdb failed: " + _last_words(done.stderr),
                remedy="Fix what the message names, or choose another folder.",
                folder=str(self.data),
            )

    def _launch(self) -> bool:
        """Start the processes; return whether the server is ready, false if it ended."""
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
                start_new_session=True,  # Ctrl-C must not reach the server
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
        """Return whether the server reports ready in `postmaster.pid`, as `pg_ctl` checks it."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        ours = self._server is not None and lines[:1] == [str(self._server.pid)]
        return ours and len(lines) > 7 and lines[7].strip() in ("ready", "standby")

    def _forget(self) -> None:
        """Release the ended processes; the watcher is killed before it can act."""
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()
        self._server = self._watcher = None


def _folder(folder: Path | None, account: Account | None) -> Path:
    """Create the folder of a server, such that `account` can use it."""
    if folder is None:
        made = Path(tempfile.mkdtemp(prefix="headrace-postgres-", dir=_temporary(account)))
    else:
        made = folder.resolve()
        nearest = next(path for path in (made, *made.parents) if path.exists())
        if account is not None and not account.reaches(nearest):
            raise SourceRefused(
                "PostgreSQL does not run as root, and `nobody` cannot reach the folder",
                remedy="Choose a folder under /var/tmp, or run as a user other than root.",
                folder=str(made),
            )
        if nearest == made:
            return made
        made.mkdir(parents=True)
    if account is not None:
        account.own(made)
    return made


def _temporary(account: Account | None) -> str:
    """Return the parent of temporary folders; root's own may be closed to others."""
    usual = tempfile.gettempdir()
    return usual if account is None or account.reaches(Path(usual)) else "/var/tmp"


def _free_port() -> int:
    for port in random.sample(_PORTS, 100):
        with socket.socket() as trial, suppress(OSError):
            trial.bind(("127.0.0.1", port))
            return port
    raise SourceRefused("No free port on loopback", remedy="Choose one with port=.")


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    relevant = [line for line in lines if "FATAL" in line or "error:" in line] or lines[-1:]
    return relevant[-1] if relevant else "it logged nothing"
