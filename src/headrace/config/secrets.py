"""
Secrets of a configuration: given by reference, and masked wherever something is shown.

Of a connection only what is known to be harmless is shown; everything else in it, and all of one
that is not understood, becomes `***`. Other values are judged by their key's name as well,
because a part from another package may fail to declare that one of its keys is a secret.

A configuration says where a secret is, never what it is. `env:NAME` is an environment variable,
`file:/path` a file's text without the newline at its end; other schemes come from packages, by
entry points of the group `headrace.secrets`: the entry's name is the scheme, and what it names
is called with the rest of the reference and returns the secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote

from headrace.errors import BadPart, NoSecret

# --- what may be shown ----------------------------------------------------------------------------

MASK = "***"

_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase|code)?$|secret|token|credential|(api|access|private|account|shared)[._-]?key"
    r"|auth([._-]?header)?$|authorization|pwd$|(^|[._-])(pin|keys?|sig|signature)$"
    # Of object stores: a signature that lets in whoever has it. Of Spark: all of an environment.
    r"|(^|[._-])sas([._-]|$)|(^|\.)(executorEnv|appMasterEnv)\.",
    re.IGNORECASE,
)
_REFERENCE = re.compile(r"[._-](ref|file|path|mode)$", re.IGNORECASE)
"""Names where a secret lies, which is none itself: `password_ref`."""

_HARMLESS = frozenset(
    {
        *("host", "hostaddr", "port", "dbname", "user", "sslmode", "application_name"),
        *("connect_timeout", "target_session_attrs", "gssencmode", "channel_binding"),
        *("keepalives", "keepalives_idle", "sslrootcert", "sslcert", "sslkey", "passfile"),
        *("service", "client_encoding", "load_balance_hosts", "sslnegotiation"),
    }
)
_PASSWORDS = frozenset({"password", "sslpassword"})

_PAIR = re.compile(r"\s*(\w+)\s*=\s*('(?:\\.|[^'\\])*'|(?:\\.|[^\s'\\])*)", re.DOTALL)
_URI = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_IN_ADDRESS = re.compile(r"(?<=://)\S*@")
_IN_PAIRS = re.compile(
    r"([\w.-]*(?:passw|pwd|secret|token|signature|(?:access|account)[_-]?key|\bsig\b)[\w.-]*\s*=\s*)"
    r"('(?:\\.|[^'\\])*'?|[^\s&]+)",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Whether a key of this name holds a secret, by all that is known."""
    return _SECRET_NAME.search(name) is not None and _REFERENCE.search(name) is None


def leads_to_secret(name: str) -> bool:
    """Whether a key of this name holds a secret, or says where one lies: `password_ref`."""
    return _SECRET_NAME.search(_REFERENCE.sub("", name)) is not None


def masked_text(text: str) -> str:
    """Return text in which who logs in to an address, and what follows `password=`, is masked."""
    # Also the user: for some addresses it is a token.
    masked = _IN_ADDRESS.sub(f"{MASK}@", text)
    return _IN_PAIRS.sub(rf"\g<1>{MASK}", masked)


def masked_connection(text: str) -> str:
    """Return what a connection string leads to, without a password."""
    if (uri := _URI.fullmatch(text.strip())) is not None:
        return _masked_uri(uri["scheme"], uri["rest"])
    pairs = _pairs(text)
    if pairs is None:
        return MASK
    return " ".join(f"{name}={value if name in _HARMLESS else MASK}" for name, value in pairs)


def password_in(text: str) -> bool:
    """Whether a connection string has a password written out."""
    return bool(passwords_in(text))


def passwords_in(text: str) -> list[str]:
    """Return every password of a connection string that is not empty, as it is written."""
    if (uri := _URI.fullmatch(text.strip())) is not None:
        user, _, query = _parts_of(uri["rest"])
        found = [value for name, value in query if unquote(name) in _PASSWORDS]
        found.append(user.partition(":")[2])
    else:
        found = [value.strip("'") for name, value in _pairs(text) or () if name in _PASSWORDS]
    return [each for each in found if each]


def password_of(text: str) -> str:
    """Return the password that is written out in a connection string, as the server takes it."""
    if (uri := _URI.fullmatch(text.strip())) is not None:
        user, _, query = _parts_of(uri["rest"])
        asked = [unquote(value) for name, value in query if unquote(name) == "password"]
        return asked[-1] if asked else unquote(user.partition(":")[2])
    for name, value in _pairs(text) or ():
        if name == "password":
            return re.sub(r"\\(.)", r"\1", value[1:-1] if value.startswith("'") else value)
    return ""


def without_password(text: str) -> str:
    """Return a connection string without the password that is written out in it."""
    if (uri := _URI.fullmatch(text.strip())) is not None:
        user, place, query = _parts_of(uri["rest"])
        name = user.partition(":")[0]
        kept = "&".join(f"{n}={v}" for n, v in query if unquote(n) not in _PASSWORDS)
        return f"{uri['scheme']}://{f'{name}@' if name else ''}{place}{f'?{kept}' if kept else ''}"
    pairs = _pairs(text) or ()
    return " ".join(f"{name}={value}" for name, value in pairs if name not in _PASSWORDS)


def _masked_uri(scheme: str, rest: str) -> str:
    user, place, query = _parts_of(rest)
    name, colon, _ = user.partition(":")
    shown = "&".join(f"{n}={v if unquote(n) in _HARMLESS else MASK}" for n, v in query)
    who = f"{name}{f':{MASK}' if colon else ''}@" if user else ""
    return f"{scheme}://{who}{place}{f'?{shown}' if shown else ''}"


def _parts_of(rest: str) -> tuple[str, str, list[tuple[str, str]]]:
    """Return user and password, host and path, and what was asked for, of a URI."""
    # By the last @: one within a password should have been written %40, and often was not.
    user, _, address = rest.rpartition("@")
    place, _, query = address.partition("?")
    asked = [each.partition("=") for each in query.split("&") if each]
    return user, place, [(name, value) for name, _, value in asked]


def _pairs(text: str) -> list[tuple[str, str]] | None:
    """Return `name=value` pairs as they are written; None where it is something else."""
    found, at = [], 0
    stripped = text.rstrip()
    while at < len(stripped):
        if (pair := _PAIR.match(stripped, at)) is None:
            return None
        found.append((pair[1], pair[2]))
        at = pair.end()
    return found


# --- secrets by reference -------------------------------------------------------------------------

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
