"""The pure parts of the bench of PostgreSQL: what is compared, kept and judged."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from bench import jdbc
from bench.harness import Rounds
from bench.postgres_baseline import judged
from bench.postgres_memory import thinned
from bench.postgres_table import after_images, sums_of_columns, sums_of_rows

ROWS = [
    {
        "id": at,
        "name": "x" * at,
        "note": "é",
        "amount": Decimal(at) / 4,
        "active": at % 2 == 0,
        "created": datetime(2026, 1, 1, 0, 0, at, tzinfo=UTC),
        "score": at / 3,
        "n": -at,
    }
    for at in range(1, 5)
]


def table() -> pa.Table:
    return pa.Table.from_pylist(ROWS)


def test_rows_and_columns_have_the_same_sums() -> None:
    details = sums_of_columns([table().slice(0, 3), table().slice(3)])
    assert details.sums == sums_of_rows(ROWS)
    assert details.sums.amounts == Decimal("2.5")
    assert (details.letters, details.micros, details.scores) == (14, 10_000_000, 2)


def test_a_wrong_microsecond_is_seen() -> None:
    wrong = [{**row, "created": datetime(2026, 1, 1, 0, 0, 1, 1, tzinfo=UTC)} for row in ROWS[:1]]
    assert sums_of_columns([pa.Table.from_pylist(wrong)]) != sums_of_columns([table().slice(0, 1)])


def test_the_after_images_of_a_segment_become_columns() -> None:
    segment = pa.table({"_op": [0] * len(ROWS), "after": pa.array(ROWS)})
    assert after_images(segment).to_pylist() == ROWS


def test_a_curve_is_thinned_without_losing_its_peak() -> None:
    curve = [*range(100), 5_000, *range(100)]
    assert max(thinned(curve, 10)) == 5_000
    assert len(thinned(curve, 10)) <= 10
    assert thinned([3, 1], 10) == [3, 1]


def test_without_maven_the_driver_is_a_reason(tmp_path: Path) -> None:
    found = jdbc.driver({"HOME": str(tmp_path), "PATH": str(tmp_path)})
    assert isinstance(found, str)
    assert "mvn" in found


def test_a_driver_in_the_cache_is_not_fetched_again(tmp_path: Path) -> None:
    kept = tmp_path / "headrace" / "bench" / f"postgresql-{jdbc.RELEASE}.jar"
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert jdbc.driver({"XDG_CACHE_HOME": str(tmp_path), "PATH": ""}) == kept


def test_without_a_driver_nothing_is_judged_and_the_row_says_why() -> None:
    copies = Rounds([40.0], [100.0])
    ratio, versus = judged(copies, Rounds([40.0]), "4 parts", 2, "there is no `mvn` on PATH")
    assert ratio.met is True
    assert versus.met is None
    assert "no JDBC driver" in versus.unit
    assert "mvn" in versus.note
    _, slow = judged(copies, Rounds([40.0], [30.0]), "4 parts", 2, Path("driver.jar"))
    assert slow.met is False
