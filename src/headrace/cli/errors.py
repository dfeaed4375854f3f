"""
Errors on the command line: what is printed of them, and with which exit code it ends.

A file that a verb is asked to write is opened here: none that exists is lost, and an error of
the system is reported as an error of ours.

An error of ours has all it takes: a sentence, facts, a remedy, a code, an exit code.
Anything else that is raised is a mistake of ours; its traceback goes to the log file,
the person at the terminal gets one sentence and the place of that file.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from headrace.api.connect import error_object
from headrace.errors import AlreadyStored, ConfigText, HeadraceError, InvalidConfiguration
from headrace.observe import logs
from headrace.storage.permissions import create_output, not_written

# --- files that a verb writes ---------------------------------------------------------------------

force_option = click.option("--force", is_flag=True, help="Overwrite an existing file.")
"""Adds `--force`: `force: bool`."""


def refuse_taken(path: Path, *, force: bool) -> None:
    """Refuse a file that is there, before any work is done for it; with `force` none."""
    if path.is_file() and not force:
        raise _taken(path)


@contextmanager
def opened_output(path: Path, *, force: bool, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """Open a file to write, and turn what the system says against it into an error of ours."""
    try:
        stream = create_output(path, replace=force, mode=mode)
    except AlreadyStored:
        raise _taken(path) from None
    try:
        with stream:
            yield stream
    except BrokenPipeError:
        raise
    except OSError as error:
        raise not_written(path, error) from error


def _taken(path: Path) -> click.UsageError:
    return click.UsageError(f"{path} already exists; use --force to overwrite it.")


# --- what is printed of an error ------------------------------------------------------------------

DONE = 0
FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130
"""What shells expect of a command that ended by Ctrl-C before it was done."""

USAGE_CODE = "cli.usage"
INTERNAL_CODE = "internal"


def error_lines(error: HeadraceError, width: int) -> list[tuple[str, str]]:
    """Return (kind, line) of the block a person reads: what, where, what to do, the code."""
    if isinstance(error, InvalidConfiguration) and error.errors:
        count = len(error.errors)
        # Where all of it is that a database is down, nobody has to look for a mistake.
        where = "in the configuration" if error.exit_code == WRONG_USAGE else "before starting"
        lines = [("what", f"✗ {count} error{'s' if count > 1 else ''} {where}")]
        for each in error.errors:
            lines += _block(each, width, mark="• ", indent="  ")
        lines += _wrapped("remedy", f"→ {error.remedy}", width, "  ")
        return lines
    return _block(error, width, mark="✗ ", indent="")


def print_error(error: HeadraceError, *, as_json: bool) -> None:
    """Print one of our errors: JSON to stdout, or a block for people to stderr."""
    if as_json:
        _json_line({"error": error_object(error)})
        return
    for kind, line in error_lines(error, _width()):
        _print(line, kind)


def print_warning(warning: HeadraceError) -> None:
    """Print what is allowed and should not be so: to stderr, and the command goes on."""
    for kind, line in _block(warning, _width(), mark="! ", indent=""):
        _print(line, "warning" if kind == "what" else kind)


def print_usage_error(error: click.ClickException, *, as_json: bool) -> None:
    """Print what click found wrong with the arguments."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "headrace"
    shown = error.format_message().strip() or "Wrong usage."
    remedy = f"See {path} --help"
    if as_json:
        told = {"code": USAGE_CODE, "message": shown, "facts": {}, "remedy": remedy}
        _json_line({"error": told})
        return
    for kind, line in (
        *_wrapped("what", f"✗ {shown}", _width(), ""),
        *_wrapped("remedy", f"→ {remedy}", _width(), "  "),
    ):
        _print(line, kind)


def print_unexpected(error: BaseException, *, as_json: bool) -> None:
    """Put the traceback into the log file, and say one sentence."""
    place = logs.where() or _fallback_log()
    logs.logger("cli").failed("unexpected error", error, code=INTERNAL_CODE)
    message = f"Internal error ({type(error).__name__})"
    remedy = HeadraceError.remedy
    if place is not None:
        remedy = f"Please report this, and include the end of {_near(place)}."
    if as_json:
        told = {"code": INTERNAL_CODE, "message": message, "facts": {}, "remedy": remedy}
        _json_line({"error": told})
        return
    _print(f"✗ {message}", "what")
    for kind, line in _wrapped("remedy", f"→ {remedy}", _width(), "  "):
        _print(line, kind)
    _print(f"  {INTERNAL_CODE}", "code")


def _block(error: HeadraceError, width: int, *, mark: str, indent: str) -> list[tuple[str, str]]:
    what = error.message.rstrip(".")
    # Only what the sentence does not say already: most name their facts themselves.
    unsaid = {name: _text(of) for name, of in error.facts.items() if _text(of) not in what}
    if unsaid:
        what += f" ({', '.join(f'{_words(name)} {text}' for name, text in unsaid.items())})"
    # Of a text that cannot be read: the line, and a caret under the place.
    excerpt = error.excerpt if isinstance(error, ConfigText) else ()
    return [
        *_wrapped("what", f"{mark}{what}", width, indent),
        *(("excerpt", f"{indent}    {line}") for line in excerpt),
        *_wrapped("remedy", f"→ {error.remedy}", width, f"{indent}  "),
        ("code", f"{indent}  {error.code}"),
    ]


def _wrapped(kind: str, text: str, width: int, indent: str) -> list[tuple[str, str]]:
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        # A path is only of use whole: the terminal may wrap it, we do not cut it.
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [(kind, line) for line in lines]


def _print(line: str, kind: str) -> None:
    styles: dict[str, dict[str, Any]] = {
        "what": {"fg": "red", "bold": True},
        "warning": {"fg": "yellow"},
        "excerpt": {},
        "remedy": {},
        "code": {"dim": True},
    }
    # click strips colours where stderr is no terminal, but does not know NO_COLOR.
    color = False if os.environ.get("NO_COLOR") else None
    click.echo(click.style(line, **styles[kind]), err=True, color=color)


def _json_line(value: Mapping[str, Any]) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, default=str))


def _text(value: object) -> str:
    if isinstance(value, list | tuple | set | frozenset):
        return " ".join(str(each) for each in value)
    return str(value)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _near(path: Path) -> str:
    """Return `path` as someone in the present folder would type it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _width() -> int:
    return max(40, min(100, shutil.get_terminal_size((100, 24)).columns))


def _fallback_log() -> Path | None:
    """Open a log in the user's cache, for errors before a data directory is known."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        logs.log_into(Path(cache).expanduser() / "headrace" / "logs")
    except (HeadraceError, RuntimeError):
        return None
    return logs.where()


def forgiving(stream: IO[str]) -> None:
    """Let a terminal that lacks a character show `?` in its place, not end the command."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


def close_quietly() -> None:
    """After the reader of a pipe went away: let Python's own flush at exit find nothing."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
