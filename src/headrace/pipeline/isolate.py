"""
Finding the rows that cannot be computed (S2).

A job that fails tells why, and not where. Where Spark can be asked which rows raise, it
names suspects in one run; else the batch is halved by position until the failing rows stand
alone. Either way a row is blamed only after it failed alone: that run tells its own
condition, and acquits a row that was only near another.

Nothing here knows Spark: a job is what can be attempted, and tried over some of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from headrace.errors import HeadraceError, JobFailed, RowFailed, TooManyFailed
from headrace.pipeline.result import OUTSIDE_TYPE, Failure, Place

T = TypeVar("T")
Fails: TypeAlias = Callable[[Sequence[Place]], str | None]
"""Runs the job over these rows alone; returns the condition it failed with, None if it ran."""


class Tried(Protocol):
    """A job whose rows can be told apart."""

    def suspects(self, without: frozenset[Place], most: int) -> Sequence[Place] | None:
        """Return at most so many rows that seem to fail; None where that cannot be told."""
        ...

    def places(self, without: frozenset[Place]) -> Sequence[Place]:
        """Return all rows but these, in order."""
        ...

    def fails(self, only: Sequence[Place]) -> str | None:
        """Run over these rows alone; as `Fails`."""
        ...

    def alone(self, places: Sequence[Place]) -> Mapping[Place, str]:
        """Return what each of these rows fails with by itself, where that can be told cheaply."""
        ...


class Isolation:
    """
    The rows of one batch that cannot be computed, as they are found.

    Raises `TooManyFailed` with the first one beyond `most`; with `most` 0, `RowFailed` of
    the first one found. `facts` go into these errors, and `named` is what the two numbers of
    a place are called in them.
    """

    def __init__(
        self,
        job: Tried,
        most: int,
        *,
        facts: Mapping[str, Any],
        named: Sequence[str] = ("commit", "ordinal"),
    ) -> None:
        self._job = job
        self._most = most
        self._named = named
        self._facts = facts
        self._failures: dict[Place, Failure] = {}
        self._acquitted: set[Place] = set()

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What was found, by place."""
        return tuple(self._failures[place] for place in sorted(self._failures))

    def go_on(self, job: Tried) -> None:
        """Look at another job next; what was found counts together."""
        self._job = job

    def admit(self, found: Iterable[Failure]) -> None:
        """Count these rows as failed, too."""
        for failure in sorted(found, key=lambda failure: failure.place):
            self._failures.setdefault(failure.place, failure)
            if not self._most:
                raise self._stopped_at(failure)
        if len(self._failures) > self._most:
            raise TooManyFailed(
                "More rows of a batch cannot be computed than is allowed",
                found=len(self._failures),
                limit=self._most,
                condition=self.failures[0].code,
                **self._facts,
            )

    def settle(
        self,
        attempt: Callable[[frozenset[Place]], T],
        without: frozenset[Place] = frozenset(),
        *,
        behind: Callable[[Sequence[Failure]], frozenset[Place]] | None = None,
        otherwise: Callable[[RowFailed], HeadraceError] | None = None,
    ) -> T:
        """
        Attempt the job, leaving out what fails, until it runs; return what it gives.

        `attempt` is given the places to leave out. `behind` adds those that must go with
        the failed ones. Where the attempt fails although no row of the job does, the error
        is what `otherwise` makes of it.
        """
        while True:
            left_out = without | self._failures.keys()
            if self._failures and behind is not None:
                left_out |= behind(self.failures)
            try:
                return attempt(left_out)
            except RowFailed as error:
                # An attempt that does more than the job may have failed by itself.
                code = None if otherwise else str(error.facts.get("condition"))
                found = self._found(left_out, code)
                if not found:
                    raise (otherwise or _nobody)(error) from None
                self.admit(Failure(place, code) for place, code in found.items())

    def _found(self, without: frozenset[Place], code: str | None) -> dict[Place, str]:
        """Return rows that fail, by place: all, or one more than may fail."""
        enough = self._most + 1 - len(self._failures)
        suspects = self._job.suspects(without, enough + len(self._acquitted)) or ()
        found = {}
        places = sorted(set(suspects) - self._acquitted)
        told = self._job.alone(places[:enough]) if places else {}
        for place in places:
            if (own := told.get(place) or self._job.fails([place])) is None:
                self._acquitted.add(place)
            else:
                found[place] = own
            if len(found) >= enough:
                break
        return found or halve(self._job.places(without), self._job.fails, enough, code)

    def _stopped_at(self, failure: Failure) -> RowFailed:
        where: dict[str, Any] = dict(zip(self._named, failure.place, strict=True))
        if failure.code == OUTSIDE_TYPE:
            return RowFailed(
                f"A value does not fit the type of its column {failure.facts['column']}",
                remedy="Declare the column with a wider type at the source, or as text"
                " in the source's columns, or leave it out of the pipeline.",
                condition=failure.code,
                **where,
                **self._facts,
            )
        named = {"function": failure.facts["function"]} if "function" in failure.facts else {}
        return RowFailed(
            "A row cannot be computed", condition=failure.code, **named, **where, **self._facts
        )


def halve(
    places: Sequence[Place], fails: Fails, most: int, code: str | None = None
) -> dict[Place, str]:
    """
    Return the first `most` rows that fail alone, with their conditions.

    `code` is what all of them together fail with, where that is known. Takes about
    2 log2(n) runs for each row that it finds.
    """
    found: dict[Place, str] = {}

    def search(group: Sequence[Place], known: str | None) -> None:
        """Look in a group that fails, `known` with what; or that must, as its other half ran."""
        if len(found) >= most:
            return
        if len(group) == 1:
            if (own := known or fails(group)) is not None:
                found[group[0]] = own
            return
        left, right = group[: len(group) // 2], group[len(group) // 2 :]
        if (of_left := fails(left)) is None:
            search(right, None)
            return
        search(left, of_left)
        if len(found) < most and (of_right := fails(right)) is not None:
            search(right, of_right)

    if places and (code is not None or (code := fails(places)) is not None):
        search(places, code)
    return found


def _nobody(error: RowFailed) -> HeadraceError:
    """Return the error of a job that failed on a row, and on none of them alone."""
    told = JobFailed("A Spark job failed on a row, and no row fails alone")
    told.facts = dict(error.facts)
    return told
