"""A caller of an engine's services, without a transport between the two."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.api.handlers import ControlService
from headrace.api.methods import METHODS, OAM
from headrace.api.services import Caller, MessageStream, Services
from headrace.engine.engine import Engine
from tests.support.patience import patience

LOCAL = Caller("local", "admin", "test")


class Asking:
    """Calls with messages, which are bytes on the way in and out, as from a transport."""

    def __init__(self, engine: Engine, caller: Caller = LOCAL, **control: Any) -> None:
        self.control = ControlService(engine, **control)
        self.services = Services(engine, self.control)
        self.caller = caller

    def as_(self, role: str, *tables: str) -> Asking:
        """Return the same services, for another caller."""
        other = object.__new__(Asking)
        other.control, other.services = self.control, self.services
        other.caller = Caller(f"the {role}", role, "test", tables)
        return other

    def __call__(self, name: str, **fields: Any) -> Any:
        """Call an RPC of `OAMService`."""
        return self.of(OAM, name, **fields)

    def of(self, service: str, name: str, **fields: Any) -> Any:
        """Call an RPC of another service."""
        method = METHODS[f"/{service}/{name}"]
        assert method.request and method.response
        body = method.request(**fields).SerializeToString()
        return method.response.FromString(self.services.call(method.path, body, self.caller))

    @contextmanager
    def stream(self, name: str, **fields: Any) -> Iterator[Iterator[Any]]:
        """Call an RPC that answers with a stream."""
        method = METHODS[f"/{OAM}/{name}"]
        assert method.request and method.response
        body = method.request(**fields).SerializeToString()
        with bounded(self.services.stream(method.path, body, self.caller)) as found:
            yield (method.response.FromString(each) for each in found)


@contextmanager
def bounded(stream: MessageStream) -> Iterator[Iterator[bytes]]:
    """Read a stream, which ends at the latest when a test has waited for long enough."""
    end = threading.Timer(patience(), stream.close)
    end.start()
    try:
        yield iter(stream)
    finally:
        end.cancel()
        stream.close()
