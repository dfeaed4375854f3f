"""Python as a child: one that runs to its end, and one that is talked to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.patience import LEAST, patience

ROOT = Path(__file__).parent.parent.parent


def python(
    *arguments: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    seconds: float = LEAST,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run it, wait for at most `seconds` of a quiet machine, and return what it printed."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=check,
        cwd=cwd,
        env=env,
        timeout=patience(seconds),
    )


@contextmanager
def talking(folder: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python in the project while the block runs; its errors are gathered in `folder`."""
    with (
        (folder / "stderr").open("a") as errors,
        subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()
