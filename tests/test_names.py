"""The page of names from elsewhere leads to names that are there."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from functools import cache

import headrace as hr
from tests.invocations import offered
from tests.support.sources import ROOT, all_of, text

PAGE = ROOT / "docs" / "reference" / "names.md"

HOOKS = {
    "on_init": ("table", "columns"),
    "on_baseline_row": ("row",),
    "on_baseline_complete": (),
    "on_insert": ("row",),
    "on_update": ("row", "identity"),
    "on_delete": ("identity",),
    "on_truncate": (),
    "is_durable": (),
    "on_schema_change": ("old", "new"),
    "export_snapshot": (),
    "restore_snapshot": ("info", "entries"),
    "supports_consistent_snapshot": (),
    "on_close": (),
}

INTERFACES = {
    "Engine": """NewEngine Start Stop AwaitReady IsReady IsSourceReady OnReady Reload Pause Resume
        CreateSnapshot Targets Pipelines SourceIDs SourceInfo TableSchema ResetSource GetTarget
        Option WithSource WithPipeline PipelineInfo SourceRunInfo""",
    "Tables, rows and values": """TableIdentifier Table ColumnDefinition Row GetString Value
        Position""",
    "Targets": """SyncTarget OnInit OnBaselineRow OnBaselineComplete OnInsert OnUpdate OnDelete
        OnTruncate IsDurable OnSchemaChange ExportSnapshot RestoreSnapshot
        SupportsConsistentSnapshot OnClose Lookup LookupAll Get All Count Listen SnapshotEntry
        TableSnapshotInfo SchemaChangeResponse IndexedTarget NewIndexedTarget LookupFields
        CompiledTarget target/memory target/httpsync target/fanout""",
    "Sources": """SyncSource Init ValidateTables Baseline Stream Ack SupportsResume
        LastAckedPosition ComparePositions PositionToString PositionFromString Pause Resume GetLag
        OrderingGuarantee State Close SourceConfig ValidationError ChangeHandler LagInfo SourceState
        CONNECTING CONNECTED STREAMING RECONNECTING ERROR source/pg source/kinesis
        source/testsource""",
    "Filters, transforms, dead letters": """filter transform FieldEquals FieldPrefix FieldRegex
        DropFields RenameFields AddTimestamp deadletter""",
    "Services, clients, configuration, observation": """config service service/oam service/query
        service/replication client/fanout snapshot/local snapshot/s3 snapshot/jsonl
        metrics/prometheus metrics/otel /health/live /health/ready /health/startup""",
    "Command line": """status pipelines tables schema source ready version watch reload pause resume
        reset-source dead-letters replay --address --output --timeout --conf-dir --init-dir --set
        --health-port --log-level --drain-grace""",
    "Configuration keys": """sources.ID.type sources.ID.connection sources.ID.slot_mode
        sources.ID.slot_name sources.ID.always_baseline lookup_fields additional_indexes compiler
        key_fields base_url auth_header batch_size timeout_ms retry_count flush_interval headers
        retry_backoff_ms max_clients heartbeat_interval grpc.port grpc.tls fanout.grpc.port
        stream_arn consumer_group checkpoint_table store store_config key_prefix follow""",
    "Calls of the services": """GetStatus GetTableStatus GetPipelineStatus WatchStatus CheckReady
        GetSourceInfo ReloadTable ReloadAll PauseSync ResumeSync ResetSource DrainReplication
        ListTables GetTableSchema CreateSnapshot ListSnapshots InspectSnapshot DeleteSnapshot
        PruneSnapshots RestoreSnapshot ListDeadLetters PurgeDeadLetters ReplayDeadLetters
        StartReplay GetReplayStatus StopReplay Lookup LookupAll GetRow ListRows CountRows Subscribe
        Sync FetchSnapshot GetReplicationStatus""",
    "Observer": """EngineObserver NullObserver CompositeObserver OnSourceConnected
        OnSourceDisconnected
        OnPipelineStateChanged OnBaselineStarted OnBaselineRowLoaded OnBaselineCompleted
        OnReBaselineTriggered OnChangeReceived OnChangeApplied OnChangeError
        OnAckAdvanced OnBufferDepthChanged OnBufferPolicyTriggered OnSnapshotStarted
        OnSnapshotCompleted OnSnapshotFailed OnSnapshotRestoreStarted
        OnSnapshotRestoreCompleted OnSchemaChange OnLagUpdated OnDeadLetterWritten
        OnRowExpired OnValidationResult OnFanOutClientConnected
        OnFanOutClientDisconnected OnFanOutClientCaughtUp OnFanOutBackpressure
        OnFanOutSnapshotCreated OnFanOutJournalPruned""",
    "Managing streams": """Replicator Kind UpsertStream DeleteStream ListStreams GetStatus Pause
        Resume Replay Checkpoint Endpoint Stream StreamStatus Checkpoint.LSN Checkpoint.Wall
        Endpoint.Kind Endpoint.Region Endpoint.URI Endpoint.AuthRef Stream.Name Stream.Source
        Stream.Destination Stream.Mode Stream.Filter Stream.Conflict Stream.CheckpointInterval
        StreamStatus.Name StreamStatus.State StreamStatus.LastEvent StreamStatus.LastCheckpoint
        StreamStatus.LagSeconds StreamStatus.LagEvents StreamStatus.BytesReplicated
        StreamStatus.EventsReplicated StreamStatus.ErrorsLastHour StreamStatus.LastError cdc
        snapshot snapshot_then_cdc last_writer_wins source_wins dest_wins manual_review""",
    "Capture from SQLite": """CDC Installer Engine Setup Teardown Engine.CDC Engine.Bootstrap
        Engine.BootstrapAndCDC Engine.Close""",
}
"""What each interface has, and what else is named there."""

OURS = re.compile(r"`([^`]+)`")


@cache
def lines() -> list[tuple[str, list[str], str, str]]:
    """Return the section, the names there, what is here and the note of every line."""
    found = []
    section = ""
    for line in text(PAGE).splitlines():
        if line.startswith("## "):
            section = line[3:]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 3 and cells[0] not in ("there", "---"):
            found.append((section, re.findall(r"`([^`]+)`", cells[0]), cells[1], cells[2]))
    return found


def test_a_name_of_ours_is_there() -> None:
    ours = {
        name
        for _, _, *cells in lines()
        for cell in cells
        for name in re.findall(r"`((?:hr|headrace)\.[^`]+)`", cell)
    }
    assert len(ours) > 100
    missing = [name for name in ours if not is_there(name)]
    assert missing == [], all_of(missing)


def is_there(name: str) -> bool:
    path, _, parameter = name.partition("(")
    try:
        found = resolved(path)
    except (AttributeError, KeyError):
        return False
    return not parameter or (
        callable(found) and parameter.removesuffix("=)") in inspect.signature(found).parameters
    )


def resolved(path: str) -> object:
    """Return what a dotted name stands for; a field that has no default, as its annotation."""
    parts = ["headrace", *path.split(".")[1:]]
    split = next(at for at in range(len(parts), 0, -1) if is_module(".".join(parts[:at])))
    found: object = importlib.import_module(".".join(parts[:split]))
    for part in parts[split:]:
        fields = inspect.get_annotations(found) if inspect.isclass(found) else {}
        found = getattr(found, part) if hasattr(found, part) else fields[part]
    return found


def is_module(path: str) -> bool:
    try:
        return importlib.util.find_spec(path) is not None
    except ModuleNotFoundError:
        return False


def test_every_line_leads_somewhere_or_says_why_not() -> None:
    assert len(lines()) > 250
    wrong = []
    for section, _, here, _ in lines():
        reason = re.fullmatch(r"(later|none): \S.*", here)
        names = re.fullmatch(r"`[^`]+`(, `[^`]+`)*", here)
        if not (reason or names):
            wrong.append(f"{section}: {here}")
    assert wrong == [], all_of(wrong)


def test_a_command_or_a_key_of_ours_is_there() -> None:
    offers, keys = set(offered()), documented_keys()
    ours = [
        name
        for _, _, here, _ in lines()
        if not here.startswith(("later:", "none:"))
        for name in OURS.findall(here)
        if not name.startswith(("hr.", "headrace."))
    ]
    assert len(ours) > 60
    missing = []
    for name in ours:
        if name.startswith("headrace "):
            words = name.split()
            path = tuple(word for word in words if not word.startswith("--"))
            options = [word for word in words if word.startswith("--")] or [""]
            missing += [name for option in options if (path, option) not in offers]
        elif name not in keys:
            missing.append(name)
    assert missing == [], all_of(missing)


def documented_keys() -> set[str]:
    """Return the keys of the configuration, those of a kind of part under its section."""
    prefixes = {
        "Sources": "sources.ID.",
        "Targets": "pipelines.ID.target.",
        "Filters": "pipelines.ID.filters[].",
        "Transforms": "pipelines.ID.transforms[].",
    }
    keys, prefix = set(), ""
    for line in text(ROOT / "docs" / "reference" / "configuration.md").splitlines():
        if line.startswith("## "):
            prefix = prefixes.get(line[3:], "")
        if found := re.match(r"\| `([^`]+)` \|", line):
            keys.add(prefix + found[1])
    return keys


def test_every_name_of_an_interface_is_on_the_page() -> None:
    missing = {}
    for section, interface in INTERFACES.items():
        there = {name for at, names, *_ in lines() for name in names if at == section}
        if left := set(interface.split()) - there:
            missing[section] = left
    assert missing == {}, all_of(missing)


def test_a_target_of_rows_has_the_thirteen_hooks() -> None:
    assert len(HOOKS) == 13
    there = {hook: getattr(hr.RowTarget, hook) for hook in HOOKS}
    found = {
        hook: tuple(inspect.signature(method).parameters)[1:] for hook, method in there.items()
    }
    assert found == HOOKS
    assert [hook for hook, method in there.items() if not (method.__doc__ or "").strip()] == []
