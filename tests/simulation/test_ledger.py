"""A long run of seeds goes on where it stopped, and only for the code it was begun with."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import headrace
import tests.simulation.__main__ as simulation
from tests.simulation.ledger import CODE, KEPT, Ledger, ranges, state_of_the_code
from tests.simulation.story import Outcome


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
    for name in CODE:
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.suffix:
            place.write_text("a")
        else:
            place.mkdir(parents=True)
            (place / "module.py").write_text("a")
    states = {state_of_the_code(tmp_path)}
    assert state_of_the_code(tmp_path) in states
    for name in CODE:
        place = tmp_path / name
        (place if place.suffix else place / "module.py").write_text("b")
        states.add(state_of_the_code(tmp_path))
    (tmp_path / CODE[0] / "another.py").touch()
    states.add(state_of_the_code(tmp_path))
    assert len(states) == len(CODE) + 2


def test_seeds_are_kept_as_ranges() -> None:
    assert ranges([5, 1, 2, 3, 9, 4]) == [[1, 6], [9, 10]]
    assert ranges([]) == []
