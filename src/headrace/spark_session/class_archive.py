"""
Spark's classes in the form that the JVM uses, ready to be mapped by the next one.

A JVM that starts Spark reads and checks about 12,000 classes, which is two thirds of the work
of its start. Java can keep them in a file, an archive for class data sharing (CDS). It is made
on request (`python -m headrace.spark_session.class_archive`, as `tools/setup` does). Local
sessions that we start use it, if it was made with the same Java and jars. The JVM checks both
again and ignores the archive if they differ: an archive makes a start faster or has no effect.

It is in the Python environment, because it is equivalent to code: a user who can write there
can also change our code.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.spark_session.java import TRIED, Java

FORMAT = "1"
"""Part of the name: a version with another format does not find archives of this one."""

FOLDER = Path(sys.prefix) / "share" / "headrace"
_NAME = "spark-classes-{}.jsa"
_LIST_SECONDS = 600.0
_DUMP_SECONDS = 600.0
_SMALLEST = 1_000_000
"""Minimum size in bytes: an archive of Spark is a hundred times as large."""

_BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_MAIN = "org.apache.spark.deploy.SparkSubmit"


def archive_path(java: Java, spark_home: Path, folder: Path | None = None) -> Path:
    """Return the path of the archive for this Java and these jars; it may not exist."""
    digest = hashlib.sha256(FORMAT.encode())
    for line in _identity(java, spark_home):
        digest.update(os.fsencode(line) + b"\0")
    return (FOLDER if folder is None else folder) / _NAME.format(digest.hexdigest()[:20])


def options(
    java: Java, spark_home: Path, settings: Mapping[str, str], folder: Path | None = None
) -> list[str]:
    """Return the JVM options with which a local session uses the archive; none if it cannot."""
    master = settings.get("spark.master", "")
    if java.version not in TRIED or not (master == "local" or master.startswith("local[")):
        return []
    try:
        archive = archive_path(java, spark_home, folder)
        found = archive.stat()
    except OSError:
        return []
    mine = found.st_uid in (0, os.geteuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISREG(found.st_mode) or not mine or found.st_size < _SMALLEST:
        return []
    return [*_quiet(java), "-Xshare:auto", f"-XX:SharedArchiveFile={archive}"]


def make(java: Java, spark_home: Path, folder: Path | None = None) -> Path | None:
    """
    Return the archive, and make it if it is missing; None if it cannot be made.

    Several processes may do this at the same time: each writes its own file, and the last stays.
    """
    archive = archive_path(java, spark_home, folder)
    if java.version not in TRIED:
        return None
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="headrace-classes-") as scratch:
        listed = Path(scratch, "classes")
        command = _list_classes(java, Path(scratch), listed)
        # In the same folder, so that renaming it is atomic.
        handle, name = tempfile.mkstemp(prefix=".making-", dir=archive.parent)
        os.close(handle)
        made = Path(name)
        try:
            made.unlink()  # the JVM makes it itself
            _run([*dump_command(command, listed, made)], Path(scratch), _DUMP_SECONDS)
            # This JVM only starts with a usable archive. Last, so that this archive is used.
            fit = [*_quiet(java), "-Xshare:on", f"-XX:SharedArchiveFile={made}", "-version"]
            _run([command[0], *_before_main(command), *fit], Path(scratch), _LIST_SECONDS)
            made.chmod(0o644)
            # The JVM maps it unchecked: no power loss may leave half of it under its final name.
            with made.open("rb") as file:
                os.fsync(file.fileno())
            made.replace(archive)
        finally:
            made.unlink(missing_ok=True)
    _remove_others(archive)
    return archive


def discard(java: Java, spark_home: Path, folder: Path | None = None) -> None:
    """Remove an archive that a JVM could not be started with."""
    with contextlib.suppress(OSError):
        archive_path(java, spark_home, folder).unlink()


def dump_command(command: Sequence[str], listed: Path, made: Path) -> Iterator[str]:
    """Yield the command line that makes an archive of the listed classes, for `command`."""
    yield command[0]
    yield "-Xshare:dump"
    yield f"-XX:SharedClassListFile={listed}"
    yield f"-XX:SharedArchiveFile={made}"
    # Only this collector also stores objects; JVMs with another collector can use them.
    yield "-XX:+UseG1GC"
    skipped = ("-XX:DumpLoadedClassList", "-XX:SharedArchiveFile", "-Xshare:", "-Xlog:")
    for word in _before_main(command):
        if not word.startswith(skipped) and not (word.startswith("-XX:+Use") and "GC" in word):
            yield word


def _before_main(command: Sequence[str]) -> Sequence[str]:
    """Return the JVM options of a command line."""
    return command[1 : command.index(_MAIN)]


def _identity(java: Java, spark_home: Path) -> Iterator[str]:
    """Yield everything that an archive depends on, as the JVM sees it."""
    library = Path(java.home, "lib", "server", "libjvm.so")
    yield from (java.executable, str(java.version), str(spark_home))
    for file in (Path(java.executable), library, Path(java.home, "lib", "modules")):
        with contextlib.suppress(OSError):
            yield _looks(file, file.stat())
    # In the order in which Java lists them, which is that of the class path.
    with os.scandir(spark_home / "jars") as jars:
        for jar in jars:
            yield _looks(Path(jar.name), jar.stat())


def _looks(file: Path, found: os.stat_result) -> str:
    return f"{file} {found.st_size} {int(found.st_mtime)}"


def _quiet(java: Java) -> list[str]:
    """Return the options that keep a JVM from printing about an archive that it ignores."""
    return ["-Xlog:cds*=off", *(["-Xlog:aot*=off"] if java.version >= 25 else [])]


def _list_classes(java: Java, scratch: Path, listed: Path) -> list[str]:
    """Start a session, use it, and return the command of its JVM, which writes its classes."""
    command_file = scratch / "command"
    environ = {
        **os.environ,
        "JAVA_HOME": java.home,
        # Options that save work, as the JVM only runs for seconds.
        "SPARK_SUBMIT_OPTS": f"-XX:DumpLoadedClassList={listed} {_BRIEF}",
    }
    environ.pop("SPARK_CONF_DIR", None)
    training = [
        sys.executable,
        "-m",
        "headrace.spark_session.training_run",
        str(scratch),
        str(command_file),
    ]
    _run(training, scratch, _LIST_SECONDS, environ)
    return [os.fsdecode(word) for word in command_file.read_bytes().split(b"\0")[:-1]]


def _run(
    command: Sequence[str], folder: Path, seconds: float, environ: Mapping[str, str] | None = None
) -> None:
    with Path(folder, "output").open("ab") as output:
        subprocess.run(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            timeout=seconds,
            check=True,
        )


def _remove_others(archive: Path) -> None:
    """Remove archives that are 30 days older: those of a Java or of jars that are gone."""
    for other in archive.parent.glob(_NAME.format("*")):
        with contextlib.suppress(OSError):
            if other != archive and other.stat().st_mtime < archive.stat().st_mtime - 30 * 86_400:
                other.unlink()


def main() -> int:
    """Make the archive for the Java that sessions would use; return 1 if that is not possible."""
    from headrace.spark_session.java import find_java
    from headrace.spark_session.jvm import spark_home

    try:
        archive = make(find_java(os.environ), spark_home())
    except (HeadraceError, OSError, ValueError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"The archive of Spark's classes could not be made: {error}\n")
        return 1
    return 0 if archive is not None else 1


if __name__ == "__main__":
    sys.exit(main())
