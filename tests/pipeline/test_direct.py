"""Direct batches without a JVM: the socket, calls that do not end, and results that differ."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.changelog.position import Position
from headrace.errors import EvaluationTimeout, JobCancelled, ResultsDiffer
from headrace.pipeline import runner as runner_module
from headrace.pipeline.batch import BatchFacts, SegmentGroup
from headrace.pipeline.failed_rows import Workspace
from headrace.pipeline.result import Failure, JobResult, same_results
from headrace.pipeline.runner import SparkPipeline, SparkRunner
from headrace.spark_session.direct import SocketEvaluator
from headrace.spark_session.errors import Cause
from tests.pipeline.making import ORDERS, TRAITS, pipeline
from tests.support.patience import patience

ROWS = pa.table({"id": [1, 2, 3]})


class Peer:
    """The other side of the socket, as the JVM is; it has received `given`."""

    def __init__(self, connection: socket.socket) -> None:
        self._stream = connection.makefile("rwb")
        self.connection = connection
        self.given: pa.Table | None = None

    def receive(self) -> None:
        (size,) = struct.unpack(">i", self._stream.read(4))
        with pa.ipc.open_stream(self._stream.read(size)) as stream:
            self.given = stream.read_all()

    def answer(self, rows: pa.Table | None = None, text: str = "", status: int = 0) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, (rows or ROWS).schema) as stream:
            stream.write_table(rows or ROWS)
        data, said = sink.getvalue().to_pybytes(), text.encode()
        self._stream.write(struct.pack(">iii", status, len(data), len(said)) + data + said)
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()
        self.connection.close()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Peer]]:
    ours, theirs = socket.socketpair()
    peer = Peer(theirs)
    yield ours, peer
    peer.close()
    ours.close()


def evaluator(
    ours: socket.socket, at_row: Callable[[], int] = lambda: 0, stuck: float = 0.01
) -> SocketEvaluator:
    schema: Any = object()
    return SocketEvaluator(ours, schema, at_row, lambda: "Project", stuck)


def on_thread(*steps: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        for step in steps:
            step()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_rows_come_back_with_the_numbers_and_causes_of_those_that_raised(
    ends: tuple[socket.socket, Peer],
) -> None:
    ours, peer = ends
    text = "1\tjava.X|DIVIDE_BY_ZERO|22012\n2\torg.Y|OUTER|22000\tjava.Z||\n"
    made = pa.table({"0": [7]})
    thread = on_thread(peer.receive, lambda: peer.answer(made, text))
    called = evaluator(ours, stuck=patience())
    found = called.evaluate(ROWS)
    thread.join(patience())
    assert peer.given == ROWS
    assert found is not None
    assert found.rows == made
    assert [(each.row, each.causes) for each in found.raised] == [
        (1, (Cause("java.X", "DIVIDE_BY_ZERO", "22012"),)),
        (2, (Cause("org.Y", "OUTER", "22000"), Cause("java.Z"))),
    ]
    # An error that is none of a row: a job is needed, and the next batch comes as before.
    on_thread(peer.receive, lambda: peer.answer(text="java.Error||\n", status=1))
    assert called.evaluate(ROWS) is None
    on_thread(peer.receive, peer.answer)
    assert called.evaluate(ROWS) is not None
    assert called.usable


def test_a_call_that_stays_at_a_row_is_abandoned_with_its_number(
    ends: tuple[socket.socket, Peer],
) -> None:
    ours, _ = ends
    called = evaluator(ours, lambda: 3)
    with pytest.raises(EvaluationTimeout) as caught:
        called.evaluate(ROWS)
    assert caught.value.facts["row"] == 3
    # A late answer would be taken for that of the next batch.
    assert not called.usable


def test_a_call_that_gets_from_row_to_row_or_is_not_answered_for_is_waited_for(
    ends: tuple[socket.socket, Peer],
) -> None:
    ours, peer = ends
    asked: list[int] = []

    def at_row() -> int:
        asked.append(len(asked))
        if len(asked) == 6:
            peer.receive()
            peer.answer()
        if len(asked) in (2, 3):
            raise OSError("the JVM is frozen")
        return asked[-1]

    assert evaluator(ours, at_row).evaluate(ROWS) is not None
    assert len(asked) >= 6


def test_a_call_that_is_cancelled_ends_at_once(ends: tuple[socket.socket, Peer]) -> None:
    ours, peer = ends
    called = evaluator(ours, stuck=patience())
    called.cancel()  # nothing runs: it has no effect on the next call
    on_thread(peer.receive, called.cancel)
    with pytest.raises(JobCancelled):
        called.evaluate(ROWS)
    assert not called.usable


def test_a_jvm_that_is_gone_is_a_lost_connection(ends: tuple[socket.socket, Peer]) -> None:
    ours, peer = ends
    on_thread(peer.receive, peer.close)
    with pytest.raises(ConnectionError):
        evaluator(ours, stuck=patience()).evaluate(ROWS)


# --- the same, bit by bit -------------------------------------------------------------------------


def result(values: Sequence[Any], type: pa.DataType, *failures: Failure) -> JobResult:
    rows = pa.table({"x": pa.array(values, type)})
    return JobResult(rows, None, 0.0, len(values), failures, direct=True)


NAN = float("nan")
NESTED = pa.struct([("a", pa.list_(pa.float64())), ("b", pa.map_(pa.utf8(), pa.float32()))])


@pytest.mark.parametrize(
    ("type", "one", "other", "same"),
    [
        (pa.float64(), [NAN, 1.0, None], [NAN, 1.0, None], True),
        (pa.float64(), [0.0], [-0.0], False),
        (pa.float32(), [None], [0.0], False),
        (pa.float32(), [1.0, None], [None, 1.0], False),
        (pa.utf8(), ["a", None], ["a", ""], False),
        (pa.int32(), [1], [1, 2], False),
        (NESTED, [{"a": [NAN], "b": [("k", NAN)]}], [{"a": [NAN], "b": [("k", NAN)]}], True),
        (NESTED, [{"a": [0.0], "b": []}], [{"a": [-0.0], "b": []}], False),
        (NESTED, [{"a": [1.0], "b": [("k", 1.0)]}], [{"a": [1.0], "b": [("l", 1.0)]}], False),
        (NESTED, [{"a": None, "b": None}], [None], False),
        (pa.list_(pa.int32()), [[1], [2, 3]], [[1, 2], [3]], False),
    ],
)
def test_results_are_the_same_only_bit_by_bit(
    type: pa.DataType, one: list[Any], other: list[Any], same: bool
) -> None:
    assert same_results(result(one, type), result(other, type)) is same
    assert same_results(result(one, type), result(one, type))


def test_results_with_other_failures_or_columns_differ() -> None:
    bad = Failure((1, 0), "DIVIDE_BY_ZERO")
    one = result([1], pa.int32(), bad)
    assert same_results(one, replace(one, failures=(replace(bad, facts={"step": "filters"}),)))
    assert not same_results(one, replace(one, failures=()))
    assert not same_results(one, replace(one, failures=(replace(bad, code="OTHER"),)))
    assert not same_results(one, replace(one, truncate=(1, 1)))
    assert not same_results(one, replace(one, rows=one.rows.rename_columns(["y"])))


# --- which way, and the check by a job ------------------------------------------------------------

FACTS = BatchFacts(Position(1, 1), Position(1, 9), rows=2)
PARTS = [SegmentGroup(ORDERS, ("a.parquet",), sizes=(900,))]


@pytest.fixture
def of_job() -> list[int]:
    """The rows that a job gives; the direct way gives the same unless a test changes it."""
    return [1]


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch, of_job: list[int]) -> list[bool]:
    """Whether each batch that was computed could go directly."""
    asked: list[bool] = []

    def rows(self: Any, parts: Any, facts: Any, *, direct: bool) -> JobResult:
        asked.append(direct)
        return replace(result([1] if direct else of_job, pa.int32()), direct=direct)

    monkeypatch.setattr(SparkPipeline, "_rows", rows)
    monkeypatch.setattr(runner_module, "CHECK_EVERY", 3)
    return asked


def prepared(folder: Path, **given: Any) -> SparkPipeline:
    spark: Any = object()
    runner = SparkRunner(spark, differences=Workspace(str(folder / "differences")), **given)
    return runner.prepare(pipeline(), TRAITS)


def test_only_small_batches_go_directly_and_none_if_so_configured(
    ways: list[bool], tmp_path: Path
) -> None:
    what = prepared(tmp_path)
    assert what.rows(PARTS, FACTS).direct
    assert not what.rows(PARTS, replace(FACTS, rows=5_001)).direct
    assert not what.rows([replace(PARTS[0], sizes=(1 << 20, 1))], FACTS).direct
    assert not prepared(tmp_path, small_batches="job").rows(PARTS, FACTS).direct
    assert ways == [True, False, False, False]


def test_one_direct_batch_in_so_many_is_computed_by_a_job_too(
    ways: list[bool], tmp_path: Path
) -> None:
    what = prepared(tmp_path)
    results = [what.rows(PARTS, FACTS) for _ in range(6)]
    assert [each.check is not None for each in results] == [False, False, True] * 2
    # Not before it is asked for: readers would wait.
    assert ways == [True] * 6
    check = results[2].check
    assert check is not None
    check()
    assert ways == [True] * 6 + [False]
    assert not (tmp_path / "differences").exists()


def test_results_that_differ_are_both_kept(
    ways: list[bool], of_job: list[int], tmp_path: Path
) -> None:
    of_job.append(2)
    what = prepared(tmp_path)
    check = [what.rows(PARTS, FACTS) for _ in range(3)][2].check
    assert check is not None
    with pytest.raises(ResultsDiffer) as caught:
        check()
    facts = caught.value.facts
    assert (facts["direct_rows"], facts["job_rows"]) == (1, 2)
    folder = Path(str(facts["folder"]))
    kept = {path.name.rpartition("-")[2]: pq.read_table(path) for path in folder.iterdir()}
    assert kept["direct.parquet"]["x"].to_pylist() == [1]
    assert kept["job.parquet"]["x"].to_pylist() == [1, 2]
