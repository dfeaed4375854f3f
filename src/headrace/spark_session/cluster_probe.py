"""
Whether executors can work, asked before the first batch (S12).

On any master but `local`, executors read the log themselves and run our Python. The driver
puts a file beside the log, and a job looks for it from every executor that is there, and
tells the versions it finds. In a bucket it is Spark that reads it, on any master: the way there
is the connector's. Headrace on an executor has another, boto3's, and reads it too.
A difference is refused at the start, by the name of its host: later it would be a failing task
somewhere, or rows that depend on where they were computed.

An executor without Headrace passes: batches send what they need. It is noted, because a
baseline that is copied by tasks needs it.
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
"""How long executors may take to come and answer; images are pulled and archives unpacked."""

_ROUNDS = 5
_TASKS = 4
"""A round has so many tasks for each core there is, and at least so many in all."""

_UNKNOWN_CORES = 8
"""Spark Connect does not tell."""

_MOST_OBJECTS = 64
_ONE_EACH = {"spark.sql.files.maxPartitionBytes": "1"}
"""A task a file; else Spark would put small ones together."""

_LINGER_SECONDS = 0.1
_REMEDY_STORAGE = (
    "Put the data directory on storage that every executor has under the same path, readable"
    " for the user that executors run as; or leave the host out of the cluster."
)
_REMEDY_VERSIONS = (
    "Give executors this environment: headrace cluster pack writes an archive of it, and prints"
    " the settings that go with it."
)
_REMEDY_PYTHON = (
    "Check spark.pyspark.python. With an archive of headrace cluster pack it is"
    " ./environment/bin/python, and workers need the interpreter where the archive says, or"
    " inside it: --python, --with-python."
)
_REMEDY_BUCKET = (
    "Executors write rows and copy tables through boto3: put it into their environment (headrace"
    " cluster pack --with boto3); give their Python the endpoint and the region, as in"
    " spark.executorEnv.AWS_ENDPOINT_URL_S3, and credentials by a role or the environment of their"
    " machines."
)
_REMEDY_NONE = (
    "Check that the cluster has free cores and memory for an executor, and that its machines"
    " reach this one: spark.driver.host, spark.driver.port."
)

_PLACE = re.compile(r"\(TID \d+\) \((\S+) executor (\S+)\)")
_VERSIONS = re.compile(r"PYTHON_VERSION_MISMATCH.*?(\d+\.\d+)\D+(\d+\.\d+)", re.DOTALL)
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')
_WHY = re.compile(r"^(?:\w+\.)*((?:\w*Error|No module named)\b[^\n]{0,200})", re.MULTILINE)

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What one executor, or the driver, says of itself."""

    host: str
    folder: str
    python: str
    headrace: str | None
    code: str | None
    pyarrow: str | None
    unread: str | None
    """Why it cannot read what lies beside the log; None where it can."""

    unreached: str | None = None
    """Why Headrace's own way to a bucket is closed there; None where it is not, or not needed."""


def probed(spark: Spark, files: Files) -> Spark:
    """
    Return the Spark, once it was seen to read the log's storage, and its executors to work.

    At once where they are the driver, and the storage is its disk. Raises `BadCluster`, or
    `SparkFailed` where it has no way to the storage, and then ends a Spark of ours.
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
    """Raise `BadCluster` where an executor cannot read, or has other versions than `here`."""
    blind = [each for each in there if each.unread is not None]
    if blind:
        raise BadCluster(
            f"The data directory cannot be read on {_hosts(blind)}",
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
                f"Executors have another {name} than the driver: {found} on {_hosts(others)},"
                f" {ours} here",
                remedy=_REMEDY_VERSIONS,
            )
    stale = [each for each in there if each.headrace is not None and each.code != here.code]
    if stale:
        raise BadCluster(
            f"Headrace on {_hosts(stale)} is not the one of the driver, though of the same"
            f" version, {here.headrace}",
            remedy="Pack the environment again: headrace cluster pack --force.",
        )
    closed = [each for each in there if each.unreached is not None]
    if closed:
        raise BadCluster(
            f"Spark reads the log's bucket on {_hosts(closed)}, but Headrace there cannot",
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

            # Not through Arrow: an executor that has none must be able to say so.
            told = F.udf(lambda _: look(), "string", useArrow=False).asNondeterministic()
            return spark.small.range(0, tasks, 1, tasks).select(told(F.col("id")).alias("told"))

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
            told = F.udf(lambda value: look(value), "string", useArrow=False)
            return found.select(told.asNondeterministic()(F.col("value")).alias("told"))

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
    """Return what executors say: of every one that is there, as far as Spark lets us."""
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
                "Python does not start on some executors",
                remedy=_REMEDY_PYTHON,
                answered=len(seen),
            )
        _log.warning("not all executors were probed", answered=len(seen))
    return list(seen.values())


def _collected(spark: Spark, token: str, ask: Callable[[int], DataFrame], tasks: int) -> list[str]:
    """Return the one column of a frame that is made and run here."""
    spark.describe_job("headrace asks executors what they have")
    tag = _tag(token)
    with _limited(spark, tag), spark.tagged(tag), quietly():
        try:
            return list(spark.collect(ask(tasks)).column(0).to_pylist())
        except Exception as error:  # noqa: BLE001 - told as what it means for a cluster
            raise _refused(spark, error) from None


def _tag(token: str) -> str:
    return f"headrace probe {token}"


@contextlib.contextmanager
def _limited(spark: Spark, tag: str) -> Iterator[None]:
    """End the jobs of a tag where they take too long."""
    timer = threading.Timer(PATIENCE_SECONDS, spark.cancel, [tag])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _refused(spark: Spark, error: Exception) -> BaseException:
    """Return our error for a job that should not fail; it reads no row, so its text is clean."""
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException | Py4JError):
        return error
    ours = of_job(error)
    if isinstance(ours, JobCancelled):
        seconds = int(PATIENCE_SECONDS)
        if spark.executors() == (0, 0):
            return BadCluster(f"No executor came within {seconds} s", remedy=_REMEDY_NONE)
        return BadCluster(f"Executors did not answer within {seconds} s", remedy=_REMEDY_NONE)
    return failed_probe(str(error), ours)


def failed_probe(text: str, ours: HeadraceError) -> HeadraceError:
    """Return what the text of a failed probe means; `ours` where it is the JVM that is gone."""
    if ours.code == "pipeline.spark_gone":
        return ours
    place = _PLACE.search(text)
    facts = {"host": place[1], "executor": place[2]} if place else {}
    if (blind := unreadable(text)) is not None:
        blind.facts = {**blind.facts, **facts}
        return blind
    if match := _VERSIONS.search(text):
        return BadCluster(
            f"Executors have another python than the driver: {match[1]} there, {match[2]} here",
            remedy=_REMEDY_VERSIONS,
            **facts,
        )
    if match := _NO_PYTHON.search(text):
        message = f"Executors cannot start {match[1]}"
        return BadCluster(message, remedy=_REMEDY_PYTHON, **facts)
    why = _WHY.findall(text)
    more = {"why": why[-1]} if why else {}
    return BadCluster("A first job fails on the executors", remedy=_REMEDY_PYTHON, **facts, **more)


@contextlib.contextmanager
def _written(folder: Path, token: str) -> Iterator[Path]:
    """Put a file beside the log, as private as the log, and take it away again."""
    make_private_folder(folder)
    path = folder / f"{token}.txt"
    with open_private(path) as file:
        file.write(token.encode())
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
        # Another engine on the same Spark may be at it, too.
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def _stored(files: Files, token: str, count: int) -> Iterator[list[str]]:
    """Put so many objects beside the log, and take them away again."""
    names = [f"probe/{token}/{number:03d}.txt" for number in range(count)]
    try:
        for name in names:
            files.put(name, token.encode())
        yield [files.path(name) for name in names]
    finally:
        # No longer than one that is away takes to be given up.
        with contextlib.suppress(StorageError):
            files.remove_many(names)


def _read(text: str) -> ProbeReport:
    return ProbeReport(**json.loads(text))


def _hosts(of: Iterable[ProbeReport]) -> str:
    return ", ".join(sorted({each.host for each in of}))
