"""The stories of Delta tables, all run in one process with a Spark of its own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pipeline.lake.jars import need_format
from tests.pipeline.lake.stories import run_stories, stories_of

ALWAYS = (
    # Merged once though it comes twice; appended to; with a history.
    "a_batch_that_comes_again_changes_nothing",
    "every_change_is_a_row_and_a_reload_begins_with_a_truncate",
    "a_history_tells_what_was_there_when",
    # A baseline, a writer that was taken over from, another schema.
    "loaded_rows_take_the_place_of_the_table_at_the_switch",
    "a_writer_that_was_taken_over_from_has_no_effect",
    "a_column_is_added_and_the_rest_is_loaded_anew",
)
"""Told by every run: one for each way to lose or spoil rows."""

IN_CI = (
    # Twice, or too late.
    "a_commit_whose_answer_was_lost_is_not_made_twice",
    "two_writers_at_the_same_time_cannot_both_commit",
    "rows_without_a_key_are_told_once_by_a_reload_and_by_one_that_was_not_noted",
    "changes_alone_whose_switch_was_not_noted_are_told_once",
    "of_a_longer_batch_only_what_is_new_counts",
    # Others have a hand in it.
    "what_somebody_did_meanwhile_is_not_hidden_by_our_next_commit",
    "a_table_that_is_gone_is_loaded_anew",
    "a_table_that_was_removed_meanwhile_is_not_begun_with_our_next_changes",
    "a_table_of_somebody_else_is_refused_unless_it_is_adopted",
    # Rows as they must be.
    "the_last_change_of_a_key_within_a_batch_wins",
    "a_key_change_is_a_delete_and_an_insert_of_one_position",
    "a_truncate_removes_what_was_there_before_it",
    "a_truncate_that_comes_again_removes_nothing",
    "values_of_every_kind_come_back_as_they_were",
    # While it is loaded.
    "changes_are_caught_up_with_before_the_switch",
)
"""
The others run at night, the two dearest among them: a mixed workload with restarts, which
`test_rounds` has in CI, and all modes where executors prepare, which the cluster's tests have.
"""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]


def marked(name: str) -> Any:
    if name in ALWAYS:
        return name
    return pytest.param(name, marks=pytest.mark.ci if name in IN_CI else pytest.mark.nightly)


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    need_format("delta")
    # Those alone that this run is about.
    names = [
        str(item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.function is test_delta
    ]
    return run_stories("delta", tmp_path_factory.mktemp("stories"), names)


@pytest.mark.meets("R24", "S16")
@pytest.mark.parametrize("name", [marked(name) for name in sorted(stories_of("delta"))])
def test_delta(results: dict[str, str], name: str) -> None:
    assert results.get(name, "not run: the process ended before") == ""


def test_every_story_that_was_chosen_is_there() -> None:
    assert {*ALWAYS, *IN_CI} <= set(stories_of("delta"))
