"""The recorder's memory while one transaction changes very many rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from bench.harness import Result, at_most
from bench.postgres_recorder import PATIENCE, Recorded, prepare
from bench.postgres_table import Server, after_images, sums_of_columns
from bench.processes import rss_bytes

TABLE = "large"
SAMPLE_SECONDS = 1.0
MOST_MB = 500.0
POINTS = 24
"""Of the curve, as many as can be read in a line."""


def run(server: Server, folder: Path, *, rows: int) -> list[Result]:
    """Insert `rows` rows in one transaction, and watch the recorder until they are durable."""
    server.create(TABLE)
    data = folder / "large"
    prepare(server.dsn, TABLE, data)
    with Recorded(server.dsn, TABLE, data, expected=rows) as recorded:
        recorded.await_streaming()
        before = rss_bytes(recorded.pid)
        began = time.monotonic()
        writer = threading.Thread(target=server.fill, args=(TABLE, rows, rows), daemon=True)
        writer.start()
        curve = [before]
        while not recorded.complete():
            assert time.monotonic() - began < 2 * PATIENCE, recorded.log.counts()
            time.sleep(SAMPLE_SECONDS)
            curve.append(rss_bytes(recorded.pid))
        took = time.monotonic() - began
        # What the kernel remembers also has what came and went between two looks.
        most = max(peak_bytes(recorded.pid), *curve)
        writer.join()
    truth = server.truth(TABLE)
    found = sums_of_columns(map(after_images, recorded.changes()))
    assert found == truth, f"the log has {found}, SQL {truth}"
    points = " ".join(f"{size / 1e6:.0f}" for size in thinned(curve, POINTS))
    note = f"one transaction of {rows:,} rows, {took:.0f} s; curve in MB: {points}"
    return [Result("pg.recorder.rss_mb", most / 1e6, "MB", goal=at_most(MOST_MB), note=note)]


def peak_bytes(process: int) -> int:
    """Return the most memory that a process ever had resident."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def thinned(curve: Sequence[int], points: int) -> list[int]:
    """Return at most `points` values, the largest of each stretch: no peak is left out."""
    stretch = -(-len(curve) // points) or 1
    return [max(curve[at : at + stretch]) for at in range(0, len(curve), stretch)]
