"""
The log file: one JSON object a line, for machines first and people second.

Nothing is ever written to the terminal, which belongs to the command that runs there.
Until `log_into` names a folder, what goes through `logger` goes nowhere. Several
processes (engine, recorder) share the file, because a line is one `write` to a file
opened for appending.

Times are UTC with microseconds. A field whose name speaks of a secret, and a password
inside a URL, are masked here, for all callers. Row values are never logged.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import StorageError, StorageFull

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


FILE = "headrace.log"
PREVIOUS = "headrace.log.1"

KEEP_BYTES = 16 << 20
"""A start that finds a longer file renames it, so that at most two such files are kept."""

_SECRET = re.compile(r"pass(word|wd|phrase)?$|secret|token|credential|api_?key", re.IGNORECASE)
_ADDRESS = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]*@")
_MASK = "***"

_LINE_SECONDS = 1.0
"""How long a line waits for the one before it; then it is lost, because the disk hangs."""

_lock = threading.Lock()
_open: list[_File] = []
"""The last one opened gets the lines; when it is closed, the one before it again."""


@dataclass(frozen=True, slots=True, eq=False)
class _File:
    path: Path
    descriptor: int


class Log(Protocol):
    """Where a part of the package writes what happened: a lowercase phrase, and fields."""

    def info(self, event: str, **fields: object) -> None: ...

    def warning(self, event: str, **fields: object) -> None: ...

    def error(self, event: str, **fields: object) -> None: ...

    def failed(self, event: str, error: BaseException, **fields: object) -> None:
        """Write `event` with the traceback of `error`."""
        ...


def logger(part: str) -> Log:
    """Return the log of a part (`capture`, `control`); cheap, and usable at any time."""
    return _PartLog(part)


def log_into(folder: Path) -> Callable[[], None]:
    """
    Write log lines of this process into `folder` from now on; return what ends it.

    The folder is created for its owner alone. A file that cannot be opened raises
    `StorageError`; one that later cannot be written loses lines, never work.
    """
    path = folder / FILE
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > KEEP_BYTES:
            path.replace(folder / PREVIOUS)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        file = _File(path, os.open(path, flags, 0o600))
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind, message = (
            (StorageFull, "No space left for the log file")
            if full
            else (StorageError, "The log file cannot be written")
        )
        raise kind(message, path=str(path), why=error.strerror) from error
    with _lock:
        _open.append(file)

    def close() -> None:
        with _lock:
            if file in _open:
                _open.remove(file)
                os.close(file.descriptor)

    return close


def close_all() -> None:
    """Close every file, at the end of a command; not one whose disk hangs."""
    if _lock.acquire(timeout=_LINE_SECONDS):
        try:
            while _open:
                os.close(_open.pop().descriptor)
        finally:
            _lock.release()


def where() -> Path | None:
    """Return the file that lines go to, if any."""
    with _lock:
        return _open[-1].path if _open else None


def take_over_process() -> None:
    """
    Send to the log file what Python and libraries would write to the terminal.

    For our commands alone, which own their process: warnings, loggers of libraries,
    exceptions of threads and of finalizers.
    """
    logging.captureWarnings(True)
    root = logging.getLogger()
    if not any(isinstance(handler, _FromLibraries) for handler in root.handlers):
        root.addHandler(_FromLibraries(logging.WARNING))
    # A deprecation inside a library is of no use to the user of a command.
    if not sys.warnoptions:
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", ResourceWarning)
    process = logger("process")

    def of_thread(hook: threading.ExceptHookArgs) -> None:
        if hook.exc_value is not None and hook.exc_type is not SystemExit:
            name = hook.thread.name if hook.thread else None
            process.failed("thread ended with an error", hook.exc_value, thread=name)

    def of_finalizer(hook: Any) -> None:
        if hook.exc_value is not None:
            process.failed("error where none can be raised", hook.exc_value)

    threading.excepthook = of_thread
    sys.unraisablehook = of_finalizer


class _PartLog:
    __slots__ = ("_part",)

    def __init__(self, part: str) -> None:
        self._part = part

    def info(self, event: str, **fields: object) -> None:
        if _open:
            _bound(self._part).info(event, **fields)

    def warning(self, event: str, **fields: object) -> None:
        if _open:
            _bound(self._part).warning(event, **fields)

    def error(self, event: str, **fields: object) -> None:
        if _open:
            _bound(self._part).error(event, **fields)

    def failed(self, event: str, error: BaseException, **fields: object) -> None:
        if _open:
            _bound(self._part).error(event, exc_info=_traceback(error), **fields)


class _FromLibraries(logging.Handler):
    """Carries what libraries log by the standard library into our file."""

    def emit(self, record: logging.LogRecord) -> None:
        part = logger(record.name)
        if record.exc_info and record.exc_info[1] is not None:
            part.failed(record.getMessage(), record.exc_info[1])
        elif record.levelno >= logging.ERROR:
            part.error(record.getMessage())
        else:
            part.warning(record.getMessage())


class _Lines:
    """The end of structlog's chain: one line, one write."""

    def __init__(self, part: str) -> None:
        self.part = part

    def msg(self, line: str) -> None:
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        if not _lock.acquire(timeout=_LINE_SECONDS):
            return  # the disk hangs
        try:
            if _open:
                os.write(_open[-1].descriptor, data)
        except OSError:
            # A full disk is reported by the code that writes data there; a log line that
            # cannot be written must not stop the work that it describes.
            return
        finally:
            _lock.release()

    debug = info = warning = error = critical = failure = msg


@lru_cache(maxsize=256)
def _bound(part: str) -> FilteringBoundLogger:
    import structlog

    bound: FilteringBoundLogger = structlog.wrap_logger(_Lines(part), **_chain())
    return bound


def _chain() -> dict[str, Any]:
    import structlog

    return {
        "processors": [
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.format_exc_info,
            _with_origin,
            _masked,
            structlog.processors.JSONRenderer(default=str, ensure_ascii=False),
        ],
        "wrapper_class": structlog.make_filtering_bound_logger(logging.INFO),
    }


def _with_origin(
    lines: _Lines, _method: str, fields: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    fields["part"] = lines.part
    fields["pid"] = os.getpid()
    return fields


def _masked(
    _logger: object, _method: str, fields: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Return the line with every secret masked."""
    for name, value in fields.items():
        fields[name] = _without_secrets(name, value)
    return fields


def _without_secrets(name: str, value: object) -> object:
    if _SECRET.search(name):
        return _MASK
    if isinstance(value, str):
        return _ADDRESS.sub(rf"\1:{_MASK}@", value)
    if isinstance(value, Mapping):
        return {str(inner): _without_secrets(str(inner), of) for inner, of in value.items()}
    if isinstance(value, list | tuple):
        return [_without_secrets("", of) for of in value]
    if value is None or isinstance(value, int | float):
        return value
    return _without_secrets(name, str(value))


def _traceback(
    error: BaseException,
) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    return type(error), error, error.__traceback__
