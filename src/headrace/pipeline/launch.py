"""
The JVM, as a child process of ours.

PySpark starts one through a shell script that shares our terminal. Here Spark's own
launcher only says what it would run; we leave out the one option a slim Java does not
know, send every line it prints into a file, and keep it in a session of its own, so
that Ctrl-C reaches us and not the JVM under our feet. It reads its standard input to
the end, and so it ends when we do, however we end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import string
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import SparkFailed
from headrace.pipeline import class_archive
from headrace.pipeline.defaults import JAVA_OPTIONS
from headrace.pipeline.java import VECTOR_MODULE, Java
from headrace.storage.private import make_private_folder, open_private

START_SECONDS = 90.0
FETCH_SECONDS = 600.0
"""For a JVM that fetches jars before it listens: that depends on the network."""

PACKAGES = "spark.jars.packages"
_UNRESOLVED = (b"unresolved dependency", b"UNRESOLVED DEPENDENCIES", b"download failed")
"""What Ivy prints where it cannot have a jar."""

STOP_SECONDS = 10.0
_POLL_SECONDS = 0.01
_PLAIN = frozenset(string.ascii_letters + string.digits + "._-/,;@%+*()[]{}$<>|~^&?'\"")
_LONGEST_FOLDER = 60
"""Spark puts sockets there with names of 42 characters, and a socket's path ends at 104."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A running JVM, and how to speak to it."""

    process: subprocess.Popen[bytes]
    """Kept as long as the JVM is wanted: its pipe is what holds the JVM up."""

    port: int
    secret: str
    output: Path
    """What the JVM printed, if anything."""

    folder: Path
    """Its temporary files: one that was killed cannot remove them itself."""

    def stop(self) -> None:
        """Let the JVM end by itself, and end it where it does not; clear up behind it."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # It is the leader of its own group, and Python workers are in it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def launch(
    java: Java,
    spark_home: Path,
    settings: Mapping[str, str],
    environ: Mapping[str, str],
    logs: Path,
    meanwhile: Callable[[], object] = lambda: None,
) -> Machine:
    """
    Start a JVM with Spark's gateway and return it once it listens.

    `meanwhile` is called while it starts: importing PySpark takes a while, too.
    """
    make_private_folder(logs)
    output = logs / "spark.out"
    own = {
        **environ,
        "JAVA_HOME": java.home,
        "SPARK_HOME": str(spark_home),
        "SPARK_SCALA_VERSION": _scala_version(spark_home),
        "SPARK_CONNECT_MODE": "0",
    }
    folder = Path(tempfile.mkdtemp(prefix="headrace-"))
    told = folder / "gateway"
    if len(os.fsencode(folder)) <= _LONGEST_FOLDER and " " not in str(folder):
        # In front, so that the same option of a user comes later and wins.
        options = f"-Djava.io.tmpdir={folder} {settings.get(JAVA_OPTIONS, '')}"
        settings = {**settings, JAVA_OPTIONS: options}
    try:
        written = folder / "settings.properties"
        with open_private(written) as file:
            file.write(properties(settings))
        command = command_line(java, _ask_launcher(java, spark_home, written, own, output))
        inner = {
            **workers_from_folder(own, spark_home, settings),
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told),
        }
        # In front, as above.
        quick = [command[0], *class_archive.options(java, spark_home, settings), *command[1:]]
        packages = settings.get(PACKAGES, "")
        try:
            process, port, secret = _begin(quick, inner, told, output, packages, meanwhile)
        except SparkFailed as error:
            # A signal ended it: an archive is mapped as it is, and its bytes may have been hurt.
            if quick == command or int(str(error.facts.get("code", 0))) >= 0:
                raise
            process, port, secret = _begin(command, inner, told, output, packages, meanwhile)
            class_archive.discard(java, spark_home)
        # Read by now, and no longer needed: the fewer places a secret lies in, the better.
        written.unlink()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Machine(process, port, secret, output, folder)


def _begin(
    command: list[str],
    environ: Mapping[str, str],
    told: Path,
    output: Path,
    packages: str,
    meanwhile: Callable[[], object],
) -> tuple[subprocess.Popen[bytes], int, str]:
    """Start the JVM and return it with its port and secret; ended again where it gives none."""
    with open_private(output) as lines:
        process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=lines,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        meanwhile()
        return process, *_await_gateway(process, told, output, packages)
    except BaseException:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        raise


def command_line(java: Java, answer: bytes) -> list[str]:
    """Return the command in the launcher's `answer`, as this Java takes it."""
    # Anything the launcher prints for people comes first; then a NUL alone on its line.
    _, mark, rest = answer.partition(b"\0\n")
    command = [os.fsdecode(word) for word in rest.split(b"\0")[:-1]]
    if not mark or not command:
        raise SparkFailed("Spark's launcher gave no command to run", java=java.executable)
    if not java.has_vector:
        command = [word for word in command if word != f"--add-modules={VECTOR_MODULE}"]
    return command


def workers_from_folder(
    environ: Mapping[str, str], spark_home: Path, settings: Mapping[str, str]
) -> dict[str, str]:
    """
    Return the JVM's environment such that Python workers import the PySpark that is installed.

    With SPARK_HOME, Spark puts a zip of it before everything else. A zip has no bytecode: a
    worker then takes a second of CPU to start instead of a fifth, and one of a streaming source
    is given up after ten of wall. Only here, where workers run in this very Python.
    """
    packages = Path(sysconfig.get_path("purelib"))
    python = settings.get("spark.pyspark.python")
    here = (
        settings.get("spark.master", "").startswith("local")
        and python == environ.get("PYSPARK_PYTHON", python) == sys.executable
        and environ.get("PYSPARK_DRIVER_PYTHON", python) == python
        and spark_home == packages / "pyspark"
        and (packages / "py4j").is_dir()
    )
    if not here:
        return dict(environ)
    kept = {name: value for name, value in environ.items() if name != "SPARK_HOME"}
    # All else that a driver looks for in that folder.
    return {"SPARK_CONF_DIR": str(spark_home / "conf"), **kept}


def properties(settings: Mapping[str, str]) -> bytes:
    """Return settings as a file of Java's properties, in ASCII."""
    return "".join(
        f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items()
    ).encode("ascii")


def _escaped(text: str) -> str:
    """Return a name or value of which nothing means anything: what is no letter, as its number."""
    # By the units of UTF-16: beyond those 65,536, a character is written as two.
    units = struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass"))
    return "".join(
        chr(unit) if unit < 128 and chr(unit) in _PLAIN else f"\\u{unit:04x}" for (unit,) in units
    )


def _ask_launcher(
    java: Java,
    spark_home: Path,
    settings: Path,
    environ: Mapping[str, str],
    output: Path,
) -> bytes:
    """
    Return what Spark's launcher would run.

    The options come from it and never from a list of ours: they differ by Spark's version,
    and without one of them Java 25 hangs for ever. Settings are in a file: some are secrets, and
    everybody on the machine can read the words of a command.
    """
    with open_private(output) as lines:
        done = subprocess.run(
            [
                java.executable,
                "-Xmx128m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-cp",
                f"{spark_home / 'jars'}/*",
                "org.apache.spark.launcher.Main",
                "org.apache.spark.deploy.SparkSubmit",
                *("--properties-file", str(settings)),
                # Else they would be left out, because a file was given.
                "--load-spark-defaults",
                "pyspark-shell",
            ],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=lines,
            check=False,
        )
    if done.returncode:
        raise SparkFailed("Spark's launcher failed", code=done.returncode, log=output)
    return done.stdout


def _await_gateway(
    process: subprocess.Popen[bytes], told: Path, output: Path, packages: str
) -> tuple[int, str]:
    """Wait for the file the JVM renames into place, and return its port and secret."""
    patience = FETCH_SECONDS if packages else START_SECONDS
    deadline = time.monotonic() + patience
    while not told.exists():
        if process.poll() is not None:
            if packages and any(each in output.read_bytes() for each in _UNRESOLVED):
                raise _not_fetched(packages, output)
            raise SparkFailed("The JVM ended at its start", code=process.returncode, log=output)
        if time.monotonic() > deadline:
            raise _silent(packages, patience, output)
        time.sleep(_POLL_SECONDS)
    data = told.read_bytes()
    port, length = struct.unpack_from(">ii", data)
    return port, data[8 : 8 + length].decode()


def _silent(packages: str, seconds: float, output: Path) -> SparkFailed:
    """Return the error of a JVM that says nothing: perhaps it waits for jars that it fetches."""
    if not packages:
        return SparkFailed("The JVM did not answer", seconds=int(seconds), log=output)
    return SparkFailed(
        "The JVM did not answer while it fetched jars",
        remedy="See in log how far it came. Start again, which goes on with the jars that are here;"
        " behind a mirror, name it in spark.jars.repositories or spark.jars.ivySettings; or give"
        " the jars in spark.jars.",
        packages=packages,
        seconds=int(seconds),
        log=output,
    )


def _not_fetched(packages: str, output: Path) -> SparkFailed:
    """Return the error of a JVM that could not have its jars; all it says itself is its end."""
    return SparkFailed(
        "Jars that Spark needs are not here, and could not be fetched",
        remedy="Start once with a network, which keeps them for later; behind a mirror, name it in"
        " spark.jars.repositories or spark.jars.ivySettings; or give the jars in spark.jars.",
        packages=packages,
        log=output,
    )


def _scala_version(spark_home: Path) -> str:
    """Return 2.13 from the name of a jar: the launcher otherwise looks for a source tree."""
    for jar in spark_home.glob("jars/spark-launcher_*.jar"):
        return jar.name.removeprefix("spark-launcher_").split("-")[0]
    raise SparkFailed("PySpark has no jars", folder=spark_home / "jars")
