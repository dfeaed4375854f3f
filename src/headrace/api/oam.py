"""
The calls of `OAMService`: an engine's status, control, tables, dead letters, replays and events.

Each takes the message of a request and its caller, and returns the message of the answer. What a
verb of `ControlService` does is done by that verb, so that both refuse the same things in the same
words. Who may call what is in `methods`; rows of dead letters are shown only of tables that the
caller may see.

Long because the calls of one service are one interface.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.api import table_reads
from headrace.api.handlers import selected_moment
from headrace.api.messages import Rates
from headrace.api.methods import OAM
from headrace.api.replay_jobs import ReplayJobs
from headrace.api.status_messages import (
    batch_sample,
    column_definitions,
    columns,
    duration,
    error_message,
    health_checks,
    index_infos,
    log_position,
    moment,
    names,
    pipeline_status,
    plain,
    plain_fields,
    readable_table,
    reason_message,
    service_state,
    source_status,
    struct,
    text,
    timestamp,
)
from headrace.api.watches import EventChoice, EventWatch, StatusWatch, event_message, number_of
from headrace.changelog.position import Position
from headrace.config.schema import key_path
from headrace.deadletters.ledger import Selection
from headrace.deadletters.letter import waiting_changes
from headrace.engine.health import HealthReason
from headrace.engine.metrics import installed_version
from headrace.errors import BadRequest, Forbidden, NotConfirmed, NotRunning, UnknownPipeline
from headrace.targets.target import Readable
from headrace.v1 import oam_pb2 as v1

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.struct_pb2 import Struct, Value

    from headrace.api.handlers import ControlService
    from headrace.api.replay_jobs import ReplayJob
    from headrace.api.services import Caller, ProtoStream, StreamCall, UnaryCall
    from headrace.changelog.schema import TableSchema
    from headrace.deadletters.ledger import DeadLetterSummary
    from headrace.deadletters.letter import DeadLetter, Image
    from headrace.engine.engine import Engine
    from headrace.runtime.corrections import ReplayOutcome
    from headrace.runtime.info import PipelineInfo, SourceInfo, TableInfo

BATCHES = 100
"""How many recent batches are returned if a request does not say."""

DEAD_LETTERS = 100
"""The same for dead letters."""

EVENTS = 200
"""The same for events."""

MOST_LISTED = 1_000
"""How many of them one answer has at most."""

REPLAY_SECONDS = 60.0
"""How long a replay of dead letters waits for its pipeline if a request does not say."""


class _At(NamedTuple):
    """The tables of pipelines that a request names."""

    info: PipelineInfo
    table: TableInfo


class OAMCalls:
    """The calls of one engine. Safe to call from several threads."""

    def __init__(self, engine: Engine, control: ControlService) -> None:
        self._engine = engine
        self._control = control
        self._memory = control.inspection.memory
        self._replays = ReplayJobs(engine)
        self._captured = Rates(lambda: ((each.name, each.captured) for each in engine.sources()))
        unary: dict[str, UnaryCall] = {
            "GetStatus": self._get_status,
            "GetTableStatus": self._get_table_status,
            "GetPipelineStatus": self._get_pipeline_status,
            "CheckReady": self._check_ready,
            "GetSourceInfo": self._get_source_info,
            "ReloadTable": self._reload_table,
            "ReloadAll": self._reload_all,
            "PauseSync": self._pause_sync,
            "ResumeSync": self._resume_sync,
            "ResetSource": self._reset_source,
            "ListTables": self._list_tables,
            "GetTableSchema": self._get_table_schema,
            "ListDeadLetters": self._list_dead_letters,
            "ShowDeadLetter": self._show_dead_letter,
            "ReplayDeadLetters": self._replay_dead_letters,
            "EditDeadLetter": self._edit_dead_letter,
            "PurgeDeadLetters": self._purge_dead_letters,
            "StartReplay": self._start_replay,
            "GetReplayStatus": self._get_replay_status,
            "StopReplay": self._stop_replay,
            "ExplainPipeline": self._explain_pipeline,
            "GetLog": self._get_log,
            "GetConfiguration": self._get_configuration,
            "ListEvents": self._list_events,
        }
        self.unary: Mapping[str, UnaryCall] = {f"/{OAM}/{name}": unary[name] for name in unary}
        self.streams: Mapping[str, StreamCall] = {
            f"/{OAM}/WatchStatus": self._watch_status,
            f"/{OAM}/WatchEvents": self._watch_events,
        }

    # -- status ---------------------------------------------------------------------------

    def _get_status(self, _asked: v1.GetStatusRequest, _caller: Caller) -> v1.GetStatusResponse:
        status = self._status(count=True)
        status.health.extend(health_checks(self._engine.health()))
        return status

    def _status(self, *, count: bool) -> v1.GetStatusResponse:
        """Return the status, without the checks of health; `count` is whether to count rows."""
        engine, control = self._engine, self._control
        # Before and after, as the verb Status: ready must not be shown with rows from before.
        ready = control.phase == "running" and engine.is_ready()
        infos = control.pipelines(count=count)
        sources = engine.sources()
        pipelines = self._pipeline_statuses(infos, sources)
        changes = [info.last_change for info in infos if info.last_change is not None]
        return v1.GetStatusResponse(
            state=service_state(control.phase, sources, pipelines),
            sources=self._source_statuses(sources),
            pipelines=pipelines,
            started_at=timestamp(engine.started_at),
            last_change_at=timestamp(max(changes, default=None)),
            snapshot_status=v1.SnapshotSummary(enabled=False),
            service=control.service,
            pid=os.getpid(),
            version=installed_version(),
            phase=control.phase,
            step=text(control.step),
            ready=ready and engine.is_ready(),
            spark_down=duration(engine.spark_down_seconds()),
            observers=[
                v1.ObserverStatus(name=each.name, delivered=each.delivered, dropped=each.dropped)
                for each in engine.observers()
            ],
        )

    def _source_statuses(self, sources: Iterable[SourceInfo]) -> list[v1.SourceStatus]:
        rates = self._captured.look()
        return [
            source_status(each, ready=self._engine.is_ready(each.name), rate=rates.get(each.name))
            for each in sources
        ]

    def _pipeline_statuses(
        self, infos: Iterable[PipelineInfo], sources: Iterable[SourceInfo]
    ) -> list[v1.PipelineStatus]:
        rates = self._control.rates.look()
        named = {each.name: each for each in sources}
        return [
            pipeline_status(
                info,
                named.get(info.source),
                self._target(info.name),
                ready=self._engine.is_ready(pipeline=info.name),
                rate=rates.get(info.name),
            )
            for info in infos
        ]

    def _statuses_of(self, chosen: Iterable[str]) -> list[v1.PipelineStatus]:
        wanted = set(chosen)
        infos = [info for info in self._control.pipelines() if info.name in wanted]
        return self._pipeline_statuses(infos, self._engine.sources())

    def _get_table_status(
        self, asked: v1.GetTableStatusRequest, _caller: Caller
    ) -> v1.GetTableStatusResponse:
        found = self._tables_named(asked.schema, asked.table)
        return v1.GetTableStatusResponse(
            pipelines=self._statuses_of(each.info.name for each in found),
            indexes=[
                index for each in found for index in self._indexes(each.info, each.table.table)
            ],
        )

    def _get_pipeline_status(
        self, asked: v1.GetPipelineStatusRequest, _caller: Caller
    ) -> v1.GetPipelineStatusResponse:
        info = self._pipeline(asked.pipeline_id)
        limit = _limit(asked.batches, BATCHES, "batches")
        (status,) = self._pipeline_statuses([info], self._engine.sources())
        return v1.GetPipelineStatusResponse(
            status=status,
            indexes=[index for table in info.tables for index in self._indexes(info, table.table)],
            batches=map(batch_sample, self._engine.recent_batches(info.name)[-limit:]),
        )

    def _indexes(self, info: PipelineInfo, table: str) -> Iterator[v1.IndexInfo]:
        target = self._target(info.name)
        return index_infos(info.name, table, readable_table(target, table))

    def _watch_status(self, asked: v1.WatchStatusRequest, _caller: Caller) -> ProtoStream:
        known = [info.name for info in self._control.pipelines()]
        for name in asked.pipeline_ids:
            _known("pipeline", name, known)
        return StatusWatch(self._engine, lambda: self._status(count=False), asked)

    def _check_ready(self, asked: v1.CheckReadyRequest, _caller: Caller) -> v1.CheckReadyResponse:
        engine = self._engine
        source, pipeline, table = asked.source or None, asked.pipeline_id or None, None
        if source is not None:
            _known("source", source, [each.name for each in engine.sources()])
        if pipeline is not None:
            self._pipeline(pipeline)
        pipelines = [
            info
            for info in self._control.pipelines()
            if pipeline in (None, info.name) and source in (None, info.source)
        ]
        if asked.table:
            found = self._tables_named("", asked.table, source)
            table = found[0].table.table
            pipelines = [each.info for each in found if each.info in pipelines]
        ready = self._control.phase == "running" and engine.is_ready(source, table, pipeline)
        if ready:
            return v1.CheckReadyResponse(ready=True)
        concerned = {("source", source)} if source else set()
        concerned |= {("pipeline", info.name) for info in pipelines}
        concerned |= {("source", info.source) for info in pipelines}
        reasons = [
            each
            for each in engine.health().ready.reasons
            if each.part in ("engine", "spark")
            or not (source or pipeline or table)
            or (each.part, each.name) in concerned
        ] or [_UNCONFIRMED]
        return v1.CheckReadyResponse(
            not_ready_reasons=[f"{each.subject}: {text(each.message)}" for each in reasons],
            reasons=map(reason_message, reasons),
        )

    def _get_source_info(
        self, asked: v1.GetSourceInfoRequest, _caller: Caller
    ) -> v1.GetSourceInfoResponse:
        sources = self._engine.sources()
        if asked.source_id:
            _known("source", asked.source_id, [each.name for each in sources])
            sources = tuple(each for each in sources if each.name == asked.source_id)
        tables = list(self._engine.schemas())
        pipelines = self._control.pipelines(count=False)
        return v1.GetSourceInfoResponse(
            sources=[
                v1.SourceInfo(
                    source_id=status.source_id,
                    source_type=status.source_type,
                    supports_resume=status.supports_resume,
                    ordering_guarantee=status.ordering_guarantee,
                    current_position=status.current_position,
                    acked_position=status.acked_position,
                    lag_bytes=status.lag_bytes,
                    lag_time=status.lag_time if status.HasField("lag_time") else None,
                    details=status.source_details,
                    status=status,
                    tables=sorted(table for of, table in tables if of == status.source_id),
                    pipelines=[each.name for each in pipelines if each.source == status.source_id],
                )
                for status in self._source_statuses(sources)
            ]
        )

    # -- control --------------------------------------------------------------------------

    def _reload_table(
        self, asked: v1.ReloadTableRequest, _caller: Caller
    ) -> v1.ReloadTableResponse:
        _required(asked.table, "table")
        found = self._tables_named(asked.schema, asked.table, asked.source_id or None)
        sources = {each.info.source for each in found}
        if len(sources) > 1:
            raise BadRequest(
                f"Several sources have a table {asked.table}",
                remedy="Give source_id.",
                sources=sorted(sources),
            )
        (source,) = sources
        answer = self._verb(
            "Reload",
            source=source,
            table=found[0].table.table,
            wait_seconds=_seconds(asked.wait, 0.0),
        )
        reloads = _reloads(answer)
        return v1.ReloadTableResponse(accepted=True, message=_reloading(reloads), tables=reloads)

    def _reload_all(self, asked: v1.ReloadAllRequest, _caller: Caller) -> v1.ReloadAllResponse:
        answer = self._verb(
            "Reload",
            source=asked.source_id or None,
            pipeline=asked.pipeline or None,
            wait_seconds=_seconds(asked.wait, 0.0),
        )
        reloads = _reloads(answer)
        return v1.ReloadAllResponse(accepted=True, message=_reloading(reloads), tables=reloads)

    def _pause_sync(self, asked: v1.PauseSyncRequest, _caller: Caller) -> v1.PauseSyncResponse:
        answer = self._verb(
            "Pause", source=asked.source_id or None, pipeline=asked.pipeline or None
        )
        return v1.PauseSyncResponse(
            state=self._status(count=False).state,
            pipelines=self._statuses_of(each["name"] for each in answer["pipelines"]),
        )

    def _resume_sync(self, asked: v1.ResumeSyncRequest, _caller: Caller) -> v1.ResumeSyncResponse:
        answer = self._verb(
            "Resume", source=asked.source_id or None, pipeline=asked.pipeline or None
        )
        resumed = {each["name"] for each in answer["sources"]}
        return v1.ResumeSyncResponse(
            state=self._status(count=False).state,
            pipelines=self._statuses_of(each["name"] for each in answer["pipelines"]),
            sources=self._source_statuses(
                each for each in self._engine.sources() if each.name in resumed
            ),
        )

    def _reset_source(
        self, asked: v1.ResetSourceRequest, _caller: Caller
    ) -> v1.ResetSourceResponse:
        _required(asked.source_id, "source_id")
        if not (asked.confirm or asked.dry_run):
            raise NotConfirmed("confirm=true is required for destructive operation")
        answer = self._verb(
            "Reset",
            source=asked.source_id,
            drop_publication=asked.drop_publication,
            dry_run=asked.dry_run,
            wait_seconds=_seconds(asked.wait, 0.0),
        )
        count = len(answer["tables"])
        what = f"{count} table{'' if count == 1 else 's'} of {asked.source_id}"
        return v1.ResetSourceResponse(
            accepted=not asked.dry_run,
            message=what + _copied(answer["done"], would=asked.dry_run),
            details=struct(answer),
            tables=answer["tables"],
            pipelines=answer["pipelines"],
            done=answer["done"],
        )

    # -- tables ---------------------------------------------------------------------------

    def _list_tables(self, _asked: v1.ListTablesRequest, _caller: Caller) -> v1.ListTablesResponse:
        kinds = {each.name: each.kind for each in self._engine.sources()}
        schemas, settings = self._engine.schemas(), self._settings()
        found = []
        for info in self._control.pipelines():
            target = self._target(info.name)
            for each in info.tables:
                schema, name = names(each.table)
                captured = schemas.get((info.source, each.table))
                table = readable_table(target, each.table)
                found.append(
                    v1.TableConfig(
                        schema=schema,
                        table=name,
                        primary_key=", ".join(captured.key if captured else ()),
                        source_id=info.source,
                        source_type=kinds.get(info.source, ""),
                        source_config=_below(settings, "sources", info.source),
                        target_type=info.target,
                        target_config=_below(settings, "pipelines", info.name, "target"),
                        pipeline=info.name,
                        state=each.state,
                        rows=each.rows,
                        queryable=isinstance(target, Readable),
                        indexes=index_infos(info.name, each.table, table),
                        columns=columns(table.schema, table.key) if table else (),
                    )
                )
        return v1.ListTablesResponse(tables=found)

    def _get_table_schema(
        self, asked: v1.GetTableSchemaRequest, _caller: Caller
    ) -> v1.GetTableSchemaResponse:
        _required(asked.table, "table")
        schemas = self._engine.schemas()
        for source, table in schemas:
            if _is_named(table, asked.schema, asked.table):
                return v1.GetTableSchemaResponse(
                    columns=column_definitions(schemas[source, table]), source=source
                )
        raise _no_table(asked.schema, asked.table, (table for _, table in schemas))

    def _settings(self) -> list[Mapping[str, Any]]:
        """Return the effective configuration; empty if the engine was built by a program."""
        verb = self._control.unary.get("Configuration")
        return [] if verb is None else list(verb({})["settings"])

    # -- dead letters ---------------------------------------------------------------------

    def _list_dead_letters(
        self, asked: v1.ListDeadLettersRequest, caller: Caller
    ) -> v1.ListDeadLettersResponse:
        name = self._pipeline(asked.pipeline_id).name
        store = self._engine.dead_letter_store(name)
        selection = self._selection(name, asked.selection, caller)
        limit = _limit(asked.limit, DEAD_LETTERS, "limit")
        after = Position.parse(asked.page_token) if asked.page_token else None

        def wanted(known: DeadLetterSummary) -> bool:
            return caller.sees(known.table) and selection.names(known)

        # One more than asked for shows whether there is another page.
        found = store.all(superseded=asked.ended, after=after, limit=limit, wanted=wanted)
        total = store.number(superseded=asked.ended, wanted=wanted)
        more = bool(found) and bool(
            store.all(superseded=asked.ended, after=found[-1].position, limit=1, wanted=wanted)
        )
        return v1.ListDeadLettersResponse(
            entries=map(dead_letter_entry, found),
            total_count=total,
            next_page_token=str(found[-1].position) if more else "",
        )

    def _show_dead_letter(
        self, asked: v1.ShowDeadLetterRequest, caller: Caller
    ) -> v1.ShowDeadLetterResponse:
        name = self._pipeline(asked.pipeline_id).name
        found = self._dead_letter(name, asked.position, asked.table, asked.key, caller, ended=True)
        others = self._engine.dead_letter_store(name).all(found.table, superseded=True)
        return v1.ShowDeadLetterResponse(
            entry=dead_letter_entry(found),
            waiting=map(dead_letter_entry, waiting_changes(found, others)),
        )

    def _replay_dead_letters(
        self, asked: v1.ReplayDeadLettersRequest, caller: Caller
    ) -> v1.ReplayDeadLettersResponse:
        name = self._pipeline(asked.pipeline_id).name
        outcomes = self._engine.replay_dead_letters(
            name,
            **self._conditions(name, asked.selection, caller),
            note=_signed(caller, asked.note),
            dry_run=asked.dry_run,
            timeout=_seconds(asked.wait, REPLAY_SECONDS),
        )
        applied = sum(each.outcome == "applied" for each in outcomes)
        return v1.ReplayDeadLettersResponse(
            replayed=len(outcomes),
            succeeded=applied,
            failed=len(outcomes) - applied,
            outcomes=map(_outcome, outcomes),
            done=not asked.dry_run,
        )

    def _edit_dead_letter(
        self, asked: v1.EditDeadLetterRequest, caller: Caller
    ) -> v1.EditDeadLetterResponse:
        name = self._pipeline(asked.pipeline_id).name
        found = self._dead_letter(name, asked.position, asked.table, asked.key, caller, ended=False)
        outcomes = self._engine.edit_dead_letter(
            name,
            found.position,
            _edits(found, asked.values),
            table=found.table,
            key=found.key,
            note=_signed(caller, asked.note),
            dry_run=asked.dry_run,
            timeout=_seconds(asked.wait, REPLAY_SECONDS),
        )
        return v1.EditDeadLetterResponse(outcomes=map(_outcome, outcomes), done=not asked.dry_run)

    def _purge_dead_letters(
        self, asked: v1.PurgeDeadLettersRequest, caller: Caller
    ) -> v1.PurgeDeadLettersResponse:
        name = self._pipeline(asked.pipeline_id).name
        if asked.dry_run:
            selection = self._selection(name, asked.selection, caller, alone=True)
            purged = self._engine.dead_letter_store(name).to_purge(selection)
        else:
            purged = self._engine.purge_dead_letters(
                name,
                **self._conditions(name, asked.selection, caller),
                note=_signed(caller, asked.note),
            )
        return v1.PurgeDeadLettersResponse(
            purged=sum(each.dead_letters for each in purged),
            tables=[
                v1.PurgedTable(table=each.table, dead_letters=each.dead_letters, keys=each.keys)
                for each in purged
            ],
            done=not asked.dry_run,
        )

    def _conditions(
        self, pipeline: str, asked: v1.DeadLetterSelection, caller: Caller
    ) -> dict[str, Any]:
        """Return a selection as the arguments of the engine's methods."""
        if asked.table:
            caller.check_table(asked.table)
        elif caller.tables:
            raise Forbidden(
                f"The token {caller.name} has a right to some tables only",
                remedy="Name a table in the selection.",
            )
        return {
            "table": asked.table or None,
            "code": asked.code or None,
            "before": selected_moment(asked.before or None),
            "position": Position.parse(asked.position) if asked.position else None,
            "key": self._key(pipeline, asked.table, asked.key, ended=False),
        }

    def _selection(
        self,
        pipeline: str,
        asked: v1.DeadLetterSelection,
        caller: Caller,
        *,
        alone: bool = False,
    ) -> Selection:
        """Return a selection; `alone` is whether it is not filtered by the caller's tables."""
        if asked.table:
            caller.check_table(asked.table)
        if alone:
            self._conditions(pipeline, asked, caller)
        keys = None
        if asked.key:
            shown = [plain(each) for each in asked.key]
            keys = {
                held
                for each in self._engine.dead_letter_store(pipeline).all(superseded=True)
                if caller.sees(each.table) and _shown_key(each) == shown
                for held in each.keys
            }
        return Selection(
            asked.table or None,
            asked.code or None,
            selected_moment(asked.before or None),
            Position.parse(asked.position) if asked.position else None,
            keys,
        )

    def _key(
        self, pipeline: str, table: str, key: Sequence[Value], *, ended: bool
    ) -> tuple[object, ...] | None:
        """Return the key of a row of which there are dead letters; None if none is given."""
        if not key:
            return None
        shown = [plain(each) for each in key]
        store = self._engine.dead_letter_store(pipeline)
        for each in store.all(table or None, superseded=ended):
            if _shown_key(each) == shown:
                return each.key
        raise UnknownPipeline(
            f"Pipeline {pipeline} has no dead letter of a row with this key",
            remedy="List its dead letters for their keys.",
            pipeline=pipeline,
        )

    def _dead_letter(
        self,
        pipeline: str,
        position: str,
        table: str,
        key: Sequence[Value],
        caller: Caller,
        *,
        ended: bool,
    ) -> DeadLetter:
        """Return the one dead letter that is meant; raises if there is none, or several."""
        _required(position, "position")
        at = Position.parse(position)
        if table:
            caller.check_table(table)
        chosen = Selection(table or None, position=at)
        found: Sequence[DeadLetter] = self._engine.dead_letter_store(pipeline).all(
            superseded=ended,
            wanted=lambda known: caller.sees(known.table) and chosen.names(known),
        )
        if key:
            shown = [plain(each) for each in key]
            found = [each for each in found if _shown_key(each) == shown]
        # One that holds its keys, rather than one that has ended there before.
        found = [each for each in found if each.superseded is None] or found[-1:]
        if not found:
            raise UnknownPipeline(
                f"Pipeline {pipeline} has no such dead letter",
                remedy="List its dead letters for their tables, positions and keys.",
                pipeline=pipeline,
                position=position,
            )
        if len(found) > 1:
            raise BadRequest(
                f"Pipeline {pipeline} has {len(found)} dead letters at this position",
                remedy="Give the table and the key of one of them.",
                tables=sorted({each.table for each in found}),
            )
        return found[0]

    # -- replays --------------------------------------------------------------------------

    def _start_replay(self, asked: v1.StartReplayRequest, caller: Caller) -> v1.StartReplayResponse:
        name = asked.pipeline or asked.target_pipeline_id
        if asked.snapshot_id:
            raise BadRequest(
                "This version has no snapshots to replay",
                remedy="Leave snapshot_id empty, and give the pipeline whose log is replayed.",
            )
        if asked.speed not in ("", "full") or asked.tables:
            raise BadRequest(
                "A replay has all tables of its pipeline, at full speed",
                remedy="Leave speed and tables empty.",
            )
        _required(name, "pipeline")
        target = asked.target or "memory"
        if target != "memory" and caller.role != "admin":
            raise Forbidden(
                "A replay into files needs the role admin", role=caller.role, needs="admin"
            )
        info = self._pipeline(name)
        for table in info.tables:
            if target != "memory":
                caller.check_table(table.table)
        job = self._replays.start(
            info.name,
            target,
            selected_moment(asked.start or None),
            selected_moment(asked.end or None),
        )
        return v1.StartReplayResponse(
            accepted=True,
            replay_id=job.id,
            message=f"{info.name} is replayed into {target}",
            path=job.path,
        )

    def _get_replay_status(
        self, asked: v1.GetReplayStatusRequest, _caller: Caller
    ) -> v1.GetReplayStatusResponse:
        if asked.replay_id:
            return self._replay(self._replays.job(asked.replay_id))
        return v1.GetReplayStatusResponse(replays=map(self._replay, self._replays.jobs()))

    def _replay(self, job: ReplayJob) -> v1.GetReplayStatusResponse:
        progress = job.progress
        read: dict[str, Any] = (
            {}
            if progress is None
            else {
                "rows_replayed": progress.rows + progress.changes,
                "rows": progress.rows,
                "of_rows": progress.of_rows,
                "changes": progress.changes,
                "of_changes": progress.of_changes,
                "position": str(progress.position),
            }
        )
        return v1.GetReplayStatusResponse(
            replay_id=job.id,
            state=job.state,
            elapsed=duration(self._replays.elapsed(job)),
            pipeline=job.pipeline,
            target=job.target,
            target_rows=job.target_rows,
            failed=job.failed,
            error=error_message(job.error),
            started_at=timestamp(job.started),
            path=job.path,
            **read,
        )

    def _stop_replay(self, asked: v1.StopReplayRequest, _caller: Caller) -> v1.StopReplayResponse:
        _required(asked.replay_id, "replay_id")
        return v1.StopReplayResponse(stopped=self._replays.stop(asked.replay_id))

    # -- plan, log, configuration, events ---------------------------------------------------

    def _explain_pipeline(
        self, asked: v1.ExplainPipelineRequest, _caller: Caller
    ) -> v1.ExplainPipelineResponse:
        _required(asked.pipeline_id, "pipeline_id")
        answer = self._verb("Explain", pipeline=asked.pipeline_id)
        del answer["pipeline"]
        answer["text"], answer["plan"] = text(answer["text"]), text(answer["plan"])
        return v1.ExplainPipelineResponse(**answer)

    def _get_log(self, asked: v1.GetLogRequest, _caller: Caller) -> v1.GetLogResponse:
        _required(asked.source_id, "source_id")
        sources = {each.name: each for each in self._engine.sources()}
        _known("source", asked.source_id, sources)
        source, info = sources[asked.source_id], self._engine.log_info(asked.source_id)
        return v1.GetLogResponse(
            source_id=info.source,
            floor=log_position(info.floor, source),
            end=log_position(info.end, source),
            entries=info.entries,
            flushes=info.flushes,
            segments=info.segments,
            rows=info.rows,
            bytes=info.bytes,
            baselines=info.baselines,
            baseline_bytes=info.baseline_bytes,
            oldest=timestamp(info.oldest),
            newest=timestamp(info.newest),
            cap=info.cap,
            percent=info.percent,
            pins=[
                v1.LogPin(kind=pin.kind, whose=pin.whose, position=str(pin.position))
                for pin in info.pins
            ],
        )

    def _get_configuration(
        self, _asked: v1.GetConfigurationRequest, _caller: Caller
    ) -> v1.GetConfigurationResponse:
        verb = self._control.unary.get("Configuration")
        if verb is None:
            return v1.GetConfigurationResponse()
        answer = verb({})
        settings = []
        for each in answer["settings"]:
            default = each["from"] == "default"
            setting = v1.Setting(
                key=each["key"], origin="" if default else text(each["from"]), default=default
            )
            setting.value.CopyFrom(struct({"value": each["value"]}).fields["value"])
            settings.append(setting)
        return v1.GetConfigurationResponse(files=[answer["config"]], settings=settings)

    def _list_events(self, asked: v1.ListEventsRequest, _caller: Caller) -> v1.ListEventsResponse:
        limit = _limit(asked.limit, EVENTS, "limit")
        chosen = EventChoice.of(asked.types, asked.source, asked.pipeline)
        after = number_of(self._memory, asked.after) if asked.after else 0
        found, _ = self._memory.read(after, frequent=chosen.frequent)
        return v1.ListEventsResponse(
            events=[
                event_message(self._memory, number, event)
                for number, event in [each for each in found if chosen.has(each[1])][-limit:]
            ]
        )

    def _watch_events(self, asked: v1.WatchEventsRequest, _caller: Caller) -> ProtoStream:
        chosen = EventChoice.of(asked.types, asked.source, asked.pipeline)
        return EventWatch(self._memory, chosen, asked.after)

    # -- what a request names ---------------------------------------------------------------

    def _verb(self, name: str, **fields: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._control.unary[name](fields)
        return answer

    def _pipeline(self, name: str) -> PipelineInfo:
        _required(name, "pipeline_id")
        return self._control.pipeline(name)

    def _target(self, pipeline: str) -> object:
        """Return the target of a pipeline; None if it was dropped a moment ago."""
        with suppress(NotRunning):
            return self._engine.target(pipeline)
        return None

    def _tables_named(self, schema: str, table: str, source: str | None = None) -> list[_At]:
        """Return the pipelines that have a table; raises if none has."""
        _required(table, "table")
        infos = self._control.pipelines()
        if source is not None:
            _known("source", source, [each.name for each in self._engine.sources()])
        found = [
            _At(info, each)
            for info in infos
            if source in (None, info.source)
            for each in info.tables
            if _is_named(each.table, schema, table)
        ]
        if not found:
            raise _no_table(schema, table, (each.table for i in infos for each in i.tables))
        return found


_UNCONFIRMED = HealthReason(
    "engine", "", "not_confirmed", "it is not confirmed yet that all changes are applied"
)


def _is_named(table: str, schema: str, name: str) -> bool:
    """Whether a request means this table: `public.orders`, or schema `public`, table `orders`."""
    return table == (f"{schema}.{name}" if schema else name)


def _no_table(schema: str, table: str, known: Iterable[str]) -> UnknownPipeline:
    name = f"{schema}.{table}" if schema else table
    return UnknownPipeline(
        f"No pipeline has a table {name}",
        remedy="Write it as its source names it, with its schema if it has one.",
        tables=sorted(set(known)),
    )


def _known(what: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        facts: dict[str, Any] = {f"{what}s": sorted(known)}
        raise UnknownPipeline(f"There is no {what} {name}", **facts)


def _required(value: str, field: str) -> None:
    if not value:
        raise BadRequest(f"{field} is required")


def _limit(asked: int, usual: int, field: str) -> int:
    if asked < 0:
        raise BadRequest(f"{field} must not be negative")
    return min(asked or usual, MOST_LISTED)


def _seconds(asked: Duration, usual: float) -> float:
    """Return how long to wait; a message that is absent is empty, and so means the usual."""
    return max(0.0, asked.ToMicroseconds() / 1e6) or usual


def _signed(caller: Caller, note: str) -> str:
    """Return a note with who wrote it."""
    return f"{caller.name}: {note}" if note else caller.name


def _reloads(answer: Mapping[str, Any]) -> list[v1.TableReload]:
    return [
        v1.TableReload(source=each["source"], table=each["table"], done=each["done"])
        for each in answer["tables"]
    ]


def _copied(done: bool, *, would: bool = False) -> str:
    return " would be copied again" if would else ": copied again" if done else ": to be copied"


def _reloading(reloads: Sequence[v1.TableReload]) -> str:
    done = all(each.done for each in reloads)
    tables = ", ".join(each.table for each in reloads)
    return tables + _copied(done)


def _below(settings: Iterable[Mapping[str, Any]], *path: str) -> Struct | None:
    """Return the settings below a key, by the rest of their keys; None if there are none."""
    prefix = ""
    for name in path:
        prefix = key_path(prefix, name)
    found = {
        each["key"].removeprefix(f"{prefix}."): each["value"]
        for each in settings
        if each["key"].startswith(f"{prefix}.")
    }
    return struct(found) if found else None


# --- dead letters as messages ---------------------------------------------------------------------


def dead_letter_entry(found: DeadLetter) -> v1.DeadLetterEntry:
    """Return a dead letter with both images of its row."""
    schema = None if found.change is None else found.change.schema
    before, after = _image(schema, found.before), _image(schema, found.after)
    key = schema.key if schema else ()
    why = f"{found.code}: " if found.code else ""
    facts = {name: text(value) for name, value in found.facts.items()}
    return v1.DeadLetterEntry(
        timestamp=moment(found.parked),
        action=found.op.upper(),
        position=str(found.position),
        error_message=why + (", ".join(f"{k}={v}" for k, v in facts.items()) or found.kind),
        change_data=struct({"old": before, "new": after}),
        table=found.table,
        lineage=found.lineage,
        kind=found.kind,
        code=found.code,
        facts=facts,
        key=struct(dict(zip(key, _shown_key(found), strict=False))),
        before=None if before is None else struct(before),
        after=None if after is None else struct(after),
        columns=columns(schema, key),
        committed=moment(found.time),
        baseline=found.baseline or 0,
        ended_by=found.superseded or "",
        ended=moment(found.ended),
        note=text(found.note),
        editable=found.superseded is None and found.after is not None and schema is not None,
    )


def _image(schema: TableSchema | None, image: Image | None) -> dict[str, Any] | None:
    if image is None:
        return None
    mixed = {each.name for each in schema.columns if each.type.kind == "variant"} if schema else ()
    return {
        name: table_reads.shown_value(value, mixed=name in mixed) for name, value in image.items()
    }


def _shown_key(found: DeadLetter) -> list[Any]:
    return [table_reads.shown_value(value) for value in found.key]


def _edits(found: DeadLetter, values: Struct) -> dict[str, object]:
    """Return the values of an edit, read by the types of their columns."""
    known = {each.name: each for each in found.change.schema.columns} if found.change else {}
    # A column that is not there is refused by the engine, with the reason.
    return {
        name: next(table_reads.readings(known[name], given)) if name in known else given
        for name, given in plain_fields(values).items()
    }


def _outcome(found: ReplayOutcome) -> v1.DeadLetterOutcome:
    return v1.DeadLetterOutcome(
        table=found.dead_letter.table,
        position=str(found.dead_letter.position),
        outcome=found.outcome,
        now=str(found.position),
        code=found.code,
        facts={name: text(value) for name, value in found.facts.items()},
    )
