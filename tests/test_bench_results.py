"""The record of the bench: partial runs merge into it, and its page is generated."""

from __future__ import annotations

from bench import results
from bench.harness import Result, at_most


def measured(name: str, ours: float, day: str = "2026-11-16") -> tuple[str, results.Figure]:
    taken = {"date": f"{day}T10:00:00+00:00", "commit": "0123456789", "load_average": [0.5, 1, 1]}
    return name, results.figure(Result(name, ours, "ms", goal=at_most(10)), taken)


def test_a_run_of_one_area_leaves_the_figures_of_others() -> None:
    record = results.merged({}, [measured("a.x", 1), measured("b.y", 2)], quick=False)
    record = results.merged(record, [measured("b.y", 3)], quick=False)
    assert record["a.x"]["full"]["ours"] == 1
    assert record["b.y"]["full"]["ours"] == 3


def test_a_quick_run_does_not_replace_a_full_one() -> None:
    record = results.merged({}, [measured("a.x", 1)], quick=False)
    record = results.merged(record, [measured("a.x", 99)], quick=True)
    assert (record["a.x"]["full"]["ours"], record["a.x"]["quick"]["ours"]) == (1, 99)
    assert "| `a.x` | 1 ms |" in results.page(record, {})


def test_the_page_tells_when_where_and_why_a_goal_was_missed() -> None:
    record = results.merged({}, [measured("a.x", 11)], quick=True)
    row = results.page(record, {"a.x": "the disk is slow"}).splitlines()[-1]
    assert "**no (red)**" in row
    assert "2026-11-16 at 0123456, quick, load 0.5" in row
    assert "the disk is slow" in row


def test_the_page_is_the_one_that_the_record_makes() -> None:
    assert results.PAGE.read_text() == results.page(results.read(), results.notes()), (
        "edit notes.toml or NOTES.md, never RESULTS.md; then: python -m bench.results"
    )


def test_every_missed_goal_has_its_reason() -> None:
    said = results.notes()
    record = results.read()
    last = {name: kinds.get("full") or kinds["quick"] for name, kinds in record.items()}
    missed = {name for name, each in last.items() if each["met"] is False}
    assert missed - set(said) == set()
    assert set(said) - set(record) == set()
