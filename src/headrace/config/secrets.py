"""
Secrets by reference: a configuration says where one is, never what it is.

`env:NAME` is an environment variable, `file:/path` a file's text without the newline at its
end; other schemes come from packages, by entry points of the group `headrace.secrets`: the
entry's name is the scheme, and what it names is called with the rest of the reference and
returns the secret.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from headrace.errors import BadPart, NoSecret

GROUP = "headrace.secrets"
BUILT_IN = ("env", "file")


class Secret:
    """A reference to a secret. Neither its `repr` nor its `str` shows what it leads to."""

    __slots__ = ("reference",)

    def __init__(self, reference: str) -> None:
        self.reference = reference

    def read(self) -> str:
        """Return the secret as it is now; `NoSecret` where nothing is there."""
        return read_secret(self.reference)

    def __repr__(self) -> str:
        # Somebody may have written the secret itself where a reference belongs.
        return f"Secret({self.reference if is_reference(self.reference) else '***'!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.reference == self.reference

    def __hash__(self) -> int:
        return hash(self.reference)


def schemes() -> tuple[str, ...]:
    """Return what a reference may begin with."""
    return (*BUILT_IN, *sorted({each.name for each in _provided()} - {*BUILT_IN}))


def is_reference(text: str) -> bool:
    """Whether `text` names a place in a scheme that somebody provides."""
    scheme, colon, name = text.partition(":")
    return bool(colon and name) and scheme in schemes()


def read_secret(reference: str) -> str:
    """Return what a reference leads to. No message holds it, or a reference that is none."""
    scheme, _, name = reference.partition(":")
    match scheme:
        case "env":
            found = os.environ.get(name)
        case "file":
            found = _read(Path(name).expanduser(), reference)
        case _:
            found = _provider(scheme)(name)
    if not found:
        raise NoSecret("There is no secret where the reference points", reference=reference)
    return found


def _read(path: Path, reference: str) -> str:
    try:
        # Editors and `echo` end a file with a newline; no secret does.
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeError) as error:
        raise NoSecret(
            "The file with the secret cannot be read",
            reference=reference,
            error=type(error).__name__,
            remedy="Check the path, and that the engine's user may read the file.",
        ) from None


def _provider(scheme: str) -> Callable[[str], str]:
    for each in _provided():
        if each.name == scheme:
            return _guarded(each)
    known = ", ".join(f"{each}:…" for each in schemes())
    raise NoSecret("The reference to a secret cannot be read", remedy=f"Write one of {known}.")


def _guarded(entry: metadata.EntryPoint) -> Callable[[str], str]:
    def ask(name: str) -> str:
        try:
            return str(entry.load()(name) or "")
        except Exception as error:  # noqa: BLE001  # Somebody else's code may raise anything.
            # Its text may hold the secret, or the way to it.
            raise BadPart(
                f"What provides secrets by {entry.name}: failed", error=type(error).__name__
            ) from None

    return ask


def _provided() -> tuple[metadata.EntryPoint, ...]:
    return tuple(metadata.entry_points(group=GROUP))
