"""What the tests of interfaces share."""

from __future__ import annotations

import socketserver

import pytest

from headrace.cli import status

_serve_forever = socketserver.BaseServer.serve_forever


@pytest.fixture(autouse=True)
def _looks_are_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server looks ten times a second whether it was shut down: that is long, in all tests."""

    def serve_forever(self: socketserver.BaseServer, poll_interval: float = 0.5) -> None:
        _serve_forever(self, min(poll_interval, 0.005))

    monkeypatch.setattr(socketserver.BaseServer, "serve_forever", serve_forever)
    monkeypatch.setattr(status, "_LOOK_SECONDS", 0.02)
