"""Folders that a server which does not run as us can use."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder everybody may look into; pytest's own are closed, as they should be."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
