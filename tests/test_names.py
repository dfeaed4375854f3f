"""The page of names from elsewhere leads to names that are there."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from functools import cache

import headrace as hr
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
        CreateSnapshot Targets Pipelines SourceIDs SourceInfo TableSchema ResetSource GetTarget""",
    "Targets": """SyncTarget OnInit OnBaselineRow OnBaselineComplete OnInsert OnUpdate OnDelete
        OnTruncate IsDurable OnSchemaChange ExportSnapshot RestoreSnapshot
        SupportsConsistentSnapshot OnClose Lookup LookupAll Get All Count Listen""",
    "Sources": """SyncSource Init ValidateTables Baseline Stream Ack SupportsResume
        LastAckedPosition ComparePositions PositionToString PositionFromString Pause Resume GetLag
        OrderingGuarantee State Close""",
    "Filters, transforms, dead letters": """FieldEquals FieldPrefix FieldRegex DropFields
        RenameFields AddTimestamp deadletter""",
    "Managing streams": """Replicator Kind UpsertStream DeleteStream ListStreams GetStatus Pause
        Resume Replay Checkpoint Endpoint Stream StreamStatus""",
    "Capture from SQLite": "CDC Installer Setup Teardown Engine.CDC Engine.Bootstrap Engine.Close",
}
"""What each interface has, as far as it is made of methods."""


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
    assert len(lines()) > 100
    wrong = []
    for section, _, here, _ in lines():
        reason = re.fullmatch(r"(later|none): \S.*", here)
        names = re.fullmatch(r"`(hr|headrace)\.[^`]+`(, `(hr|headrace)\.[^`]+`)*", here)
        if not (reason or names):
            wrong.append(f"{section}: {here}")
    assert wrong == [], all_of(wrong)


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
