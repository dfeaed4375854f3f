"""
The whole configuration: a file, its fragments, the environment, and options, merged.

Each of them is put on top of the ones before, key by key, and substitutions are looked up at
the end: a fragment may refer to what the file says, and the file sees what an option changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.config.hocon import IncludeChain, path_of, read_beside, section_of, text_of, value_of
from headrace.config.resolve import ENVIRONMENT, resolved
from headrace.config.text import (
    ListValue,
    Node,
    ObjectValue,
    PathOfKeys,
    Plain,
    SourceLocation,
    SourceText,
    Written,
    is_text,
)
from headrace.errors import ConfigSyntax, ConfigUnreadable

DEFAULT_FILE = Path("headrace.conf")
PREFIX = "HEADRACE_"

RESERVED = frozenset(
    {
        "HEADRACE_CRASH_ROUND",
        "HEADRACE_KILL_ONCE",
        "HEADRACE_KILL_POINT",
        "HEADRACE_PG_BIN",
        "HEADRACE_PG_VERSION",
    }
)
"""Variables of the product and of its tests that are no keys of a configuration."""

OPTION = "--set"


def load(
    file: Path | None,
    *,
    fragments: Path | None = None,
    environment: Mapping[str, str],
    sets: Sequence[str] = (),
) -> Node:
    """
    Return the configuration; what comes later in this list wins, and objects merge.

    1. `file`; by default `headrace.conf` in this folder, which may be missing if something
       else says what is wanted.
    2. The files `*.conf` of the folder `fragments`, sorted; by default of the folder that is
       named like the file, with `.d` behind.
    3. Variables of the environment: `HEADRACE_SOURCES__SHOP__PATH` sets `sources.shop.path`.
    4. `sets`, each `key=value` or `key+=value`.
    """
    root = ObjectValue(SourceLocation(""))
    chosen = DEFAULT_FILE if file is None else file
    variables = sorted((path, name) for name in environment if (path := _path_in(name)))
    if file is not None or chosen.exists() or not (variables or sets or fragments):
        root.merge(_read(chosen))
    for each in _fragments(chosen, fragments):
        root.merge(_read(each))
    for path, name in variables:
        root.put(path, _given(environment[name], f"{ENVIRONMENT} {name}"))
    for option in sets:
        _set(root, option)
    return resolved(root, environment)


def _read(path: Path) -> ObjectValue:
    return section_of(SourceText(text_of(path), str(path)), IncludeChain(read_beside))


def _fragments(file: Path, folder: Path | None) -> list[Path]:
    found = file.with_name(f"{file.name}.d") if folder is None else folder
    if folder is not None and not folder.is_dir():
        raise ConfigUnreadable(
            f"There is no folder {folder}",
            remedy="Check the path: it is a folder with files *.conf in it.",
        )
    try:
        # Hidden ones are what editors leave behind.
        return sorted(each for each in found.glob("*.conf") if not each.name.startswith("."))
    except OSError as error:
        raise ConfigUnreadable(f"{found} cannot be read: {error.strerror}") from None


def _path_in(name: str) -> PathOfKeys:
    """Return the path a variable sets; an empty one where it is no key."""
    if not name.startswith(PREFIX) or name in RESERVED:
        return ()
    path = tuple(name.removeprefix(PREFIX).lower().split("__"))
    if not all(path):
        raise ConfigSyntax(
            f"{ENVIRONMENT} {name}: There is a key without a name",
            remedy="Write two underscores between two keys, and none at the ends.",
        )
    return path


def _set(root: ObjectValue, option: str) -> None:
    """Do what `key=value` says."""
    # Only the key is a text of which errors speak: the value may be a password.
    source = SourceText(option, OPTION, located=False)
    path, end = path_of(source)
    end += len(option[end:]) - len(option[end:].lstrip())
    added = option.startswith("+=", end)
    if not added and not option.startswith("=", end):
        raise source.error(end, "There is no = after the key", "Write --set key=value.")
    value = _given(option[end + 1 + added :], OPTION)
    if added:
        root.append(path, ListValue([value], value.place, settled=False), source, end)
    else:
        root.put(path, value)


def _given(text: str, origin: str) -> Written:
    """
    Return the value that a variable or an option gives.

    A list, an object, a quoted text, a number, true, false, null and a substitution are what
    they are in a file; everything else is text as it stands. A password must not lose its end
    because there is a # in it.
    """
    whole = SourceText(text, origin, located=False)
    if not is_text(text):
        raise whole.error(0, "The value is not UTF-8", "Give it text.")
    literal = Plain(text, text, SourceLocation(origin))
    bare = SourceText(text.strip(), origin, located=False)
    value = value_of(bare)
    if isinstance(value, Plain):
        if isinstance(value.value, str) and not _is_quoted(bare):
            return literal
        return value if _is_quoted(bare) or value.text == bare.text else literal
    if value is None or bare.text.startswith(("[", "{")):
        return value or literal
    refers = bare.text.startswith("${") and "#" not in bare.text and "//" not in bare.text
    return value if refers else literal


def _is_quoted(source: SourceText) -> bool:
    """Whether a text that was read is one quoted string and nothing else."""
    return source.text.startswith('"') and source.string(0)[1] == len(source.text)
