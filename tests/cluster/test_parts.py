"""What the cluster's own test rests on: no Headrace on executors, and nothing left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.cluster import bare_python
from tests.support.patience import patience

ROOT = Path(__file__).parents[2]

KILLED = """
import os, signal
from tests.cluster.cluster import kept
kept(["/bin/sh", "-c", "sleep 600 & sleep 600"])
os.kill(os.getpid(), signal.SIGKILL)
"""

LOOKED_FOR = """
import importlib.util
print([importlib.util.find_spec(name) is not None for name in ("pyarrow", "pyspark", "headrace")])
"""


@pytest.mark.process
def test_a_process_that_is_kept_ends_with_its_keeper_and_takes_its_children_along() -> None:
    # They all hold the pipe: its end comes only when the last of them is gone.
    done = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=ROOT, stdout=subprocess.PIPE, timeout=patience()
    )
    assert (done.returncode, done.stdout) == (-9, b"")


@pytest.mark.process
def test_executors_have_every_package_but_headrace(tmp_path: Path) -> None:
    python = bare_python(tmp_path / "python")
    done = subprocess.run(
        [str(python), "-c", LOOKED_FOR], cwd=tmp_path, env={}, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == "[True, True, False]"
