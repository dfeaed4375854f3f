"""
Batches and baselines for a target that is a user's function of DataFrames.

Nothing is collected: the function has the frame, and what it does with it is its effect.
Each frame has an id, which comes again with the same rows after a crash (R25).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.changelog.log import LogBatch
from headrace.changelog.position import Position
from headrace.control.aside import Aside, Held, Segments, set_aside_in
from headrace.control.member import Member
from headrace.pipeline.batch import BatchFacts, GivesFrames, Part
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.foreach import FrameBatch, TakesFrames
from headrace.pipeline.result import Failure, Place
from headrace.storage.points import EFFECT_DONE, reach

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Giving:
    """Lets the function of one pipeline have its frames."""

    def __init__(
        self, name: str, pipeline: Pipeline, target: TakesFrames, runner: GivesFrames
    ) -> None:
        self._name = name
        self._pipeline = pipeline
        self._target = target
        self._runner = runner

    def baseline(
        self, table: str, number: int, first: Position, parts: Sequence[Part]
    ) -> list[Failure]:
        """Give a baseline's rows, in pieces; return those that cannot be computed."""
        given = before = 0

        def take(frame: DataFrame, piece: int) -> None:
            nonlocal given
            given = before + piece  # those of each part are counted from 1
            stem = f"{self._name}/{table}/baseline-{number}/{given}"
            about = FrameBatch(stem, self._name, table, first, first, number, given)
            self._target.write_frame(frame, about)
            reach(EFFECT_DONE)

        failures: list[Failure] = []
        files = 0
        for part in parts:
            found = self._runner.give_baseline(self._pipeline, part, take)
            failures += within_baseline(found, files)
            files += len(part.paths)
            before = given
        return failures

    def changes(
        self,
        member: Member,
        batch: LogBatch,
        parts: Sequence[Part],
        segments: Segments,
        held: Held,
    ) -> Aside:
        """Give one table's share of a batch; return what was set aside."""
        lineage = segments.log.lineage or ""
        aside = set_aside_in(segments, held, (), lineage) if held else Aside()
        seen = segments.known()
        if batch.first <= member.reached:
            seen |= segments.upto(member.reached)  # they are in the baseline it was given

        def behind(failures: Sequence[Failure]) -> frozenset[Place]:
            nonlocal aside
            aside = set_aside_in(segments, held, failures, lineage)
            # Before a truncate there are no letters, but the rows fail all the same.
            return seen | aside.places | {failure.place for failure in failures}

        about = FrameBatch(
            # By baseline: after a reload the same changes may come again, as others.
            f"{self._name}/{member.table}/{member.baseline}/{batch.first}/{batch.last}",
            self._name,
            member.table,
            batch.first,
            batch.last,
        )
        facts = BatchFacts.of(segments.files, batch.first, batch.last)
        facts = replace(facts, without=seen | aside.places)
        self._runner.give(
            self._pipeline,
            parts,
            facts,
            behind,
            lambda frame: self._target.write_frame(frame, about),
        )
        return aside


def within_baseline(failures: Sequence[Failure], before: int) -> list[Failure]:
    """Return failures of a part by their place in the baseline: `before` files come before it."""
    return [
        replace(failure, place=(failure.place[0] + before, failure.place[1]))
        for failure in failures
    ]
