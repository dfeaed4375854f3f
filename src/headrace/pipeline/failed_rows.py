"""
The search for the rows that cannot be computed (S2), and the files that it works with.

A job that fails reports why, but not which row. If Spark can find the rows that raise, it returns
suspects in one run; otherwise the batch is halved by position until each failing row is alone.
Either way a row counts as failed only after it failed alone. That run reports the row's own error
condition, and clears a row that was only near another. Nothing in the search depends on Spark: a
job is anything that can run over all of its rows or over some of them.

A `Workspace` holds temporary files of a batch, where executors can read and write them: on the same
storage as the log. None of them has to survive a crash, so on a disk nothing is synced. Every start
removes what the previous run left.

A `Scratch` holds copies of segments with some of their rows. A parked row must not be computed. A
condition on its position would not prevent that, because Spark may evaluate conditions in any
order. So Spark reads a copy without the row, in the format of the segment. Only the segments
concerned are copied, and the copies are removed after the job that reads them.
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

from headrace.changelog.schema import CAPTURED
from headrace.changelog.segment import segment_bytes
from headrace.errors import (
    HeadraceError,
    JobFailed,
    RowFailed,
    RowRefused,
    RowsRefused,
    StorageError,
    TargetError,
    TooManyFailed,
)
from headrace.pipeline.result import OUTSIDE_TYPE, Failure, RowReference
from headrace.storage.locations import elsewhere
from headrace.storage.permissions import make_private_folder, not_written, open_private
from headrace.storage.s3 import opened

# --- the search -----------------------------------------------------------------------------------

T = TypeVar("T")
Fails: TypeAlias = Callable[[Sequence[RowReference]], str | None]
"""Runs the job over only these rows; returns the error condition, or None if it ran."""


class SplittableJob(Protocol):
    """A job that can run over some of its rows."""

    def suspects(
        self, without: frozenset[RowReference], most: int
    ) -> Sequence[RowReference] | None:
        """Return at most `most` rows that seem to fail; None if that is not known."""
        ...

    def cause(self, reference: RowReference) -> Mapping[str, str]:
        """Return the `step` and `column` of a suspect's expression; empty if not known."""
        ...

    def references(self, without: frozenset[RowReference]) -> Sequence[RowReference]:
        """Return all rows without these, in order."""
        ...

    def fails(self, only: Sequence[RowReference]) -> str | None:
        """Run over only these rows; see `Fails`."""
        ...

    def alone(self, references: Sequence[RowReference]) -> Mapping[RowReference, str]:
        """Return the condition with which each of these rows fails alone, if that is cheap."""
        ...


class Isolation:
    """
    The rows of one batch that cannot be computed, as they are found.

    Raises `TooManyFailed` if more than `most` fail; if `most` is 0, `RowFailed` for the first
    one found. `facts` are added to these errors, and `named` are the names of the two numbers
    of a row reference in them.
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
        """The failures found so far, by row reference."""
        return tuple(self._failures[reference] for reference in sorted(self._failures))

    def go_on(self, job: SplittableJob) -> None:
        """Continue with another job; failures of both are counted together."""
        self._job = job

    def admit(self, found: Iterable[Failure]) -> None:
        """Add these failures."""
        for failure in sorted(found, key=lambda failure: failure.reference):
            self._failures.setdefault(failure.reference, failure)
            if not self._most:
                raise self._stopped_at(failure)
        if len(self._failures) > self._most:
            raise TooManyFailed(
                "Too many rows of a batch cannot be computed",
                found=len(self._failures),
                limit=self._most,
                condition=self.failures[0].code,
                **self._facts,
            )

    def limit_refused(self, error: RowsRefused, table: str) -> None:
        """Raise if refused and failed rows together are more than the pipeline allows."""
        count = len(self._failures) + len(error.rows)
        limit_refused(error, count, self._most, {**self._facts, "table": table})

    def settle(
        self,
        attempt: Callable[[frozenset[RowReference]], T],
        without: frozenset[RowReference] = frozenset(),
        *,
        blocked: Callable[[Sequence[Failure]], frozenset[RowReference]] | None = None,
        otherwise: Callable[[RowFailed], HeadraceError] | None = None,
        after: RowFailed | None = None,
    ) -> T:
        """
        Run `attempt` without the failing rows until it succeeds; return its result.

        `attempt` gets the references of the rows to leave out. `blocked` returns those to leave
        out together with the failed ones. If the attempt fails although no row of the job
        fails, `otherwise` returns the error to raise. `after` is the error of a first attempt
        that the caller has already made.
        """
        error = after
        while True:
            left_out = without | self._failures.keys()
            if self._failures and blocked is not None:
                left_out |= blocked(self.failures)
            if error is None:
                try:
                    return attempt(left_out)
                except RowFailed as failed:
                    error = failed
            # An attempt that does more than the job may fail for another reason.
            code = None if otherwise else str(error.facts.get("condition"))
            found = self._found(left_out, code)
            if not found:
                raise (otherwise or _no_row_failed)(error) from None
            self.admit(
                Failure(reference, code, dict(self._job.cause(reference)))
                for reference, code in found.items()
            )
            error = None

    def _found(self, without: frozenset[RowReference], code: str | None) -> dict[RowReference, str]:
        """Return the failing rows: all of them, or one more than the limit."""
        enough = self._most + 1 - len(self._failures)
        suspects = self._job.suspects(without, enough + len(self._acquitted)) or ()
        found = {}
        references = sorted(set(suspects) - self._acquitted)
        alone = self._job.alone(references[:enough]) if references else {}
        for reference in references:
            if (own := alone.get(reference) or self._job.fails([reference])) is None:
                self._acquitted.add(reference)
            else:
                found[reference] = own
            if len(found) >= enough:
                break
        return found or halve(self._job.references(without), self._job.fails, enough, code)

    def _stopped_at(self, failure: Failure) -> RowFailed:
        where: dict[str, Any] = dict(zip(self._named, failure.reference, strict=True))
        if failure.code == OUTSIDE_TYPE:
            return RowFailed(
                f"A value does not fit the type of its column {failure.facts['column']}",
                remedy="Declare the column with a wider type at the source, or as text in the"
                " columns setting of the source, or drop it in the pipeline.",
                condition=failure.code,
                **where,
                **self._facts,
            )
        origin = ("function", "step", "column")
        named = {name: failure.facts[name] for name in origin if name in failure.facts}
        return RowFailed(
            "A row cannot be computed", condition=failure.code, **named, **where, **self._facts
        )


def limit_refused(error: RowsRefused, count: int, most: int, facts: Mapping[str, Any]) -> None:
    """Raise if a target may not refuse these rows: `count` of a batch, of which `most` may fail."""
    if not error.rows:
        raise names_no_row(**facts) from error
    if not most:
        raise RowRefused("The target refused a row", reason=error.rows[0].code, **facts) from error
    if count > most:
        raise TooManyFailed(
            "The target refused too many rows of a batch", found=count, limit=most, **facts
        ) from error


def names_no_row(**facts: Any) -> TargetError:
    """Return the error for a target that refuses rows without naming one."""
    return TargetError("The target refused rows, and named none", **facts)


def halve(
    references: Sequence[RowReference], fails: Fails, most: int, code: str | None = None
) -> dict[RowReference, str]:
    """
    Return the first `most` rows that fail alone, with their error conditions.

    `code` is the condition with which all rows together fail, if known. Takes about 2 log2(n)
    runs for each row that it finds.
    """
    found: dict[RowReference, str] = {}

    def search(group: Sequence[RowReference], known: str | None) -> None:
        """Search a group that fails, with the condition `known` if it has been run."""
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

    if references and (code is not None or (code := fails(references)) is not None):
        search(references, code)
    return found


def _no_row_failed(error: RowFailed) -> HeadraceError:
    """Return the error for a job that failed on a row, although no row fails alone."""
    failed = JobFailed("A Spark job failed on a row, but no single row fails alone")
    failed.facts = dict(error.facts)
    return failed


# --- files of a batch, for executors --------------------------------------------------------------

_FILE = ".parquet"


@dataclass(frozen=True, slots=True)
class Workspace:
    """A folder of temporary files; it is sent to executors."""

    location: str
    """A path, or `s3a://bucket/prefix`."""

    def within(self, folder: str) -> Workspace:
        """Return a folder inside this one."""
        return Workspace(self.path(folder))

    def path(self, name: str) -> str:
        """Return the full path of a file, for Spark."""
        return f"{self.location}/{name}"

    @contextmanager
    def writing(self, name: str) -> Iterator[pa.NativeFile]:
        """Open a file, named `*.parquet`, for writing; it is complete at the end."""
        if elsewhere(self.location):
            # An object is created as a whole, and one task has all of the file in memory anyway.
            with pa.BufferOutputStream() as held:
                yield held
                data = held.getvalue()
            opened(self.location).put(name, data)
            return
        make_private_folder(Path(self.location))
        open_private(Path(self.path(name))).close()
        with pa.OSFile(self.path(name), "w") as file:
            yield file

    def write(self, name: str, rows: pa.Table) -> None:
        """Write a file from the driver; raise `StorageError` if that fails."""
        try:
            with self.writing(name) as file:
                pq.write_table(rows, file, compression="zstd")
        except OSError as error:
            raise not_written(Path(self.path(name)), error) from error

    def names(self) -> list[str]:
        """Return the names of the files, without those in folders."""
        return [name for name in opened(self.location).list("") if name.endswith(_FILE)]

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with suppress(FileNotFoundError):
            opened(self.location).remove(name)

    def remove_many(self, names: Sequence[str]) -> None:
        """Remove those of these files that exist."""
        if names:
            opened(self.location).remove_many(names)

    def clear(self) -> None:
        """Remove all files and folders; what cannot be removed now is removed at the next start."""
        if not elsewhere(self.location):
            shutil.rmtree(self.location, ignore_errors=True)
            return
        with suppress(StorageError):
            names = opened(self.location).list("")
            self.remove_many([name for name in names if name.endswith(_FILE)])
            for name in names:
                if not name.endswith(_FILE):
                    self.within(name).clear()


def readable(path: str) -> str | pa.NativeFile:
    """Return a file of the log, or of a workspace, as `pyarrow.parquet` can read it."""
    if not elsewhere(path):
        return path
    folder, _, name = path.rpartition("/")
    return opened(folder).reader(name)


# --- copies of segments with some of their rows ---------------------------------------------------

_ORDINAL_BITS = 31
_POSITION = ("_commit", "_ordinal")


class Scratch:
    """A folder for copies, emptied at the start; a temporary one by default."""

    def __init__(self, folder: Workspace | None = None) -> None:
        self._folder = folder
        # Names begin with digits: Spark reads files that begin with _ or . as empty (S15).
        self._numbers = itertools.count()
        # If an engine on another machine took over, the old one must not read its copies.
        self._own = secrets.token_hex(4)
        if folder is not None:
            # Only the files: other parts have folders of their own in it.
            folder.remove_many(folder.names())

    @contextlib.contextmanager
    def copies(self) -> Iterator[SegmentCopies]:
        """Return a maker of copies, which are removed at the end. From any thread."""
        made: list[str] = []
        try:
            yield SegmentCopies(self, made)
        finally:
            # What cannot be removed now is removed at the next start.
            with contextlib.suppress(StorageError):
                self.folder.remove_many(made)

    @property
    def folder(self) -> Workspace:
        """The folder of the copies."""
        folder = self._folder
        if folder is None:
            folder = self._folder = Workspace(tempfile.mkdtemp(prefix="headrace-scratch-"))
            weakref.finalize(self, folder.clear)
        return folder

    def next_name(self) -> str:
        """Return a name that no other copy has."""
        return f"{next(self._numbers):012x}-{self._own}.parquet"


class SegmentCopies:
    """Makes copies that are removed together."""

    def __init__(self, scratch: Scratch, made: list[str]) -> None:
        self._scratch = scratch
        self._made = made

    def without(self, paths: Sequence[str], references: Collection[RowReference]) -> list[str]:
        """Return the segments without these rows; those that contain some are copied."""
        found = []
        for path in paths:
            there = _among(_positions(path), references)
            found.append(
                self._written(_read(path).filter(pa.array(~there))) if any(there) else path
            )
        return found

    def only(self, paths: Sequence[str], references: Collection[RowReference]) -> list[str]:
        """Return copies with only these rows, of the segments that contain some."""
        found = []
        for path in paths:
            there = _among(_positions(path), references)
            if any(there):
                found.append(self._written(_read(path).filter(pa.array(there))))
        return found

    def numbered(self, paths: Sequence[str], first: int) -> list[str]:
        """Return copies with segment and row numbers as positions; segments count from `first`."""
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


def rows_in(paths: Sequence[str], without: Collection[RowReference] = ()) -> pa.Table:
    """Return the rows of these segments, which have one schema, without those referenced."""
    rows = pa.concat_tables([_whole(path) for path in paths]).combine_chunks()
    if not without:
        return rows
    commits, ordinals = (rows.column(name).to_numpy().astype(np.int64) for name in _POSITION)
    return rows.filter(pa.array(~_among((commits, ordinals), without)))


def _whole(path: str) -> pa.Table:
    """Return a segment with the time of capture, which those of a copy or of before do not have."""
    rows = _read(path)
    if CAPTURED.name in rows.column_names:
        return rows
    return rows.append_column(CAPTURED, pa.nulls(rows.num_rows, CAPTURED.type))


def references_in(paths: Sequence[str]) -> list[RowReference]:
    """Return the references of the rows in these segments, in order."""
    found: list[RowReference] = []
    for path in paths:
        commits, ordinals = _positions(path)
        found += zip(commits.tolist(), ordinals.tolist(), strict=True)
    return sorted(found)


def _positions(path: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    rows = _read(path, [*_POSITION])
    commits, ordinals = (column.to_numpy().astype(np.int64) for column in rows.columns)
    return commits, ordinals


def _read(path: str, columns: list[str] | None = None) -> pa.Table:
    try:
        with pq.ParquetFile(readable(path)) as file:
            return file.read(columns)
    except (OSError, pa.ArrowException, StorageError) as error:
        # As if Spark could not read it: the file is the cause, not a row.
        raise JobFailed("A segment cannot be read", file=path) from error


def _among(
    rows: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]], references: Collection[RowReference]
) -> npt.NDArray[np.bool_]:
    """Return which of the rows are at one of these references."""
    commits, ordinals = rows
    if not references or not len(commits):
        return np.zeros(len(commits), np.bool_)
    wanted = np.array(list(references), np.int64)
    # Commits use all 63 bits. Their index among the wanted commits leaves bits for ordinals.
    known, codes = np.unique(wanted[:, 0], return_inverse=True)
    at = np.minimum(np.searchsorted(known, commits), len(known) - 1)
    keys = (at << _ORDINAL_BITS) | ordinals
    there = np.isin(keys, (codes << _ORDINAL_BITS) | wanted[:, 1])
    return np.asarray(there & (known[at] == commits), np.bool_)
