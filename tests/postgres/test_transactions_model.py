"""Whatever a server sends, what comes out is what a reader of single rows finds."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture.postgres.decode import rows as images
from headrace.capture.postgres.stream import spill, transactions
from headrace.capture.postgres.stream.spill import Spill
from headrace.changelog.change import Changes
from tests.postgres.naive import History, Naive, cut, made, rows, taken
from tests.support.tiers import examples


def _agrees(seed: int, folder: Path | None) -> None:
    source = random.Random(seed)
    history = History(source).run(source.randint(1, 60))
    after = source.choice([0, 0, *history.commits])
    around = 2**32 + source.randint(-50, 50)
    naive = Naive(after, around)
    for message in history.messages:
        naive.take(message)
    small = Spill(folder, memory_limit=source.choice([0, 200, 16 << 20]))
    ours = made(after=after, around=around, spill=small)
    found: list[Changes] = []
    for part in cut(source, history.messages):
        found += taken(ours, part)
    assert rows(found) == sorted(
        naive.found, key=lambda it: (it[2]["_commit"], it[2]["_ordinal"], it[0])
    )
    assert [end for end, _ in ours.committed.pairs()] == history.commits
    assert ours.dropped == sum(end <= after for end in history.commits)
    for table in (table for each in found for table in each.tables):
        assert table.rows.schema.equals(table.schema.segment, check_metadata=True)
        table.rows.validate(full=True)
        commits, ordinals = (table.rows[name].to_pylist() for name in ("_commit", "_ordinal"))
        places = list(zip(commits, ordinals, strict=True))
        assert places == sorted(places)
    reached = after
    for each in found:
        assert each.upto.commit > reached if each.ends else each.upto.commit == reached
        reached = each.upto.commit


@given(seed=st.integers(0, 2**32))
@examples(60)
@pytest.mark.meets("R3", "R5", "R6", "R9", "R21", "R23d")
def test_changes_are_those_that_a_reader_of_single_rows_finds(seed: int) -> None:
    _agrees(seed, None)


@given(seed=st.integers(0, 2**32))
@examples(60)
@pytest.mark.meets("R5", "R6", "R9")
@pytest.mark.slow
def test_they_are_the_same_however_small_the_parts_they_are_read_in(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    sizes = random.Random(seed)
    with ExitStack() as patches:
        for module, name in (
            (transactions, "PIECE_MESSAGES"),
            (transactions, "PART_MESSAGES"),
            (transactions, "TAIL_BYTES"),
            (spill, "PART_MESSAGES"),
            (spill, "PART_BYTES"),
            (images, "CHUNK_ROWS"),
            (images, "CHUNK_BYTES"),
        ):
            patches.enter_context(patch.object(module, name, sizes.choice([1, 2, 5, 100])))
        _agrees(seed, tmp_path_factory.mktemp("scratch"))
