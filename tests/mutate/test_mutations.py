from __future__ import annotations

import pytest

from tests.mutate.mutations import MUTATIONS, SOURCE, Mutation, TextMissing


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_still_finds_its_text_and_leaves_a_module_that_compiles(
    mutation: Mutation,
) -> None:
    text = (SOURCE / "headrace" / mutation.module).read_text()
    mutated = mutation.applied(text)
    assert mutated != text
    compile(mutated, mutation.module, "exec")


def test_a_mutation_whose_text_is_gone_says_so() -> None:
    with pytest.raises(TextMissing, match="found 0 times"):
        MUTATIONS[0].applied("nothing of the kind")


def test_mutations_have_names_of_their_own() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
