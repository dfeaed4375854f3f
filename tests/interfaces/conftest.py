"""What the tests of interfaces share."""

from __future__ import annotations

import socketserver
from collections.abc import Iterator

import pytest

from headrace.cli import status

_serve_forever = socketserver.BaseServer.serve_forever


@pytest.fixture(scope="session", autouse=True)
def _looks_are_frequent() -> Iterator[None]:
    """A server looks ten times a second whether it was shut down: that is long, in all tests."""

    def serve_forever(self: socketserver.BaseServer, poll_interval: float = 0.5) -> None:
        _serve_forever(self, min(poll_interval, 0.005))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(socketserver.BaseServer, "serve_forever", serve_forever)
        patched.setattr(status, "_LOOK_SECONDS", 0.02)
        yield
