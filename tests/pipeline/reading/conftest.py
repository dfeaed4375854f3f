"""An empty log; a module that needs another has a fixture of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.reading.made_log import MadeLog


@pytest.fixture
def log(tmp_path: Path) -> MadeLog:
    return MadeLog(tmp_path)
