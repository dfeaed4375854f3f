"""Commands to a running engine over its socket: real log, real threads, no JVM."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.api import connect, server
from headrace.api.client import Control
from headrace.api.server import serve
from headrace.engine.engine import Engine
from headrace.errors import (
    BadRequest,
    HeadraceError,
    InvalidConfiguration,
    Locked,
    NoEngine,
    NotRunning,
    RowFailed,
    UnknownColumn,
    UnknownIndex,
    UnknownPipeline,
)
from headrace.pipeline.definition import Pipeline
from headrace.targets.memory import memory
from tests.support.arrow_runner import ArrowRunner
from tests.support.file_target import FileTarget
from tests.support.patience import patience
from tests.support.shop import Shop, await_seen

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.close()


@pytest.fixture
def engine(shop: Shop) -> Iterator[Engine]:
    target = memory(indexes={"by_customer": ["customer_id"]}, lookup=["id"])
    with shop.engine(shop.pipeline(target, "orders")) as engine:
        assert engine.await_ready(patience())
        yield engine


@pytest.fixture
def control(engine: Engine, shop: Shop) -> Iterator[Control]:
    with serve(engine, shop.data, service="test"):
        yield Control.connect(shop.data)


@pytest.fixture
def address(control: Control, shop: Shop) -> Path:
    """The socket that is listened on."""
    found = server.announced(shop.data)
    assert found is not None
    return found.socket


def posted(path: Path, where: str, body: bytes, kind: str = connect.UNARY) -> tuple[int, Any]:
    """Ask as any HTTP client would."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    with closing(connection):
        connection.request("POST", where, body, {"Content-Type": kind})
        response = connection.getresponse()
        return response.status, json.loads(response.read())


# -- where it lies ------------------------------------------------------------------------


def test_the_socket_is_its_users_alone_and_named_in_the_data_directory(
    engine: Engine, shop: Shop
) -> None:
    with serve(engine, shop.data) as serving:
        told = json.loads((shop.data / "run" / "engine.json").read_text())
        assert told == {"format": 1, "pid": os.getpid(), "socket": str(serving.socket)}
        assert stat.S_IMODE(serving.socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(serving.socket.parent.stat().st_mode) == 0o700
        assert len(os.fsencode(serving.socket)) <= server.LONGEST
        assert stat.S_IMODE((shop.data / "run" / "engine.json").stat().st_mode) == 0o600
    assert not serving.socket.exists()
    assert not (shop.data / "run" / "engine.json").exists()


def test_it_lies_in_the_runtime_folder_unless_that_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = server.new_socket({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert near.parent == tmp_path / "headrace"
    far = tmp_path / ("x" * 100)
    far.mkdir()
    found = server.new_socket({"XDG_RUNTIME_DIR": str(far)})
    assert not found.is_relative_to(far)
    assert len(os.fsencode(found)) <= server.LONGEST


def test_a_folder_that_others_may_enter_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "headrace").mkdir()
    (tmp_path / "headrace").chmod(0o755)
    assert not server.new_socket({"XDG_RUNTIME_DIR": str(tmp_path)}).is_relative_to(tmp_path)
    (tmp_path / "headrace").rmdir()
    (tmp_path / "headrace").symlink_to(tmp_path)
    assert not server.new_socket({"XDG_RUNTIME_DIR": str(tmp_path)}).is_relative_to(tmp_path)


def test_without_an_engine_the_error_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(NoEngine) as caught:
        Control.connect(tmp_path)
    assert caught.value.exit_code == 4
    assert "headrace run" in caught.value.remedy
    with pytest.raises(NoEngine, match="nowhere does not exist"):
        Control.connect(tmp_path / "nowhere")


def test_an_engine_that_takes_no_commands_is_named(engine: Engine, shop: Shop) -> None:
    with pytest.raises(NoEngine, match=f"Process {os.getpid()} uses"):
        Control.connect(shop.data)


def test_only_who_holds_the_data_directory_is_announced(shop: Shop) -> None:
    engine = shop.engine(shop.pipeline(memory()))
    shop.data.mkdir()
    with pytest.raises(NotRunning, match="does not hold"):
        serve(engine, shop.data)
    assert not (shop.data / "run" / "engine.json").exists()


KILLED = """
import sys, time
from pathlib import Path
from headrace.api.server import serve
from headrace.targets.memory import memory
from headrace.capture.sqlite.source import sqlite
from headrace.engine.engine import Engine
from headrace.pipeline.definition import Pipeline
from tests.support.arrow_runner import ArrowRunner

folder = Path(sys.argv[1])
source = sqlite(folder / "shop.db", name="shop")
engine = Engine(
    Pipeline(source, "orders", memory(), name="orders"),
    data=folder / "data", runner=ArrowRunner(), recorder="thread",
)
engine.start()
serving = serve(engine, folder / "data")
print(serving.socket, flush=True)
time.sleep(600)
"""


@pytest.mark.crash
def test_what_a_killed_engine_left_is_recognised_and_replaced(shop: Shop, tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )
    with child:
        assert child.stdout is not None
        left = Path(child.stdout.readline().strip())
        assert Control.connect(shop.data).call("Status")["pid"] == child.pid
        child.send_signal(signal.SIGKILL)
    assert left.exists()
    with pytest.raises(NoEngine, match="No engine is running"):
        Control.connect(shop.data)
    with shop.engine(shop.pipeline(memory(), "orders")) as engine, serve(engine, shop.data):
        assert Control.connect(shop.data).call("Status")["pid"] == os.getpid()
        assert not left.exists()


# -- the protocol -------------------------------------------------------------------------


def test_it_speaks_connects_json(address: Path) -> None:
    where = f"{connect.SERVICE}Query"
    status, answer = posted(address, where, b'{"pipeline": "orders", "key": [3]}')
    assert status == 200
    assert answer["rows"] == [{"id": 3, "customer_id": 3, "status": "paid"}]


@pytest.mark.parametrize(
    ("verb", "body", "kind", "status", "code"),
    [
        ("Query", b"{", "application/json", 400, "invalid_argument"),
        ("Query", b"[]", "application/json", 400, "invalid_argument"),
        ("Query", b"{}", "application/json", 400, "invalid_argument"),
        ("Query", b'{"pipelin": "orders"}', "application/json", 400, "invalid_argument"),
        ("Query", b'{"pipeline": 7}', "application/json", 400, "invalid_argument"),
        ("Status", b"{}", "text/plain", 400, "invalid_argument"),
        ("Watch", b"{}", "application/json", 400, "invalid_argument"),
        ("Nonsense", b"{}", "application/json", 501, "unimplemented"),
        ("Query", b'{"pipeline": "other"}', "application/json", 404, "not_found"),
        ("Query", b'{"pipeline": "\\ud800"}', "application/json", 400, "invalid_argument"),
        ("Query", b'{"\\udfff": "orders"}', "application/json", 400, "invalid_argument"),
        ("Query", b"[" * 100_000, "application/json", 400, "invalid_argument"),
        (
            "Query",
            b'{"pipeline": "orders", "key": ' + b"[" * 500 + b"]" * 500 + b"}",
            "application/json",
            400,
            "invalid_argument",
        ),
        (
            "Query",
            b'{"pipeline": "orders", "key": [NaN]}',
            "application/json",
            400,
            "invalid_argument",
        ),
        (
            "Query",
            b'{"pipeline": "orders", "key": [1e999]}',
            "application/json",
            400,
            "invalid_argument",
        ),
        ("Explain", b'{"pipeline": "orders"}', "application/json", 400, "failed_precondition"),
    ],
)
def test_what_cannot_be_answered_is_connects_error(
    address: Path, verb: str, body: bytes, kind: str, status: int, code: str
) -> None:
    found, answer = posted(address, f"{connect.SERVICE}{verb}", body, kind)
    assert (found, answer["code"]) == (status, code)
    (detail,) = answer["details"]
    assert detail["type"] == "headrace.v1.Error"
    assert detail["debug"]["code"].startswith("control.")
    assert detail["debug"]["remedy"]


def test_a_wrong_path_is_refused(address: Path) -> None:
    assert posted(address, "/other/Status", b"{}")[0] == 400


def test_an_engine_that_becomes_ready_while_it_is_looked_at_is_not_ready_yet(
    engine: Engine, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The pipelines are looked at between the first answer and the second: their rows are old.
    answers = iter([False, True])
    asked = engine.is_ready

    def becomes_ready(pipeline: str | None = None) -> bool:
        return asked(pipeline=pipeline) if pipeline else next(answers, True)

    monkeypatch.setattr(engine, "is_ready", becomes_ready)
    assert control.call("Status")["ready"] is False
    assert control.call("Status")["ready"] is True


def test_names_may_be_written_as_protobuf_does() -> None:
    assert connect.parsed(b'{"leftSeconds": 1}') == {"leftSeconds": 1}


@pytest.mark.parametrize(
    "error",
    [
        Locked("Process 7 holds it", pid=7),
        UnknownColumn("No column b", columns=["a", "c"], remedy="Take another one."),
        InvalidConfiguration.of([UnknownColumn("No column b"), Locked("Held", pid=7)]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_arrives_as_what_it_was(error: HeadraceError) -> None:
    _, fields = connect.error_fields(error)
    made = connect.error_from(json.loads(connect.message(fields)))
    assert type(made) is type(error)
    assert (made.message, made.remedy, made.facts) == (error.message, error.remedy, error.facts)
    inside = [type(each) for each in getattr(made, "errors", ())]
    assert inside == [type(each) for each in getattr(error, "errors", ())]


def test_a_detail_is_protobuf_too() -> None:
    _, fields = connect.error_fields(Locked("x" * 200, pid=7))
    text = fields["details"][0]["value"]
    data = base64.b64decode(text + "=" * (-len(text) % 4))
    assert data[:2] == bytes([0x0A, len("control.locked")])
    assert b"\x12\xc8\x01" + b"x" * 200 in data
    assert data.endswith(b"\x22\x08\x0a\x03pid\x12\x017")


def test_errors_of_the_engine_keep_class_facts_and_remedy(control: Control) -> None:
    with pytest.raises(UnknownPipeline) as unknown:
        control.call("Query", pipeline="order")
    assert unknown.value.facts == {"pipelines": ["orders"]}
    with pytest.raises(UnknownIndex):
        control.call("Query", pipeline="orders", index="nope", values=[1])
    with pytest.raises(BadRequest):
        control.call("Query", pipeline="orders", key=["one"])
    with pytest.raises(UnknownPipeline):
        next(control.stream("Watch", pipeline="order"))


# -- rows and changes ---------------------------------------------------------------------


def test_rows_are_found_by_key_lookup_and_index(control: Control, shop: Shop) -> None:
    seven = {"id": 7, "customer_id": 0, "status": "paid"}
    assert control.call("Query", pipeline="orders", key=["7"])["rows"] == [seven]
    assert control.call("Query", pipeline="orders", lookup=[7])["rows"] == [seven]
    found = control.call("Query", pipeline="orders", index="by_customer", values=["3"])
    assert sorted(row["id"] for row in found["rows"]) == [3, 10]
    assert control.call("Query", pipeline="orders", key=["99"])["rows"] == []
    assert control.call("Query", pipeline="orders")["count"] == 10


def test_all_rows_come_in_messages_of_a_few_hundred(control: Control, shop: Shop) -> None:
    shop.insert(range(11, 1_302))
    assert await_seen(lambda: control.call("Query", pipeline="orders")["count"] == 1_301)
    first, *rest = control.stream("Rows", pipeline="orders")
    assert [column["name"] for column in first["columns"]] == ["id", "customer_id", "status"]
    assert first["state"] == "streaming"
    assert [len(each["rows"]) for each in rest] == [500, 500, 301]
    assert (
        sum(len(m.get("rows", ())) for m in control.stream("Rows", pipeline="orders", limit=3)) == 3
    )


def test_changes_are_watched_as_they_become_visible(control: Control, shop: Shop) -> None:
    watched = control.stream("Watch", pipeline="orders")
    assert "columns" in next(watched)
    shop.app.execute("update orders set customer_id = 70 where id = 7")
    shop.app.execute("delete from orders where id = 8")
    update, delete = next(watched), next(watched)
    assert (update["op"], update["key"]) == ("update", [7])
    assert (update["before"]["customer_id"], update["after"]["customer_id"]) == (0, 70)
    assert (delete["op"], delete["key"], delete["after"]) == ("delete", [8], None)
    assert update["position"] < delete["position"]
    watched.close()  # type: ignore[attr-defined]


def test_a_watch_with_rows_begins_with_those_there_are(control: Control) -> None:
    watched = control.stream("Watch", pipeline="orders", rows=True)
    next(watched)
    assert {next(watched)["key"][0] for _ in range(10)} == set(range(1, 11))
    watched.close()  # type: ignore[attr-defined]


def test_whoever_stops_watching_is_forgotten(engine: Engine, control: Control) -> None:
    feed = engine.target("orders")._feeds["orders"]  # type: ignore[attr-defined]
    watched = control.stream("Watch", pipeline="orders")
    next(watched)
    assert feed.wanted
    watched.close()  # type: ignore[attr-defined]
    assert await_seen(lambda: not feed.wanted)


def test_a_watch_ends_with_the_engine(shop: Shop) -> None:
    engine = shop.engine(shop.pipeline(memory(), "orders"))
    engine.start()
    assert engine.await_ready(patience())
    serving = serve(engine, shop.data)
    seen: list[dict[str, Any]] = []
    began = threading.Event()

    def watch() -> None:
        for each in Control.connect(shop.data).stream("Watch", pipeline="orders"):
            seen.append(each)
            began.set()

    watching = threading.Thread(target=watch)
    watching.start()
    assert began.wait(patience())
    engine.stop()
    watching.join(patience())
    assert not watching.is_alive()
    serving.close()
    serving.close()


def test_a_target_without_rows_says_so(shop: Shop, tmp_path: Path) -> None:
    target = FileTarget(tmp_path / "rows.db")
    with (
        shop.engine(shop.pipeline(target, "orders")) as engine,
        serve(engine, shop.data),
        pytest.raises(BadRequest, match="cannot be queried"),
    ):
        Control.connect(shop.data).call("Query", pipeline="orders")


# -- the truth ----------------------------------------------------------------------------


def test_status_tells_what_is_observed(control: Control, engine: Engine, shop: Shop) -> None:
    told = control.call("Status")
    assert (told["phase"], told["ready"], told["service"]) == ("running", True, "test")
    (pipeline,) = told["pipelines"]
    assert (pipeline["state"], pipeline["rows"], pipeline["target"]) == (
        "streaming",
        10,
        "indexed-memory",
    )
    assert pipeline["position"] == str(engine.pipelines()[0].position)
    assert pipeline["lag_seconds"] is not None
    assert told["sources"][0]["state"] == "streaming"


def test_a_pause_is_seen_and_is_not_ready(control: Control, engine: Engine, shop: Shop) -> None:
    answer = control.call("Pause", pipeline="orders")
    assert answer["pipelines"] == [
        {"name": "orders", "state": "paused", "ready": False, "reason": ""}
    ]
    assert control.call("Status")["ready"] is False
    assert control.call("Query", pipeline="orders", key=[1])["state"] == "paused"
    control.call("Resume", source="shop")
    assert engine.await_ready(patience())
    assert control.call("Status")["pipelines"][0]["state"] == "streaming"
    with pytest.raises(UnknownPipeline, match="There is no source other"):
        control.call("Pause", source="other")


def test_a_failed_pipeline_is_told_with_its_error(shop: Shop) -> None:
    runner = ArrowRunner(fails=lambda pipeline, row: "DIVIDE_BY_ZERO" if row["id"] == 11 else None)
    pipeline = Pipeline(shop.source(), "orders", memory(), name="orders", on_error="stop")
    engine = Engine(pipeline, data=shop.data, runner=runner, recorder="thread")
    with engine, serve(engine, shop.data):
        assert engine.await_ready(patience())
        control = Control.connect(shop.data)
        shop.insert(range(11, 12))
        assert await_seen(lambda: control.call("Status")["pipelines"][0]["state"] == "failed")
        told = control.call("Status")
        assert told["ready"] is False
        assert isinstance(connect.error_of(told["pipelines"][0]["error"]), RowFailed)


def test_a_source_that_is_gone_is_not_green(shop: Shop) -> None:
    target = memory()
    with shop.engine(shop.pipeline(target, "orders")) as engine, serve(engine, shop.data):
        assert engine.await_ready(patience())
        control = Control.connect(shop.data)
        recording = engine._state.recordings["shop"]
        recording._state = "reconnecting"
        told = control.call("Status")
        (pipeline,) = told["pipelines"]
        assert (told["ready"], pipeline["state"]) == (False, "not_ready")
        assert pipeline["lag_seconds"] is None
        assert "source shop is reconnecting" in pipeline["reason"]
        recording._state = "streaming"


def test_a_reload_is_asked_for_and_waited_for(control: Control, engine: Engine) -> None:
    before = engine.pipelines()[0].tables[0].baseline
    answer = control.call("Reload", pipeline="orders", wait_seconds=patience())
    assert answer["tables"] == [{"source": "shop", "table": "orders", "done": True}]
    assert engine.pipelines()[0].tables[0].baseline > before
    with pytest.raises(UnknownPipeline, match="has no table"):
        control.call("Reload", pipeline="orders", table="other")


@pytest.mark.meets("ENG-52")
@pytest.mark.parametrize("chosen", [{}, {"source": "shop"}, {"source": "shop", "table": "orders"}])
def test_all_tables_are_reloaded_or_those_of_a_source(
    control: Control, engine: Engine, chosen: dict[str, Any]
) -> None:
    before = engine.pipelines()[0].tables[0].baseline
    answer = control.call("Reload", **chosen, wait_seconds=patience())
    assert answer["tables"] == [{"source": "shop", "table": "orders", "done": True}]
    (pipeline,) = answer["pipelines"]
    assert (pipeline["name"], pipeline["ready"]) == ("orders", True)
    assert engine.pipelines()[0].tables[0].baseline > before
    with pytest.raises(UnknownPipeline, match="no source"):
        control.call("Reload", source="other")
    with pytest.raises(BadRequest, match="one pipeline or one source"):
        control.call("Reload", source="shop", pipeline="orders")
    with pytest.raises(BadRequest, match="source of the table"):
        control.call("Reload", table="orders")
