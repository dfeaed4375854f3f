"""
Where an engine listens, and how others find it.

The socket lies in a folder that only its user may enter, because a path in a data directory
can be longer than the 107 bytes that a socket's may have. `run/engine.json` in the data
directory names it. Only who holds the data directory writes that file, so whatever is in it
already is of an engine that is gone.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ControlError, NoEngine, NotRunning

FORMAT = 1

LONGEST = 107
"""Bytes of a socket's path: what the kernel has room for."""

_FILE = Path("run", "engine.json")


@dataclass(frozen=True, slots=True)
class Announced:
    """An engine as its file names it; it may be gone."""

    pid: int
    socket: Path


def new_socket(environment: Mapping[str, str]) -> Path:
    """Return a path for a new socket, in a folder that is ours alone; nothing is there yet."""
    name = f"{os.getpid()}-{secrets.token_hex(4)}.sock"
    for folder in _folders(environment):
        path = folder / name
        if len(os.fsencode(path)) <= LONGEST and _is_ours(folder):
            return path
    raise ControlError(
        "No folder was found for the engine's socket",
        remedy="Set XDG_RUNTIME_DIR or TMPDIR to a folder of yours with a short path.",
    )


def announce(data: Path, socket: Path) -> None:
    """Name the socket in the data directory, in place of one that a killed engine left."""
    if _holder(data) != os.getpid():
        # Another engine's file must never be replaced.
        raise NotRunning("The engine does not hold its data directory", data=str(data))
    if (left := announced(data)) is not None and left.socket != socket:
        _remove_left_behind(left.socket)
    file = data / _FILE
    file.parent.mkdir(mode=0o700, exist_ok=True)
    written = file.with_name(f".{file.name}.{os.getpid()}")
    told = {"format": FORMAT, "pid": os.getpid(), "socket": str(socket)}
    written.touch(mode=0o600)
    written.write_text(json.dumps(told) + "\n")
    written.replace(file)


def withdraw(data: Path, socket: Path) -> None:
    """Take the announcement back, unless it is another's by now."""
    if (found := announced(data)) is not None and found.socket == socket:
        (data / _FILE).unlink(missing_ok=True)


def announced(data: Path) -> Announced | None:
    """Return what the data directory says about its engine; None where it says nothing."""
    try:
        told = json.loads((data / _FILE).read_text())
        return Announced(int(told["pid"]), Path(str(told["socket"])))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def not_reached(data: Path) -> NoEngine:
    """Return the error that says who could have been there, and what to type next."""
    holder = _holder(data)
    if holder is not None and _is_alive(holder):
        return NoEngine(
            f"Process {holder} holds {data} and takes no commands",
            remedy="It starts, it stops, or it is a program with an engine of its own: try again"
            " in a moment, or look at logs/headrace.log there.",
            data=str(data),
        )
    if not data.exists():
        return NoEngine(
            f"No engine runs here: there is no data directory {data}",
            remedy="Start one: headrace run. Or name the folder of one that runs: --data FOLDER.",
            data=str(data),
        )
    return NoEngine(f"No engine runs on {data}", data=str(data))


def _folders(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders to try, made if need be."""
    if runtime := environment.get("XDG_RUNTIME_DIR"):
        yield from _made(Path(runtime) / "headrace")
    private = f"headrace-{os.getuid()}"
    for base in dict.fromkeys((tempfile.gettempdir(), "/tmp")):
        yield from _made(Path(base) / private)
    # Somebody else has a folder of that name, or it is open to others.
    with suppress(OSError):
        yield Path(tempfile.mkdtemp(prefix=f"{private}-"))


def _made(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        yield folder


def _is_ours(folder: Path) -> bool:
    """Whether it is a folder, no link, that belongs to us and that nobody else may enter."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    private = stat.S_IMODE(found.st_mode) & 0o077 == 0
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and private


def _remove_left_behind(socket: Path) -> None:
    """Remove the socket of an engine that was killed; never anything else."""
    with suppress(OSError):
        found = socket.lstat()
        if stat.S_ISSOCK(found.st_mode) and found.st_uid == os.getuid():
            socket.unlink()


def _holder(data: Path) -> int | None:
    """Return the process that signed the lock; it may be gone."""
    try:
        return int(json.loads((data / "lock").read_text())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
