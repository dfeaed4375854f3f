from __future__ import annotations

from dataclasses import replace

import pytest

from tests.mutate.__main__ import ROOT, SOURCE
from tests.mutate.mutation import SIMULATION, Mutation, TextMissing
from tests.mutate.mutations import MUTATIONS


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_still_finds_its_text_and_leaves_a_module_that_compiles(
    mutation: Mutation,
) -> None:
    for path, mutated in mutation.applied(SOURCE / "headrace").items():
        assert mutated != path.read_text()
        compile(mutated, str(path), "exec")


def test_a_mutation_whose_text_is_gone_says_so() -> None:
    gone = replace(MUTATIONS[0], old="nothing of the kind")
    with pytest.raises(TextMissing, match="found 0 times"):
        gone.applied(SOURCE / "headrace")


def test_mutations_have_names_of_their_own() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


def test_the_tests_that_are_to_turn_red_are_there() -> None:
    tests = {mutation.test for mutation in MUTATIONS} - {SIMULATION}
    assert [test for test in tests if not (ROOT / test.partition("::")[0]).exists()] == []
