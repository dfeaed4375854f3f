"""What the tests of interfaces share."""

from __future__ import annotations

import shutil
import socketserver
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli import status
from tests.interfaces.at_work import CONFIGURATION, AtWork, at_work
from tests.support.shop import Shop

_serve_forever = socketserver.BaseServer.serve_forever


@pytest.fixture(autouse=True)
def _looks_are_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server looks ten times a second whether it was shut down: that is long, in all tests."""

    def serve_forever(self: socketserver.BaseServer, poll_interval: float = 0.5) -> None:
        _serve_forever(self, min(poll_interval, 0.005))

    monkeypatch.setattr(socketserver.BaseServer, "serve_forever", serve_forever)
    monkeypatch.setattr(status, "_LOOK_SECONDS", 0.02)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A shop and its configuration in the current folder, for commands that start an engine."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headrace.conf").write_text(CONFIGURATION)
    shop = Shop(tmp_path)
    yield shop
    shop.close()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AtWork]:
    """An engine at work in the current folder."""
    monkeypatch.chdir(tmp_path)
    with at_work(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder everybody may look into, as a server that does not run as us must."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
