"""An empty log's files on a simulated disk; a module that needs others has its own fixture."""

from __future__ import annotations

import pytest

from headrace.changelog import index
from headrace.storage.files import Files
from tests.changelog.log_making import files_on


@pytest.fixture
def files() -> Files:
    return files_on()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few entries between two checkpoints."""
    monkeypatch.setattr(index, "CHECKPOINT_EVERY", 5)
