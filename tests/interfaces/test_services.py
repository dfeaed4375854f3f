"""The front door of the services: paths, roles, rights, messages that are not understood."""

from __future__ import annotations

import ast
import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.api import connect
from headrace.api.handlers import ControlService, EmptyRequest, Verb
from headrace.api.methods import CONTROL, LAREDO_PATHS, METHODS, OAM, QUERY, ROLES, Method
from headrace.api.services import Caller
from headrace.api.status_messages import error_message
from headrace.errors import (
    BadRequest,
    ControlError,
    Forbidden,
    InvalidConfiguration,
    NotAvailable,
    UnknownPipeline,
)
from headrace.targets.memory import memory
from headrace.v1 import oam_pb2 as v1
from headrace.v1.error_pb2 import Error
from tests.interfaces.callers import LOCAL, Asking
from tests.support.shop import PATIENCE, Market
from tests.support.sources import ROOT

PARTS_TO_COME = {
    "DrainReplication": "fan-out",
    "CreateSnapshot": "snapshots",
    "ListSnapshots": "snapshots",
    "InspectSnapshot": "snapshots",
    "RestoreSnapshot": "snapshots",
    "DeleteSnapshot": "snapshots",
    "PruneSnapshots": "snapshots",
}
"""The calls that this version does not answer. A part that comes takes its lines with it."""


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    market = Market(tmp_path_factory.mktemp("services"), ("orders", "items"))
    both = market.pipeline(memory(), "orders", "items", name="both")
    with market.engine(both, market.pipeline(memory(), name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        yield Asking(engine)


def asked_json(ask: Asking, verb: str, **fields: Any) -> dict[str, Any]:
    body = ask.services.call(f"/{CONTROL}/{verb}", json.dumps(fields).encode(), ask.caller)
    found: dict[str, Any] = json.loads(body)
    return found


# -- the list of calls --------------------------------------------------------------------


@pytest.mark.parametrize("name", PARTS_TO_COME)
def test_a_call_of_a_part_to_come_says_which_part_is_missing(ask: Asking, name: str) -> None:
    part = PARTS_TO_COME[name]
    with pytest.raises(NotAvailable, match=f"{name} is not available: .* no {part},") as caught:
        ask(name)
    status, fields = connect.error_fields(caught.value)
    assert (status, fields["code"]) == (501, "unimplemented")


def test_every_call_is_answered_or_is_of_a_part_to_come(ask: Asking) -> None:
    missing = {each.name: each.part for each in METHODS.values() if each.part}
    assert missing == PARTS_TO_COME
    answered = {*ask.services._unary, *ask.services._streams}
    of_proto = {path for path, each in METHODS.items() if each.request and not each.part}
    assert answered == of_proto


def test_every_verb_of_the_command_line_is_in_the_list(ask: Asking) -> None:
    # `Apply` and `Configuration` are added by `headrace run`, which has the files.
    verbs = {*ask.control.unary, *ask.control.streams, "Apply", "Configuration"}
    assert verbs == {each.name for each in METHODS.values() if each.service == CONTROL}
    streams = {each.name for each in METHODS.values() if each.streams}
    assert set(ask.control.streams) == {*streams} - {
        "WatchStatus",
        "WatchEvents",
        "Subscribe",
        "Follow",
    }


def called() -> set[str]:
    """Return every text of the tests of services: the calls that they make are among them."""
    files = [*(ROOT / "tests/interfaces").glob("*.py"), *(ROOT / "tests").glob("server/*.py")]
    return {
        node.value.rpartition("/")[2]
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_every_call_has_a_test_that_makes_it() -> None:
    found = called()
    silent = [path for path, each in METHODS.items() if each.request and each.name not in found]
    assert silent == []


def test_what_changes_something_needs_more_than_the_role_read() -> None:
    assert {each.role for each in METHODS.values() if each.changes} == {"operate", "admin"}
    assert {each.role for each in METHODS.values() if not each.changes} == {"read"}
    assert not any(each.changes for each in METHODS.values() if each.streams)
    roles = {each.name: each.role for each in METHODS.values() if each.service == OAM}
    destroys = {name for name, role in roles.items() if role == "admin"}
    assert destroys == {
        *("ResetSource", "PurgeDeadLetters"),
        *("RestoreSnapshot", "DeleteSnapshot", "PruneSnapshots"),
    }


def test_laredos_paths_lead_to_calls_of_ours() -> None:
    assert len(LAREDO_PATHS) == 26 + 6
    for theirs, ours in LAREDO_PATHS.items():
        assert ours in METHODS
        assert theirs.rpartition("/")[2] == ours.rpartition("/")[2]
        assert theirs.startswith("/laredo.v1.Laredo")


# -- roles and rights ---------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda each: each.path)
def test_a_role_may_call_what_needs_it_or_a_lower_one(method: Method) -> None:
    for role in ROLES:
        if ROLES.index(role) >= ROLES.index(method.role):
            method.check(role)
        else:
            with pytest.raises(Forbidden, match=f"{method.name} needs the role {method.role}"):
                method.check(role)
    with pytest.raises(Forbidden):
        method.check("")


def test_the_role_is_checked_before_the_request_is_read(ask: Asking) -> None:
    reader = Caller("board", "read", "test")
    for path in (f"/{OAM}/PauseSync", f"/{CONTROL}/Pause", "/laredo.v1.LaredoOAMService/PauseSync"):
        with pytest.raises(Forbidden):
            ask.services.call(path, b"\xff", reader)
    with pytest.raises(Forbidden):
        ask.services.call(f"/{OAM}/ResetSource", b"", Caller("ci", "operate", "test"))


def test_a_caller_learns_who_it_is(ask: Asking) -> None:
    assert asked_json(ask, "Me") == {"name": "local", "role": "admin", "tables": []}
    mine = asked_json(ask.as_("read", "items"), "Me")
    assert mine == {"name": "the read", "role": "read", "tables": ["items"]}


def test_a_token_for_some_tables_sees_no_rows_of_others(ask: Asking) -> None:
    items = ask.as_("admin", "items")
    assert asked_json(items, "Query", pipeline="both", table="items")["count"] == 10
    for verb, fields in (
        ("Query", {"pipeline": "both", "table": "orders"}),
        ("Query", {"pipeline": "orders"}),
        ("DeadLetters", {"pipeline": "both"}),
        ("DeadLetters", {"pipeline": "both", "table": "orders"}),
        ("ReplayDeadLetters", {"pipeline": "both"}),
        ("PurgeDeadLetters", {"pipeline": "both"}),
    ):
        with pytest.raises(Forbidden):
            asked_json(items, verb, **fields)
    for verb in ("Rows", "Watch", "DeadLetterRecords"):
        body = json.dumps({"pipeline": "orders"}).encode()
        with pytest.raises(Forbidden):
            ask.services.stream(f"/{CONTROL}/{verb}", body, items.caller)
    for name in ("CountRows", "ListRows", "BatchLookup"):
        with pytest.raises(Forbidden):
            items.of(QUERY, name, table="orders")
    assert items.of(QUERY, "CountRows", table="items").count == 10


# -- messages that are not understood -----------------------------------------------------


def test_an_unknown_path_is_not_available(ask: Asking) -> None:
    for path in ("/headrace.v1.OAMService/Nothing", "/", "", "/laredo.v1.LaredoOAMService/Nothing"):
        with pytest.raises(NotAvailable, match="There is no call"):
            ask.services.call(path, b"", LOCAL)
        with pytest.raises(NotAvailable, match="There is no call"):
            ask.services.stream(path, b"", LOCAL)
    with pytest.raises(NotAvailable, match="does not answer Apply"):
        ask.services.call(f"/{CONTROL}/Apply", b"{}", LOCAL)


def test_a_stream_is_not_called_for_one_message_nor_the_other_way_round(ask: Asking) -> None:
    with pytest.raises(BadRequest, match="WatchStatus answers with a stream"):
        ask.services.call(f"/{OAM}/WatchStatus", b"", LOCAL)
    with pytest.raises(BadRequest, match="GetStatus answers with one message"):
        ask.services.stream(f"/{OAM}/GetStatus", b"", LOCAL)


def test_bytes_that_are_no_message_are_refused(ask: Asking) -> None:
    with pytest.raises(BadRequest, match="not a GetTableStatusRequest"):
        ask.services.call(f"/{OAM}/GetTableStatus", b"\x0a\xff", LOCAL)
    with pytest.raises(BadRequest, match="not a WatchStatusRequest"):
        ask.services.stream(f"/{OAM}/WatchStatus", b"\x0a\xff", LOCAL)
    with pytest.raises(BadRequest, match="not JSON"):
        ask.services.call(f"/{CONTROL}/Status", b"{", LOCAL)


def test_a_field_that_is_not_known_is_refused_and_not_left_out(ask: Asking) -> None:
    # Field 999, as a newer client would send a condition that we would not apply.
    unknown = b"\xb8\x3e\x01"
    asked = v1.PurgeDeadLettersRequest(pipeline_id="both").SerializeToString() + unknown
    with pytest.raises(BadRequest, match=r"does not know, numbers=\[999\]"):
        ask.services.call(f"/{OAM}/PurgeDeadLetters", asked, LOCAL)
    inner = v1.DeadLetterSelection.FromString(unknown)
    asked = v1.PurgeDeadLettersRequest(pipeline_id="both", selection=inner).SerializeToString()
    with pytest.raises(BadRequest, match=r"does not know, numbers=\[999\]"):
        ask.services.call(f"/{OAM}/PurgeDeadLetters", asked, LOCAL)
    selection = v1.DeadLetterSelection(table="orders")
    known = v1.PurgeDeadLettersRequest(pipeline_id="both", selection=selection, dry_run=True)
    answer = ask.services.call(f"/{OAM}/PurgeDeadLetters", known.SerializeToString(), LOCAL)
    assert v1.PurgeDeadLettersResponse.FromString(answer).purged == 0


def test_json_verbs_refuse_what_they_do_on_the_local_socket(ask: Asking) -> None:
    with pytest.raises(UnknownPipeline):
        asked_json(ask, "Query", pipeline="none")
    with pytest.raises(BadRequest, match="Invalid request"):
        asked_json(ask, "Query", pipeline="both", colour="red")
    assert asked_json(ask, "Status")["ready"] in (True, False)


def test_a_json_stream_is_one_message_for_each_answer(ask: Asking) -> None:
    body = json.dumps({"pipeline": "orders"}).encode()
    stream = ask.services.stream(f"/{CONTROL}/Rows", body, LOCAL)
    first, second = (json.loads(each) for each in stream)
    assert [each["name"] for each in first["columns"]] == ["id", "status", "version"]
    assert len(second["rows"]) == 10
    stream.close()


def test_a_mistake_of_ours_is_an_error_of_ours(
    ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("a value of a row")

    monkeypatch.setitem(ask.services._unary, f"/{OAM}/GetStatus", broken)
    with pytest.raises(ControlError, match=r"Internal error \(ZeroDivisionError\)") as caught:
        ask("GetStatus")
    assert "a value of a row" not in str(caught.value)

    class Broken:
        def __iter__(self) -> Any:
            broken()

        def close(self) -> None: ...

    monkeypatch.setitem(ask.services._streams, f"/{OAM}/WatchEvents", lambda *_: Broken())
    stream = ask.services.stream(f"/{OAM}/WatchEvents", b"", LOCAL)
    with pytest.raises(ControlError, match=r"Internal error \(ZeroDivisionError\)"):
        list(stream)


def test_an_error_is_encoded_as_its_message_with_all_its_errors() -> None:
    several = InvalidConfiguration("2 errors", remedy="Correct them.").holding(
        [BadRequest("First", key="a"), BadRequest("Second", rows=3)]
    )
    _, fields = connect.error_fields(several)
    (detail,) = fields["details"]
    assert detail["type"] == "headrace.v1.Error"
    found = Error.FromString(base64.b64decode(detail["value"] + "=="))
    assert found == error_message(several)
    assert (found.code, found.remedy) == ("config.invalid", "Correct them.")
    assert [(each.message, dict(each.facts)) for each in found.errors] == [
        ("First", {"key": "a"}),
        ("Second", {"rows": "3"}),
    ]


def test_a_verb_that_an_engine_adds_is_answered(ask: Asking) -> None:
    control: ControlService = ask.control
    control.unary["Apply"] = Verb(EmptyRequest, lambda _: {"done": True})
    assert asked_json(ask, "Apply") == {"done": True}
    del control.unary["Apply"]
