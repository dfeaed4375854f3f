"""
An environment in one file, for `spark.archives`.

Spark unpacks it into each executor's working directory under the name behind the `#`, so
its Python is `./environment/bin/python` there. The layout is that of a virtual environment,
which Python finds from wherever it is started: a link to the interpreter, which must be on
the workers at the same path, and beside it the packages. Or it holds the interpreter itself
(`with_python`), for workers of the same system and architecture.

venv-pack would do the first, but refuses an environment with an editable install, keeps all
of Spark's jars, and cannot bring the interpreter along.

The same environment gives the same bytes.
"""

from __future__ import annotations

import gzip
import io
import os
import platform
import stat
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from headrace.errors import CannotPack
from headrace.pipeline.cluster.contents import Contents

FOLDER = "environment"
"""What the archive is unpacked as."""

PYTHON = f"./{FOLDER}/bin/python"
"""The Python in it, seen from an executor's working directory."""

_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_PACKAGES = f"lib/{_VERSION}/site-packages"
_TIME = 315_532_800
"""1980, for every file: GNU tar warns of 1970."""

_LEVEL = 4
"""Of gzip: a third of the time of its default, for 3 % more bytes."""

_NOT_OF_PYTHON = frozenset(
    {"__pycache__", "ensurepip", "idlelib", "site-packages", "test", "tkinter", "turtledemo"}
)
_FINDS_ITS_LIBRARY = """\
#!/bin/sh
here=$(dirname -- "$0")
LD_LIBRARY_PATH="$here/../lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export LD_LIBRARY_PATH
exec "$here/%s" "$@"
"""


@dataclass(frozen=True, slots=True)
class Packed:
    """What was written."""

    file_count: int
    bytes_in: int
    interpreter: str | None
    """Where workers must have their Python; None where it is in the archive."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file of the archive: bytes, or a file of this machine, or a link."""

    name: str
    path: Path | None = None
    data: bytes = b""
    link: str = ""
    mode: int = 0o644


def pack(
    contents: Contents,
    stream: IO[bytes],
    *,
    python: str | None = None,
    with_python: bool = False,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> Packed:
    """
    Write an archive of these contents; `told` hears bytes done and bytes in all.

    `python` is where workers have this version of Python; by default where it is here.
    """
    interpreter = None if with_python else _interpreter(python)
    entries = list(_interpreter_files() if interpreter is None else _links(interpreter))
    taken = {entry.name for entry in entries}
    for name, path in sorted(contents.files.items()):
        at = f"{_PACKAGES}/{name}"
        if at not in taken:
            entries.append(_Entry(at, path, mode=_mode(path)))
    sizes = [len(entry.data) if entry.path is None else _size(entry.path) for entry in entries]
    total, done = sum(sizes), 0
    told(0, total)
    with (
        gzip.GzipFile("", "wb", _LEVEL, stream, mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for entry, size in zip(entries, sizes, strict=True):
            _add(archive, entry, size)
            done += size
            told(done, total)
    return Packed(len(entries), total, interpreter)


def settings(archive: Path) -> dict[str, str]:
    """Return the settings of Spark that give executors this archive."""
    return {"spark.archives": f"{archive}#{FOLDER}", "spark.pyspark.python": PYTHON}


def _interpreter(python: str | None) -> str:
    if python is None:
        return str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    if not python.startswith("/"):
        raise CannotPack(
            f"{python} is no whole path",
            remedy="Name the interpreter as workers have it, from the root: /usr/bin/python3.11.",
        )
    return python


def _links(interpreter: str) -> Iterator[_Entry]:
    """Yield what makes a virtual environment of the packages."""
    home = interpreter.rpartition("/")[0]
    told = f"home = {home}\ninclude-system-site-packages = false\n"
    told += f"version = {platform.python_version()}\n"
    yield _Entry("pyvenv.cfg", data=told.encode())
    yield _Entry("bin/python", link=interpreter)
    yield _Entry("bin/python3", link="python")


def _interpreter_files() -> Iterator[_Entry]:
    """Yield the interpreter and its library, laid out as an installation."""
    executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    if not executable.is_file() or not (library / "os.py").is_file():
        raise CannotPack("The files of this Python are not where it says they are", path=library)
    yield _Entry(f"bin/{_VERSION}", executable, mode=0o755)
    shared = sysconfig.get_config_var("INSTSONAME") or ""
    found = Path(sysconfig.get_config_var("LIBDIR") or "") / shared
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and ".so" in shared and found.is_file():
        yield _Entry(f"lib/{shared}", found, mode=0o755)
        yield _Entry("bin/python", data=(_FINDS_ITS_LIBRARY % _VERSION).encode(), mode=0o755)
    else:
        yield _Entry("bin/python", link=_VERSION)
    yield _Entry("bin/python3", link="python")
    for folder, inner, files in os.walk(library):
        inner[:] = sorted(
            each for each in inner if each not in _NOT_OF_PYTHON and not each.startswith("config-")
        )
        for each in sorted(files):
            path = Path(folder) / each
            name = path.relative_to(library).as_posix()
            yield _Entry(f"lib/{_VERSION}/{name}", path, mode=_mode(path))


def _add(archive: tarfile.TarFile, entry: _Entry, size: int) -> None:
    told = tarfile.TarInfo(entry.name)
    told.mtime, told.mode = _TIME, entry.mode
    if entry.link:
        told.type, told.linkname = tarfile.SYMTYPE, entry.link
        archive.addfile(told)
        return
    told.size = size
    if entry.path is None:
        archive.addfile(told, io.BytesIO(entry.data))
        return
    try:
        with entry.path.open("rb") as file:
            archive.addfile(told, file)
    except OSError as error:
        raise CannotPack(
            "A file of the environment cannot be read, or changed meanwhile",
            path=entry.path,
            why=error.strerror or type(error).__name__,
        ) from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise CannotPack("A file of the environment cannot be read", path=path) from error


def _mode(path: Path) -> int:
    try:
        return 0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644
    except OSError:
        return 0o644
