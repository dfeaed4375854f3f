"""
The search for the rows that cannot be computed (S2), and the files that it works with.

A job that fails reports why, and not where. Where Spark can be asked which rows raise, it names
suspects in one run; otherwise the batch is halved by position until the failing rows stand alone.
Either way a row is blamed only after it failed alone: that run reports the row's own condition, and
acquits a row that was only near another. Nothing in the search depends on Spark: a job is something
that can be run over all of its rows or some of them.

A `Workspace` holds files that live as long as the work on a batch, where executors read and write
them: beside the log, on the storage that the log is on. None of them is part of what an engine has
promised to keep, so on a disk nothing is synced; every start removes what the one before it left.

A `Scratch` holds copies of segments with some of their rows. A row that is parked must not be
computed, and a condition on its position would not keep Spark from it: Spark is free in the order
of conditions. So Spark reads a copy without the row, in the segment's own form; copies are made
only of the segments concerned, and live as long as the job that reads them.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.changelog.segment import segment_bytes
from headrace.errors import HeadraceError, JobFailed, RowFailed, StorageError, TooManyFailed
from headrace.pipeline.result import OUTSIDE_TYPE, Failure, RowReference
from headrace.storage.locations import elsewhere
from headrace.storage.permissions import make_private_folder, not_written, open_private
from headrace.storage.s3 import opened

# --- the search -----------------------------------------------------------------------------------

T = TypeVar("T")
Fails: TypeAlias = Callable[[Sequence[RowReference]], str | None]
"""Runs the job over these rows alone; returns the condition it failed with, None if it ran."""


class SplittableJob(Protocol):
    """A job whose rows can be told apart."""

    def suspects(
        self, without: frozenset[RowReference], most: int
    ) -> Sequence[RowReference] | None:
        """Return at most so many rows that seem to fail; None where that cannot be told."""
        ...

    def places(self, without: frozenset[RowReference]) -> Sequence[RowReference]:
        """Return all rows but these, in order."""
        ...

    def fails(self, only: Sequence[RowReference]) -> str | None:
        """Run over these rows alone; as `Fails`."""
        ...

    def alone(self, places: Sequence[RowReference]) -> Mapping[RowReference, str]:
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
        job: SplittableJob,
        most: int,
        *,
        facts: Mapping[str, Any],
        named: Sequence[str] = ("commit", "ordinal"),
    ) -> None:
        self._job = job
        self._most = most
        self._named = named
        self._facts = facts
        self._failures: dict[RowReference, Failure] = {}
        self._acquitted: set[RowReference] = set()

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What was found, by place."""
        return tuple(self._failures[place] for place in sorted(self._failures))

    def go_on(self, job: SplittableJob) -> None:
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
        attempt: Callable[[frozenset[RowReference]], T],
        without: frozenset[RowReference] = frozenset(),
        *,
        behind: Callable[[Sequence[Failure]], frozenset[RowReference]] | None = None,
        otherwise: Callable[[RowFailed], HeadraceError] | None = None,
        after: RowFailed | None = None,
    ) -> T:
        """
        Attempt the job, leaving out what fails, until it runs; return what it gives.

        `attempt` is given the places to leave out. `behind` adds those that must go with
        the failed ones. Where the attempt fails although no row of the job does, the error
        is what `otherwise` makes of it. `after` is what a first attempt has raised already.
        """
        error = after
        while True:
            left_out = without | self._failures.keys()
            if self._failures and behind is not None:
                left_out |= behind(self.failures)
            if error is None:
                try:
                    return attempt(left_out)
                except RowFailed as failed:
                    error = failed
            # An attempt that does more than the job may have failed by itself.
            code = None if otherwise else str(error.facts.get("condition"))
            found = self._found(left_out, code)
            if not found:
                raise (otherwise or _nobody)(error) from None
            self.admit(Failure(place, code) for place, code in found.items())
            error = None

    def _found(self, without: frozenset[RowReference], code: str | None) -> dict[RowReference, str]:
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
    places: Sequence[RowReference], fails: Fails, most: int, code: str | None = None
) -> dict[RowReference, str]:
    """
    Return the first `most` rows that fail alone, with their conditions.

    `code` is what all of them together fail with, where that is known. Takes about
    2 log2(n) runs for each row that it finds.
    """
    found: dict[RowReference, str] = {}

    def search(group: Sequence[RowReference], known: str | None) -> None:
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


# --- files of a batch, for executors --------------------------------------------------------------

_FILE = ".parquet"


@dataclass(frozen=True, slots=True)
class Workspace:
    """A folder of such files, which goes to executors as it is."""

    place: str
    """A path, or `s3a://bucket/prefix`."""

    def within(self, folder: str) -> Workspace:
        """Return a folder in it."""
        return Workspace(self.path(folder))

    def path(self, name: str) -> str:
        """Return the whole path of a file, for Spark."""
        return f"{self.place}/{name}"

    @contextmanager
    def writing(self, name: str) -> Iterator[pa.NativeFile]:
        """Give what Parquet is written to; the file, named `*.parquet`, is there at the end."""
        if elsewhere(self.place):
            # An object appears as a whole; and a file here is what one task has in memory anyway.
            with pa.BufferOutputStream() as held:
                yield held
                data = held.getvalue()
            opened(self.place).put(name, data)
            return
        make_private_folder(Path(self.place))
        open_private(Path(self.path(name))).close()
        with pa.OSFile(self.path(name), "w") as file:
            yield file

    def write(self, name: str, rows: pa.Table) -> None:
        """Write a file from the driver; `StorageError` where that cannot be done, or not now."""
        try:
            with self.writing(name) as file:
                pq.write_table(rows, file, compression="zstd")
        except OSError as error:
            raise not_written(Path(self.path(name)), error) from error

    def names(self) -> list[str]:
        """Return the names of the files, without those in folders."""
        return [name for name in opened(self.place).list("") if name.endswith(_FILE)]

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            opened(self.place).remove(name)

    def remove_many(self, names: Sequence[str]) -> None:
        """Remove files, as far as they are there."""
        if names:
            opened(self.place).remove_many(names)

    def clear(self) -> None:
        """Remove all files, in folders, too; what cannot be removed stays for the next time."""
        if not elsewhere(self.place):
            shutil.rmtree(self.place, ignore_errors=True)
            return
        with suppress(StorageError):
            names = opened(self.place).list("")
            self.remove_many([name for name in names if name.endswith(_FILE)])
            for name in names:
                if not name.endswith(_FILE):
                    self.within(name).clear()


def readable(path: str) -> str | pa.NativeFile:
    """Return what `pyarrow.parquet` reads a file of the log from, or of a workspace."""
    if not elsewhere(path):
        return path
    folder, _, name = path.rpartition("/")
    return opened(folder).reader(name)


# --- copies of segments with some of their rows ---------------------------------------------------

_ORDINAL_BITS = 31


class Scratch:
    """A folder for copies, emptied at the start; a temporary one where none is given."""

    def __init__(self, folder: Workspace | None = None) -> None:
        self._folder = folder
        # Digits first: what begins with an underscore or a dot is read as empty (S15).
        self._numbers = itertools.count()
        # Where another machine's engine has taken over, the old one must not read its copies.
        self._own = secrets.token_hex(4)
        if folder is not None:
            # Not all that is there: others keep folders of their own in it.
            folder.remove_many(folder.names())

    @contextlib.contextmanager
    def copies(self) -> Iterator[SegmentCopies]:
        """Make copies meanwhile; all of them are removed at the end. From any thread."""
        made: list[str] = []
        try:
            yield SegmentCopies(self, made)
        finally:
            # What cannot be removed now is at the next start.
            with contextlib.suppress(StorageError):
                self.folder.remove_many(made)

    @property
    def folder(self) -> Workspace:
        """Where copies go."""
        folder = self._folder
        if folder is None:
            folder = self._folder = Workspace(tempfile.mkdtemp(prefix="headrace-scratch-"))
            weakref.finalize(self, folder.clear)
        return folder

    def next_name(self) -> str:
        """Return a name that no other copy has."""
        return f"{next(self._numbers):012x}-{self._own}.parquet"


class SegmentCopies:
    """Makes copies that live together."""

    def __init__(self, scratch: Scratch, made: list[str]) -> None:
        self._scratch = scratch
        self._made = made

    def without(self, paths: Sequence[str], places: Collection[RowReference]) -> list[str]:
        """Return the segments without these rows: copies of those that hold some."""
        found = []
        for path in paths:
            there = _among(_positions(path), places)
            found.append(
                self._written(_read(path).filter(pa.array(~there))) if any(there) else path
            )
        return found

    def only(self, paths: Sequence[str], places: Collection[RowReference]) -> list[str]:
        """Return segments of these rows alone; none of those that hold no such row."""
        found = []
        for path in paths:
            there = _among(_positions(path), places)
            if any(there):
                found.append(self._written(_read(path).filter(pa.array(there))))
        return found

    def numbered(self, paths: Sequence[str], first: int) -> list[str]:
        """Return copies whose positions are segment and row number, the segments from `first`."""
        found = []
        for number, path in enumerate(paths, first):
            rows = _read(path)
            for name, values in (
                ("_commit", np.full(rows.num_rows, number, np.int64)),
                ("_ordinal", np.arange(rows.num_rows, dtype=np.int32)),
            ):
                rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(values))
            found.append(self._written(rows))
        return found

    def _written(self, rows: pa.Table) -> str:
        folder, name = self._scratch.folder, self._scratch.next_name()
        self._made.append(name)
        with folder.writing(name) as file:
            file.write(segment_bytes(rows))
        return folder.path(name)


def places_in(paths: Sequence[str]) -> list[RowReference]:
    """Return where the rows of these segments stand, in order."""
    found: list[RowReference] = []
    for path in paths:
        commits, ordinals = _positions(path)
        found += zip(commits.tolist(), ordinals.tolist(), strict=True)
    return sorted(found)


def _positions(path: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    rows = _read(path, ["_commit", "_ordinal"])
    commits, ordinals = (column.to_numpy().astype(np.int64) for column in rows.columns)
    return commits, ordinals


def _read(path: str, columns: list[str] | None = None) -> pa.Table:
    try:
        with pq.ParquetFile(readable(path)) as file:
            return file.read(columns)
    except (OSError, pa.ArrowException, StorageError) as error:
        # As Spark's own failure to read it would be: the file's, and no row's.
        raise JobFailed("A segment cannot be read", file=path) from error


def _among(
    rows: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]], places: Collection[RowReference]
) -> npt.NDArray[np.bool_]:
    """Return which of the rows stand at one of these places."""
    commits, ordinals = rows
    if not places or not len(commits):
        return np.zeros(len(commits), np.bool_)
    wanted = np.array(list(places), np.int64)
    # Commits use all 63 bits; as numbers among the wanted ones they leave room for ordinals.
    known, codes = np.unique(wanted[:, 0], return_inverse=True)
    at = np.minimum(np.searchsorted(known, commits), len(known) - 1)
    keys = (at << _ORDINAL_BITS) | ordinals
    there = np.isin(keys, (codes << _ORDINAL_BITS) | wanted[:, 1])
    return np.asarray(there & (known[at] == commits), np.bool_)
