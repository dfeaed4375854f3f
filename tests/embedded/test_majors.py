"""The table that closes a run over every major, and what makes it red."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import test_postgres as majors
from tools.runs import Run, counted

REPORT = '{"passed": 3, "failed": 2, "skipped": 2, "seconds": 1}'


def test_a_report_is_counted(tmp_path: Path) -> None:
    (tmp_path / "counts.json").write_text(REPORT)
    run = counted(14, tmp_path / "counts.json", 1.5)
    assert (run.passed, run.failed, run.skipped, run.good) == (3, 2, 2, False)


def test_the_table_has_a_line_for_every_major() -> None:
    runs = [
        Run(14, passed=10, seconds=3.21),
        Run(15, passed=9, failed=1, skipped=2, seconds=4),
        Run(16, problem="no server"),
    ]
    assert majors.table(runs).splitlines() == [
        "PostgreSQL    passed  failed  skipped  seconds",
        "14                10       0        0      3.2",
        "15                 9       1        2      4.0  FAILED",
        "16                 0       0        0      0.0  no server",
    ]


def test_a_major_that_cannot_be_had_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert majors.main(["--versions", "9"]) == 1
    assert "Use one of 14, 15, 16, 17, 18" in capsys.readouterr().out


def test_no_test_at_all_is_no_success() -> None:
    assert not Run(14).good
    assert majors.main(["--versions", ""]) == 1
