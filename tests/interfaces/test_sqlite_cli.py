"""`headrace sqlite`, run as its users run it: every flag, every output, every end."""

from __future__ import annotations

import inspect
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from headrace.capture.sqlite import Capture
from headrace.capture.sqlite.library import capture as library
from headrace.cli import main
from headrace.cli import sqlite as verb
from headrace.cli.signals import EndOnRequest
from tests.support.patience import patience

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def app(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("create table orders (id integer primary key, v, b blob)")
    connection.execute("create table users (id integer primary key, v)")
    connection.execute("insert into orders values (1, 0.1 + 0.2, x'00ff')")
    yield connection
    connection.close()


def sqlite(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a verb that ends by itself, in this process; what came of it is as of a child."""
    words = ["sqlite", *map(str, arguments)]
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    err = io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main.exit_code(words)
    out.seek(0)
    return subprocess.CompletedProcess(words, code, out.read(), err.getvalue())


def done(*arguments: object) -> str:
    ended = sqlite(*arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


class Stream:
    """A `cdc` that runs in a process of its own."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "sqlite", "cdc", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read() if self.process.stderr else ""
        return line.rstrip("\n")

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        out, errors = self.process.communicate(timeout=patience())
        return self.process.returncode, out + errors


@pytest.fixture
def streams() -> Iterator[Callable[..., Stream]]:
    made: list[Stream] = []

    def start(*arguments: object) -> Stream:
        made.append(Stream(*arguments))
        return made[-1]

    yield start
    for stream in made:
        if stream.process.poll() is None:
            stream.process.kill()
        stream.process.communicate()


@pytest.mark.process
def test_from_set_up_to_teardown(
    path: Path, app: sqlite3.Connection, streams: Callable[..., Stream]
) -> None:
    assert "orders, users are now logged" in done("setup", "--db", path)
    app.execute("update orders set v = 'x'")
    assert [line.split()[1:] for line in done("bootstrap", "--db", path).splitlines()] == [
        ["orders", "BOOTSTRAP"],
        ["orders", "INSERT"],
        ["users", "BOOTSTRAP"],
    ]
    stream = streams("--db", path, "--output", "-")
    assert stream.line().endswith("Z orders UPDATE")
    app.execute("insert into users values (1, 2)")
    assert stream.line().endswith("Z users INSERT")
    assert stream.end() == (0, "")
    app.execute("delete from users")
    assert done("teardown", "--db", path) == "Removed; 1 change had not been read.\n"
    assert app.execute("select count(*) from sqlite_master").fetchone() == (2,)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.process
def test_json_lines_go_on_where_the_last_run_ended(
    path: Path, app: sqlite3.Connection, streams: Callable[..., Stream], number: int
) -> None:
    done("setup", "--db", path, "--table", "orders")
    app.execute("insert into orders values (2, 'a', null)")
    stream = streams("--db", path, "--table", "orders", "--output", "json", "--batch-size", 1)
    change = json.loads(stream.line())
    assert list(change) == ["table", "timestamp", "operation", "before", "after"]
    assert change["after"] == {"id": 2, "v": "a"}
    assert stream.end(number) == (0, "")
    app.execute("insert into orders values (3, 'b', null)")
    stream = streams("--db", path, "--output", "json")
    assert json.loads(stream.line())["after"] == {"id": 3, "v": "b"}
    assert stream.end(number)[0] == 0


@pytest.mark.process
def test_rows_then_changes(
    path: Path, app: sqlite3.Connection, streams: Callable[..., Stream]
) -> None:
    done("setup", "--db", path, "--table", "orders")
    stream = streams("--db", path, "--bootstrap", "--output", "json")
    assert [json.loads(stream.line())["operation"] for _ in range(2)] == ["BOOTSTRAP", "INSERT"]
    app.execute("delete from orders")
    assert json.loads(stream.line())["operation"] == "DELETE"
    assert stream.end()[0] == 0


def test_the_form_of_json_is_chosen_by_flags(path: Path, app: sqlite3.Connection) -> None:
    def row(*flags: str) -> dict[str, Any]:
        text = done("bootstrap", "--db", path, "--table", "orders", "--output", "json", *flags)
        return dict(json.loads(text.splitlines()[1]))

    assert row()["after"] == {"id": 1, "v": 0.30000000000000004}
    assert row("--blobs")["after"]["b"] == "00FF"
    assert "." in row()["timestamp"]
    assert "." not in row("--disable-subsec")["timestamp"]
    assert row("--positions")["position"] is None
    done("setup", "--db", path, "--blobs", "--disable-subsec")
    assert row("--positions")["position"].endswith("/1")
    done("teardown", "--db", path, "--blobs", "--disable-subsec")


@pytest.mark.process
def test_the_form_of_json_and_the_log_are_chosen_for_streams_and_copies_alike(
    path: Path, app: sqlite3.Connection, streams: Callable[..., Stream]
) -> None:
    own = ("--db", path, "--log-table", "mine", "--reader", "me")
    done("setup", *own, "--table", "orders")
    copied = done("bootstrap", *own, "--table", "orders", "--output", "json").splitlines()
    assert [json.loads(line)["operation"] for line in copied] == ["BOOTSTRAP", "INSERT"]
    forms = ("--blobs", "--disable-subsec", "--positions")
    stream = streams(*own, "--table", "orders", "--output", "json", *forms)
    app.execute("update orders set v = 2")
    found = json.loads(stream.line())
    assert found["after"]["b"] == "00FF"
    assert "." not in found["timestamp"]
    assert "/" in found["position"]
    assert stream.end()[0] == 0


@pytest.mark.process
def test_another_log_and_another_reader_have_their_own_changes(
    path: Path, app: sqlite3.Connection, streams: Callable[..., Stream]
) -> None:
    done("setup", "--db", path, "--table", "orders")
    told = json.loads(
        done("setup", "--db", path, "--table", "users", "--log-table", "__cdc_log", "--json")
    )
    assert told == {"tables": ["users"], "log_table": "__cdc_log", "refused": {}}
    done("setup", "--db", path, "--table", "orders", "--reader", "second")
    app.execute("delete from orders")
    app.execute("insert into users values (5, 6)")
    for flags, table in (
        (("--log-table", "__cdc_log"), "users"),
        (("--reader", "second"), "orders"),
        ((), "orders"),
    ):
        stream = streams("--db", path, "--output", "json", *flags)
        assert json.loads(stream.line())["table"] == table
        assert stream.end()[0] == 0
    kept = json.loads(done("teardown", "--db", path, "--reader", "second", "--json"))
    assert kept == {"unread": 0, "kept": ["orders"]}
    assert "Still logged for other readers: orders" in done(
        "teardown", "--db", path, "--table", "orders", "--reader", "nobody"
    )
    done("teardown", "--db", path)
    app.execute("insert into users values (6, 6)")
    assert done("teardown", "--db", path, "--log-table", "__cdc_log", "--table", "users") == (
        "Removed; 1 change had not been read.\n"
    )
    assert app.execute("select count(*) from sqlite_master").fetchone() == (2,)


@pytest.mark.process
def test_teardown_of_one_table_leaves_the_others_working(
    path: Path, app: sqlite3.Connection, streams: Callable[..., Stream]
) -> None:
    done("setup", "--db", path, "--table", "orders", "--table", "users")
    done("teardown", "--db", path, "--table", "orders")
    app.execute("delete from orders")
    app.execute("insert into users values (1, 2)")
    stream = streams("--db", path, "--output", "json")
    assert json.loads(stream.line())["table"] == "users"
    assert stream.end()[0] == 0


@pytest.mark.process
def test_batches_are_sent_to_an_address_until_it_takes_them(
    path: Path, app: sqlite3.Connection, streams: Callable[..., Stream]
) -> None:
    bodies: list[dict[str, Any]] = []
    taken = threading.Event()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(202 if len(bodies) > 1 else 503)
            self.end_headers()
            if len(bodies) > 1:
                taken.set()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        done("setup", "--db", path, "--table", "orders")
        app.execute("delete from orders")
        url = f"http://127.0.0.1:{server.server_port}/"
        stream = streams("--db", path, "--output", url, "--retry-for", "30s")
        assert taken.wait(patience())
        assert stream.end() == (0, "")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert [body["changes"][0]["operation"] for body in bodies] == ["DELETE", "DELETE"]
    ended = sqlite("bootstrap", "--db", path, "--output", url, "--retry-for", "1ms")
    assert ended.returncode == 1
    assert "targets.failed" in ended.stderr


def test_mistakes_are_told_in_a_sentence_with_an_exit_code(
    path: Path, app: sqlite3.Connection, tmp_path: Path
) -> None:
    missing = tmp_path / "no.db"
    for command in ("setup", "teardown", "bootstrap", "cdc"):
        ended = sqlite(command, "--db", missing)
        assert ended.returncode == 2
        assert "Database not found" in ended.stderr
    assert not missing.exists()
    told = sqlite("setup", "--db", missing, "--json")
    assert json.loads(told.stdout)["error"]["code"] == "capture.refused"
    ended = sqlite("cdc", "--db", path)
    assert ended.returncode == 2
    assert "headrace sqlite setup" in ended.stderr
    for wrong in (("--output", "xml"), ("--batch-size", "0"), ("--nonsense",)):
        assert sqlite("bootstrap", "--db", path, *wrong).returncode == 2
    assert sqlite("bootstrap").returncode == 2


@pytest.mark.process
def test_output_that_cannot_be_written_is_an_error(path: Path, app: sqlite3.Connection) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    done("setup", "--db", path)
    app.execute("delete from orders")
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "headrace", "sqlite", "cdc", "--db", str(path)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=patience(),
            env=ENVIRONMENT,
            check=False,
        )
    assert ended.returncode == 1
    assert "Output cannot be written" in ended.stderr
    assert json.loads(done("teardown", "--db", path, "--json"))["unread"] == 1


def test_the_defaults_are_the_librarys() -> None:
    parameters = inspect.signature(Capture).parameters
    assert parameters["log_table"].default == verb._LOG
    assert library.READER == verb._READER
    assert parameters["batch_size"].default == verb._BATCH_SIZE


def test_the_first_signal_asks_and_the_second_ends_at_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    closed: list[str] = []
    with (
        pytest.raises(KeyboardInterrupt),
        EndOnRequest(on_end=lambda: closed.append("asked")) as ending,
    ):
        signal.raise_signal(signal.SIGTERM)
        assert ending.asked
        signal.raise_signal(signal.SIGTERM)  # a supervisor may repeat it: that changes nothing
        signal.raise_signal(signal.SIGINT)
    assert closed == ["asked"]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.process
def test_a_bootstrap_that_is_ended_does_not_pass_for_a_whole_one(
    path: Path, app: sqlite3.Connection
) -> None:
    app.execute("begin")
    app.executemany("insert into users values (?, 0)", [(number,) for number in range(50_000)])
    app.execute("commit")
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "sqlite", "bootstrap", "--db", str(path)],
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    process.stdout.readline()  # from here on it waits for us: the pipe is full
    process.send_signal(signal.SIGINT)
    lines = process.stdout.readlines()
    process.stdout.close()
    assert process.wait(patience()) == 130
    assert len(lines) < 50_000


# -- readers, limits, and what a URL refuses -----------------------------------------------


def test_limits_are_set_listed_and_applied(path: Path, app: sqlite3.Connection) -> None:
    assert done("readers", "--db", path) == "No readers.\n"
    assert done("prune", "--db", path, "--log-table", "other") == "Removed 0 rows.\n"
    keep = ("--keep", "1kB", "--keep-for", "1h", "--history", "1m")
    done("setup", "--db", path, "--table", "orders", *keep)
    app.executemany(
        "insert into orders values (?, ?, null)", [(at, "x" * 99) for at in range(9, 40)]
    )
    (reader,) = map(json.loads, done("readers", "--db", path, "--json").splitlines())
    assert reader["reader"] == "default"
    assert (reader["unread"], reader["limit_bytes"], reader["expired"]) == (31, 1000, False)
    assert json.loads(done("prune", "--db", path, "--json"))["removed"] >= 0
    assert "expired" in done("readers", "--db", path, "--log-table", "__headrace_log")
    ended = sqlite("cdc", "--db", path)
    assert ended.returncode == 3
    assert "capture.expired" in ended.stderr
    for wrong in (("--keep", "much"), ("--keep-for", "long"), ("--history", "x")):
        assert sqlite("setup", "--db", path, *wrong).returncode == 2


def test_what_contradicts_itself_is_refused(path: Path, app: sqlite3.Connection) -> None:
    for wrong in (
        ("--resume",),
        ("--bootstrap", "--from-position", "earliest"),
        ("--from-time", "yesterday"),
        ("--from-time", "2026-11-19T12:00:00"),
        ("--from-position", "earliest", "--from-time", "2026-11-19T12:00:00Z"),
    ):
        assert sqlite("cdc", "--db", path, *wrong).returncode == 2


@pytest.mark.process
def test_a_stream_resumes_goes_back_and_leaves_nothing(
    path: Path, app: sqlite3.Connection, streams: Callable[..., Stream]
) -> None:
    done("setup", "--db", path, "--table", "orders", "--history", "1h")
    envelope = ("--db", path, "--output", "json", "--envelope", "headrace")
    resume = (*envelope, "--bootstrap", "--resume", "--standby", "--on-expired", "copy")
    stream = streams(*resume)
    begin, row, end = (json.loads(stream.line()) for _ in range(3))
    copied = [json.loads(line) for line in done("bootstrap", *envelope).splitlines()]
    for each in ((begin, row, end), copied):
        assert [record["operation"] for record in each] == [
            *("BOOTSTRAP", "INSERT", "BOOTSTRAP_END")
        ]
    assert sqlite("cdc", "--db", path).returncode == 3
    assert stream.end()[0] == 0
    app.execute("delete from orders")
    stream = streams(*resume)
    delete = json.loads(stream.line())
    assert (delete["operation"], delete["key"]) == ("DELETE", {"id": 1})
    assert stream.end()[0] == 0
    stream = streams("--db", path, "--from-position", end["position"], "--output", "json")
    assert json.loads(stream.line())["operation"] == "DELETE"
    assert stream.end()[0] == 0
    told = sqlite("cdc", "--db", path, "--from-time", "2020-01-01T00:00:00Z")
    assert told.returncode == 3
    done("teardown", "--db", path)
    refused = path.with_name("refused.db")
    stream = streams("--db", path, "--ephemeral", "--bootstrap", "--dead-letters", refused)
    assert stream.line().endswith("orders BOOTSTRAP")
    assert stream.end()[0] == 0
    names = app.execute("select name from sqlite_master where name glob '__*'").fetchall()
    assert names == []


@pytest.mark.process
def test_what_a_url_refuses_is_stored_and_sent_again(
    path: Path, app: sqlite3.Connection, tmp_path: Path
) -> None:
    bodies: list[Any] = []
    accepts = threading.Event()

    class Refuses(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body["changes"])
            wrong = [
                at for at, each in enumerate(body["changes"]) if (each["after"] or {}).get("v") == 7
            ]
            answer = json.dumps({"refused": wrong, "reason": "seven"}).encode()
            refuses = wrong and not accepts.is_set()
            self.send_response(422 if refuses else 200)
            self.send_header("Content-Length", str(len(answer) if refuses else 0))
            self.end_headers()
            if refuses:
                self.wfile.write(answer)

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    app.execute("insert into orders values (2, 7, x'01')")
    server = HTTPServer(("127.0.0.1", 0), Refuses)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    file = tmp_path / "dead.db"
    stored = ("--db", path, "--dead-letters", file, "--reader", "default")
    url = f"http://127.0.0.1:{server.server_port}/"
    try:
        assert sqlite("bootstrap", "--db", path, "--output", url).returncode == 1
        done("bootstrap", "--db", path, "--output", url, "--dead-letters", file)
        (line,) = map(json.loads, done("dead-letters", "list", *stored, "--blobs").splitlines())
        assert (line["kind"], line["reason"]) == ("refused", "The URL refused records: seven")
        assert line["record"]["after"] == {"id": 2, "v": 7, "b": "01"}
        again = sqlite("dead-letters", "replay", *stored, "--output", url, "--retry-for", "1s")
        assert again.stderr == "0 delivered, 1 left.\n"
        accepts.set()
        form = ("--blobs", "--disable-subsec", "--positions", "--envelope", "plain")
        again = sqlite("dead-letters", "replay", *stored, "--output", url, *form)
        assert again.stderr == "1 delivered, 0 left.\n"
        assert bodies[-1][0]["after"] == {"id": 2, "v": 7, "b": "01"}
        accepts.clear()
        done("bootstrap", "--db", path, "--output", url, "--dead-letters", file)
        (line,) = map(json.loads, done("dead-letters", "list", *stored).splitlines())
        assert done("dead-letters", "purge", *stored, "--id", line["id"] + 1) == "0 removed.\n"
        assert done("dead-letters", "purge", *stored, "--id", line["id"]) == "1 removed.\n"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_columns_are_altered_and_tables_that_are_refused_are_named(path: Path) -> None:
    application = sqlite3.connect(path, isolation_level=None)
    application.execute("create table extra (id integer primary key, a, b)")
    application.execute("create virtual table texts using fts4(body)")
    said = done("setup", "--db", path)
    assert "extra" in said.splitlines()[0]
    assert "Not captured: texts. A virtual table cannot be captured." in said
    assert done("alter", "--db", path, "alter table extra drop column a") == "Altered.\n"
    assert [row[1] for row in application.execute("pragma table_info(extra)")] == ["id", "b"]
    application.close()
