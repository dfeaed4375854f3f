"""
How a part of the log goes to another target; see `replaying` for what that is for.

```
 plan (index alone) ─▶ baselines, where it begins with them ─▶ batches ─▶ the target shows them
```

A batch of the log is cut where the part begins and ends, and for a target that writes down
every change also where a table is emptied: a pipeline's target need not hear of rows that are
gone in the same batch, but such a target is asked for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa

from headrace.capture.source import SourceTraits
from headrace.changelog.change import Op
from headrace.changelog.entry import Baseline, File
from headrace.changelog.log import LogBatch, LogReader
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.ranges import (
    Moment,
    Span,
    after,
    before,
    places_outside,
)
from headrace.changelog.schema import TableName
from headrace.changelog.window import Window
from headrace.control.aside import Aside, Segments, baseline_letters, set_aside_in
from headrace.control.giving import within_baseline
from headrace.control.replay_plan import Replayed, ReplayProgress, ReplayTable, planned
from headrace.control.unknown import refuse_unknown
from headrace.errors import (
    CorruptSegment,
    HeadraceError,
    TooManyFailed,
)
from headrace.pipeline.batch import BatchFacts, Part, Runner
from headrace.pipeline.definition import DeadLetters, Pipeline
from headrace.pipeline.letter import NewLetter
from headrace.pipeline.parking import without
from headrace.pipeline.result import Failure, Place
from headrace.targets.target import Batch, Loading, Target

MOST_ROWS = 400_000
"""A batch's limit, as of a pipeline at work."""


class Replay:
    """One replay; for one thread. `pipeline` is its own: runners tell pipelines apart by it."""

    def __init__(
        self,
        name: str,
        pipeline: Pipeline,
        target: Target,
        log: LogReader,
        runner: Runner,
        traits: SourceTraits,
        on_progress: Callable[[ReplayProgress], None],
        most_rows: int = MOST_ROWS,
    ) -> None:
        self._name = name
        self._pipeline = pipeline
        self._target = target
        self._log = log
        self._runner = runner
        self._traits = traits
        self._on_progress = on_progress
        self._most_rows = most_rows
        self._keyed = target.traits.keyed
        self._tables: dict[TableName, ReplayTable] = {}
        self._read = self._of = (0, 0)
        """Rows of baselines and changes: read so far, and in all."""
        self._rows = self._changes = self._failed = 0

    def run(self, start: Moment | None, end: Moment | None) -> Replayed:
        """Replay what lies between the two; None stands for the baseline, and the log's end."""
        began = time.monotonic()
        plan = planned(
            self._name, self._log, self._pipeline, self._runner, self._traits, start, end
        )
        part, self._tables = plan.part, plan.tables
        self._of = (plan.rows, plan.changes)
        outputs = {name: table.output for name, table in self._tables.items()}
        self._target.check(outputs)
        self._target.open(outputs, dict.fromkeys(outputs, ORIGIN))
        numbers = [each.baseline.baseline for each in self._tables.values() if each.baseline]
        try:
            with self._log.holds.hold(f"replay of {self._name}", part.after, numbers):
                self._load(part)
                self._follow(part)
            self._show(part.last)
            counts = [self._target.row_count(name) for name in self._tables]
        except BaseException:
            self._runner.cancel(self._pipeline)
            self._discard()
            raise
        finally:
            self._target.close()
        return Replayed(
            pipeline=self._name,
            tables=tuple(self._tables),
            target=self._target,
            first=part.first,
            position=part.last,
            baseline_rows=self._rows,
            changes=self._changes,
            failed=self._failed,
            rows=None if None in counts else sum(count or 0 for count in counts),
            seconds=time.monotonic() - began,
        )

    # -- baselines ----------------------------------------------------------------------------

    def _load(self, part: Span) -> None:
        for table in self._tables.values():
            number = 0 if table.baseline is None else table.baseline.baseline
            table.loading = self._target.load(table.name, number)
            if table.baseline is not None:
                self._load_rows(table, table.baseline, table.loading)
            if table.baseline is None or not self._keyed:
                # A target with a row a key is shown when it is exact; for others all is one.
                table.loading.switch(table.since)
                table.loading = None
        self._tell(part.after)

    def _load_rows(self, table: ReplayTable, baseline: Baseline, loading: Loading) -> None:
        failures: list[Failure] = []
        before = 0
        for part in self._parts(table, baseline.files, table.since):
            for loaded in self._runner.baseline(self._pipeline, part):
                loading.write(loaded.rows)
                failures += within_baseline(loaded.failures, before)
                self._rows += loaded.rows.num_rows
                # A filter leaves rows out: what was read is not known before all of it was.
                self._read = (self._rows, 0)
                self._tell(table.since)
            before += len(part.paths)
        self._read = (self._of[0], 0)
        number = baseline.baseline
        self._hold(
            table, baseline_letters(self._log, baseline.files, failures, number, table.since)
        )

    def _show(self, at: Position) -> None:
        for table in self._tables.values():
            if table.loading is not None:
                table.loading.switch(at)
                table.loading = None

    def _discard(self) -> None:
        for table in self._tables.values():
            if table.loading is not None:
                with suppress(HeadraceError):
                    table.loading.discard()

    # -- changes ------------------------------------------------------------------------------

    def _follow(self, part: Span) -> None:
        for batch in self._batches(part):
            segments = {
                name: Segments(self._log, batch.epoch, batch.files_of(name), self._window(table))
                for name, table in self._tables.items()
            }
            for piece, emptied in self._pieces(batch, segments, part):
                self._give(batch, segments, piece)
                if emptied:
                    self._empty(batch.epoch, after(piece.last), emptied)
            self._read = (self._read[0], self._read[1] + batch.rows)
            self._tell(min(batch.last, part.last))

    def _batches(self, part: Span) -> Iterator[LogBatch]:
        """Yield the batches of the log that lie in a part, or reach into it."""
        at = part.after
        names = list(self._tables)
        while at < part.last:
            batch = self._log.next_batch(names, at, self._most_rows, upto=part.last)
            if batch is None:
                batch = self._log.next_batch(names, at, 1)  # one that reaches over the end
                if batch is None or batch.first > part.last:
                    return
            if batch.files:
                yield batch
            at = batch.last

    def _window(self, table: ReplayTable) -> Window | None:
        """Return in which commits the baseline's rows are ahead, where that must not show (R11)."""
        if self._keyed or table.baseline is None:
            return None
        return self._log.window(table.name, table.baseline.baseline)

    def _pieces(
        self, batch: LogBatch, segments: Mapping[TableName, Segments], part: Span
    ) -> Iterator[tuple[Span, list[TableName]]]:
        """Yield the parts of a batch, each with the tables that are emptied right behind it."""
        first, last = max(batch.first, part.first), min(batch.last, part.last)
        if not self._keyed and batch.has_truncates:
            ends: dict[Position, list[TableName]] = {}
            for name, table in self._tables.items():
                for at in _truncates(segments[name]):
                    if at > table.since and first <= at <= last:
                        ends.setdefault(at, []).append(name)
            for at, emptied in sorted(ends.items()):
                yield Span(first, before(at)), emptied
                first = after(at)
        yield Span(first, last), []

    def _give(self, batch: LogBatch, segments: Mapping[TableName, Segments], piece: Span) -> None:
        rows: dict[TableName, pa.Table] = {}
        truncates: dict[TableName, Position] = {}
        for name, table in self._tables.items():
            rows[name], emptied = self._computed(table, batch, segments[name], piece)
            if emptied is not None:
                truncates[name] = emptied
                table.emptied(emptied)
            self._changes += rows[name].num_rows
        made = Batch(
            id=f"{self._name}/replay/{piece.first}/{piece.last}",
            epoch=batch.epoch,
            first=piece.first,
            last=piece.last,
            tables=rows,
            truncates=truncates,
        )
        loading = [table for table in self._tables.values() if table.loading is not None]
        for table in loading:
            assert table.loading is not None
            name = table.name
            own = {name: truncates[name]} if name in truncates else {}
            table.loading.catch_up(replace(made, tables={name: rows[name]}, truncates=own))
        if not loading:
            self._target.write(made)

    def _empty(self, epoch: int, at: Position, emptied: Sequence[TableName]) -> None:
        """Tell a target that writes down every change of one that empties tables."""
        for name in emptied:
            self._tables[name].emptied(at)
        self._target.write(
            Batch(
                id=f"{self._name}/replay/{at}",
                epoch=epoch,
                first=at,
                last=at,
                tables={name: self._tables[name].nothing for name in emptied},
                truncates=dict.fromkeys(emptied, at),
            )
        )

    def _computed(
        self, table: ReplayTable, batch: LogBatch, segments: Segments, piece: Span
    ) -> tuple[pa.Table, Position | None]:
        files = segments.files
        wanted = Span(max(piece.first, after(table.since)), piece.last)
        # Verified before any of it is read, so that a damaged one is named with its place.
        parts = self._parts(table, files, max(batch.first, wanted.first))
        out = set(segments.known())
        if batch.first < wanted.first or batch.last > wanted.last:
            for _, rows in segments.read():
                out.update(places_outside(rows, batch.epoch, wanted))
        if len(out) >= sum(file.rows for file in files):
            return table.nothing, None
        lineage = self._log.lineage or ""
        aside = set_aside_in(segments, table.held, (), lineage) if table.held else Aside()
        facts = BatchFacts.of(files, batch.first, batch.last)
        facts = replace(facts, without=frozenset(out) | aside.places)
        result = self._runner.rows(self._pipeline, parts, facts)
        found = result.rows
        if result.failures:
            aside = set_aside_in(segments, table.held, result.failures, lineage)
            found = without(found, aside.places)
        letters = [each for each in aside.letters if _place(each.position) not in out]
        # One that a truncate made history has no letter, and failed all the same.
        known = {_place(each.position) for each in letters}
        self._failed += sum(failure.place not in known for failure in result.failures)
        self._hold(table, letters)
        emptied = None if result.truncate is None else Position(batch.epoch, *result.truncate)
        return found, emptied

    def _hold(self, table: ReplayTable, letters: Sequence[NewLetter]) -> None:
        """Leave out what follows these by key, unless they are more than the pipeline allows."""
        self._failed += len(letters)
        for letter in letters:
            for key in letter.keys:
                table.held[key] = min(letter.position, table.held.get(key, letter.position))
        policy = self._pipeline.on_error
        limit = policy.max_keys if isinstance(policy, DeadLetters) else 0
        held = sum(len(each.held) for each in self._tables.values())
        if held > limit:
            raise TooManyFailed(
                f"{held} rows cannot be computed, and {limit} are allowed",
                pipeline=self._name,
                keys=held,
                limit=limit,
            )

    def _parts(self, table: ReplayTable, files: Sequence[File], at: Position) -> list[Part]:
        """Return the files by schema version, each looked at before it is computed from."""
        by_schema: dict[int, list[File]] = {}
        for file in files:
            try:
                self._log.verify(file)
            except CorruptSegment as error:
                error.facts = {**error.facts, "table": file.table, "position": str(at)}
                raise
            refuse_unknown(self._log, file, self._runner, self._pipeline, table.schema)
            by_schema.setdefault(file.schema, []).append(file)
        return [
            Part(
                self._log.schema(table.name, schema_id),
                tuple(self._log.path(file) for file in listed),
                tuple(file.rows for file in listed),
                sum(file.marked for file in listed),
                table.schema,
                tuple(file.bytes for file in listed),
            )
            for schema_id, listed in by_schema.items()
        ]

    def _tell(self, position: Position) -> None:
        (rows, changes), (of_rows, of_changes) = self._read, self._of
        self._on_progress(ReplayProgress(rows, of_rows, changes, of_changes, position))


def _truncates(segments: Segments) -> list[Position]:
    """Return where a table was emptied."""
    if not any(file.truncates for file in segments.files):
        return []
    return [
        Position(
            segments.epoch, rows["_commit"][int(at)].as_py(), rows["_ordinal"][int(at)].as_py()
        )
        for _, rows in segments.read()
        for at in np.flatnonzero(rows["_op"].to_numpy() == Op.TRUNCATE)
    ]


def _place(position: Position) -> Place:
    return position.commit, position.ordinal
