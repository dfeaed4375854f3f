"""Errors of a configuration, found one by one and told together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from headrace.errors import HeadraceError, InvalidConfiguration


class Gathering:
    """Collects errors as they are raised: `with gathering:` around each thing that may."""

    def __init__(self) -> None:
        self.found: list[HeadraceError] = []

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, HeadraceError):
            return False
        self.found.append(error)
        return True


@contextmanager
def gathered() -> Iterator[Gathering]:
    """Raise `InvalidConfiguration` at the end of the block, if anything was found in it."""
    gathering = Gathering()
    yield gathering
    if gathering.found:
        raise InvalidConfiguration.of(gathering.found)
