"""A reader's name is one query's at a time; whoever ends, however he ends, gives it back."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from headrace.changelog.position import Position
from headrace.changelog.retention import leases
from headrace.errors import ReaderTaken, code_in
from headrace.spark_source.leases import Claim
from tests.changelog.log_making import SOURCE, insert
from tests.pipeline.reading.made_log import MadeLog, ids
from tests.support.shop import PATIENCE


@pytest.fixture
def log(tmp_path: Path) -> MadeLog:
    made = MadeLog(tmp_path)
    for commit in range(1, 4):
        made.flush(insert(commit))
    return made


def held(log: MadeLog) -> list[Position]:
    return [lease.position for lease in leases(log.files, SOURCE, time.time())]


@pytest.mark.meets("R27")
def test_a_second_query_under_a_name_is_refused_and_moves_nothing(log: MadeLog) -> None:
    stream = log.stream(reader="me", maxRowsPerBatch=1)
    stream.batch()
    stream.batch()
    before = held(log)
    with pytest.raises(ReaderTaken) as caught:
        log.stream(reader="me", startingPosition="latest")
    text = str(caught.value)
    assert code_in(text) == "changelog.reader_taken"
    assert f"process {os.getpid()} on " in text
    # It may be the same query, that joins the frame with itself.
    assert "of this query or another" in text
    assert "a reader name of its own" in text
    assert "load it twice, with two names" in text
    assert held(log) == before
    assert ids(stream.batch() or []) == [3]
    # Another name is another's business.
    assert len(log.stream(reader="you").all()) == 1


def test_one_that_was_refused_is_refused_when_it_asks_again(log: MadeLog) -> None:
    stream = log.stream(reader="me")
    source = log.source(reader="me")
    other = source.streamReader(source.schema())
    for _ in range(2):
        with pytest.raises(ReaderTaken):
            other.initialOffset()
    stream.reader.stop()
    assert other.initialOffset() == stream.kept[0]


def test_a_part_that_is_read_does_not_move_the_place_of_a_query_of_its_name(log: MadeLog) -> None:
    stream = log.stream(reader="me", maxRowsPerBatch=1)
    before = held(log)
    with pytest.raises(ReaderTaken):
        log.read(reader="me", startingVersion=3)
    assert held(log) == before
    stream.reader.stop()
    # Nobody tells when a part has been read: the name is free as soon as it is planned.
    assert ids(log.read(reader="me")) == ids(log.read(reader="me")) == [1, 2, 3]


@pytest.mark.process
@pytest.mark.meets("R27")
def test_a_query_whose_process_was_killed_has_its_name_again_at_once(log: MadeLog) -> None:
    child = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os; from headrace.spark_source.leases import Claim;"
            f"claim = Claim({str(log.data)!r}, {SOURCE!r}, 'me', 0.0); os.kill(os.getpid(), 9)",
        ],
        check=False,
    )
    assert child.returncode == -9
    assert (log.data / "log" / SOURCE / "readers" / "me.lock").stat().st_size > 0
    assert len(log.stream(reader="me").all()) == 1


def test_a_name_that_is_just_given_back_is_waited_for(log: MadeLog) -> None:
    first = Claim(str(log.data), SOURCE, "me", 0.0)
    waits = threading.Thread(target=Claim, args=(str(log.data), SOURCE, "me", PATIENCE))
    waits.start()
    first.release()
    first.release()
    waits.join(PATIENCE)
    assert not waits.is_alive()
    # Forgotten by its thread, and so free.
    Claim(str(log.data), SOURCE, "me", 0.0).release()


def test_where_there_are_no_locks_nobody_is_refused(
    log: MadeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("headrace.spark_source.leases.fcntl.flock", no_locks)
    assert len(log.stream(reader="me").all()) == len(log.stream(reader="me").all()) == 1
