"""
Checks the executors before the first batch (S12).

On any master except `local`, executors read the log themselves and run our Python. The driver
writes a file next to the log. A job reads it on every executor, and reports the versions there. If
the log is in a bucket, Spark reads the file through its connector, on any master; Headrace on an
executor uses boto3, so it reads the file, too. A difference is refused at the start, with the name
of the host. Later it would be a failing task, or rows that depend on where they were computed.

An executor without Headrace passes, because batches send what they need. It is logged, because
tasks that copy a baseline need it.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from headrace.errors import BadCluster, HeadraceError, JobCancelled, StorageError
from headrace.observe.logs import logger
from headrace.spark_session import executor_probe
from headrace.spark_session.errors import of_job
from headrace.spark_session.jvm import quietly
from headrace.spark_session.s3a import unreadable
from headrace.storage.files import Files
from headrace.storage.permissions import make_private_folder, open_private

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.spark_session.session import Spark


PATIENCE_SECONDS = 120.0
"""How long executors may take to start and answer: images are pulled and archives unpacked."""

_ROUNDS = 5
_TASKS = 4
"""Number of tasks in a round for each core, and the minimum number in all."""

_UNKNOWN_CORES = 8
"""For Spark Connect, which does not report cores."""

_MOST_OBJECTS = 64
_ONE_EACH = {"spark.sql.files.maxPartitionBytes": "1"}
"""One task for each file: otherwise Spark would read several small files in one."""

_LINGER_SECONDS = 0.1
_REMEDY_STORAGE = (
    "Put the data directory on storage that every executor has under the same path and that the"
    " user of the executors can read, or remove the host from the cluster."
)
_REMEDY_VERSIONS = (
    "Give executors this environment: headrace cluster pack writes an archive of it and prints"
    " the settings to use it."
)
_REMEDY_PYTHON = (
    "Check spark.pyspark.python. With an archive of headrace cluster pack it must be"
    " ./environment/bin/python. Workers need the interpreter at the path given with --python, or"
    " in the archive: --with-python."
)
_REMEDY_BUCKET = (
    "Executors use boto3 to write rows and copy tables. Add it to their environment (headrace"
    " cluster pack --with boto3), set the endpoint and the region for them, as in"
    " spark.executorEnv.AWS_ENDPOINT_URL_S3, and give them credentials by a role or the environment"
    " of their machines."
)
_REMEDY_NONE = (
    "Check that the cluster has free cores and memory for an executor, and that its machines"
    " can connect to this one: spark.driver.host, spark.driver.port."
)

_EXECUTOR = re.compile(r"\(TID \d+\) \((\S+) executor (\S+)\)")
_VERSIONS = re.compile(r"PYTHON_VERSION_MISMATCH.*?(\d+\.\d+)\D+(\d+\.\d+)", re.DOTALL)
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')
_WHY = re.compile(r"^(?:\w+\.)*((?:\w*Error|No module named)\b[^\n]{0,200})", re.MULTILINE)

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What one executor, or the driver, reports about itself."""

    host: str
    folder: str
    python: str
    headrace: str | None
    code: str | None
    pyarrow: str | None
    unread: str | None
    """Why it cannot read the file next to the log; None if it can."""

    unreached: str | None = None
    """Why Headrace cannot read from the bucket there; None if it can, or need not."""


def probed(spark: Spark, files: Files) -> Spark:
    """
    Return the Spark after checking that it can read the log's storage, and that executors work.

    Without a check if the master is local and the storage is a disk. Raises `BadCluster`, or
    `SparkFailed` if Spark cannot read the storage, and then stops a Spark of ours.
    """
    alone = spark.session.conf.get("spark.master", "").startswith("local")  # type: ignore[union-attr]
    if alone and files.local:
        return spark
    try:
        if files.local:
            _probe(spark, Path(files.path("")))
        else:
            _probe_bucket(spark, files, alone=alone)
    except BaseException:
        spark.stop()
        raise
    return spark


def check(here: ProbeReport, there: Sequence[ProbeReport]) -> None:
    """Raise `BadCluster` if an executor cannot read, or has other versions than `here`."""
    blind = [each for each in there if each.unread is not None]
    if blind:
        raise BadCluster(
            f"Executors cannot read the data directory on {_hosts(blind)}",
            remedy=_REMEDY_STORAGE,
            why=blind[0].unread,
            folder=blind[0].folder,
        )
    for name in ("python", "pyarrow", "headrace"):
        ours = getattr(here, name)
        others = [each for each in there if getattr(each, name) != ours]
        if name == "headrace":
            others = [each for each in others if each.headrace is not None]
        if others:
            found = getattr(others[0], name) or "none"
            raise BadCluster(
                f"Executors have another version of {name} than the driver: {found} on"
                f" {_hosts(others)}, {ours} here",
                remedy=_REMEDY_VERSIONS,
            )
    stale = [each for each in there if each.headrace is not None and each.code != here.code]
    if stale:
        raise BadCluster(
            f"Headrace on {_hosts(stale)} has other code than on the driver, though both have"
            f" version {here.headrace}",
            remedy="Pack the environment again: headrace cluster pack --force.",
        )
    closed = [each for each in there if each.unreached is not None]
    if closed:
        raise BadCluster(
            f"Headrace cannot read the log's bucket on {_hosts(closed)}, although Spark can",
            remedy=_REMEDY_BUCKET,
            why=closed[0].unreached,
        )


def _probe(spark: Spark, data: Path) -> None:
    token = secrets.token_hex(16)
    with _written(data / "probe", token) as path:
        here = _read(executor_probe.look(str(path), token, 0.0))
        look = partial(executor_probe.look, str(path), token, _LINGER_SECONDS)

        def ask(tasks: int) -> DataFrame:
            from pyspark.sql import functions as F

            # Not through Arrow: an executor without it must be able to report that.
            report = F.udf(lambda _: look(), "string", useArrow=False).asNondeterministic()
            frame = spark.small.range(0, tasks, 1, tasks)
            return frame.select(report(F.col("id")).alias("report"))

        there = _asked(spark, token, ask)
    _judge(here, there)


def _probe_bucket(spark: Spark, files: Files, *, alone: bool) -> None:
    token = secrets.token_hex(16)
    cores = (spark.executors() or (0, _UNKNOWN_CORES))[1]
    count = 1 if alone else min(_TASKS * max(1, cores), _MOST_OBJECTS)
    with _stored(files, token, count) as paths:
        look = partial(executor_probe.look, paths[0], token, _LINGER_SECONDS)

        def ask(_: int) -> DataFrame:
            from pyspark.sql import functions as F

            session = spark.another(_ONE_EACH)
            found = session.read.option("wholetext", "true").text(paths)
            if alone:
                return found
            report = F.udf(lambda value: look(value), "string", useArrow=False)
            return found.select(report.asNondeterministic()(F.col("value")).alias("report"))

        if alone:
            _collected(spark, token, ask, 1)
            return
        there = _asked(spark, token, ask)
    _judge(_read(executor_probe.look("", token, 0.0, token)), there)


def _judge(here: ProbeReport, there: Sequence[ProbeReport]) -> None:
    check(here, there)
    if without := [each for each in there if each.headrace is None]:
        _log.warning("executors without headrace", hosts=_hosts(without))
    _log.info("executors probed", executors=len(there), hosts=_hosts(there))


def _asked(spark: Spark, token: str, ask: Callable[[int], DataFrame]) -> list[ProbeReport]:
    """Return the reports of all executors, as far as Spark schedules tasks on each of them."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(executor_probe)  # type: ignore[no-untyped-call]
    seen: dict[tuple[str, str], ProbeReport] = {}
    for _ in range(_ROUNDS):
        _, cores = spark.executors() or (0, _UNKNOWN_CORES)
        for text in _collected(spark, token, ask, _TASKS * max(1, cores)):
            found = _read(text)
            seen[found.host, found.folder] = found
        if any(each.unread is not None for each in seen.values()):
            break
        if len(seen) >= (spark.executors() or (0, 0))[0]:
            break
    else:
        _, _, failed = spark.counted(_tag(token))
        if failed:
            raise BadCluster(
                "Python did not start on some executors",
                remedy=_REMEDY_PYTHON,
                answered=len(seen),
            )
        _log.warning("not all executors were probed", answered=len(seen))
    return list(seen.values())


def _collected(spark: Spark, token: str, ask: Callable[[int], DataFrame], tasks: int) -> list[str]:
    """Build and run a frame; return its only column."""
    spark.describe_job("headrace checks the executors")
    tag = _tag(token)
    with _limited(spark, tag), spark.tagged(tag), quietly():
        try:
            return list(spark.collect(ask(tasks)).column(0).to_pylist())
        except Exception as error:  # noqa: BLE001 - reported as an error of the cluster
            raise _refused(spark, error) from None


def _tag(token: str) -> str:
    return f"headrace probe {token}"


@contextlib.contextmanager
def _limited(spark: Spark, tag: str) -> Iterator[None]:
    """Cancel the jobs of a tag if they take too long."""
    timer = threading.Timer(PATIENCE_SECONDS, spark.cancel, [tag])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _refused(spark: Spark, error: Exception) -> BaseException:
    """Return our error for a failed probe; it reads no row, so its text has no values."""
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException | Py4JError):
        return error
    ours = of_job(error)
    if isinstance(ours, JobCancelled):
        seconds = int(PATIENCE_SECONDS)
        if spark.executors() == (0, 0):
            return BadCluster(f"No executor started within {seconds} s", remedy=_REMEDY_NONE)
        return BadCluster(f"Executors did not answer within {seconds} s", remedy=_REMEDY_NONE)
    return failed_probe(str(error), ours)


def failed_probe(text: str, ours: HeadraceError) -> HeadraceError:
    """Return the error for the text of a failed probe; `ours` if the JVM has ended."""
    if ours.code == "pipeline.spark_gone":
        return ours
    executor = _EXECUTOR.search(text)
    facts = {"host": executor[1], "executor": executor[2]} if executor else {}
    if (blind := unreadable(text)) is not None:
        blind.facts = {**blind.facts, **facts}
        return blind
    if match := _VERSIONS.search(text):
        return BadCluster(
            f"Executors have another version of python than the driver: {match[1]} there,"
            f" {match[2]} here",
            remedy=_REMEDY_VERSIONS,
            **facts,
        )
    if match := _NO_PYTHON.search(text):
        message = f"Executors cannot start {match[1]}"
        return BadCluster(message, remedy=_REMEDY_PYTHON, **facts)
    why = _WHY.findall(text)
    more = {"why": why[-1]} if why else {}
    return BadCluster(
        "The first job failed on the executors", remedy=_REMEDY_PYTHON, **facts, **more
    )


@contextlib.contextmanager
def _written(folder: Path, token: str) -> Iterator[Path]:
    """Write a file next to the log, with the same permissions, and remove it afterwards."""
    make_private_folder(folder)
    path = folder / f"{token}.txt"
    with open_private(path) as file:
        file.write(token.encode())
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
        # Another engine on the same Spark may be using the folder, too.
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def _stored(files: Files, token: str, count: int) -> Iterator[list[str]]:
    """Write `count` objects next to the log, and remove them afterwards."""
    names = [f"probe/{token}/{number:03d}.txt" for number in range(count)]
    try:
        for name in names:
            files.put(name, token.encode())
        yield [files.path(name) for name in names]
    finally:
        # Best effort: the check is done, and the storage may be unreachable.
        with contextlib.suppress(StorageError):
            files.remove_many(names)


def _read(text: str) -> ProbeReport:
    return ProbeReport(**json.loads(text))


def _hosts(of: Iterable[ProbeReport]) -> str:
    return ", ".join(sorted({each.host for each in of}))
