"""
The whole configuration: file, fragments, environment and options, merged.

Each layer overrides the previous ones key by key. Substitutions are resolved at the end: a
fragment may refer to values in the file, and the file sees what an option changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.config.hocon import (
    IncludeChain,
    parse_path,
    parse_section,
    parse_value,
    read_relative,
    read_text,
)
from headrace.config.resolve import ENVIRONMENT, resolve_root
from headrace.config.text import (
    Expression,
    ListValue,
    Node,
    ObjectValue,
    PathOfKeys,
    ScalarValue,
    SourceLocation,
    SourceText,
    is_text,
)
from headrace.errors import ConfigSyntax, ConfigUnreadable

DEFAULT_FILE = Path("headrace.conf")
PREFIX = "HEADRACE_"

RESERVED = frozenset(
    {
        "HEADRACE_ADDRESS",
        "HEADRACE_CRASH_ROUND",
        "HEADRACE_KILL_ONCE",
        "HEADRACE_KILL_POINT",
        "HEADRACE_PG_BIN",
        "HEADRACE_PG_VERSION",
        "HEADRACE_TOKEN",
        "HEADRACE_TOKEN_FILE",
    }
)
"""Variables of commands and tests, which are not configuration keys."""

OPTION = "--set"


def load(
    file: Path | None,
    *,
    fragments: Path | None = None,
    environment: Mapping[str, str],
    sets: Sequence[str] = (),
) -> Node:
    """
    Return the merged configuration; later layers override earlier ones, and objects merge.

    1. `file`; by default `headrace.conf` in the current folder, which may be missing if one of
       the other layers is given.
    2. The files `*.conf` in the folder `fragments`, sorted; by default the folder with the name
       of the file and `.d` appended.
    3. Environment variables: `HEADRACE_SOURCES__SHOP__PATH` sets `sources.shop.path`.
    4. `sets`, each `key=value` or `key+=value`.
    """
    root = ObjectValue(SourceLocation(""))
    chosen = DEFAULT_FILE if file is None else file
    variables = sorted((path, name) for name in environment if (path := _path_of_variable(name)))
    if file is not None or chosen.exists() or not (variables or sets or fragments):
        root.merge(_read_file(chosen, pipes=file is not None))
    for each in _fragments(chosen, fragments):
        root.merge(_read_file(each))
    for path, name in variables:
        root.put(path, _parse_given(environment[name], f"{ENVIRONMENT} {name}"))
    for option in sets:
        _apply_option(root, option)
    return resolve_root(root, environment)


def _read_file(path: Path, *, pipes: bool = False) -> ObjectValue:
    text = read_text(path, pipes=pipes)
    return parse_section(SourceText(text, str(path)), IncludeChain(read_relative))


def _fragments(file: Path, folder: Path | None) -> list[Path]:
    found = file.with_name(f"{file.name}.d") if folder is None else folder
    if folder is not None and not folder.is_dir():
        raise ConfigUnreadable(
            f"The folder {folder} does not exist",
            remedy="Check the path. It must be a folder with *.conf files.",
        )
    try:
        # Hidden files are left by editors.
        return sorted(each for each in found.glob("*.conf") if not each.name.startswith("."))
    except OSError as error:
        raise ConfigUnreadable(f"{found} cannot be read: {error.strerror}") from None


def _path_of_variable(name: str) -> PathOfKeys:
    """Return the path that a variable sets; an empty one if it is not a key."""
    if not name.startswith(PREFIX) or name in RESERVED:
        return ()
    path = tuple(name.removeprefix(PREFIX).lower().split("__"))
    if not all(path):
        raise ConfigSyntax(
            f"{ENVIRONMENT} {name}: A key in it is empty",
            remedy="Write two underscores between two keys, and none at the ends.",
        )
    return path


def _apply_option(root: ObjectValue, option: str) -> None:
    """Apply `key=value` or `key+=value`."""
    # Errors quote only the key: the value may be a password.
    source = SourceText(option, OPTION, located=False)
    path, end = parse_path(source)
    end += len(option[end:]) - len(option[end:].lstrip())
    added = option.startswith("+=", end)
    if not added and not option.startswith("=", end):
        raise source.error(end, "No = after the key", "Write --set key=value.")
    value = _parse_given(option[end + 1 + added :], OPTION)
    if added:
        root.append(path, ListValue([value], value.location, settled=False), source, end)
    else:
        root.put(path, value)


def _parse_given(text: str, origin: str) -> Expression:
    """
    Parse the value of a variable or an option.

    A list, an object, a quoted text, a number, true, false, null and a substitution are parsed
    as in a file. Everything else is taken literally: a password must not be cut off at a #.
    """
    whole = SourceText(text, origin, located=False)
    if not is_text(text):
        raise whole.error(0, "The value is not UTF-8", "Set it to UTF-8 text.")
    literal = ScalarValue(text, text, SourceLocation(origin))
    bare = SourceText(text.strip(), origin, located=False)
    value = parse_value(bare)
    if isinstance(value, ScalarValue):
        if isinstance(value.value, str) and not _is_quoted(bare):
            return literal
        return value if _is_quoted(bare) or value.text == bare.text else literal
    if value is None or bare.text.startswith(("[", "{")):
        return value or literal
    refers = bare.text.startswith("${") and "#" not in bare.text and "//" not in bare.text
    return value if refers else literal


def _is_quoted(source: SourceText) -> bool:
    """Whether a parsed text is a single quoted string."""
    return source.text.startswith('"') and source.string(0)[1] == len(source.text)
