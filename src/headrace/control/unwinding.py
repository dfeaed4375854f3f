"""Letting go of everything that was begun, the last thing first."""

from __future__ import annotations

from collections.abc import Callable


def unwind(undo: list[Callable[[], None]]) -> None:
    """Call and remove all of `undo`, the last one first; then raise the first error there was."""
    first: Exception | None = None
    while undo:
        call = undo.pop()
        try:
            call()
        except Exception as error:  # noqa: BLE001 - the first is raised below
            # Targets are the user's code and may raise anything. The rest must still be
            # let go of, or a recorder would outlive its engine.
            first = first or error
    if first is not None:
        raise first
