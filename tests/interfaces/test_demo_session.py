"""The whole demo but for Spark: a real shop, a real writer, an engine that runs on Arrow."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.api.client import Control
from headrace.changelog.compaction import Compaction
from headrace.changelog.position import Position
from headrace.cli import main
from headrace.cli.demo import goods, session
from headrace.cli.demo.session import DemoSession, DemoSettings, change_fields, next_steps
from headrace.cli.demo.shops import Shop
from headrace.cli.demo.sqlite_shop import SqliteShop, make
from headrace.cli.demo.view import DemoLines, is_right
from headrace.errors import BadDataDirectory, HeadraceError, Locked, NoEngine, StorageFull
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.tables.changes import TableChange
from tests.changelog.log_making import ORDERS, SOURCE, begun, commits
from tests.interfaces.demo_engine import ArrowEngine
from tests.interfaces.inside import Asked, Begin, inside
from tests.support.patience import patience

__all__ = ["inside"]

pytestmark = pytest.mark.process

ROOT = Path(__file__).parent.parent.parent
PATHS = f"{ROOT / 'src'}:{ROOT}"


Fields = Mapping[str, Any]


class Recorded(DemoLines):
    """A view that keeps what it is shown."""

    def __init__(self, on_show: Callable[[Fields], None] = lambda shown: None) -> None:
        super().__init__(as_json=False)
        self.steps: list[Fields] = []
        self.snapshots: list[Fields] = []
        self._on_show = on_show

    def step(self, step: Fields) -> None:
        self.steps.append(step)

    def show(self, shown: Fields, told: Fields) -> None:
        self.snapshots.append(shown)
        self._on_show(shown)


@pytest.fixture(autouse=True)
def _findable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PATHS)


class Case:
    """A session over a new folder, and everything in it that a test may look at."""

    def __init__(
        self,
        shop: Path | Shop,
        seconds: float,
        view: Recorded,
        *,
        kill: bool = False,
        explain: bool = False,
        **engine: Any,
    ) -> None:
        self.engines: list[ArrowEngine] = []
        self.view = view
        self.ending = Asked()
        self.shop = SqliteShop(shop) if isinstance(shop, Path) else shop

        def build(shop: Shop, on_step: Callable[[str], None]) -> ArrowEngine:
            self.engines.append(ArrowEngine(shop, on_step, **engine))
            return self.engines[-1]

        settings = DemoSettings(seconds, rate=200, kill=kill, explain=explain)
        self.session = DemoSession(settings, self.shop, build, view, self.ending)

    def run(self) -> dict[str, Any]:
        self.session.open_shop()
        return self.session.run()

    def named(self, *names: str) -> list[str]:
        """Return the names of the steps that have one of these."""
        return [step["name"] for step in self.view.steps if step["name"] in names]


def test_a_run_ends_right_and_reports_everything(tmp_path: Path) -> None:
    case = Case(tmp_path, 0.8, Recorded())
    summary = case.run()
    assert is_right(summary)
    assert summary["comparison"]["rows"] > 2_000
    assert summary["written"]
    assert summary["last"]["captured"] == summary["written"]
    assert case.view.steps[0]["name"] == "shop"
    texts = [step["text"] for step in case.view.steps]
    assert "recording shop" in texts
    assert case.named("writer", "visible") == ["writer", "visible"]
    assert case.engines[0].stops == 1
    assert len(summary["commands"]) == 4 + len(summary["last"]["letters"])


def test_the_commands_of_a_running_engine_work_on_the_demo(tmp_path: Path) -> None:
    def ask(shown: Fields) -> None:
        if shown["phase"] == "running":
            found.append(Control.connect(tmp_path).call("Query", pipeline="orders"))
            case.ending.event.set()

    found: list[dict[str, Any]] = []
    case = Case(tmp_path, LONG, Recorded(ask))
    assert is_right(case.run())
    assert found[0]["count"] > 2_000
    with pytest.raises(NoEngine):
        Control.connect(tmp_path)


LONG = 600.0
"""Seconds of a run that ends when a test has seen what it waits for."""


@pytest.fixture
def spoilt_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PLACED_SECONDS", 0.1)
    monkeypatch.setattr(session, "MOVED_SECONDS", 0.1)


@pytest.mark.usefixtures("spoilt_soon")
@pytest.mark.meets("R30")
def test_the_spoilt_order_becomes_a_dead_letter_with_a_change_behind_it(tmp_path: Path) -> None:
    def end(shown: Fields) -> None:
        if any(letter["behind"] for letter in shown["letters"]):
            case.ending.event.set()

    case = Case(tmp_path, LONG, Recorded(end))
    summary = case.run()
    order = case.shop.spoilt_order()
    (letter,) = summary["last"]["letters"]
    assert (letter["key"], letter["code"]) == (str(order), "ARITHMETIC_OVERFLOW")
    assert letter["behind"] == 1
    assert summary["comparison"]["held"] == (order,)
    assert is_right(summary)
    assert case.named("spoilt", "letter") == ["spoilt", "letter", "spoilt"]
    assert f"show {letter['position']} --data" in letter["commands"][0]
    assert summary["commands"][0]["line"] == letter["commands"][0]


@pytest.mark.usefixtures("spoilt_soon")
def test_a_second_run_keeps_the_letter_and_adds_no_other(tmp_path: Path) -> None:
    def end(shown: Fields) -> None:
        # Past the moment at which the order is placed where there is none.
        if shown["letters"] and case.session._spoilt._placed:
            case.ending.event.set()

    case = Case(tmp_path, LONG, Recorded(end))
    first = case.run()
    case = Case(tmp_path, LONG, Recorded(end))
    again = case.run()
    assert is_right(again)
    assert len(again["last"]["letters"]) == 1
    assert again["comparison"]["held"] == first["comparison"]["held"]


def test_a_letter_without_a_cause_makes_the_comparison_fail(tmp_path: Path) -> None:
    def end(shown: Fields) -> None:
        if max(case.shop.orders()) > 3_020:
            case.ending.event.set()

    case = Case(tmp_path, LONG, Recorded(end), blame=range(3_001, 3_020))
    summary = case.run()
    assert not is_right(summary)
    assert {found["kind"] for found in summary["comparison"]["differences"]} == {"causeless"}


def test_what_was_written_counts_the_orders_of_the_demo_itself(tmp_path: Path) -> None:
    def end(shown: Fields) -> None:
        if max(case.shop.orders()) > goods.SEED_ORDERS + 2:
            case.ending.event.set()

    case = Case(tmp_path, LONG, Recorded(end))
    summary = case.run()
    assert summary["written"] > max(case.shop.orders()) - goods.SEED_ORDERS > 2


@pytest.mark.parametrize("whole", [True, False])
def test_the_last_batch_is_told_and_the_whole_plan_on_request(whole: bool, tmp_path: Path) -> None:
    batch = Case(tmp_path, 0.3, Recorded(), explain=whole).run()["last_batch"]
    assert (batch["rows_in"], batch["rows_out"], batch["way"]) == (3, 2, "job")
    assert batch["plan"] == "Scan parquet → Filter → Project"
    assert ("== Physical Plan ==" in (batch["whole"] or "")) == whole


def test_the_recorder_is_killed_by_a_key_and_its_return_is_told(tmp_path: Path) -> None:
    def act(shown: Fields) -> None:
        told = case.named("killed", "back")
        if shown["phase"] == "running" and not told:
            case.ending.keys = "k"
        elif "back" in told:
            case.ending.event.set()

    case = Case(tmp_path, LONG, Recorded(act), kill=True, recorder="process")
    summary = case.run()
    assert case.named("killed", "back") == ["killed", "back"]
    (seconds,) = summary["healed"]
    assert seconds is not None
    assert summary["last"]["restarts"] == 1
    assert is_right(summary)


def test_without_the_option_the_key_does_nothing(tmp_path: Path) -> None:
    def press(shown: Fields) -> None:
        case.ending.keys = "k"

    case = Case(tmp_path, 0.5, Recorded(press), recorder="process")
    assert case.run()["healed"] == []
    assert case.view.snapshots[-1]["restarts"] == 0


def test_steps_come_in_order_of_time(tmp_path: Path) -> None:
    case = Case(tmp_path, 0.2, Recorded())
    case.run()
    times = [step["seconds"] for step in case.view.steps]
    assert times == sorted(times)


def test_changes_are_counted_while_spark_still_starts(tmp_path: Path) -> None:
    def end(shown: Fields) -> None:
        if shown["phase"] == "starting" and shown["captured"] > 3:
            case.ending.event.set()
            up.set()

    up = threading.Event()
    case = Case(tmp_path, LONG, Recorded(end), begun=up)
    with pytest.raises(KeyboardInterrupt):
        case.run()
    assert case.view.snapshots[-1]["captured"] > 3
    assert case.view.snapshots[-1]["spark"] is None
    assert case.view.steps[-1]["name"] == "ended"
    assert case.engines[0].stops == 1


def test_the_time_counts_from_the_first_visible_row(tmp_path: Path) -> None:
    case = Case(tmp_path, 0.6, Recorded())
    case.run()
    (visible,) = [step["seconds"] for step in case.view.steps if step["name"] == "visible"]
    closing = min(step["seconds"] for step in case.view.steps if step["name"] == "closing")
    # The step is printed a moment after the row was seen.
    assert closing >= visible + 0.3
    running = [shown["left"] for shown in case.view.snapshots if shown["phase"] == "running"]
    assert running
    assert max(running) <= 0.6


def test_a_request_ends_it_early_and_still_compares(tmp_path: Path) -> None:
    def end(shown: Fields) -> None:
        if shown["phase"] == "running" and shown["lookup"] is not None:
            case.ending.event.set()

    case = Case(tmp_path, 600, Recorded(end))
    assert is_right(case.run())


def test_the_lookup_and_the_changes_move_as_one_watches(tmp_path: Path) -> None:
    def end(shown: Fields) -> None:
        if shown["phase"] == "running":
            counts.add(shown["lookup"]["orders"])
            ops.update(change["op"] for change in shown["changes"])
            if len(counts) > 1 and len(ops) == 3:
                case.ending.event.set()

    counts, ops = set[int](), set[str]()
    case = Case(tmp_path, LONG, Recorded(end))
    case.run()
    assert ops == {"insert", "update", "delete"}
    assert case.view.snapshots[-1]["lookup"]["customer"] == goods.FAVOURITE


def test_a_change_is_described_by_what_moved_or_by_its_row() -> None:
    row: Any = {"id": 7, "customer_id": 45, "qty": 1, "product": "lamp", "status": "new"}
    new: Any = {**row, "total_cents": 2_990}
    paid: Any = {**new, "status": "paid"}
    at = Position(1, 9)
    placed = change_fields(TableChange("insert", (7,), None, new, at))
    assert placed["text"] == "customer 45, 1 lamp, 29.90, new"
    assert (placed["op"], placed["key"], placed["position"]) == ("insert", "7", str(at))
    assert change_fields(TableChange("update", (7,), new, paid, at))["text"] == "status new → paid"
    assert change_fields(TableChange("delete", (7,), paid, None, at))["text"].endswith(", paid")
    assert change_fields(TableChange("truncate", (), None, None, at))["text"] == ""


def test_wrong_rows_are_found_and_named(tmp_path: Path) -> None:
    summary = Case(tmp_path, 0.3, Recorded(), wrong=range(1, 30)).run()
    assert not is_right(summary)
    found = summary["comparison"]["differences"]
    assert found
    assert {each["columns"] for each in found} == {("status",)}
    assert all(each["key"] < 30 for each in found)


def test_a_second_run_on_the_same_folder_goes_on(tmp_path: Path) -> None:
    first = Case(tmp_path, 0.3, Recorded()).run()
    again = Case(tmp_path, 0.3, Recorded())
    assert is_right(again.run())
    assert is_right(first)
    assert "shop with 3,000 orders" not in again.view.steps[0]["text"]


@pytest.mark.parametrize(
    "error",
    [
        Locked("Process 4711 on box holds it since then", pid=4711),
        StorageFull("No room left", path="x"),
    ],
)
def test_what_the_engine_refuses_is_raised_and_no_writer_was_started(
    error: HeadraceError, tmp_path: Path
) -> None:
    case = Case(tmp_path, 5, Recorded(), refuses=error)
    with pytest.raises(type(error)):
        case.run()
    assert [step["name"] for step in case.view.steps] == ["shop"]


def test_a_source_that_fails_midway_ends_the_demo_with_its_error(tmp_path: Path) -> None:
    case = Case(tmp_path, 60, Recorded(), fails_after=5)
    with pytest.raises(StorageFull):
        case.run()
    assert case.engines[0].stops == 1


def test_a_folder_of_others_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(BadDataDirectory) as caught:
        Case(tmp_path, 1, Recorded()).run()
    assert "--data" in caught.value.remedy
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_shop_of_others_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "shop.db").write_bytes(b"SQLite format 3\0" + bytes(100))
    before = (tmp_path / "shop.db").read_bytes()
    with pytest.raises(BadDataDirectory):
        Case(tmp_path, 1, Recorded()).run()
    assert (tmp_path / "shop.db").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["shop.db"]


def test_commands_can_be_pasted_where_the_demo_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "it's a demo"
    data.mkdir()
    make(data / "shop.db", orders=50)
    steps = next_steps(SqliteShop(data), "shop", "orders")
    write, read, again, ask = [each["line"] for each in steps]
    assert str(tmp_path) not in ask
    done = pasted(ask, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "'paid'" in done.stdout
    lines = f"{write}; {read}; {again}"
    checked = subprocess.run(["/bin/sh", "-nc", lines], check=False)
    assert checked.returncode == 0
    assert "read.parquet" in read


def pasted(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", line], capture_output=True, text=True, check=False, cwd=folder
    )


def test_the_log_that_is_written_has_each_change_once_after_flushes_were_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "it's a demo"
    data.mkdir()
    log = begun(Files(RealDisk(), str(data)))
    for number in range(1, 41):
        log.append(commits(number))
        log.flush()
    # The files of before are still there: only the index tells them from those that count.
    assert Compaction(log).advance(log.end, ()) is not None
    steps = next_steps(SqliteShop(data), SOURCE, ORDERS.table)
    write, read, *_ = [each["line"] for each in steps]
    for _ in range(2):
        done = pasted(write, tmp_path)
        assert done.returncode == 0, done.stderr
    (found,) = data.glob("*.parquet")
    assert str(found.relative_to(tmp_path)) in read.replace("'\"'\"'", "'")
    assert pq.read_table(found)["op"].to_pylist() == ["insert"] * 40


# -- the command ----------------------------------------------------------------------------


def test_without_a_terminal_it_prints_lines_and_ends_with_the_verdict(
    tmp_path: Path, inside: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with inside("demo", "--for", "10m") as demo:
        demo.said("captured (")
        demo.said("paid")
        code, out, err = demo.ended()
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert any(line.startswith("target = source: yes, ") for line in lines)
    assert any("customer" in line and "paid" in line for line in lines)
    assert any("captured (" in line for line in lines)
    assert "\x1b" not in out
    log = tmp_path / "headrace-demo" / "logs" / "headrace.log"
    assert log.exists()


def test_json_is_nothing_but_json_lines(
    tmp_path: Path, inside: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--json", "--data", "d", "--explain", "--spark-ui"]
    with inside("demo", "--for", "10m", *options) as demo:
        demo.said('"snapshot"')
        code, out, err = demo.ended()
    assert (code, err) == (0, "")
    events = [json.loads(line) for line in out.splitlines()]
    assert {event["event"] for event in events} == {"step", "snapshot", "summary"}
    assert events[-1]["comparison"]["equal"] is True
    assert any(event.get("name") == "visible" for event in events)
    assert any("Spark web UI: http://" in event.get("text", "") for event in events)
    assert "== Physical Plan ==" in events[-1]["last_batch"]["whole"]


def test_kill_without_a_terminal_is_wrong_usage_and_touches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main.exit_code(["demo", "--kill", "--data", str(tmp_path / "d")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--kill needs a terminal" in err
    assert not (tmp_path / "d").exists()


# -- the command, as a child ----------------------------------------------------------------


def started_demo(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.interfaces.demo_engine", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": PATHS},
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_signal_ends_it_in_order(number: signal.Signals, tmp_path: Path) -> None:
    child = started_demo("--for", "10m", "--plain", cwd=tmp_path)
    assert child.stdout is not None
    for line in child.stdout:
        if "first rows visible" in line:
            break
    child.send_signal(number)
    out, err = child.communicate(timeout=patience())
    assert (child.returncode, err) == (0, "")
    assert "target = source: yes" in out


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    child = started_demo("--for", "10m", "--plain", cwd=tmp_path)
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr is not None
    assert child.stderr.read() == ""
    child.stderr.close()
    assert child.wait(timeout=patience()) == 1
