"""
The commands that a running engine takes, without any transport.

A verb takes the fields of a request and returns those of an answer, or a stream of answers; it
raises our errors. Every transport, a local socket or a network service, mounts the same verbs.

The verb `Apply` applies an edited configuration to a running engine: see `ApplyVerb`.

Long because the requests and answers of all verbs are one interface.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from headrace.api import table_reads
from headrace.api.messages import Rates, health_fields, pipeline_fields, source_fields
from headrace.api.table_reads import columns_shown
from headrace.config.schema import nearest
from headrace.engine.health import sentence
from headrace.errors import (
    BadPosition,
    BadRequest,
    InvalidConfiguration,
    NotRunning,
    Outdated,
    StorageError,
    UnknownPipeline,
)
from headrace.observe.metrics import json_fields, prometheus_text

if TYPE_CHECKING:
    from headrace.changelog.position import Position
    from headrace.deadletters.ledger import Purged
    from headrace.deadletters.letter import DeadLetter
    from headrace.engine.apply_config import ConfigPlan
    from headrace.engine.engine import Engine
    from headrace.engine.from_config import EngineConfig
    from headrace.runtime.corrections import ReplayOutcome
    from headrace.runtime.info import PipelineInfo
    from headrace.storage.records import Records


# --- the verbs of an engine -----------------------------------------------------------------------

_HUMP = re.compile(r"(?<=[a-z0-9])[A-Z]")


class AnswerStream(Protocol):
    """A sequence of answers; `close`, from any thread, ends it."""

    def __iter__(self) -> Iterator[Mapping[str, Any]]: ...
    def close(self) -> None: ...


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a request; unknown fields are refused."""


class EmptyRequest(Request, frozen=True):
    """A request without fields."""


class MetricsRequest(Request, frozen=True):
    """Metrics as Prometheus' text, or as fields; with `compat`, also under Laredo's names."""

    compat: bool = False
    fields: bool = False


class OfPipelines(Request, frozen=True):
    """Which pipelines: one, those of a source, or all if neither is given."""

    pipeline: str | None = None
    source: str | None = None


class OfPipeline(Request, frozen=True):
    """Which pipeline."""

    pipeline: str


class OfSource(Request, frozen=True):
    """Which source."""

    source: str


class Reload(OfPipelines, frozen=True):
    """
    Which tables to copy again: those of a pipeline, of a source, or all; or one of them. How long
    to wait for it.
    """

    table: str | None = None
    wait_seconds: float = 0.0


class PurgeRequest(OfPipeline, frozen=True):
    """Which dead letters to purge; with `dry_run`, none is."""

    table: str | None = None
    code: str | None = None
    before: str | None = None
    """A position, or a time with an offset from UTC."""

    position: str | None = None
    key: list[Any] | None = None
    """The key of the row, as `DeadLetters` shows it: rows of one copy have the same position."""

    note: str = ""
    dry_run: bool = False


class DeadLetterReplay(PurgeRequest, frozen=True):
    """Which dead letters to apply; with `values`, one of them with other values in its row."""

    values: dict[str, Any] | None = None
    """New values by column, as JSON or as text; they are read by the column's type."""

    wait_seconds: float = 60.0


class ResetRequest(OfSource, frozen=True):
    """Which source; with `dry_run`, nothing is reset. How long to wait until it is ready."""

    drop_publication: bool = False
    dry_run: bool = False
    wait_seconds: float = 0.0


class Query(OfPipeline, frozen=True):
    """
    Which rows: by key, by lookup or by index, at most `limit` of them; with none of the three, the
    number of rows.
    """

    table: str | None = None
    key: list[Any] | None = None
    lookup: list[Any] | None = None
    index: str | None = None
    values: list[Any] = msgspec.field(default_factory=list)
    limit: int | None = None


class AllRows(OfPipeline, frozen=True):
    """The rows of a table, at most `limit`."""

    table: str | None = None
    limit: int | None = None


class WatchRequest(OfPipeline, frozen=True):
    """The changes of a table from now on; with `rows`, after its current rows."""

    table: str | None = None
    rows: bool = False


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb: the type of its request, and the function that answers."""

    request: type[Request]
    call: Callable[[Any], Any]

    def __call__(self, fields: Mapping[str, Any]) -> Any:
        """Check the fields, and return the answer."""
        named = {_HUMP.sub(lambda hump: f"_{hump[0].lower()}", k): v for k, v in fields.items()}
        try:
            asked = msgspec.convert(named, self.request)
        except msgspec.ValidationError as error:
            # Its text names fields and types, never values.
            raise BadRequest(f"Invalid request: {error}") from None
        return self.call(asked)


class ControlService:
    """
    The verbs of one engine. Safe to call from several threads.

    `phase` is `starting`, `running` or `stopping`, and `step` is the last step of the start; the
    caller that runs the engine sets them. Further verbs can be added to `unary` and `streams`.
    """

    def __init__(self, engine: Engine, *, service: str = "", phase: str = "running") -> None:
        self._engine = engine
        self.service = service
        self._since = time.time()
        self._turn = threading.Lock()
        self.phase = phase
        self.step = ""
        self.server: Callable[[], Mapping[str, Any]] | None = None
        self.audited: Callable[[str, bytes, str], None] = lambda verb, body, outcome: None
        """Records a verb from the local socket, with its request and `ok` or an error's code."""
        """Returns what a status says of the engine's server, if it has one."""

        self.rates = Rates(lambda: ((info.name, info.changes) for info in self.pipelines()))
        self.unary: dict[str, Verb] = {
            "Status": Verb(EmptyRequest, self._status),
            "Health": Verb(EmptyRequest, self._health),
            "Metrics": Verb(MetricsRequest, self._metrics),
            "Query": Verb(Query, self._query),
            "Pause": Verb(OfPipelines, self._pause),
            "Resume": Verb(OfPipelines, self._resume),
            "Reload": Verb(Reload, self._reload),
            "Reset": Verb(ResetRequest, self._reset),
            "Explain": Verb(OfPipeline, self._explain),
            "Log": Verb(OfSource, self._log),
            "PurgeDeadLetters": Verb(PurgeRequest, self._purge_dead_letters),
            "ReplayDeadLetters": Verb(DeadLetterReplay, self._replay_dead_letters),
        }
        self.streams: dict[str, Verb] = {
            "Rows": Verb(AllRows, self._rows),
            "Watch": Verb(WatchRequest, self._watch),
            "DeadLetterRecords": Verb(OfPipeline, self._dead_letter_records),
        }
        # Imported here: it needs the types above.
        from headrace.api.inspection import Inspection

        self.inspection = seen = Inspection(engine, self.pipeline)
        self.unary |= seen.unary
        self.streams |= seen.streams

    def _status(self, _asked: EmptyRequest) -> dict[str, Any]:
        engine = self._engine
        # Read before and after: an engine that becomes ready in between would be shown as ready
        # with the rows from before.
        ready = self.phase == "running" and engine.is_ready()
        rates = self.rates.look()
        sources = {info.name: info for info in engine.sources()}
        pipelines = [
            pipeline_fields(
                info,
                sources.get(info.source),
                ready=engine.is_ready(pipeline=info.name),
                rate=rates.get(info.name),
            )
            for info in self.pipelines()
        ]
        return {
            "service": self.service,
            "pid": os.getpid(),
            "seconds": round(time.time() - self._since, 3),
            "phase": self.phase,
            "step": self.step,
            "ready": ready and engine.is_ready(),
            "spark_down_seconds": engine.spark_down_seconds(),
            "observers": [asdict(info) for info in engine.observers()],
            "server": None if self.server is None else dict(self.server()),
            "sources": [source_fields(info) for info in sources.values()],
            "pipelines": pipelines,
        }

    def _health(self, _asked: EmptyRequest) -> dict[str, Any]:
        found = health_fields(self._engine.health())
        return {"phase": self.phase, "step": self.step, "pid": os.getpid(), **found}

    def _metrics(self, asked: MetricsRequest) -> dict[str, Any]:
        metrics = self._engine.metrics(compat=asked.compat)
        if asked.fields:
            return {"metrics": [json_fields(metric) for metric in metrics]}
        return {"text": prometheus_text(metrics)}

    def _query(self, asked: Query) -> dict[str, Any]:
        info = self.pipeline(asked.pipeline)
        name, table = table_reads.table_of(info.name, self._engine.target(info.name), asked.table)
        answer: dict[str, Any] = {
            "table": name,
            "position": table_reads.position_of(table),
            **self._truth(info),
        }
        if asked.key is None and asked.lookup is None and asked.index is None:
            return {**answer, "count": table.count()}
        rows = table_reads.found(
            table,
            key=asked.key,
            lookup=asked.lookup,
            index=asked.index,
            values=asked.values,
            limit=asked.limit,
        )
        return {**answer, "columns": columns_shown(table.schema), "rows": rows}

    def _rows(self, asked: AllRows) -> AnswerStream:
        info = self.pipeline(asked.pipeline)
        if asked.limit is not None and asked.limit < 0:
            raise BadRequest("The limit must not be negative")
        _, table = table_reads.table_of(info.name, self._engine.target(info.name), asked.table)
        return _Begun(self._truth(info), table_reads.RowStream(table, asked.limit))

    def _watch(self, asked: WatchRequest) -> AnswerStream:
        info = self.pipeline(asked.pipeline)
        _, table = table_reads.table_of(info.name, self._engine.target(info.name), asked.table)
        return _Begun(self._truth(info), table_reads.ChangeStream(table, rows=asked.rows))

    def _pause(self, asked: OfPipelines) -> dict[str, Any]:
        self._running()
        if not (chosen := self._chosen(asked)):
            raise UnknownPipeline(
                f"Source {asked.source} has no pipeline",
                sources=sorted({info.source for info in self.pipelines()}),
            )
        # One at a time: two concurrent requests could leave some pipelines paused and some not.
        with self._turn:
            self._engine.pause(asked.pipeline, source=asked.source)
        return self._as_they_are(chosen)

    def _resume(self, asked: OfPipelines) -> dict[str, Any]:
        if self.phase == "starting":
            self._running()
        chosen = self._chosen(asked)
        with self._turn:
            failed = {each.name for each in self._engine.sources() if each.state == "failed"}
            self._engine.resume(asked.pipeline, source=asked.source)
        # Sources, too: what a source does not record reaches none of its pipelines.
        concerned = {info.source for info in self.pipelines() if info.name in chosen}
        concerned |= {each.name for each in self._engine.sources() if asked.pipeline is None}
        concerned &= {asked.source} if asked.source is not None else concerned
        return self._as_they_are(chosen) | {
            "sources": [
                {name: fields[name] for name in ("name", "state", "reason", "error")}
                for fields in map(source_fields, self._engine.sources())
                if fields["name"] in concerned
                and (fields["name"] in failed or fields["state"] == "failed")
            ]
        }

    def _chosen(self, asked: OfPipelines) -> list[str]:
        """Return the selected pipelines; raises if a name is unknown."""
        if asked.pipeline is not None:
            self.pipeline(asked.pipeline)
        sources = [info.name for info in self._engine.sources()]
        if asked.source is not None and asked.source not in sources:
            raise UnknownPipeline(f"There is no source {asked.source}", sources=sorted(sources))
        return [
            info.name
            for info in self.pipelines()
            if asked.pipeline in (None, info.name) and asked.source in (None, info.source)
        ]

    def _as_they_are(self, pipelines: list[str]) -> dict[str, Any]:
        return {
            "pipelines": [
                {"name": info.name, **self._truth(info)}
                for info in self.pipelines()
                if info.name in pipelines
            ]
        }

    def _reload(self, asked: Reload) -> dict[str, Any]:
        if asked.pipeline is None:
            return self._reload_source(asked)
        if asked.source is not None:
            raise BadRequest("Name one pipeline or one source, not both")
        info = self.pipeline(asked.pipeline)
        tables = [table.table for table in info.tables]
        if asked.table is not None:
            if asked.table not in tables:
                raise UnknownPipeline(
                    f"Pipeline {info.name} has no table {asked.table}", tables=tables
                )
            tables = [asked.table]
        if not tables:
            raise UnknownPipeline(f"Pipeline {info.name} has no table yet", tables=[])
        reload = partial(self._engine.reload, info.source, timeout=max(0.0, asked.wait_seconds))
        # All are requested before the first is awaited: they are copied in parallel.
        with ThreadPoolExecutor(max_workers=len(tables)) as pool:
            done = list(pool.map(reload, tables))
        return {
            "tables": [
                {"source": info.source, "table": table, "done": each}
                for table, each in zip(tables, done, strict=True)
            ],
            **self._as_they_are([info.name]),
            **self._truth(self._engine.pipeline_info(info.name)),
        }

    def _reload_source(self, asked: Reload) -> dict[str, Any]:
        """Copy a table, all tables of a source, or all tables again."""
        self._running()
        chosen, wait = self._chosen(asked), max(0.0, asked.wait_seconds)
        if asked.table is None:
            found = self._engine.reload_all(asked.source, timeout=wait)
        elif asked.source is None:
            raise BadRequest("Name the source of the table")
        else:
            done = self._engine.reload(asked.source, asked.table, timeout=wait)
            found = {(asked.source, asked.table): done}
        return {
            "tables": [
                {"source": source, "table": table, "done": done}
                for (source, table), done in sorted(found.items())
            ],
            **self._as_they_are(chosen),
        }

    def _reset(self, asked: ResetRequest) -> dict[str, Any]:
        if self.phase == "starting":
            self._running()
        known = [info.name for info in self._engine.sources()]
        if asked.source not in known:
            raise UnknownPipeline(f"There is no source {asked.source}", sources=sorted(known))
        pipelines = [info for info in self.pipelines() if info.source == asked.source]
        tables = sorted({table.table for info in pipelines for table in info.tables})
        done = False
        if not asked.dry_run:
            wait = max(0.0, asked.wait_seconds)
            done = self._engine.reset_source(asked.source, asked.drop_publication, timeout=wait)
        return {
            "source": asked.source,
            "asked": not asked.dry_run,
            "done": done,
            "tables": tables,
            "pipelines": sorted(info.name for info in pipelines),
        }

    def _purge_dead_letters(self, asked: PurgeRequest) -> dict[str, Any]:
        # Imported here: a client does not need it.
        from headrace.changelog.position import Position
        from headrace.deadletters.ledger import Selection

        name = self.pipeline(asked.pipeline).name
        chosen: dict[str, Any] = {
            "table": asked.table,
            "code": asked.code,
            "before": selected_moment(asked.before),
            "position": None if asked.position is None else Position.parse(asked.position),
        }
        held = self._with_key(name, asked)
        if asked.dry_run:
            keys = None if held is None else set(held.keys)
            found = self._engine.dead_letter_store(name).to_purge(Selection(**chosen, keys=keys))
        else:
            key = None if held is None else held.key
            found = self._engine.purge_dead_letters(name, **chosen, key=key, note=asked.note)
        return purged_fields(name, found, done=not asked.dry_run)

    def _replay_dead_letters(self, asked: DeadLetterReplay) -> dict[str, Any]:
        # Imported here: a client does not need it.
        from headrace.changelog.position import Position

        name = self.pipeline(asked.pipeline).name
        position = None if asked.position is None else Position.parse(asked.position)
        held = self._with_key(name, asked)
        how: dict[str, Any] = {
            "table": asked.table,
            "key": None if held is None else held.key,
            "note": asked.note,
            "dry_run": asked.dry_run,
            "timeout": max(0.0, asked.wait_seconds),
        }
        if asked.values is None:
            moment: dict[str, Any] = {
                "code": asked.code,
                "before": selected_moment(asked.before),
                "position": position,
            }
            outcomes = self._engine.replay_dead_letters(name, **moment, **how)
        else:
            if position is None:
                raise BadRequest("An edit needs the position of one dead letter", pipeline=name)
            values = self._edited(name, position, asked.table, asked.values)
            outcomes = self._engine.edit_dead_letter(name, position, values, **how)
        return outcome_fields(name, outcomes, done=not asked.dry_run)

    def _with_key(self, pipeline: str, asked: PurgeRequest) -> DeadLetter | None:
        """Return a dead letter of the row that is asked for; None if none is."""
        if asked.key is None:
            return None
        for each in self._engine.dead_letters(pipeline):
            shown = [table_reads.shown_value(value) for value in each.key]
            if shown == asked.key and asked.table in (None, each.table):
                return each
        raise BadRequest("No dead letter of a row with this key waits", pipeline=pipeline)

    def _edited(
        self, pipeline: str, position: Position, table: str | None, values: Mapping[str, Any]
    ) -> dict[str, object]:
        """Return the values of an edit, read by the types of the columns."""
        from headrace.api.table_reads import readings

        found = [
            each.change.schema
            for each in self._engine.dead_letters(pipeline)
            if each.position == position and table in (None, each.table) and each.change
        ]
        read: dict[str, object] = {}
        for name, given in values.items():
            columns = [c for schema in found[:1] for c in schema.columns if c.name == name]
            # A column that is not there is refused by the engine, with the reason.
            read[name] = next(readings(columns[0], given)) if columns else given
        return read

    def _dead_letter_records(self, asked: OfPipeline) -> AnswerStream:
        """Give the records of a store that only this process can read, as they are stored."""
        store = self._engine.dead_letter_store(self.pipeline(asked.pipeline).name)
        return _Records(store.records)

    def _explain(self, asked: OfPipeline) -> dict[str, Any]:
        explained = self._engine.explain(self.pipeline(asked.pipeline).name)
        return {
            "pipeline": asked.pipeline,
            "way": explained.way,
            "jobs_only": explained.jobs_only,
            "plan": explained.plan,
            "jobs": explained.jobs,
            "tasks": explained.tasks,
            "last_job_ms": round(explained.last_job_ms, 3),
            "rows_in": explained.rows_in,
            "rows_out": explained.rows_out,
            "bytes_in": explained.bytes_in,
            "text": str(explained),
        }

    def _log(self, asked: OfSource) -> dict[str, Any]:
        info = self._engine.log_info(asked.source)
        pins = [
            {"kind": pin.kind, "whose": pin.whose, "position": str(pin.position)}
            for pin in info.pins
        ]
        return {
            "source": info.source,
            "floor": str(info.floor),
            "cap": info.cap,
            "percent": None if info.percent is None else round(info.percent, 1),
            "pins": pins,
        }

    def _truth(self, info: PipelineInfo) -> dict[str, Any]:
        """Return whether the rows of a pipeline are up to date, and if not, why."""
        source = next((each for each in self._engine.sources() if each.name == info.source), None)
        ready = self._engine.is_ready(pipeline=info.name)
        fields = pipeline_fields(info, source, ready=ready, rate=None)
        return {name: fields[name] for name in ("state", "ready", "reason")}

    def pipelines(self, *, count: bool = True) -> tuple[PipelineInfo, ...]:
        """Return every pipeline, none until the start is over; with `count`, count its rows."""
        # Until then targets may not be open, and must not be read.
        return () if self.phase == "starting" else self._engine.pipelines(count=count)

    def _running(self) -> tuple[PipelineInfo, ...]:
        if not (found := self.pipelines()):
            raise NotRunning(
                "The engine is still starting"
                if self.phase == "starting"
                else "The engine has no pipeline",
                remedy="Check its progress: headrace status.",
            )
        return found

    def pipeline(self, name: str) -> PipelineInfo:
        """Return a pipeline; raises if there is none of this name."""
        found = self._running()
        for info in found:
            if info.name == name:
                return info
        names = sorted(info.name for info in found)
        near = nearest(name, names)
        raise UnknownPipeline(
            f"There is no pipeline {name}",
            remedy=f"Did you mean {near}?" if near else None,
            pipelines=names,
        )


class _Begun:
    """A stream whose first message also has the state of its pipeline."""

    def __init__(self, first: Mapping[str, Any], stream: AnswerStream) -> None:
        self._first = first
        self._stream = stream
        self.close = stream.close

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        first = self._first
        for each in self._stream:
            yield {**first, **each}
            first = {}


class _Records:
    """The records of a store, one in each message."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._closed = False

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for number, data in self._whole():
            if self._closed:
                return
            yield {"number": number, "data": base64.b64encode(data).decode()}

    def _whole(self) -> list[tuple[int, bytes]]:
        """Read all before the first is sent: of a part, nobody sees that something is missing."""
        while True:
            numbers = self._records.numbers()
            with suppress(FileNotFoundError):  # merged with others meanwhile, under a new number
                return [(number, self._records.read(number)) for number in numbers]
            if numbers == self._records.numbers():
                raise StorageError("Records of dead letters are listed and cannot be read")

    def close(self) -> None:
        self._closed = True


def outcome_fields(
    pipeline: str, outcomes: Sequence[ReplayOutcome], *, done: bool
) -> dict[str, Any]:
    """Return what became of dead letters, or would."""
    return {
        "pipeline": pipeline,
        "done": done,
        "outcomes": [
            {
                "table": each.dead_letter.table,
                "position": str(each.dead_letter.position),
                "outcome": each.outcome,
                "now": str(each.position),
                "code": each.code,
                "facts": dict(each.facts),
            }
            for each in outcomes
        ],
    }


def purged_fields(pipeline: str, found: Sequence[Purged], *, done: bool) -> dict[str, Any]:
    """Return what a purge ended, or would end."""
    return {
        "pipeline": pipeline,
        "done": done,
        "tables": [
            {"table": each.table, "dead_letters": each.dead_letters, "keys": each.keys}
            for each in found
        ],
    }


def selected_moment(text: str | None) -> Position | datetime | None:
    """Return a position, or a time with an offset from UTC."""
    from headrace.changelog.position import Position

    if text is None:
        return None
    with suppress(BadPosition):
        return Position.parse(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise BadRequest("This is neither a position nor a time with an offset from UTC")
    return found


# --- a changed configuration ----------------------------------------------------------------------


class Apply(Request, frozen=True):
    """Without a plan: show what would change. With the fingerprint of a plan: apply it."""

    plan: str | None = None


class ApplyVerb:
    """
    The verb `Apply` of one engine: an edited configuration. Safe to call from several threads.

    The engine's own process reads its files again. The caller first sees a plan; then exactly that
    plan is applied, or nothing. The fingerprint of the plan connects the two requests.
    """

    def __init__(
        self,
        engine: Engine,
        started: EngineConfig,
        read: Callable[[], EngineConfig],
        file: Path,
        renewal: Callable[[EngineConfig], Callable[[], None]] | None = None,
    ) -> None:
        """
        `read` returns the configuration from its current files; `file` is the first of them.
        `renewal` checks the tokens of a server, and returns what makes them valid.
        """
        self._engine = engine
        self._started = self._applied = started
        self._read = read
        self._file = str(file)
        self._renewal = renewal
        self._turn = threading.Lock()

    @property
    def verb(self) -> Verb:
        """The verb that a service mounts as `Apply`."""
        return Verb(Apply, self._apply)

    @property
    def effective(self) -> Verb:
        """The verb that a service mounts as `Configuration`: what was applied last, masked."""
        return Verb(EmptyRequest, self._effective)

    def _effective(self, _asked: EmptyRequest) -> dict[str, Any]:
        settings = [
            {"key": each.name, "value": each.value, "from": str(each.location) or "default"}
            for each in self._applied.settings()
        ]
        return {"config": self._file, "settings": settings}

    def _apply(self, asked: Apply) -> dict[str, Any]:
        # Imported here: a client does not need it.
        from headrace.engine.apply_config import apply, planned

        with self._turn:
            after = self._read()
            at_work = [each.name for each in self._engine.pipelines()]
            plan = planned(self._applied, after, self._started, at_work)
            # Before anything is done, so that tokens that cannot be used change nothing.
            renew = self._renewal(after) if plan.tokens and self._renewal else None
            if asked.plan is None:
                after.check()
                return self._answer(plan, done=False)
            if asked.plan != _fingerprint(plan):
                raise Outdated("The configuration has changed since the plan was shown")
            try:
                apply(self._engine, plan, after)
            except InvalidConfiguration:
                raise  # and nothing has changed
            except BaseException:
                # A pipeline that could not be added is not running: the next plan adds it again.
                self._applied = after
                raise
            self._applied = after
            if renew is not None:
                renew()
            return self._answer(plan, done=True)

    def _answer(self, plan: ConfigPlan, *, done: bool) -> dict[str, Any]:
        steps = [
            {"kind": step.kind, "what": step.what, "keys": list(step.why), "brings": step.brings}
            for step in plan.steps
        ]
        return {
            "plan": _fingerprint(plan),
            "config": self._file,
            "steps": steps,
            "now": bool(plan.add or plan.drop or plan.sources or plan.tokens),
            "done": done,
            # Targets are opened again and again: it may succeed, and is not an error of this call.
            "in_error": [
                {"name": each.name, "reason": sentence(each.error, each.name)}
                for each in (self._engine.pipelines() if done else ())
                if each.name in plan.add and each.error is not None
            ],
        }


def _fingerprint(plan: ConfigPlan) -> str:
    # Includes the values, which may be secrets and are not shown: the same keys with other values
    # are another plan.
    return hashlib.sha256(f"{plan.steps}{plan.values}".encode()).hexdigest()[:16]
