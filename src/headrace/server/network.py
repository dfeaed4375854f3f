"""
`hr.serve`: an engine on the network.

    with engine, hr.serve(engine) as server:
        print(server.info.http)

`NetworkServer` is what `serve` returns. `headrace run` makes one, too, from the section `server` of
its configuration, with the verbs that it adds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.extras import require
from headrace.server.settings import Access, ServerSettings, settings_of

if TYPE_CHECKING:
    from headrace.api.handlers import ControlService
    from headrace.engine.engine import Engine
    from headrace.server.supervisor import ServerInfo


class NetworkServer:
    """
    An engine on the network, from `start` to `close`; a context that does both.

    It is started without waiting for it, and nothing that happens to it stops the engine: `info`
    says what it does. Raises `NotInstalled`, and `BadCertificate`.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ServerSettings,
        *,
        control: ControlService | None = None,
        on_change: Callable[[ServerInfo], None] = lambda info: None,
    ) -> None:
        """`control` has the verbs to serve; by default, those of every engine."""
        require("server", "A server")
        from headrace.api.handlers import ControlService
        from headrace.api.services import Services
        from headrace.server.supervisor import Supervisor
        from headrace.server.tls import TlsFiles

        if settings.tls is not None:
            TlsFiles(settings.tls)  # what cannot be used is an error now, not in the child
        self._settings = settings
        self._own_control = control is None
        self._control = control or ControlService(engine)
        services = Services(engine, self._control)
        self._supervisor = Supervisor(
            engine, self._control, services, settings, engine.data, on_change=on_change
        )
        self._control.server = self._supervisor.fields

    @property
    def info(self) -> ServerInfo:
        """What it serves, and if it does not, why."""
        return self._supervisor.info

    def start(self) -> NetworkServer:
        """Open the ports; does not wait until they are served."""
        if self._own_control:
            self._control.rates.start()
        self._supervisor.start()
        return self

    def await_serving(self, timeout: float | None = None) -> bool:
        """Wait until it serves HTTP and gRPC; False on time-out."""
        return self._supervisor.await_that(
            lambda info: info.state == "serving" and bool(info.grpc), timeout
        )

    def renew(self, tokens: Mapping[str, Access]) -> Callable[[], None]:
        """
        Return what makes these the tokens from now on; raises `WrongValue` if they cannot be.

        Streams and logins of other tokens end then.
        """
        renewed = msgspec.structs.replace(self._settings, tokens=tokens)
        return lambda: self._supervisor.renew(renewed)

    def drain(self) -> None:
        """Be not ready from now on; everything is answered still."""
        self._supervisor.drain()

    def close(self) -> None:
        """End every stream and close the ports. May be called twice."""
        self._supervisor.close()
        if self._own_control:
            self._control.rates.stop()
            self._own_control = False

    def __enter__(self) -> NetworkServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def serve(
    engine: Engine,
    *,
    host: str = "127.0.0.1",
    http_port: int = 4080,
    grpc_port: int = 4081,
    hosts: Sequence[str] = (),
    tls: Mapping[str, str] | None = None,
    tokens: Mapping[str, Mapping[str, Any]] | None = None,
    insecure: bool = False,
    compat: str = "",
    hold: Sequence[str] = (),
    limits: Mapping[str, float] | None = None,
) -> NetworkServer:
    """
    Serve an engine on the network, until `close` or the end of a `with` block.

    The console, metrics and health are at `http_port`, with the services in JSON and protobuf;
    gRPC is at `grpc_port`. A port that is taken is tried again, and `info` names it; port 0 is one
    that is free. The options are those of the section `server` of a configuration; a token is given
    by its hash.

        with engine, hr.serve(engine) as server:
            server.await_serving()
            print(server.info.http)

    An address that other machines can reach needs `tls` and `tokens`, or `insecure=True`: raises
    `WrongValue`. Raises `NotInstalled` without the extra `server`, and `BadCertificate`.
    """
    given = {
        "host": host,
        "http_port": http_port,
        "grpc_port": grpc_port,
        "hosts": list(hosts),
        "tls": None if tls is None else dict(tls),
        "tokens": {name: dict(each) for name, each in (tokens or {}).items()},
        "insecure": insecure,
        "compat": compat,
        "hold": list(hold),
        "limits": dict(limits or {}),
    }
    return NetworkServer(engine, settings_of(given)).start()
