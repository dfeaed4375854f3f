"""Snapshots for the demo's views: a busy one, an empty one, one with extreme values."""

from __future__ import annotations

from headrace.cli.demo.model import (
    CustomerLookup,
    HeldRow,
    HopTimes,
    SeenChange,
    Snapshot,
    SparkNow,
)

STARTING = Snapshot("starting", 3.25, captured=41)

RUNNING = Snapshot(
    phase="running",
    seconds=14.2,
    left=17.3,
    source_state="streaming",
    captured=2_412,
    captured_rate=40.6,
    flushes=310,
    log_bytes=1_234_567,
    state="live",
    applied=2_398,
    applied_rate=39.8,
    rows=2_801,
    position="0001-000000000000096c-00000000",
    hops=(
        HopTimes("captured", 4.0, 9.5),
        HopTimes("flushed", 7.0, 12.0),
        HopTimes("job", 48.2, 91.0),
        HopTimes("applied", 0.4, 0.9),
        HopTimes("total", 61.3, 110.0),
    ),
    spark=SparkNow("4.2.1", 305, 311, 47.9, "Scan parquet → Filter → Project (total_cents)"),
    changes=(
        SeenChange("insert", "3022", "customer 45, 1 lamp, 29.90, new", "0001-…"),
        SeenChange("update", "1934", "status paid → shipped", "0001-…"),
        SeenChange("delete", "778", "customer 31, 3 rug, 192.00, shipped", "0001-…"),
    ),
    lookup=CustomerLookup(7, 53, 1_234_560, 41.7),
)

SHOW = "headrace dead-letters show 0001-0000000000000961-00000000 --data headrace-demo"
LIST = "headrace dead-letters list --data headrace-demo"
LETTER = HeldRow(
    pipeline="orders",
    table="orders",
    key="3021",
    code="ARITHMETIC_OVERFLOW",
    position="0001-0000000000000961-00000000",
    behind=1,
    commands=(SHOW, LIST),
)

EXTREME = Snapshot(
    phase="running",
    seconds=123_456.7,
    left=1e6,
    source="a-source-with-a-very-long-name-indeed-longer-than-any-column",
    source_state="reconnecting",
    restarts=10**9,
    killable=True,
    captured=10**12,
    captured_rate=1e6,
    flushes=10**9,
    log_bytes=10**13,
    state="catching_up",
    applied=10**12,
    applied_rate=1e6,
    rows=10**10,
    position="ffff-7fffffffffffffff-7fffffff",
    hops=tuple(HopTimes(hop.name, 1e6, 1e7) for hop in RUNNING.hops),
    spark=SparkNow("4.2.1-SNAPSHOT", 10**9, 10**10, 1e6, "Scan → " * 60),
    letters=(HeldRow("p" * 64, "t" * 300, "9" * 400, "X" * 90, "f" * 30, 10**9, ("c" * 999,)),)
    * 99,
    changes=tuple(
        SeenChange("truncate", str(10**15 + n), "text that never ends, " * 20, "")
        for n in range(40)
    ),
    lookup=CustomerLookup(10**9, 10**9, 10**14, 1e6),
)
