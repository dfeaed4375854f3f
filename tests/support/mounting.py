"""File systems of a test's own, where mounting is allowed; where it is not, the test says so."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Put a disk of `size` at `folder`."""
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a folder read-only; for root, who may write everywhere else, by a mount."""
    if os.geteuid() != 0:
        folder.chmod(0o500)
        for file in folder.iterdir():
            file.chmod(0o400)
        yield
        folder.chmod(0o700)
        return
    _mount("--bind", str(folder), str(folder))
    try:
        _mount("-o", "remount,bind,ro", str(folder))
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def _mount(*arguments: str) -> None:
    if (command := shutil.which("mount")) is None:
        pytest.skip("there is no mount command here")
    made = subprocess.run([command, *arguments], check=False, capture_output=True)
    if made.returncode:
        pytest.skip("mounting is not allowed here")
