"""Whether each mutation is one, and names a test that is run all the time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutate.ledger import Ledger
from tests.mutate.mutation import SIMULATION, Mutation, TextMissing
from tests.mutate.mutations import MUTATIONS
from tests.mutate.trying import IN_CI, IN_TEST, ROOT, SOURCE
from tests.simulation.test_simulation import SEEDS
from tests.support.patience import patience


def test_every_mutation_still_finds_its_text_and_leaves_modules_that_compile() -> None:
    wrong = {}
    for mutation in MUTATIONS:
        try:
            for path, mutated in mutation.applied(SOURCE / "headrace").items():
                compile(mutated, str(path), "exec")
                if mutated == path.read_text():
                    wrong[mutation.name] = f"{path} stays as it is"
        except (OSError, SyntaxError, TextMissing) as error:
            wrong[mutation.name] = str(error)
    assert wrong == {}


def test_a_mutation_whose_text_is_gone_says_so() -> None:
    gone = replace(MUTATIONS[0], old="nothing of the kind")
    with pytest.raises(TextMissing, match="found 0 times"):
        gone.applied(SOURCE / "headrace")


def test_mutations_have_names_of_their_own() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


def test_seeds_that_are_to_find_a_mutation_are_played_by_make_test() -> None:
    sought = (each for each in MUTATIONS if each.test == SIMULATION and not each.reason)
    assert {each.name: each.seeds for each in sought if each.seeds > SEEDS} == {}


def test_every_mutation_names_one_test() -> None:
    named = (each for each in MUTATIONS if each.test != SIMULATION)
    assert {each.name: each.test for each in named if "::" not in each.test} == {}


@pytest.mark.process
@pytest.mark.parametrize(
    ("marks", "only_ci"), [(IN_TEST, False), (IN_CI, True)], ids=["make test", ".ci/run"]
)
def test_the_tests_that_are_to_turn_red_are_there_and_run(marks: str, only_ci: bool) -> None:
    looked_at = [
        each for each in MUTATIONS if each.test != SIMULATION and bool(each.reason) == only_ci
    ]
    found = _collected(marks, {each.test for each in looked_at})
    assert {each.name: each.test for each in looked_at if each.test not in found} == {}


@pytest.mark.process
def test_mutations_say_whether_their_tests_start_a_jvm() -> None:
    named = [each for each in MUTATIONS if each.test != SIMULATION]
    # Only where it may be: collecting takes seconds.
    files = {file for each in named if (file := _file(each.test)).exists()}
    marked = {file for file in files if "spark" in file.read_text()}
    on_spark = _collected("spark", {each.test for each in named if _file(each.test) in marked})
    assert {each.name for each in named if each.spark} == {
        each.name for each in named if each.test in on_spark
    }


def _collected(marks: str, tests: Collection[str]) -> set[str]:
    """Return those tests of which pytest would run something with such markers."""
    if not tests:
        return set()
    # By files, because pytest gives up where an address is not there.
    files = sorted({_file(test) for test in tests})
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", marks),
            *("-p", "no:cacheprovider", "-p", "no:randomly"),
            *(str(file.relative_to(ROOT)) for file in files if file.exists()),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patience(300),
        check=False,
    )
    assert done.returncode in (0, 5), done.stdout + done.stderr
    return {test for test in tests if _is_among(test, done.stdout.splitlines())}


def _file(test: str) -> Path:
    return ROOT / test.partition("::")[0]


def _is_among(test: str, items: Iterable[str]) -> bool:
    return any(item == test or item.startswith((f"{test}[", f"{test}::")) for item in items)


def test_what_was_caught_is_known_until_code_mutation_or_test_changes(tmp_path: Path) -> None:
    module, test = tmp_path / "src/headrace/a.py", tmp_path / "tests/test_a.py"
    for path in (module, test):
        path.parent.mkdir(parents=True)
        path.write_text("1\n")
    path = tmp_path / "kept" / "mutate.json"
    mutation = Mutation("a", "a.py", "1", "2", test="tests/test_a.py::test_it")

    def known(each: Mutation = mutation) -> bool:
        return Ledger(path, tmp_path).find(each) is not None

    def keep() -> None:
        Ledger(path, tmp_path).keep(mutation, 1.5, "red: it failed")

    assert not known()
    keep()
    assert known()
    assert not known(replace(mutation, new="3"))
    for changed in (module, test):
        changed.write_text(changed.read_text() + "# more\n")
        assert not known()
        keep()
        assert known()
    Ledger(path, tmp_path).drop(mutation)
    assert not known()
