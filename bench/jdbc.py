"""PostgreSQL's JDBC driver, fetched with Maven and kept in the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

COORDINATES = "org.postgresql:postgresql"
RELEASE = "42.7.8"

_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
_SECONDS = 300.0


def driver(environ: Mapping[str, str] = os.environ) -> Path | str:
    """Return the driver's jar; where it cannot be had, why, in words."""
    folder = _cache(environ)
    jar = folder / f"postgresql-{RELEASE}.jar"
    if jar.exists():
        return jar
    mvn = shutil.which("mvn", path=environ.get("PATH"))
    if mvn is None:
        return "there is no `mvn` on PATH"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder) as scratch:
        try:
            done = subprocess.run(
                [
                    mvn,
                    *("--batch-mode", "--quiet", "--strict-checksums"),
                    _COPY,
                    f"-Dartifact={COORDINATES}:{RELEASE}",
                    f"-DoutputDirectory={scratch}",
                ],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=dict(environ),
                cwd=scratch,  # a pom.xml where we are would be taken for the project
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"`mvn` was not done after {_SECONDS:g} s"
        got = Path(scratch) / jar.name
        if done.returncode != 0 or not got.exists():
            return f"`mvn` ended with {done.returncode}"
        got.replace(jar)
    return jar


def _cache(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME") or Path.home(), ".cache"))
    return Path(base) / "headrace" / "bench"
