"""Records as JSON of five fields, and the handlers that write or send them."""

from __future__ import annotations

import errno
import io
import json
import math
import sqlite3
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headrace.capture.sqlite import Batch, Capture, triggers
from headrace.capture.sqlite.library import handlers
from headrace.capture.sqlite.library.handlers import JsonLineHandler, Post, Words
from headrace.capture.sqlite.library.records import RecordFormat
from headrace.errors import SourceRefused, TargetError
from tests.capture.library import Heard, Running, running
from tests.support.patience import patience


@pytest.fixture(autouse=True)
def _tables(app: sqlite3.Connection, path: Path) -> None:
    app.execute("create table t (id integer primary key, v, b blob)")
    Capture(path, ["t"], print).setup()


def lines(path: Path, count: int, **form: Any) -> list[dict[str, Any]]:
    """Return the logged changes as JSON says them, without acknowledging any."""
    with running(path, ["t"], reader="default") as heard:
        heard.count(count)
    return [
        json.loads(line)
        for batch in heard.batches
        for line in batch.json_lines(**form).splitlines()
    ]


def test_a_change_has_five_fields(path: Path, app: sqlite3.Connection) -> None:
    app.execute("insert into t values (1, 'a', null)")
    app.execute("update t set v = 'b'")
    app.execute("delete from t")
    made = lines(path, 3)
    assert [list(line) for line in made] == [
        ["table", "timestamp", "operation", "before", "after"]
    ] * 3
    assert [(line["operation"], line["before"], line["after"]) for line in made] == [
        ("INSERT", None, {"id": 1, "v": "a"}),
        ("UPDATE", {"id": 1, "v": "a"}, {"id": 1, "v": "b"}),
        ("DELETE", {"id": 1, "v": "b"}, None),
    ]


def test_values_are_read_back_as_they_were(path: Path, app: sqlite3.Connection) -> None:
    values: list[object] = [
        None,
        2**63 - 1,
        -(2**63),
        0.1 + 0.2,
        2.0**53,
        1.7976931348623157e308,
        5e-324,
    ]
    values += [-0.0, math.inf, -math.inf, "", 'a\0"\\\n', "<&>\u2028é😀", "null"]
    app.executemany("insert into t values (?, ?, null)", list(enumerate(values)))
    found = [line["after"]["v"] for line in lines(path, len(values))]
    assert found == values
    assert list(map(repr, found)) == list(map(repr, values))
    heard = Heard()
    Capture(path, ["t"], heard).bootstrap()
    rows = [json.loads(line)["after"] for line in heard.batches[0].json_lines().splitlines()[1:]]
    assert [row["v"] for row in rows] == values


def test_an_infinite_number_is_one_that_every_json_reader_can_read(
    path: Path, app: sqlite3.Connection
) -> None:
    app.execute("insert into t values (1, 9e999, null)")
    with running(path, ["t"]) as heard:
        heard.count(1)
    assert b'"v":9e999}' in heard.batches[0].json_lines()


def test_blobs_are_left_out_or_hexadecimal(path: Path, app: sqlite3.Connection) -> None:
    blobs = [None, b"", b"\x00\xab"]
    app.executemany("insert into t values (?, 0, ?)", list(enumerate(blobs)))
    # A blob in a column that is not declared so is never left out.
    app.execute("insert into t values (9, x'01', null)")
    with running(path, ["t"]) as heard:
        heard.count(4)

    def images(**form: Any) -> list[dict[str, Any]]:
        return [
            json.loads(line)["after"]
            for batch in heard.batches
            for line in batch.json_lines(**form).splitlines()
        ]

    assert [row["b"] for row in images(blobs=True)] == [None, "", "00AB", None]
    assert {tuple(row) for row in images()} == {("id", "v")}
    assert images()[3]["v"] == images(blobs=True)[3]["v"] == "01"


def test_text_that_is_not_utf8_becomes_valid_json(path: Path, app: sqlite3.Connection) -> None:
    app.execute("insert into t values (1, cast(x'41ff' as text), null)")
    app.execute("insert into t values (2, 'é', null)")
    assert [line["after"]["v"] for line in lines(path, 2)] == ["A\ufffd", "é"]
    heard = Heard()
    Capture(path, ["t"], heard).bootstrap()
    text = heard.batches[0].json_lines().decode()
    assert [json.loads(line)["after"]["v"] for line in text.splitlines()[1:]] == ["A\ufffd", "é"]


def test_timestamps_are_utc_and_sort_as_text(path: Path, app: sqlite3.Connection) -> None:
    app.execute("insert into t values (1, 0, null)")
    app.execute(f"update {triggers.LOG} set ts = 1700000000710 where seq = 2")
    with running(path, ["t"]) as heard:
        heard.count(1)
    batch = heard.batches[0]
    assert json.loads(batch.json_lines())["timestamp"] == "2023-11-14T22:13:20.710Z"
    whole = json.loads(batch.json_lines(subsec=False))
    assert whole["timestamp"] == "2023-11-14T22:13:20Z"


def test_positions_are_a_sixth_field_for_who_asks(path: Path, app: sqlite3.Connection) -> None:
    app.execute("insert into t values (1, 0, null)")
    epoch = triggers.capture_id(app)
    assert lines(path, 1, positions=True)[0]["position"] == f"{epoch}/2"
    heard = Heard()
    Capture(path, ["t"], heard).bootstrap()
    made = [json.loads(line) for line in heard.batches[0].json_lines(positions=True).splitlines()]
    assert [line["position"] for line in made] == [f"{epoch}/2"] * 2


@pytest.mark.parametrize("columns", [1, 64, 130, pytest.param(998, marks=pytest.mark.slow)])
def test_wide_tables_keep_every_column(path: Path, app: sqlite3.Connection, columns: int) -> None:
    names = ["id integer primary key", *(f'"column {at}"' for at in range(1, columns))]
    app.execute(f"create table wide ({', '.join(names)})")
    Capture(path, ["wide"], print).setup()
    app.execute("insert into wide (id) values (1)")
    with running(path, ["wide"]) as heard:
        heard.count(1)
    image = json.loads(heard.batches[0].json_lines())["after"]
    assert image == {"id": 1} | {f"column {at}": None for at in range(1, columns)}


def test_names_may_be_anything(path: Path, app: sqlite3.Connection) -> None:
    names = ['a"b', "new\nline", "back\\slash", "é", "select", "a b"]
    columns = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
    app.execute(f'create table "odd""\n" (id integer primary key, {columns})')
    app.execute('insert into "odd""\n" values (1, 2, 3, 4, 5, 6, 7)')
    heard = Heard()
    Capture(path, ['odd"\n'], heard).bootstrap()
    line = json.loads(heard.batches[0].json_lines().splitlines()[1])
    assert line["table"] == 'odd"\n'
    assert line["after"] == dict(zip(["id", *names], range(1, 8), strict=True))


# -- handlers -------------------------------------------------------------------------------


def test_lines_for_people_and_lines_of_json(path: Path, app: sqlite3.Connection) -> None:
    app.execute("insert into t values (1, 'a', null)")
    words, made = io.BytesIO(), io.BytesIO()
    for handler in (Words(words, RecordFormat()), JsonLineHandler(made, RecordFormat())):
        Capture(path, ["t"], handler).bootstrap()
    first, second = words.getvalue().decode().splitlines()
    assert first.endswith("Z t BOOTSTRAP")
    assert second.endswith("Z t INSERT")
    assert [json.loads(line)["operation"] for line in made.getvalue().splitlines()] == [
        "BOOTSTRAP",
        "INSERT",
    ]


class Full(io.RawIOBase):
    """A device that has no room."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_output_that_cannot_be_written_is_not_acknowledged(
    path: Path, app: sqlite3.Connection
) -> None:
    app.execute("insert into t values (1, 'a', null)")
    with pytest.raises(TargetError, match="ENOSPC"):
        Capture(path, ["t"], JsonLineHandler(Full(), RecordFormat())).cdc()  # type: ignore[arg-type]
    with running(path, ["t"]) as heard:
        heard.count(1)


class Address:
    """A server that answers what it is told, and remembers what it was sent."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.asked = threading.Event()
        address = self

        class Answers(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                address.bodies.append(json.loads(body))
                address.headers.append(dict(self.headers))
                status = address.answers.pop(0) if address.answers else 204
                address.asked.set()
                if status == 0:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.send_header("Retry-After", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self._server.server_port}/in?key=1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[Address]:
    monkeypatch.setattr(handlers, "FIRST_REST_SECONDS", 0.001)
    made = Address()
    yield made
    made.close()


def closing(capture: list[Capture], post: Post) -> Any:
    """Send, then close after the first batch that was taken."""

    def handle(batch: Batch) -> None:
        post(batch)
        capture[0].close()

    return handle


def drain(path: Path, post: Post) -> None:
    made: list[Capture] = []
    made.append(Capture(path, ["t"], closing(made, post)))
    try:
        made[0].cdc()
    finally:
        post.close()


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_a_batch_is_sent_as_one_object_and_any_2xx_takes_it(
    path: Path, app: sqlite3.Connection, address: Address, status: int
) -> None:
    app.execute("insert into t values (1, 'a', null)")
    address.answers = [status]
    drain(path, Post(address.url.replace("//", "//me:s%20t@"), RecordFormat()))
    assert [change["after"] for change in address.bodies[0]["changes"]] == [{"id": 1, "v": "a"}]
    epoch = triggers.capture_id(app)
    assert address.headers[0]["Idempotency-Key"] == f"{epoch}/2-2"
    assert address.headers[0]["Content-Type"] == "application/json"
    assert address.headers[0]["Authorization"].startswith("Basic ")
    app.execute("insert into t values (2, 'b', null)")
    drain(path, Post(address.url, RecordFormat()))
    assert [change["after"]["id"] for change in address.bodies[1]["changes"]] == [2]


def test_what_is_not_taken_is_sent_again_under_the_same_key(
    path: Path, app: sqlite3.Connection, address: Address
) -> None:
    app.execute("insert into t values (1, 'a', null)")
    address.answers = [503, 0, 429, 500, 200]
    drain(path, Post(address.url, RecordFormat()))
    assert len(address.bodies) == 5
    assert len({headers["Idempotency-Key"] for headers in address.headers}) == 1


@pytest.mark.parametrize(
    ("answers", "text"), [([404], "refused"), ([302], "refused"), ([503] * 99, "did not accept")]
)
def test_what_is_never_taken_ends_the_run_and_is_not_acknowledged(
    path: Path, app: sqlite3.Connection, address: Address, answers: list[int], text: str
) -> None:
    app.execute("insert into t values (1, 'a', null)")
    address.answers = answers
    with pytest.raises(TargetError, match=text) as caught:
        drain(
            path,
            Post(address.url.replace("//", "//me:secret@"), RecordFormat(), retry_seconds=0.01),
        )
    assert "secret" not in str(caught.value)
    with running(path, ["t"]) as heard:
        heard.count(1)


def test_closing_ends_the_wait_for_an_address(
    path: Path, app: sqlite3.Connection, address: Address
) -> None:
    app.execute("insert into t values (1, 'a', null)")
    address.answers = [503] * 10_000
    post = Post(address.url, RecordFormat())
    run = Running(Capture(path, ["t"], post), "cdc")
    assert address.asked.wait(patience())
    run.capture.close()
    run.join()
    post.close()
    assert run.error is None
    with running(path, ["t"]) as heard:
        heard.count(1)


def test_an_address_is_one_of_http() -> None:
    with pytest.raises(SourceRefused):
        Post("ftp://somewhere", RecordFormat())
