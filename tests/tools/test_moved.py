"""No test gets lost while tests are renamed, merged and moved: the tool that looks after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.moved import BEFORE, HEADER, MOVED, Move, collected, listed, main, moves, problems, read

A, B, C = "tests/a.py::test_one", "tests/b.py::test_two", "tests/c.py::TestMany::test_three"


@pytest.mark.ci
@pytest.mark.process
def test_every_test_of_before_is_there_or_accounted_for() -> None:
    assert [*problems(listed(read(BEFORE)), collected(), moves(read(MOVED)))] == []


def test_the_table_names_tests_that_were_and_gives_reasons() -> None:
    before, moved = listed(read(BEFORE)), moves(read(MOVED))
    assert len(before) > 10_000
    assert read(MOVED).startswith(HEADER)
    assert [*problems(before, [*before, *(move.new for move in moved)], moved)] == []


def test_the_list_of_before_names_nothing_of_one_machine() -> None:
    text = read(BEFORE)
    assert text.isascii()
    assert "/tmp/" not in text
    assert len({*listed(text)}) == len(text.splitlines())


def found(before: list[str], now: list[str], *table: tuple[str, str, str]) -> list[str]:
    return [*problems(before, now, [Move(*line) for line in table])]


def test_a_test_that_has_gone_is_named() -> None:
    assert found([A, B], [B]) == [f"gone: {A}"]
    assert found([A, B], [A, B, C]) == []


def test_a_test_that_was_moved_is_accounted_for() -> None:
    assert found([A], [B], (A, B, "a better name")) == []
    assert found([f"{A}[1]", f"{A}[2]"], [B], (f"{A}[1]", B, "")) == [f"gone: {A}[2]"]


def test_a_function_stands_for_all_its_parameters() -> None:
    assert found([f"{A}[1]", f"{A}[x[y]::z]"], [A], (A, A, "one test lists all")) == []
    assert found([f"{A}[1]"], [A]) == [f"gone: {A}[1]"]
    assert found([f"{A}[1]", f"{A}[2]"], [f"{A}[2]", f"{C}[3]"], (A, C, "")) == []


def test_a_file_stands_for_all_tests_of_the_same_names() -> None:
    before = [C, "tests/c.py::test_four[4]"]
    now = [test.replace("/c.py", "/other/d.py") for test in before]
    line = ("tests/c.py", "tests/other/d.py", "its subject moved")
    assert found(before, now, line) == []
    assert found(before, now[:1], line) == [f"gone: {before[1]}"]


def test_what_was_moved_may_be_moved_again() -> None:
    assert found([f"{A}[1]"], [C], (A, B, ""), (B, C, "")) == []
    again = "tests/b.py::test_one"
    assert found([A], [f"{C}[1]"], ("tests/a.py", "tests/b.py", ""), (again, C, "")) == []


def test_a_circle_leads_nowhere() -> None:
    told = found([A], [], (A, B, ""), (B, A, ""))
    assert f"gone: {A}" in told
    assert found([f"{A}[1]"], [], (A, A, ""))[0] == f"gone: {A}[1]"


def test_a_test_that_became_several_needs_all_of_them() -> None:
    assert found([A], [B, C], (A, B, ""), (A, C, "")) == []
    assert f"gone: {A}" in found([A], [B], (A, B, ""), (A, C, ""))


def test_a_test_may_be_dropped_for_a_reason_only() -> None:
    assert found([f"{A}[1]"], [], (A, "dropped", "measured by the bench")) == []
    assert found([A], [], (A, "dropped", " ")) == [f"dropped without a reason: {A}"]


def test_a_line_that_is_wrong_is_told() -> None:
    assert found([A], [A], (B, A, "")) == [f"there was no such test: {B}"]
    assert f"there is no such test: {C}, for {A}" in found([A], [B], (A, C, ""))
    with pytest.raises(SystemExit, match="line 2 has 2 cells"):
        moves(f"{HEADER}\n{A}\t{B}\n")


def test_what_pytest_prints_besides_ids_is_passed_over() -> None:
    assert listed(f"{A}\n{A}[a b]\n\n2 tests collected in 1 s\n") == [A, f"{A}[a b]"]


def test_the_command_ends_with_1_when_a_test_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, now, one, other = (tmp_path / name for name in ("before", "now", "one", "other"))
    before.write_text(f"{A}\n{B}\n")
    now.write_text(f"{C}\n")
    one.write_text(f"{HEADER}\n{A}\t{C}\tmerged\n")
    other.write_text(f"{B}\t{C}\tmerged\n")
    usual = ["--before", str(before), "--now", str(now), "--moved", str(one)]
    assert main([*usual, str(other)]) == 0
    assert capsys.readouterr().out.endswith("2 tests before, 1 now, 2 moves: 0 problems\n")
    assert main(usual) == 1
    assert capsys.readouterr().out.startswith(f"gone: {B}\n")
