"""Jars by their coordinates, fetched with Maven and kept in the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from headrace.embedded.binaries import cache_folder

_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
_FETCH_SECONDS = 200


def jar(coordinates: str, folder: str) -> Path | None:
    """Return a jar, from this folder of the cache or fetched now; None where it cannot be had."""
    kept = cache_folder(os.environ).parent / folder / f"{coordinates.replace(':', '-')}.jar"
    mvn = shutil.which("mvn")
    if kept.exists() or mvn is None:
        return kept if kept.exists() else None
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
        done = subprocess.run(
            [
                *(mvn, "--batch-mode", "--quiet", "--strict-checksums", _COPY),
                *(f"-Dartifact={coordinates}", f"-DoutputDirectory={scratch}"),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=scratch,  # a pom.xml where we are would be taken for the project
            timeout=_FETCH_SECONDS,
            check=False,
        )
        jars = list(Path(scratch).glob("*.jar"))
        if done.returncode != 0 or len(jars) != 1:
            return None
        jars[0].rename(kept)
    return kept
