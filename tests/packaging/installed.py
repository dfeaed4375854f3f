"""Environments as users have them: made outside this tree, from the wheels that it builds."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.patience import patience
from tests.support.sources import ROOT

_PASSED_ON = re.compile(
    r"PIP_\w+|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|(https?|all|no)_proxy", re.IGNORECASE
)
"""How pip reaches its index here; everything else of this shell is left out."""

_PIN = re.compile(r"^[A-Za-z0-9._-]+==[^\\\n]+", re.M)


def constraints(folder: Path) -> Path:
    """Write the versions of the lock as constraints: a new release of others turns nothing red."""
    path = folder / "constraints.txt"
    lock = (ROOT / "requirements.lock").read_text()
    path.write_text("\n".join(pin.strip() for pin in _PIN.findall(lock)) + "\n")
    return path


def plain(home: Path, programs: Path, **more: str) -> dict[str, str]:
    """Return an environment that holds nothing of this tree's."""
    passed = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}
    path = f"{programs}:/usr/local/bin:/usr/bin:/bin"
    return {**passed, "PATH": path, "HOME": str(home), "LANG": "C.UTF-8", **more}


class Installation:
    """A virtual environment with our distributions in it, and a home for who uses it."""

    def __init__(self, folder: Path, home: Path, account: int | None = None) -> None:
        self.folder = folder
        self.programs = folder / "bin"
        self.home = home
        self._account = account
        """The user that commands run as; None for our own."""

    def environment(self, **more: str) -> dict[str, str]:
        return plain(self.home, self.programs, **more)

    @property
    def become(self) -> dict[str, Any]:
        """How `subprocess` starts a program as the user."""
        if self._account is None:
            return {}
        return {"user": self._account, "group": self._account, "extra_groups": []}

    def packages(self) -> dict[str, str]:
        """Return what is installed, by name."""
        words = [sys.executable, "-m", "pip", "--python", str(self.programs / "python")]
        done = subprocess.run(
            [*words, "list", "--format", "json"], capture_output=True, text=True, check=True
        )
        return {each["name"].lower(): each["version"] for each in json.loads(done.stdout)}

    def run(
        self,
        folder: Path,
        *words: str,
        code: int = 0,
        environ: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a folder to its end, and return what it printed."""
        done = subprocess.run(
            words,
            cwd=folder,
            env=self.environment() if environ is None else environ,
            capture_output=True,
            text=True,
            timeout=patience(240),
            check=False,
            **self.become,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def headrace(self, folder: Path, *words: str, code: int = 0) -> str:
        """Run a command of ours; return what it printed, on both streams."""
        done = self.run(folder, "headrace", *words, code=code)
        return done.stdout + done.stderr

    @contextmanager
    def started(
        self, folder: Path, words: Sequence[str], environ: Mapping[str, str] | None = None
    ) -> Iterator[Service]:
        """Run a command that prints events, until it is stopped; killed where a test fails."""
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=self.environment() if environ is None else environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **self.become,
        )
        with process:
            try:
                yield Service(process)
            finally:
                if process.poll() is None:
                    process.kill()


class Service:
    """An engine that runs in the foreground and prints its events as lines of JSON."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []

    def until(self, event: str) -> dict[str, Any]:
        """Wait for an event; pytest's own limit ends a wait that has no end."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told: dict[str, Any] = json.loads(line)
            self.events.append(told)
            if told.get("event") == event:
                return told
        raise AssertionError(f"ended with {self.process.wait()} before {event}: {self.events}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, read to the end, and return the exit code."""
        self.process.send_signal(number)
        assert self.until("stopped")["failed"] == []
        return self.process.wait(patience(120))


def eventually(look: Any) -> None:
    """Call until it returns true."""
    until = time.monotonic() + patience(120)
    while not look():
        assert time.monotonic() < until, "did not come"
