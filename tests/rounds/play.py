"""One round, from its server to its outcome."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import psycopg

from headrace.embedded.postgres import PostgresServer
from headrace.errors import HeadraceError
from tests.postgres.servers import make_server
from tests.rounds.outcome import Outcome, RoundFailed


class Round(Protocol):
    """A plan at work, on one server and in one folder."""

    outcome: Outcome

    def run(self) -> None:
        """Play it, and raise where something is wrong; no process is left either way."""
        ...


def played(
    name: str, settings: Mapping[str, str], begin: Callable[[PostgresServer, Path], Round]
) -> Outcome:
    """Play one round and return what came of it; its folder's name begins with `name`."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    with make_server(settings) as server:
        playing = begin(server, folder)
        outcome = playing.outcome
        try:
            playing.run()
        except (
            RoundFailed,
            HeadraceError,
            psycopg.Error,
            subprocess.TimeoutExpired,
            AssertionError,
        ) as failure:
            outcome.error = f"{type(failure).__name__}: {failure}"
            (folder / "server.log").write_text(server.log)
    if outcome.error is None:
        shutil.rmtree(folder)
    else:
        outcome.folder = str(folder)
    outcome.seconds = time.monotonic() - began
    return outcome
