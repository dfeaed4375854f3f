"""
A backlog read to its end: by pg_recvlogical, into the log, and through Spark into memory.

All three read the same backlog, each through a slot of its own that was there before the
backlog was written, over the same transport, with the same options of the protocol. Rounds
are interleaved, and every other one runs the other way round.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from bench.harness import Result, Rounds, at_most, ratio_at_least
from bench.postgres_cpu import Ours
from bench.postgres_recorder import NAME, PATIENCE, Recorded, prepare, source_of
from bench.postgres_table import Server, after_images, sums_of_columns, sums_of_rows
from headrace.capture import process
from headrace.capture.messages import Report, Started
from headrace.engine.engine import Engine
from headrace.pipeline.definition import Pipeline
from headrace.spark_session.session import Spark
from headrace.targets.memory import memory

LOOK_SECONDS = 0.005
LEAST_BYTES = 200
"""Of a row, in what pg_recvlogical writes: a file with less does not hold them all."""

TABLE = "orders"


@dataclass(frozen=True, slots=True)
class EndToEnd:
    """One drain into memory."""

    seconds: float
    cpu: float
    """Of all our processes."""

    server_cpu: float


@dataclass(slots=True)
class _Figures:
    capture: Rounds = field(default_factory=Rounds)
    end_to_end: Rounds = field(default_factory=Rounds)
    cpu: list[float] = field(default_factory=list)
    server_cpu: list[float] = field(default_factory=list)
    recorder_cpu: list[float] = field(default_factory=list)


class Backlog:
    """Rows that wait in the server's log, and everybody's slots at their beginning."""

    def __init__(self, server: Server, folder: Path, *, rows: int, each: int, drains: int) -> None:
        """Make `drains` slots for each of the three, then write `rows` rows, `each` at a time."""
        folder.mkdir()
        self.server = server
        self.rows = rows
        self._folder = folder
        self._drains = drains
        server.create(TABLE)
        server.execute("drop publication if exists bench")
        server.execute(f"create publication bench for table {TABLE}")
        for number in range(drains):
            self.slot(f"bench_{number}")
            for kind in ("capture", "memory"):
                prepare(server.dsn, TABLE, folder / f"{kind}-{number}")
        self.slot("bench_decoder")
        server.fill(TABLE, rows, each)
        self.end = server.end()
        self.truth = server.truth(TABLE)
        assert self.truth.sums.rows == rows
        self._sizes: set[int] = set()

    def slot(self, name: str) -> None:
        """Make a slot that stands where the log ends now."""
        self.server.execute(f"select pg_create_logical_replication_slot('{name}', 'pgoutput')")

    def received(self, number: int) -> float:
        """Let pg_recvlogical write the backlog to a file; return the seconds it took."""
        path = self._folder / f"received-{number}"
        options = {
            "proto_version": "2",
            "streaming": "on",
            "messages": "true",
            "publication_names": "bench",
        }
        command = [
            str(self.server.server.binaries / "pg_recvlogical"),
            *("--dbname", self.server.dsn, "--slot", f"bench_{number}", "--start", "--no-loop"),
            *("--endpos", self.end, "--file", str(path)),
        ]
        for name, value in options.items():
            command += ["--option", f"{name}={value}"]
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
        took = time.perf_counter() - began
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        self._sizes.add(path.stat().st_size)
        assert min(self._sizes) >= LEAST_BYTES * self.rows, "pg_recvlogical wrote too little"
        # Their Relation messages are sent once each, so that files of one backlog are alike.
        assert max(self._sizes) - min(self._sizes) <= 4096, self._sizes
        path.unlink()
        return took

    def captured(self, number: int) -> tuple[float, float]:
        """Record the backlog into a log; return the seconds, and the recorder's CPU seconds."""
        data = self._folder / f"capture-{number}"
        with Recorded(self.server.dsn, TABLE, data, expected=self.rows) as recorded:
            recorded.await_complete()
        found = sums_of_columns(map(after_images, recorded.changes()))
        assert found == self.truth, f"the log has {found}, SQL {self.truth}"
        assert recorded.recorder.restarts == 0
        shutil.rmtree(data)
        return recorded.seconds, recorded.cpu

    def delivered(self, number: int, spark: Spark) -> EndToEnd:
        """Bring the backlog through Spark into an indexed table in memory."""
        data = self._folder / f"memory-{number}"
        target = memory(indexes={"by_n": ["n"]})
        engine = Engine(
            Pipeline(source_of(self.server.dsn), TABLE, target, name=NAME),
            data=data,
            spark=spark.session,
        )
        ours = Ours(self.server.pid)
        began: list[float] = []

        def up() -> None:
            ours.begin()
            began.append(time.perf_counter())

        with _told(up), engine:
            until = time.monotonic() + PATIENCE
            assert engine.await_ready(PATIENCE), engine.pipelines()[0]
            while target.count() < self.rows:
                assert time.monotonic() < until, engine.pipelines()[0]
                time.sleep(LOOK_SECONDS)
            took = time.perf_counter() - began[0]
            cpu, server_cpu = ours.used()
            info = engine.pipelines()[0]
            assert info.jobs >= info.batches
            assert info.changes == self.rows, "rows out of the scan = rows captured"
        found = sums_of_rows(target.all())
        assert found == self.truth.sums, f"memory has {found}, SQL {self.truth.sums}"
        shutil.rmtree(data)
        return EndToEnd(took, cpu, server_cpu)

    def close(self) -> None:
        """Let the server forget the backlog; the table stays."""
        self.server.drop_slots()
        shutil.rmtree(self._folder)


def run(backlog: Backlog, spark: Spark, name: str, *, rounds: int, warm: int) -> list[Result]:
    """Drain a backlog `rounds` times in each of the three ways; `name` says what it is."""
    for number in range(warm):
        backlog.delivered(rounds + number, spark)
    figures = _Figures()
    million = backlog.rows / 1e6

    def received(number: int) -> None:
        rate = backlog.rows / backlog.received(number)
        figures.capture.floor.append(rate)
        figures.end_to_end.floor.append(rate)

    def captured(number: int) -> None:
        seconds, cpu = backlog.captured(number)
        figures.capture.ours.append(backlog.rows / seconds)
        figures.recorder_cpu.append(cpu / million)

    def delivered(number: int) -> None:
        found = backlog.delivered(number, spark)
        figures.end_to_end.ours.append(backlog.rows / found.seconds)
        figures.cpu.append(found.cpu / million)
        figures.server_cpu.append(found.server_cpu / million)

    steps: list[Callable[[int], None]] = [received, captured, delivered]
    for number in range(rounds):
        for step in steps if number % 2 == 0 else reversed(steps):
            step(number)
    return _results(figures, name, backlog.rows)


def _results(figures: _Figures, name: str, rows: int) -> list[Result]:
    yardstick = "pg_recvlogical to a file, same transport"
    capture = figures.capture.result(
        f"pg.capture.ratio.{name}", "rows/s", ratio_at_least(0.9), yardstick
    )
    end_to_end = figures.end_to_end.result(
        f"pg.end_to_end.ratio.{name}", "rows/s", ratio_at_least(0.6), yardstick
    )
    cpu = Rounds(figures.cpu).result(f"pg.cpu_s_per_million.{name}", "CPU s", at_most(8), "")
    recorder = statistics.median(figures.recorder_cpu)
    server = statistics.median(figures.server_cpu)
    clock = "from the recorder's process being up"
    return [
        replace(
            capture,
            note=f"{rows:,} rows, {clock} to durable; recorder {recorder:.1f} CPU s a million",
        ),
        replace(end_to_end, note=f"{rows:,} rows, {clock} to visible in indexed memory"),
        replace(cpu, note=f"end to end; recorder, engine, JVM; server apart: {server:.1f} CPU s"),
    ]


@contextmanager
def _told(up: Callable[[], None]) -> Iterator[None]:
    """Call `up` when an engine's recorder reports that its process is up."""
    start = process.start_recorder

    def started(*given: Any, on_report: Callable[[Report], object], **named: Any) -> Any:
        def heard(report: Report) -> None:
            if isinstance(report, Started):
                up()
            on_report(report)

        return start(*given, on_report=heard, **named)

    with mock.patch("headrace.engine.engine.start_recorder", started):
        yield
