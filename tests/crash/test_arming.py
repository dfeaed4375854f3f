"""A kill point with a token kills one process, and no other with the same environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = "from headrace.storage.killpoints import reach; reach('job_done'); reach('job_done')"


def run(token: Path) -> int:
    environment = {
        "HEADRACE_KILL_POINT": "job_done:2",
        "HEADRACE_KILL_ONCE": str(token),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    return subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=False).returncode


@pytest.mark.process
@pytest.mark.meets("P2")
def test_the_first_to_come_by_dies_and_its_successor_does_not(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch()
    assert run(token) == -signal.SIGKILL
    assert not token.exists()
    assert run(token) == 0
