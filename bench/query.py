"""
What a query costs the engine: bytes in, bytes out, with nothing of the network.

A lookup stands beside the table's own `get` with the whole row; rows in a batch beside the same
rows as Python dicts. Times are CPU seconds of the process, in which one thread works.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from google.protobuf.struct_pb2 import ListValue, Value

from bench.harness import Result, at_least, at_most, show
from bench.memory import filled
from headrace.api.handlers import ControlService
from headrace.api.services import Caller, Services
from headrace.engine.status import ReadableTarget
from headrace.targets.memory import IndexedMemory
from headrace.v1 import query_pb2 as v1

ROWS = 1_000_000
QUICK_ROWS = 100_000
KEYS = 1_000
"""Of one batch."""

_ME = Caller("bench", "read", "127.0.0.1")
_PATH = "/headrace.v1.QueryService/"


def _services(target: IndexedMemory) -> Services:
    targets = (ReadableTarget("bench", "source", target, ()),)
    engine: Any = SimpleNamespace(readable_targets=lambda: targets, observe=lambda *_: None)
    return Services(engine, ControlService(engine))


def lookups(target: IndexedMemory, count: int) -> list[Result]:
    """Measure single rows, by key."""
    call = _services(target).call
    keys = np.random.default_rng(1).integers(0, count, 5_000).tolist()
    requests = [
        v1.GetRowRequest(table="bench", primary_key=key).SerializeToString() for key in keys
    ]

    def ours() -> None:
        for request in requests:
            call(f"{_PATH}GetRow", request, _ME)

    def floor() -> None:
        for key in keys:
            dict(target.get(key) or {})

    base = _median(floor) / len(keys) * 1e6
    taken = _median(ours) / len(keys) * 1e6 - base
    what = "the table's own get, with the whole row; not included"
    return [Result("query.lookup.engine_us", taken, "us", base, what, at_most(20))]


def batches(target: IndexedMemory, count: int) -> list[Result]:
    """Measure rows of many keys in one call, in each form."""
    call = _services(target).call
    keys = np.random.default_rng(2).integers(0, count, KEYS).tolist()
    values = [ListValue(values=[Value(number_value=key)]) for key in keys]
    found = []

    def floor() -> None:
        for key in keys:
            dict(target.get(key) or {})

    base = len(keys) / _median(floor)
    for name, form, goal in (
        ("arrow", v1.ROW_FORM_ARROW, 100_000),
        ("json", v1.ROW_FORM_JSON, 100_000),
        ("struct", v1.ROW_FORM_STRUCT, 50_000),
    ):
        request = v1.BatchLookupRequest(table="bench", keys=values, form=form).SerializeToString()

        def ours(request: bytes = request) -> None:
            call(f"{_PATH}BatchLookup", request, _ME)

        rate = len(keys) / _median(ours)
        what = "the same rows as dicts"
        figure = f"query.batched.rows_per_s.{name}"
        found.append(Result(figure, rate, "rows/s", base, what, at_least(goal)))
    return found


def pages(target: IndexedMemory) -> list[Result]:
    """Measure a whole listing, in pages of a thousand rows."""
    call = _services(target).call
    taken, rows, token = 0.0, 0, ""
    while rows < 50_000:
        request = v1.ListRowsRequest(
            table="bench", page_size=1000, page_token=token, form=v1.ROW_FORM_JSON
        )
        start = time.process_time()
        answer = call(f"{_PATH}ListRows", request.SerializeToString(), _ME)
        taken += time.process_time() - start
        page = v1.ListRowsResponse.FromString(answer)
        token = page.next_page_token
        rows += 1000
        if not token:
            break
    return [Result("query.listed.rows_per_s.json", rows / taken, "rows/s", goal=at_least(100_000))]


def run(quick: bool = False) -> list[Result]:
    """Return all figures, medians of five."""
    count = QUICK_ROWS if quick else ROWS
    target = filled(count)
    return [*lookups(target, count), *batches(target, count), *pages(target)]


def _median(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(5):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


if __name__ == "__main__":
    show(run(quick="--quick" in sys.argv), noisy=False)
