"""
Secrets of a configuration: given by reference, and masked in all output.

In a connection string only settings that are known to be harmless are shown. Everything else in
it, and a string that cannot be parsed, becomes `***`. Other values are also masked by the name of
their key, because a part from another package may fail to declare a key as secret.

A configuration has references to secrets, not the secrets. `env:NAME` is an environment variable,
`file:/path` the text of a file without the newline at its end. Packages add other schemes by entry
points of the group `headrace.secrets`: the name of the entry point is the scheme, and the function
it refers to gets the rest of the reference and returns the secret.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote

from headrace.errors import BadPart, NoSecret

# --- masking --------------------------------------------------------------------------------------

MASK = "***"

_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase|code)?$|secret|token|credential|(api|access|private|account|shared)[._-]?key"
    r"|auth([._-]?header)?$|authorization|pwd$|(^|[._-])(pin|keys?|sig|signature)$"
    # Object stores: a shared access signature grants access. Spark: all environment variables.
    r"|(^|[._-])sas([._-]|$)|(^|\.)(executorEnv|appMasterEnv)\.",
    re.IGNORECASE,
)
_REFERENCE = re.compile(r"[._-](ref|file|path|mode|per[._-]token)$", re.IGNORECASE)
"""Keys that refer to a secret and are not secret themselves: `password_ref`; or count for each."""

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
    """Whether a key of this name probably holds a secret."""
    return _SECRET_NAME.search(name) is not None and _REFERENCE.search(name) is None


def concerns_secret(name: str) -> bool:
    """Whether a key of this name holds a secret or refers to one: `password_ref`."""
    return _SECRET_NAME.search(_REFERENCE.sub("", name)) is not None


def masked_text(text: str) -> str:
    """Return text with the credentials in URLs, and what follows `password=`, masked."""
    # Also the user: in some URLs it is a token.
    masked = _IN_ADDRESS.sub(f"{MASK}@", text)
    return _IN_PAIRS.sub(rf"\g<1>{MASK}", masked)


def masked_connection(text: str) -> str:
    """Return a connection string with everything masked that may be secret."""
    if (uri := _URI.fullmatch(text.strip())) is not None:
        return _masked_uri(uri["scheme"], uri["rest"])
    pairs = _pairs(text)
    if pairs is None:
        return MASK
    return " ".join(f"{name}={value if name in _HARMLESS else MASK}" for name, value in pairs)


def password_in(text: str) -> bool:
    """Whether a connection string contains a password."""
    return bool(passwords_in(text))


def passwords_in(text: str) -> list[str]:
    """Return all non-empty passwords of a connection string, as they are written."""
    if (uri := _URI.fullmatch(text.strip())) is not None:
        user, _, query = _parts_of(uri["rest"])
        found = [value for name, value in query if unquote(name) in _PASSWORDS]
        found.append(user.partition(":")[2])
    else:
        found = [value.strip("'") for name, value in _pairs(text) or () if name in _PASSWORDS]
    return [each for each in found if each]


def password_of(text: str) -> str:
    """Return the password in a connection string, decoded as libpq does."""
    if (uri := _URI.fullmatch(text.strip())) is not None:
        user, _, query = _parts_of(uri["rest"])
        given = [unquote(value) for name, value in query if unquote(name) == "password"]
        return given[-1] if given else unquote(user.partition(":")[2])
    for name, value in _pairs(text) or ():
        if name == "password":
            return re.sub(r"\\(.)", r"\1", value[1:-1] if value.startswith("'") else value)
    return ""


def without_password(text: str) -> str:
    """Return a connection string without its password."""
    if (uri := _URI.fullmatch(text.strip())) is not None:
        user, host_path, query = _parts_of(uri["rest"])
        name = user.partition(":")[0]
        kept = "&".join(f"{n}={v}" for n, v in query if unquote(n) not in _PASSWORDS)
        return (
            f"{uri['scheme']}://{f'{name}@' if name else ''}{host_path}{f'?{kept}' if kept else ''}"
        )
    pairs = _pairs(text) or ()
    return " ".join(f"{name}={value}" for name, value in pairs if name not in _PASSWORDS)


def _masked_uri(scheme: str, rest: str) -> str:
    user, host_path, query = _parts_of(rest)
    name, colon, _ = user.partition(":")
    shown = "&".join(f"{n}={v if unquote(n) in _HARMLESS else MASK}" for n, v in query)
    who = f"{name}{f':{MASK}' if colon else ''}@" if user else ""
    return f"{scheme}://{who}{host_path}{f'?{shown}' if shown else ''}"


def _parts_of(rest: str) -> tuple[str, str, list[tuple[str, str]]]:
    """Return user and password, host and path, and the query parameters of a URI."""
    # Split at the last @: in a password it should be written %40, and often is not.
    user, _, address = rest.rpartition("@")
    host_path, _, query = address.partition("?")
    parameters = [each.partition("=") for each in query.split("&") if each]
    return user, host_path, [(name, value) for name, _, value in parameters]


def _pairs(text: str) -> list[tuple[str, str]] | None:
    """Return `name=value` pairs as they are written; None if it is something else."""
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
    """A reference to a secret. Neither its `repr` nor its `str` shows the secret."""

    __slots__ = ("reference",)

    def __init__(self, reference: str) -> None:
        self.reference = reference

    def read(self) -> str:
        """Return the current secret; raise `NoSecret` if there is none."""
        return read_secret(self.reference)

    def __repr__(self) -> str:
        # The secret itself may have been written by mistake instead of a reference.
        return f"Secret({self.reference if is_reference(self.reference) else '***'!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.reference == self.reference

    def __hash__(self) -> int:
        return hash(self.reference)


def schemes() -> tuple[str, ...]:
    """Return the schemes that a reference may begin with."""
    return (*BUILT_IN, *sorted({each.name for each in _entry_points()} - {*BUILT_IN}))


def is_reference(text: str) -> bool:
    """Whether `text` is a reference with a known scheme."""
    scheme, colon, name = text.partition(":")
    return bool(colon and name) and scheme in schemes()


def read_secret(reference: str) -> str:
    """Return the secret for a reference. No message contains it, or an invalid reference."""
    scheme, _, name = reference.partition(":")
    match scheme:
        case "env":
            found = os.environ.get(name)
        case "file":
            found = _read(Path(name).expanduser(), reference)
        case _:
            found = _provider(scheme)(name)
    if not found:
        raise NoSecret("The reference leads to no secret", reference=reference)
    return found


def is_special(path: Path) -> bool:
    """Whether `path` is a pipe, a device or a socket: opening or reading it may never return."""
    mode = path.stat().st_mode
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _read(path: Path, reference: str) -> str:
    try:
        if is_special(path):
            # A secret is read again for every connection, which a pipe could not serve.
            raise NoSecret(
                "The file with the secret is a pipe, a device or a socket",
                reference=reference,
                remedy="Write the secret to a file, or use env:NAME.",
            )
        # Editors and `echo` end a file with a newline, which is not part of the secret.
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeError) as error:
        raise NoSecret(
            "The file with the secret cannot be read",
            reference=reference,
            error=type(error).__name__,
            remedy="Check the path, and that the engine's user can read the file.",
        ) from None


def _provider(scheme: str) -> Callable[[str], str]:
    for each in _entry_points():
        if each.name == scheme:
            return _call_provider(each)
    known = ", ".join(f"{each}:…" for each in schemes())
    raise NoSecret(
        "The reference to a secret has an unknown scheme", remedy=f"Write one of {known}."
    )


def _call_provider(entry: metadata.EntryPoint) -> Callable[[str], str]:
    def call(name: str) -> str:
        try:
            return str(entry.load()(name) or "")
        except Exception as error:  # noqa: BLE001  # Other packages' code may raise anything.
            # Its text may contain the secret, or credentials for it.
            raise BadPart(
                f"The provider of the secrets {entry.name}: failed", error=type(error).__name__
            ) from None

    return call


def _entry_points() -> tuple[metadata.EntryPoint, ...]:
    return tuple(metadata.entry_points(group=GROUP))
