"""A long run of seeds goes on where it stopped, and only for the code it was begun with."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import headrace
import tests.simulation.__main__ as simulation
from tests.simulation.ledger import (
    KEPT,
    ROOT,
    Ledger,
    modules_of_a_story,
    ranges,
    state_of_the_code,
)
from tests.simulation.story import Outcome
from tests.support.children import python


@cache
def state_once() -> str:
    """Parsing all modules takes longer than a quick test may."""
    return state_of_the_code()


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """The seeds that were played, which is quick here: 13 fails, and after 20 a run breaks off."""
    found: list[int] = []

    def play(seed: int) -> Outcome:
        if seed == 20 and 20 not in found:
            found.append(seed)
            raise KeyboardInterrupt
        found.append(seed)
        return Outcome(seed, "unlucky" if seed == 13 else None, (), Counter())

    monkeypatch.setattr(simulation, "play", play)
    monkeypatch.setattr(simulation, "PLACE", tmp_path / "cache" / "simulation.json")
    monkeypatch.setattr(simulation, "state_of_the_code", state_once)
    return found


def test_a_run_that_was_interrupted_goes_on_where_it_stopped(played: list[int]) -> None:
    with pytest.raises(KeyboardInterrupt):
        simulation.main(["--seeds", "12", "--from", "14"])
    played.clear()
    played.append(20)  # it does not break off again
    assert simulation.main(["--seeds", "12", "--from", "14"]) == 0
    assert played[1:] == [20, 21, 22, 23, 24, 25]


def test_a_run_that_is_complete_is_not_played_again_unless_it_is_asked_for(
    played: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulation.main(["--seeds", "10"]) == 0
    assert simulation.main(["--seeds", "10"]) == 0
    assert "10 seeds already passed for this code" in capsys.readouterr().out
    assert played == list(range(10))
    assert simulation.main(["--seeds", "10", "--again"]) == 0
    assert played == [*range(10), *range(10)]


def test_a_seed_that_failed_is_played_again_and_the_others_are_not(played: list[int]) -> None:
    assert simulation.main(["--seeds", "16"]) == 1
    played.clear()
    assert simulation.main(["--seeds", "16"]) == 1
    assert played == [13]


def test_code_from_elsewhere_leaves_no_trace(
    played: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(headrace, "__file__", str(tmp_path / "headrace/__init__.py"))
    assert simulation.main(["--seeds", "3"]) == 0
    assert simulation.main(["--seeds", "3"]) == 0
    assert played == [0, 1, 2, 0, 1, 2]
    assert list(tmp_path.iterdir()) == []


def test_what_passed_for_other_code_counts_for_nothing(tmp_path: Path) -> None:
    place = tmp_path / "simulation.json"
    for number in range(KEPT + 2):
        ledger = Ledger(place, f"state {number}")
        assert ledger.missing([1, 2]) == [1, 2]
        ledger.passed(1)
        ledger.save()
    # The newest are remembered, and no more than that.
    assert Ledger(place, f"state {KEPT + 1}").missing([1, 2]) == [2]
    assert Ledger(place, "state 2").missing([1, 2]) == [2]
    assert Ledger(place, "state 1").missing([1, 2]) == [1, 2]


def test_a_ledger_that_cannot_be_read_is_begun_anew(tmp_path: Path) -> None:
    place = tmp_path / "simulation.json"
    place.write_text('{"state": [[1')
    ledger = Ledger(place, "state")
    assert ledger.missing([1]) == [1]
    ledger.passed(1)
    ledger.save()
    assert Ledger(place, "state").missing([1]) == []


def test_any_change_of_what_a_story_depends_on_is_another_state(tmp_path: Path) -> None:
    texts = {
        "tests/simulation/__init__.py": "",
        "tests/simulation/__main__.py": "from headrace.changelog import writer",
        "src/headrace/__init__.py": "",
        "src/headrace/changelog/__init__.py": "",
        "src/headrace/changelog/writer.py": "def write():\n    import headrace.errors",
        "src/headrace/errors.py": "",
        "requirements.lock": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    states = {state_of_the_code(tmp_path)}
    (tmp_path / "src/headrace/cli.py").write_text("import headrace")
    assert state_of_the_code(tmp_path) in states
    for name, text in texts.items():
        (tmp_path / name).write_text(f"{text}\n")
        states.add(state_of_the_code(tmp_path))
    assert len(states) == len(texts) + 1


@pytest.mark.process
def test_every_module_that_a_story_loads_is_one_of_those_it_depends_on() -> None:
    program = """
import sys
from tests.simulation.__main__ import main
main(["--seed", "1"])
print([m.__file__ for n, m in sys.modules.items() if n.startswith("headrace")])
"""
    done = python("-c", program, cwd=ROOT, check=True)
    loaded = {Path(each) for each in ast.literal_eval(done.stdout.splitlines()[-1])}
    known = {path for path in modules_of_a_story() if path.is_relative_to(ROOT / "src")}
    assert loaded <= known
    # And not simply all there are: a change of the command line makes no story another.
    assert ROOT / "src/headrace/cli/main.py" not in known


def test_seeds_are_kept_as_ranges() -> None:
    assert ranges([5, 1, 2, 3, 9, 4]) == [[1, 6], [9, 10]]
    assert ranges([]) == []
