"""
What it costs to complete updates that leave a large value alone (R21).

Two sources read the same updates, one with the store of TOAST values and one without: the
second gives marks where the first gives ten kilobytes a row. Nothing is written to a log.
"""

from __future__ import annotations

import time
from pathlib import Path

from bench.harness import Result
from bench.postgres_table import Server
from headrace.capture.postgres.definition import postgres
from headrace.capture.postgres.position import parse_lsn
from headrace.capture.postgres.source import PostgresSource
from headrace.capture.source import reader_of

TABLE = "toasted"
VALUE_BYTES = 10_000
TIMES = 10
"""How often each row is updated."""

EACH = 100
"""Updates in a transaction."""

PATIENCE = 600.0


def run(server: Server, folder: Path, *, updates: int) -> list[Result]:
    """Update rows whose large value stays, and read that with and without the store."""
    rows = max(1, updates // TIMES)
    server.execute(f"drop table if exists {TABLE}")
    server.execute(f"create table {TABLE} (id int8 primary key, n int4, body text)")
    server.execute(f"alter table {TABLE} alter body set storage external")
    server.execute(
        f"insert into {TABLE} select i, 0, repeat(md5(i::text), {VALUE_BYTES // 32})"
        f" from generate_series(1, {rows}) i"
    )
    sources = {kept: _copied(server, folder / f"toast-{kept}", kept) for kept in (True, False)}
    try:
        server.execute(
            f"do $$ begin for b in 0..{rows * TIMES - 1} by {EACH} loop"
            f" update {TABLE} set n = n + 1 where id in"
            f" (select (b + i)::int8 * 7919 % {rows} + 1 from generate_series(0, {EACH - 1}) i);"
            " commit; end loop; end $$"
        )
        end = server.end()
        taken, lacking, seconds = {}, {}, {}
        for kept, source in sources.items():
            taken[kept], lacking[kept], seconds[kept] = _drained(source, parse_lsn(end))
        size = sources[True]._toast.bytes
    finally:
        for source in sources.values():
            source.close()
    assert taken[True] == taken[False], taken
    assert lacking == {True: 0, False: taken[False]}, lacking
    note = (
        f"{taken[True]:,} updates of {rows:,} rows with a value of {VALUE_BYTES:,} bytes:"
        f" {seconds[True]:.2f} s of CPU with the store, {seconds[False]:.2f} s without"
    )
    return [
        Result(
            "pg.toast.ratio",
            seconds[True],
            "s",
            seconds[False],
            "the same changes without the values",
            note=note,
        ),
        Result(
            "pg.toast.bytes_per_row",
            size / rows,
            "B",
            float(VALUE_BYTES),
            "the value itself",
            note=f"{size / 1e6:.0f} MB in the store",
        ),
    ]


def _copied(server: Server, data: Path, kept: bool) -> PostgresSource:
    """Return a source that has copied the table, and reads on from there."""
    data.mkdir()
    spec = postgres(server.dsn, name="bench", toast_store=kept).spec
    source = PostgresSource(spec, reader_of("bench", data))
    source.describe([TABLE])
    source.open(None)
    for _ in source.baseline(TABLE):
        pass
    return source


def _drained(source: PostgresSource, end: int) -> tuple[int, int, float]:
    """Read up to `end`; return how many changes there were, how many lack values, and our CPU."""
    count = lacking = 0
    began, worked = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < PATIENCE:
        changes = source.read(20_000, 1.0)
        if changes is None:
            continue
        for table in changes.tables:
            count += table.rows.num_rows
            lacking += table.rows.num_rows - table.rows["_unsent"].null_count
        if changes.ends and changes.upto.commit >= end:
            return count, lacking, time.process_time() - worked
    raise AssertionError(f"{count} changes, and no end")
