"""
The tests that need Spark, on other releases of it than the lock holds.

Each release has an environment of its own under .cache: what the lock holds, by its hashes, and
in place of its Spark the other one. It is made once, and anew where the lock has changed. The
code that is tested is the tree itself. A release that cannot be had counts as failed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tools.runs import ROOT, Run, closing_table, tested

RELEASES = {"4.1": "4.1.4", "4.2": "4.2.1", "4.3": "4.3.0"}
"""Of each minor, the release that is tried."""

EXTRAS = "connect,pipelines"
CACHE = ROOT / ".cache"
MARKED = "spark and not cluster and not s3"

_LENIENT = {"4.1.4": ("-Wignore:unclosed <socket.socket:ResourceWarning",)}
"""What pytest is told besides: PySpark 4.1 leaves closing its sockets to the garbage collector."""

_OF_SPARK = {"pyspark", "py4j"}
"""What the lock pins for its own Spark alone."""

_PINNED = re.compile(r"([A-Za-z0-9._-]+)==")
_FOREIGN = ("PYTHONHOME", "PYTHONPATH", "SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_PYTHON")
"""What a shell may have set for another Python or another Spark."""


class NotMade(Exception):
    """An environment could not be made; what was printed before tells why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them, print the table, and return 0 where every release is good."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--versions", default="4.1 4.3", help='such as "4.1 4.3"')
    parser.add_argument("pytest", nargs="*", help="passed on to pytest; all tests if empty")
    asked = parser.parse_args(arguments)
    versions = asked.versions.replace(",", " ").split()
    if unknown := [each for each in versions if each not in RELEASES]:
        parser.error(f"not known: {' '.join(unknown)}; there are {', '.join(RELEASES)}")
    runs = [run(RELEASES[version], asked.pytest) for version in versions]
    print("\n" + closing_table("Spark", runs))
    return 0 if runs and all(one.good for one in runs) else 1


def run(release: str, arguments: Sequence[str]) -> Run:
    """Run the tests on this release."""
    print(f"\nSpark {release}", flush=True)
    try:
        python = environment(release)
    except NotMade as problem:
        print(problem, flush=True)
        return Run(release, problem="no environment")
    words = [*arguments, *_LENIENT.get(release, ())]
    return tested(release, str(python), MARKED, words, clean(os.environ, python))


def environment(release: str, cache: Path = CACHE) -> Path:
    """Return the Python of an environment with this release; make it where there is none."""
    folder = cache / f"spark-{release.rpartition('.')[0]}"
    python = folder / "bin" / "python"
    stamp = folder / "headrace-spark"
    wanted = _wanted(release, folder)
    if stamp.exists() and stamp.read_text() == wanted and python.exists():
        return python
    if stamp.exists():
        print(f"Bringing {folder} up to date: the lock has changed.", flush=True)
    else:
        print(f"Making {folder}: about 450 MB once, 1.2 GB on disk.", flush=True)
        venv.create(folder, clear=True, symlinks=True)
    # Written last, so that whatever is interrupted is made anew.
    stamp.unlink(missing_ok=True)
    lock = folder / "requirements.lock"
    lock.write_text("".join(without_spark((ROOT / "requirements.lock").read_text())))
    _pip(python, "install", "--quiet", "--no-deps", "--require-hashes", "-r", str(lock))
    _pip(python, "install", "--quiet", f"pyspark[{EXTRAS}]=={release}")
    _pip(python, "install", "--quiet", "--no-deps", "--no-build-isolation", "-e", str(ROOT))
    stamp.write_text(wanted)
    return python


def without_spark(lock: str) -> Iterator[str]:
    """Yield the lines of a lock, with their hashes, but for what belongs to its own Spark."""
    ours = True
    for line in lock.splitlines(keepends=True):
        if found := _PINNED.match(line):
            ours = found[1].lower() not in _OF_SPARK
        if ours:
            yield line


def clean(environ: Mapping[str, str], python: Path) -> dict[str, str]:
    """Return what the tests see: the programs of the environment first, and no other Spark."""
    kept = {name: value for name, value in environ.items() if name not in _FOREIGN}
    path = f"{python.parent}{os.pathsep}{environ.get('PATH', '')}"
    return {**kept, "VIRTUAL_ENV": str(python.parent.parent), "PATH": path}


def _wanted(release: str, folder: Path) -> str:
    """Return what an environment is made of; its path belongs to it, for scripts hold it."""
    lock = hashlib.sha256((ROOT / "requirements.lock").read_bytes()).hexdigest()
    return f"{release} {EXTRAS} {lock} {folder}\n"


def _pip(python: Path, *words: str) -> None:
    """Install into that environment, with the settings that pip has here."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), *words],
        cwd=ROOT,
        env=clean(os.environ, python),
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        raise NotMade(
            f"`pip {words[0]}` ended with {done.returncode}: check the network and the space on"
            " this disk, then run this again."
        )


if __name__ == "__main__":
    sys.exit(main())
