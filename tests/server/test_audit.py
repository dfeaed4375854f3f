"""The audit log: who changed what, who was refused, and what never gets into it."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from headrace.api.methods import CONTROL, METHODS, OAM
from headrace.api.services import Caller
from headrace.observe.logs import log_into
from headrace.server import audit
from headrace.server.audit import AuditEntry, AuditLog, Refusals, entry_of, names_in
from headrace.v1 import oam_pb2

CALLER = Caller("ci", "operate", "192.0.2.7")
PAUSE = METHODS[f"/{OAM}/PauseSync"]
REPLAY = METHODS[f"/{CONTROL}/ReplayDeadLetters"]
EDIT = METHODS[f"/{OAM}/EditDeadLetter"]


def lines(folder: Path, name: str = audit.FILE) -> list[dict[str, Any]]:
    return [json.loads(each) for each in (folder / name).read_text().splitlines()]


def refusal(address: str = "192.0.2.7", method: str = "Login") -> AuditEntry:
    return AuditEntry(method, "unauthenticated", address=address)


def test_a_line_says_who_did_what_and_how_it_ended(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "logs", clock=lambda: 1_700_000_000.5)
    body = oam_pb2.PauseSyncRequest(source_id="shop").SerializeToString()
    log.write(entry_of(PAUSE, "ok", CALLER, body=body))
    log.close()
    assert lines(tmp_path / "logs") == [
        {
            "at": "2023-11-14T22:13:20.500Z",
            "method": "OAMService/PauseSync",
            "caller": "ci",
            "role": "operate",
            "address": "192.0.2.7",
            "source_id": "shop",
            "outcome": "ok",
        }
    ]
    assert stat.S_IMODE((tmp_path / "logs" / audit.FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "logs").stat().st_mode) == 0o700


def test_values_of_rows_and_notes_are_never_in_it() -> None:
    body = json.dumps(
        {"pipeline": "shop", "table": "orders", "values": {"name": "Ada"}, "note": "for Ada"}
    )
    assert names_in(REPLAY, body.encode()) == {"pipeline": "shop", "table": "orders"}
    request = oam_pb2.EditDeadLetterRequest(pipeline_id="shop", table="orders", note="for Ada")
    request.values.update({"name": "Ada"})
    assert names_in(EDIT, request.SerializeToString()) == {"pipeline_id": "shop", "table": "orders"}


def test_what_a_purge_selects_is_in_it() -> None:
    request = oam_pb2.PurgeDeadLettersRequest(pipeline_id="shop")
    request.selection.table = "orders"
    found = names_in(METHODS[f"/{OAM}/PurgeDeadLetters"], request.SerializeToString())
    assert found == {"pipeline_id": "shop", "table": "orders"}


@pytest.mark.parametrize(
    "body", [b"\xff\xff", b"[1]", b"{", b'{"pipeline": {"a": 1}, "table": 7}', b"[" * 9_999]
)
def test_a_request_that_is_not_valid_has_no_names(body: bytes) -> None:
    assert names_in(REPLAY, body) == {}
    assert names_in(PAUSE, body) == {}


def test_a_name_is_shortened_and_cannot_make_a_line_of_its_own(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    body = json.dumps({"pipeline": "a\n\x1b[31m\u2028" + "x" * 500}).encode()
    log.write(entry_of(REPLAY, "not_found", CALLER, body=body))
    log.close()
    (line,) = lines(tmp_path)
    assert len(line["pipeline"]) == 200
    assert (tmp_path / audit.FILE).read_bytes().isascii()


def test_equal_refusals_become_one_line_a_minute() -> None:
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    assert refusals.take(refusal()) == [refusal()]
    assert all(refusals.take(refusal()) == [] for _ in range(9))
    assert refusals.take(refusal("192.0.2.8")) == [refusal("192.0.2.8")]
    now[0] = audit.WINDOW_SECONDS
    (counted,) = refusals.due()
    assert (counted.address, counted.count) == ("192.0.2.7", 9)
    assert refusals.due() == []
    assert refusals.take(refusal()) == [refusal()]


def test_refusals_of_many_callers_are_limited_and_none_is_lost() -> None:
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    many = 5 * audit.MOST_REFUSALS
    written = [each for number in range(many) for each in refusals.take(refusal(f"a{number}"))]
    assert len(written) == audit.MOST_REFUSALS
    now[0] = audit.WINDOW_SECONDS
    (others,) = refusals.due()
    assert (others.caller, others.count) == ("others", many - audit.MOST_REFUSALS)


def test_what_was_counted_is_written_at_the_end(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    for _ in range(5):
        log.refuse(refusal())
    assert len(lines(tmp_path)) == 1
    log.close()
    log.write(refusal())
    assert [each.get("count") for each in lines(tmp_path)] == [None, 4]


def test_old_files_are_kept_in_a_limited_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "KEEP_BYTES", 1)
    monkeypatch.setattr(audit, "KEEP_FILES", 3)
    log = AuditLog(tmp_path)
    for number in range(5):
        log.write(AuditEntry(f"call {number}", "ok"))
    log.close()
    names = ["audit.log", "audit.log.1", "audit.log.2"]
    assert sorted(each.name for each in tmp_path.iterdir()) == names
    assert [lines(tmp_path, each)[0]["method"] for each in names] == ["call 4", "call 3", "call 2"]
    assert {stat.S_IMODE((tmp_path / each).stat().st_mode) for each in names} == {0o600}


def test_an_audit_log_that_is_there_is_continued(tmp_path: Path) -> None:
    for number in range(2):
        log = AuditLog(tmp_path)
        log.write(AuditEntry(f"call {number}", "ok"))
        log.close()
    assert [each["method"] for each in lines(tmp_path)] == ["call 0", "call 1"]


def test_a_disk_that_is_full_is_reported_once_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AuditLog(tmp_path)
    close = log_into(tmp_path / "logs")
    try:
        with monkeypatch.context() as patched, Path("/dev/full").open("ab", 0) as full:
            patched.setattr(log, "_file", full)
            log.write(refusal(), refusal())
        log.write(AuditEntry("after", "ok"))
    finally:
        close()
    log.close()
    told = (tmp_path / "logs" / "headrace.log").read_text()
    assert told.count("audit log cannot be written") == 1
    assert [each["method"] for each in lines(tmp_path)] == ["after"]
