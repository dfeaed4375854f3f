"""
A standalone Spark cluster of the installed PySpark, on loopback.

The package has no scripts that start a master or a worker; `spark-class` with their classes
does (S16). Every process has an environment and a working directory of its own making, and no
Python but the bare interpreter: only what an application ships can run (S12).

Each JVM runs under a shell that reads a pipe of ours: when the pipe ends, because we stop
or because we were killed, the shell kills the group, and executors are in it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from headrace.spark_session.java import VECTOR_MODULE, find_java
from headrace.spark_session.pack import settings
from tests.spark_session import jvm_options
from tests.support.patience import patience, slowness

WORKERS = 2
START_SECONDS = patience()
SILENT_SECONDS = 20
"""After these an executor is given up; a busy machine has pauses of seconds."""

HERE = "127.0.0.1"

_KEEPER = """
exec 3<&0
{ cat <&3 >/dev/null; kill -KILL 0; } &
"$@" </dev/null 3<&-
kill -KILL 0
"""
"""Lives as long as both the command and our end of the pipe; then ends the whole group."""

_KEEPING = ("sh", "cat")
_HIDING = (
    *("unshare", "--mount", "/bin/sh", "-c"),
    'mount -t tmpfs none "$0" && exec "$@"',
)
"""Before a folder and a command: runs the command where the folder is empty."""

_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_PAGES = re.compile(r"Bound MasterWebUI to \S+, and started at (http://\S+)")

# Whatever proxy the environment names, it is not the way to our own machine.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Member:
    """A process of the cluster: the leader of its group."""

    name: str
    process: subprocess.Popen[bytes]
    folder: Path
    """Its working directory; a worker's executors run beneath it."""

    log: Path

    def kill(self) -> None:
        """End it and everything it started by SIGKILL, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[Callable[[], None]]:
        """
        Stop it and its executors for a while, as a machine that swaps or is moved does.

        What it gives lets their Pythons go on before the rest: an executor that finds itself
        given up would end them.
        """
        # Not the shell that would end them all with us.
        stopped = [each for each in beneath(self.process.pid) if each[1] not in _KEEPING]
        for pid, _ in stopped:
            os.kill(pid, signal.SIGSTOP)

        def go_on(name: str = "python") -> None:
            for pid, called in reversed(stopped):
                if called.startswith(name):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)

        try:
            yield go_on
        finally:
            go_on("")


class Cluster:
    """A master and its workers; each worker has one core and takes one small executor."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._java = _java_home(folder / "java")
        self.python = bare_python(folder / "python")
        """A Python for executors that has every package of ours but Headrace."""

        self.spark_home = _spark_home()
        self.workers: list[Member] = []
        self.url = ""
        self._master: Member | None = None
        self._pages = ""
        self._started = 0

    def start(self) -> None:
        """Start the master and its workers; return when it knows them all."""
        self._master = self._run("master", "org.apache.spark.deploy.master.Master")
        self.url = self._printed(self._master, _MASTER)
        self._pages = self._printed(self._master, _PAGES)
        for _ in range(WORKERS):
            self.start_worker()
        self.await_workers(WORKERS)

    @property
    def conf(self) -> dict[str, str]:
        """The settings of an application on this cluster: what a user gives as `spark_conf`."""
        return {
            "spark.master": self.url,
            "spark.cores.max": str(WORKERS),
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": f"-XX:-UsePerfData {_jvm_options()}",
            "spark.pyspark.python": str(self.python),
            # Jobs begin when both executors are there; and one that is silent is given up soon.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.executor.heartbeatInterval": "2s",
            "spark.network.timeoutInterval": "2s",
            **given_up_after(SILENT_SECONDS),
        }

    def conf_with(self, archive: Path) -> dict[str, str]:
        """Return the same for executors that have nothing but what is in an archive of ours."""
        return self.conf | settings(archive)

    def submitting(self) -> dict[str, str]:
        """Return the environment of `spark-submit`."""
        return {
            "JAVA_HOME": str(self._java),
            "SPARK_HOME": str(self.spark_home),
            "SPARK_LOCAL_IP": HERE,
        }

    def start_worker(self, *, blind_to: Path | None = None) -> Member:
        """
        Start one worker more; `await_workers` tells when the master has it.

        `blind_to` is a folder that it and its executors find empty, as on a machine that does
        not have it; it needs a right to mount, `may_hide` tells.
        """
        self._started += 1
        words = ["--cores", "1", "--memory", "1g", self.url]
        name = f"worker-{self._started}"
        before = [] if blind_to is None else [*_HIDING, str(blind_to)]
        worker = self._run(name, "org.apache.spark.deploy.worker.Worker", *words, before=before)
        self.workers.append(worker)
        return worker

    def await_workers(self, count: int) -> None:
        """Wait until the master counts so many living workers."""
        self._await(f"{count} workers", lambda: self._state()["aliveworkers"] == count)

    def worker_of(self, executor: str) -> Member:
        """Return the worker that runs an executor."""
        return self._running(executor)[0]

    def kill_executor(self, executor: str) -> None:
        """Kill an executor alone; its worker is left to find out."""
        os.kill(self._running(executor)[1], signal.SIGKILL)

    def _running(self, executor: str) -> tuple[Member, int]:
        """
        Return the worker that an executor runs beneath, and its process.

        By the processes, not by the folders that executors leave: every application begins to
        count them anew, and an earlier one may have had another here under the same name.
        """
        for worker in self.workers:
            for pid, _ in beneath(worker.process.pid):
                with contextlib.suppress(OSError):
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                    if (b"--executor-id", executor.encode()) in pairwise(words):
                        return worker, pid
        raise LookupError(executor)

    def kill(self, worker: Member) -> None:
        """Kill a worker with its executors; the master is left to find out."""
        self.workers.remove(worker)
        worker.kill()

    def stop(self) -> None:
        """End every process."""
        for member in self._members():
            member.kill()
        self.workers.clear()
        self._master = None

    def _members(self) -> list[Member]:
        return [*self.workers, *([] if self._master is None else [self._master])]

    def _state(self) -> dict[str, Any]:
        with _direct.open(f"{self._pages}/json/", timeout=10) as answer:
            state: dict[str, Any] = json.load(answer)
        return state

    def _printed(self, master: Member, what: re.Pattern[str]) -> str:
        """Return what the master says of itself in its log: it chose ports that were free."""
        found: list[str] = []

        def look() -> bool:
            found[:] = what.findall(master.log.read_text(errors="replace"))
            return bool(found)

        self._await("the master", look)
        return found[0]

    def _await(self, what: str, seen: Callable[[], bool]) -> None:
        until = time.monotonic() + START_SECONDS
        pause = threading.Event()
        while not seen():
            for member in self._members():
                if member.process.poll() is not None:
                    raise RuntimeError(f"{member.name} ended: {member.log.read_text()[-2000:]}")
            if time.monotonic() > until:
                raise TimeoutError(f"{what} did not come within {START_SECONDS:.0f} s")
            pause.wait(0.05)

    def _run(self, name: str, kind: str, *words: str, before: Sequence[str] = ()) -> Member:
        folder, log = self._folder / name, self._folder / f"{name}.log"
        folder.mkdir()
        home = self.spark_home
        environ = {
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "JAVA_HOME": str(self._java),
            "SPARK_HOME": str(home),
            # No settings of the machine's own.
            "SPARK_CONF_DIR": str(folder),
            # Without it every one of them listens on all interfaces.
            "SPARK_LOCAL_IP": HERE,
            "SPARK_LOCAL_DIRS": str(folder),
            "SPARK_WORKER_DIR": str(folder),
            "SPARK_DAEMON_MEMORY": "256m",
            # The door for submitting programs has a fixed port, and nobody knocks at it here.
            "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false -XX:-UsePerfData"
            " -XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        }
        command = [*before, str(home / "bin" / "spark-class"), kind, "--host", HERE]
        command += ["--port", "0", "--webui-port", "0", *words]
        with log.open("wb") as lines:
            process = kept(command, cwd=folder, env=environ, stdout=lines, stderr=lines)
        return Member(name, process, folder, log)


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Run a cluster whose workers are there; it is gone afterwards, however we end."""
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _jvm_options() -> str:
    """Return how this run has its JVMs compile and collect; in the night as users do."""
    return jvm_options().get("SPARK_SUBMIT_OPTS", "-XX:+UseSerialGC")


def given_up_after(seconds: float) -> dict[str, str]:
    """Return the setting by which a silent executor is given up; later on a slow machine."""
    return {"spark.network.timeout": f"{round(seconds * slowness())}s"}


def kept(command: list[str], **how: Any) -> subprocess.Popen[bytes]:
    """Start a command that ends with us, and with it all that it started."""
    return subprocess.Popen(
        ["/bin/sh", "-c", _KEEPER, "keeper", *command],
        stdin=subprocess.PIPE,
        start_new_session=True,
        **how,
    )


def beneath(pid: int) -> Iterator[tuple[int, str]]:
    """Yield the processes that this one started, and those they started, with their names."""
    parents: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # pid (name) state parent; a name may hold anything.
                start, _, rest = (entry / "stat").read_text().rpartition(")")
                name = start.partition("(")[2]
                parents.setdefault(int(rest.split()[1]), []).append((int(entry.name), name))
    waiting = [pid]
    while waiting:
        for child in parents.get(waiting.pop(), ()):
            yield child
            waiting.append(child[0])


def may_hide() -> bool:
    """Whether a folder can be hidden from a process here."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*_HIDING, "/mnt", "true"], capture_output=True).returncode == 0


def packed(path: Path, *modules: Path) -> Path:
    """Write what executors are given: what Headrace needs of this environment, and modules."""
    words = ["cluster", "pack", "--lean", "--output", str(path)]
    for module in modules:
        words += ["--with", str(module)]
    subprocess.run([sys.executable, "-m", "headrace", *words], check=True, capture_output=True)
    return path


def bare_python(folder: Path) -> Path:
    """Make an environment with links to every package that is installed here but Headrace."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    for name in ("purelib", "platlib"):
        for entry in Path(sysconfig.get_path(name)).iterdir():
            # A path file would bring back what it names.
            ours = "headrace" in entry.name or entry.suffix == ".pth"
            link = packages / entry.name
            if not ours and not link.exists():
                link.symlink_to(entry)
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    (folder / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = false\n"
    )
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(base)
    return python


def _spark_home() -> Path:
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def _java_home(folder: Path) -> Path:
    """
    Return a home of the Java that runs Spark here, fit for a master and for executors.

    A slim Java does not know one module that Spark names in all its commands; where it does
    not, the home is a script that leaves the word out.
    """
    java = find_java(os.environ)
    if java.has_vector:
        return Path(java.home)
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        "#!/bin/bash\n"
        f"exec {shlex.quote(java.executable)}"
        f' "${{@/#--add-modules={VECTOR_MODULE}/-XX:+IgnoreUnrecognizedVMOptions}}"\n'
    )
    executable.chmod(0o755)
    return folder
