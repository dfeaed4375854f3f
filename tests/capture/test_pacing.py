"""A limit on copies: how many rows go through in which time."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.capture.baselines import CopyRate, checked_rate, piece_rows
from headrace.capture.messages import BaselineProgress, Flushed, FlushNow, Report, TakeBaseline
from headrace.capture.recorder import Recorder
from headrace.capture.sqlite.source import sqlite
from headrace.changelog.reader import LogWriter
from headrace.errors import SourceRefused
from headrace.storage.files import Files
from headrace.storage.simulation import SimulatedDisk
from headrace.testing.source import MemorySource


def rows_in(pacing: CopyRate, seconds: float, *, piece: int, reading: float) -> int:
    """Read pieces as soon as that is allowed, each for so long; return the rows that came."""
    now, rows = 1_000.0, 0
    while now < 1_000.0 + seconds:
        now += reading
        rows += piece
        pacing.took(piece, now)
        now += pacing.rest(now)
    return rows


def test_without_a_limit_nobody_rests() -> None:
    pacing = CopyRate(None)
    pacing.took(1_000_000, 5.0)
    assert pacing.rest(5.0) == 0


@pytest.mark.parametrize("reading", [0.0, 0.01, 0.09])
def test_what_goes_through_is_the_limit_whatever_reading_takes(reading: float) -> None:
    rows = rows_in(CopyRate(1_000), 60, piece=250, reading=reading)
    assert 59_500 <= rows <= 60_500


def test_reading_that_is_slower_than_the_limit_is_not_slowed_further() -> None:
    pacing = CopyRate(1_000)
    pacing.took(100, 10.0)
    pacing.took(100, 20.0)
    assert pacing.rest(20.0) == pytest.approx(0.0)


def test_a_long_rest_is_no_credit_for_a_burst() -> None:
    pacing = CopyRate(1_000)
    pacing.took(1_000, 10.0)
    pacing.took(1_000, 500.0)
    assert pacing.rest(500.0) == pytest.approx(0.9)


def test_nothing_read_is_nothing_to_rest_for() -> None:
    pacing = CopyRate(10)
    pacing.took(0, 3.0)
    assert pacing.rest(3.0) == 0


def test_with_a_limit_a_piece_is_a_fraction_of_a_second() -> None:
    assert piece_rows(None, 20_000) == 20_000
    assert piece_rows(1_000, 20_000) == 250
    assert piece_rows(1e9, 20_000) == 20_000
    assert piece_rows(1, 20_000) == 1


@pytest.mark.parametrize("rate", [0, -1, 0.5, float("nan")])
def test_a_limit_that_nobody_can_mean_is_refused(rate: float) -> None:
    with pytest.raises(SourceRefused, match="must be at least 1"):
        checked_rate(rate)


class Slow:
    """A recorder whose source allows two rows a second, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.source = MemorySource(clock=lambda: self.now)
        self.source.traits = replace(self.source.traits, copy_rows_per_s=2)
        self.source.set_schema("things", {"id": "int64"}, key=["id"])
        self.source.chunk_rows = 2
        disk = SimulatedDisk()

        def log() -> LogWriter:
            return LogWriter.open(
                Files(disk, "/data"),
                source="test",
                origin=self.source.origin,
                writer="w",
                term=1,
                clock=lambda: self.now,
            )

        self.recorder = Recorder(self.source, log, ["things"], lambda: self.now)

    def insert(self, *keys: int) -> None:
        with self.source.transaction():
            for key in keys:
                self.source.emit_insert("things", {"id": key})

    def steps(self, seconds: float) -> list[Report]:
        """Step every hundredth of a second; a step that waits would end the test by its clock."""
        told: list[Report] = []
        for _ in range(round(seconds * 100)):
            self.now += 0.01
            told += self.recorder.step([FlushNow()], 0)
        return told


def test_between_two_chunks_changes_are_recorded_and_nobody_sleeps() -> None:
    slow = Slow()
    slow.recorder.step([], 0)
    slow.insert(1, 2, 3, 4, 5, 6)
    slow.steps(0.1)
    slow.recorder.step([TakeBaseline("things")], 0)
    early = slow.steps(0.8)
    assert [report.rows for report in early if isinstance(report, BaselineProgress)] == []
    slow.insert(7)
    assert any(isinstance(report, Flushed) for report in slow.steps(0.05))
    later = slow.steps(3.5)
    progress = [report for report in later if isinstance(report, BaselineProgress)]
    assert [report.rows for report in progress] == [4, 6, 7, 7]
    assert progress[-1].done


def test_reading_waits_no_longer_than_until_the_next_chunk_is_due() -> None:
    slow = Slow()
    slow.recorder.step([], 0)
    slow.insert(1, 2, 3, 4)
    slow.steps(0.1)
    slow.recorder.step([TakeBaseline("things")], 0)
    slow.recorder.step([], 0)
    assert 0.5 < slow.recorder._patience(10.0) <= 0.9


def test_a_chunk_of_sqlite_is_small_where_there_is_a_limit_and_the_estimate_is_analyzes(
    path: Path, app: sqlite3.Connection
) -> None:
    app.execute("create table t (id integer primary key, note text)")
    app.executemany("insert into t values (?, 'x')", ((n,) for n in range(1_000)))
    source = sqlite(path, copy_rows_per_s=1_000)
    assert source.traits.copy_rows_per_s == 1_000
    assert sqlite(path).traits.copy_rows_per_s is None
    source.describe(["t"])
    source.open(None)
    try:
        copy = source.baseline("t")
        assert copy.expected is None
        assert [batch.num_rows for batch in copy] == [250] * 4
        app.execute("create index notes on t (note)")
        app.execute("analyze")
        assert source.baseline("t").expected == 1_000
    finally:
        source.close()
