"""
Where a password comes from.

A configuration names the place and not the password. The place is read at every connect,
so that a password may be replaced while we run, and a token may live for minutes only.
Nothing here puts what it read into a message.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from headrace.capture.postgres.options import Options
from headrace.config.secrets import is_reference, read_secret
from headrace.errors import BadPart, NoSecret, SourceRefused, SourceUnreachable


def read_password(options: Options) -> str | None:
    """Return the password that `password_ref` names; None where nothing is named."""
    if not options.password_ref:
        return None
    scheme, _, name = options.password_ref.partition(":")
    match scheme:
        case "env":
            found = os.environ.get(name)
        case "file":
            found = _read(Path(name).expanduser(), options)
        case _ if is_reference(options.password_ref):
            found = _provided(options)
        case _:
            # What stands there is not shown: somebody may have put the password itself.
            raise SourceRefused(
                "The reference to the password cannot be read",
                source=options.name,
                remedy="Write file:/path/of/a/file or env:NAME as password_ref.",
            )
    if not found:
        raise SourceRefused(
            "There is no password where the reference points",
            source=options.name,
            password_ref=options.password_ref,
            remedy="Put the password there, or name another place as password_ref.",
        )
    return found


def ask_hook(options: Options, parameters: Mapping[str, str]) -> dict[str, str]:
    """
    Return `parameters` together with what the user's `before_connect` adds to them.

    The function gets all connection parameters by libpq's names and returns those that it
    wants added or replaced. One that fails is asked again later: where tokens come from
    may be away for a while, just as a database may.
    """
    if not options.before_connect:
        return dict(parameters)
    facts = {"source": options.name, "before_connect": options.before_connect}
    module, _, name = options.before_connect.partition(":")
    try:
        function = getattr(import_module(module), name)
    except Exception as error:  # noqa: BLE001  # Whatever an import may raise.
        raise SourceRefused(
            "The function to call before connecting cannot be imported",
            **facts,
            error=type(error).__name__,
            remedy="Write before_connect as module:function, importable where the engine runs.",
        ) from None
    try:
        more = function(dict(parameters))
    except Exception as error:  # noqa: BLE001  # The user's function may raise anything.
        # Its text may hold the token that did not work.
        raise SourceUnreachable(
            "The function to call before connecting failed",
            **facts,
            error=type(error).__name__,
            remedy="Mend the function; it is called again with the next attempt to connect.",
        ) from None
    if not isinstance(more, Mapping) or not all(isinstance(key, str) for key in more):
        raise SourceRefused(
            "The function to call before connecting returned no connection parameters",
            **facts,
            returned=type(more).__name__,
            remedy='Return a dict of parameters by their libpq names, as {"password": token}.',
        )
    return {**parameters, **{key: str(value) for key, value in more.items() if value is not None}}


def _provided(options: Options) -> str:
    """Return what an installed package's scheme leads to; empty where there is nothing."""
    try:
        return read_secret(options.password_ref)
    except NoSecret:
        return ""
    except BadPart as error:
        # A vault may be away for a while, just as a database may.
        raise SourceUnreachable(
            "What provides the password failed",
            source=options.name,
            password_ref=options.password_ref,
            error=error.facts.get("error"),
            remedy="Mend it; it is asked again with the next attempt to connect.",
        ) from None


def _read(path: Path, options: Options) -> str:
    try:
        # Editors and `echo` end a file with a newline; no password does.
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeError) as error:
        raise SourceRefused(
            "The file with the password cannot be read",
            source=options.name,
            password_ref=options.password_ref,
            error=type(error).__name__,
            remedy="Check the path, and that the engine's user may read the file.",
        ) from None
