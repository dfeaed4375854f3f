"""The first minute: from `headrace demo` to the first row a reader sees."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.harness import Result, Rounds


def run(*, quick: bool) -> list[Result]:
    """Start the demo anew each time, and wait for its first visible row."""
    rounds = Rounds()
    for _ in range(1 if quick else 3):
        folder = tempfile.mkdtemp(prefix="headrace-bench-")
        try:
            rounds.ours.append(_first_row(Path(folder)))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return [rounds.result("demo.first_row_s", "s", None, "")]


def _first_row(folder: Path) -> float:
    command = [sys.executable, "-m", "headrace", "demo", "--json", "--for", "1s"]
    began = time.monotonic()
    with subprocess.Popen(
        [*command, "--data", str(folder / "demo")], stdout=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        seen = 0.0
        for line in demo.stdout:
            if json.loads(line).get("name") == "visible":
                seen = time.monotonic() - began
    assert demo.returncode == 0, demo.returncode
    assert seen, "no row was seen"
    return seen
