"""Words that no reader would search for stay out of names and out of what users read."""

from __future__ import annotations

import pytest

from tools.words import STABLE, names_left, texts_left, words_of


@pytest.mark.ci
def test_no_name_in_the_source_has_a_word_of_the_list() -> None:
    left = {word: dict(found.names) for word, found in names_left().items() if found.names}
    assert left == {}


@pytest.mark.ci
def test_nothing_that_users_read_has_a_phrase_of_the_list() -> None:
    left = {phrase: found.texts for phrase, found in texts_left().items() if found.texts}
    assert left == {}


def test_a_name_is_split_into_its_words() -> None:
    assert words_of("_set_aside") == words_of("SetAside") == ["set", "aside"]


def test_a_stable_name_has_its_reason() -> None:
    assert all(len(reason) > 10 for reason in STABLE.values())
