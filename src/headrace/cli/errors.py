"""
Errors on the command line: how they are printed, and their exit codes.

Files that a verb writes are opened here: an existing file is not overwritten by accident, and an
error of the operating system becomes an error of ours.

An error of ours has a sentence, facts, a remedy, a code and an exit code. Any other exception is
a bug in Headrace: its traceback goes to the log file, and the terminal shows one sentence and the
path of that file.
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
    """Refuse to overwrite an existing file without `force`, before any work is done for it."""
    if path.is_file() and not force:
        raise _taken(path)


@contextmanager
def opened_output(path: Path, *, force: bool, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """Open a file to write; errors of the operating system become errors of ours."""
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


# --- how an error is printed ----------------------------------------------------------------------

DONE = 0
FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130
"""The exit code that shells expect from a command that Ctrl-C ended."""

USAGE_CODE = "cli.usage"
INTERNAL_CODE = "internal"


def error_lines(error: HeadraceError, width: int) -> list[tuple[str, str]]:
    """Return (kind, line) of the block that is printed: what, where, remedy, code."""
    if isinstance(error, InvalidConfiguration) and error.errors:
        count = len(error.errors)
        # If databases are unreachable and nothing else is wrong, the configuration is fine.
        where = "in the configuration" if error.exit_code == WRONG_USAGE else "before starting"
        lines = [("what", f"✗ {count} error{'s' if count > 1 else ''} {where}")]
        for each in error.errors:
            lines += _block(each, width, mark="• ", indent="  ")
        lines += _wrapped("remedy", f"→ {error.remedy}", width, "  ")
        return lines
    return _block(error, width, mark="✗ ", indent="")


def print_error(error: HeadraceError, *, as_json: bool) -> None:
    """Print one of our errors: JSON to stdout, or a block of text to stderr."""
    if as_json:
        _json_line({"error": error_object(error)})
        return
    for kind, line in error_lines(error, _width()):
        _print(line, kind)


def print_warning(warning: HeadraceError) -> None:
    """Print a warning to stderr; the command continues."""
    for kind, line in _block(warning, _width(), mark="! ", indent=""):
        _print(line, "warning" if kind == "what" else kind)


def print_usage_error(error: click.ClickException, *, as_json: bool) -> None:
    """Print an error of the arguments, found by click."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "headrace"
    shown = error.format_message().strip() or "Wrong usage."
    remedy = f"See {path} --help"
    if as_json:
        fields = {"code": USAGE_CODE, "message": shown, "facts": {}, "remedy": remedy}
        _json_line({"error": fields})
        return
    for kind, line in (
        *_wrapped("what", f"✗ {shown}", _width(), ""),
        *_wrapped("remedy", f"→ {remedy}", _width(), "  "),
    ):
        _print(line, kind)


def print_unexpected(error: BaseException, *, as_json: bool) -> None:
    """Write the traceback to the log file, and print one sentence."""
    log_file = logs.where() or _fallback_log()
    logs.logger("cli").failed("unexpected error", error, code=INTERNAL_CODE)
    message = f"Internal error ({type(error).__name__})"
    remedy = HeadraceError.remedy
    if log_file is not None:
        remedy = f"Please report this, and include the end of {_near(log_file)}."
    if as_json:
        fields = {"code": INTERNAL_CODE, "message": message, "facts": {}, "remedy": remedy}
        _json_line({"error": fields})
        return
    _print(f"✗ {message}", "what")
    for kind, line in _wrapped("remedy", f"→ {remedy}", _width(), "  "):
        _print(line, kind)
    _print(f"  {INTERNAL_CODE}", "code")


def _block(error: HeadraceError, width: int, *, mark: str, indent: str) -> list[tuple[str, str]]:
    # For a syntax error: the line, and a caret under the position.
    excerpt = error.excerpt if isinstance(error, ConfigText) else ()
    return [
        *_wrapped("what", f"{mark}{error.sentence}", width, indent),
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
        # A path is useful only as a whole: the terminal may wrap it, but it is not cut here.
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
    # click strips colours if stderr is not a terminal, but does not know NO_COLOR.
    color = False if os.environ.get("NO_COLOR") else None
    click.echo(click.style(line, **styles[kind]), err=True, color=color)


def _json_line(value: Mapping[str, Any]) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, default=str))


def _near(path: Path) -> str:
    """Return `path` relative to the current folder, if it is inside it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _width() -> int:
    return max(40, min(100, shutil.get_terminal_size((100, 24)).columns))


def _fallback_log() -> Path | None:
    """Open a log in the user's cache, for errors before the data directory is known."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        logs.log_into(Path(cache).expanduser() / "headrace" / "logs")
    except (HeadraceError, RuntimeError):
        return None
    return logs.where()


def forgiving(stream: IO[str]) -> None:
    """Make a stream print `?` for a character that it cannot encode, instead of failing."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


def close_quietly() -> None:
    """Redirect stdout to /dev/null after a broken pipe, so that the flush at exit cannot fail."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
