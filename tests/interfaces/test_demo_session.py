"""The whole demo but for log and Spark: a real shop, a real writer, an engine made for tests."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import pyarrow.parquet as pq
import pytest

from headrace.changelog.compaction import Compaction
from headrace.cli import main
from headrace.cli.demo import goods, session
from headrace.cli.demo.model import Build, RowDifference, Shop, Snapshot, Step, Summary
from headrace.cli.demo.session import DemoSession, DemoSettings, next_steps
from headrace.cli.demo.sqlite_shop import SqliteShop, make
from headrace.errors import BadDataDirectory, HeadraceError, Locked, StorageFull
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from tests.changelog.log_making import ORDERS, SOURCE, begun, commits
from tests.interfaces.fake_engine import FakeEngine, FakeOrders, Row
from tests.interfaces.inside import Asked, Begin, inside
from tests.support.patience import patience

__all__ = ["inside"]

pytestmark = pytest.mark.process

ROOT = Path(__file__).parent.parent.parent
PATHS = f"{ROOT / 'src'}:{ROOT}"


class Recorded:
    """A view that keeps what it is shown."""

    def __init__(self, on_show: Callable[[Snapshot], None] = lambda snapshot: None) -> None:
        self.steps: list[Step] = []
        self.snapshots: list[Snapshot] = []
        self._on_show = on_show

    def __enter__(self) -> Recorded:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def step(self, step: Step) -> None:
        self.steps.append(step)

    def show(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)
        self._on_show(snapshot)

    def summary(self, summary: Summary) -> None: ...


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
        **engine: object,
    ) -> None:
        self.engines: list[FakeEngine] = []
        self.view = view
        self.ending = Asked()
        self._engine = engine
        settings = DemoSettings(seconds, rate=200, kill=kill, explain=explain)
        self.shop = SqliteShop(shop) if isinstance(shop, Path) else shop
        self.session = DemoSession(settings, self.shop, self._builder(), view, self.ending)

    def _builder(self) -> Build:
        def build(shop: Shop, on_step: Callable[[str], None]) -> tuple[FakeEngine, FakeOrders]:
            engine = FakeEngine(shop, on_step, **self._engine)  # type: ignore[arg-type]
            self.engines.append(engine)
            return engine, engine.orders

        return build

    def run(self) -> Summary:
        self.session.open_shop()
        return self.session.run()


def test_a_run_ends_right_with_everything_told(tmp_path: Path) -> None:
    case = Case(tmp_path, 0.8, Recorded())
    summary = case.run()
    assert summary.right
    assert summary.comparison is not None
    assert summary.comparison.rows > 2_000
    assert summary.written
    assert summary.last.applied >= summary.last.captured > 0
    assert [step.name for step in case.view.steps][:1] == ["shop"]
    texts = [step.text for step in case.view.steps]
    assert texts.index("recording shop") < texts.index("spark is up")
    assert sum(step.name == "visible" for step in case.view.steps) == 1
    assert case.engines[0].stops == 1
    assert len(summary.commands) == 5


LONG = 600.0
"""Seconds of a run that ends when a test has seen what it waits for."""


@pytest.fixture
def spoilt_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PLACED_SECONDS", 0.1)
    monkeypatch.setattr(session, "MOVED_SECONDS", 0.1)


@pytest.mark.usefixtures("spoilt_soon")
@pytest.mark.meets("R30")
def test_the_spoilt_order_becomes_a_dead_letter_with_a_change_behind_it(tmp_path: Path) -> None:
    def end(snapshot: Snapshot) -> None:
        if any(letter.behind for letter in snapshot.letters):
            case.ending.event.set()

    case = Case(tmp_path, LONG, Recorded(end))
    summary = case.run()
    order = case.shop.spoilt_order()
    (letter,) = summary.last.letters
    assert (letter.key, letter.code, letter.behind) == (str(order), "ARITHMETIC_OVERFLOW", 1)
    assert summary.comparison is not None
    assert summary.comparison.held == (order,)
    assert summary.right
    assert [step.name for step in case.view.steps if step.name in ("spoilt", "letter")] == [
        "spoilt",
        "letter",
        "spoilt",
    ]
    assert f"show {letter.position} --data" in letter.commands[0]
    assert summary.commands[0].line == letter.commands[0]


@pytest.mark.usefixtures("spoilt_soon")
def test_a_second_run_keeps_the_letter_and_adds_no_other(tmp_path: Path) -> None:
    def end(snapshot: Snapshot) -> None:
        # Past the moment at which the order is placed where there is none.
        if snapshot.letters and case.session._spoilt._placed:
            case.ending.event.set()

    case = Case(tmp_path, LONG, Recorded(end))
    first = case.run()
    case = Case(tmp_path, LONG, Recorded(end))
    again = case.run()
    assert again.right
    assert len(again.last.letters) == 1
    assert again.comparison is not None
    assert first.comparison is not None
    assert again.comparison.held == first.comparison.held


def test_a_letter_without_a_cause_makes_the_comparison_fail(tmp_path: Path) -> None:
    def end(snapshot: Snapshot) -> None:
        if max(case.shop.orders()) > 3_020:
            case.ending.event.set()

    case = Case(tmp_path, LONG, Recorded(end), blame=frozenset(range(3_001, 3_020)))
    summary = case.run()
    assert not summary.right
    assert summary.comparison is not None
    assert {found.kind for found in summary.comparison.differences} == {"causeless"}


def test_what_was_written_counts_the_orders_of_the_demo_itself(tmp_path: Path) -> None:
    def end(snapshot: Snapshot) -> None:
        if max(case.shop.orders()) > goods.SEED_ORDERS + 2:
            case.ending.event.set()

    case = Case(tmp_path, LONG, Recorded(end))
    summary = case.run()
    assert summary.written > max(case.shop.orders()) - goods.SEED_ORDERS > 2


@pytest.mark.parametrize("whole", [True, False])
def test_the_last_batch_is_told_and_the_whole_plan_on_request(whole: bool, tmp_path: Path) -> None:
    batch = Case(tmp_path, 0.3, Recorded(), explain=whole).run().last_batch
    assert batch is not None
    assert (batch.rows_in, batch.rows_out) == (3, 2)
    assert batch.plan == "Scan parquet → Filter → Project"
    assert ("== Physical Plan ==" in (batch.whole or "")) == whole


def test_the_recorder_is_killed_by_a_key_and_its_return_is_told(tmp_path: Path) -> None:
    def act(snapshot: Snapshot) -> None:
        told = {step.name for step in case.view.steps}
        if snapshot.phase == "running" and "killed" not in told:
            case.ending.keys = "k"
        elif "back" in told:
            case.ending.event.set()

    case = Case(tmp_path, LONG, Recorded(act), kill=True)
    summary = case.run()
    names = [step.name for step in case.view.steps if step.name in ("killed", "back")]
    assert names == ["killed", "back"]
    (seconds,) = summary.healed
    assert seconds is not None
    assert summary.last.restarts == 1
    assert summary.right


def test_without_the_option_the_key_does_nothing(tmp_path: Path) -> None:
    def press(snapshot: Snapshot) -> None:
        case.ending.keys = "k"

    case = Case(tmp_path, 0.5, Recorded(press))
    assert case.run().healed == ()
    assert case.view.snapshots[-1].restarts == 0


def test_steps_come_in_order_of_time(tmp_path: Path) -> None:
    case = Case(tmp_path, 0.2, Recorded())
    case.run()
    times = [step.seconds for step in case.view.steps]
    assert times == sorted(times)


def test_changes_are_counted_while_spark_still_starts(tmp_path: Path) -> None:
    def end(snapshot: Snapshot) -> None:
        if snapshot.phase == "starting" and snapshot.captured > 3:
            case.ending.event.set()
            begun.set()

    begun = threading.Event()
    case = Case(tmp_path, LONG, Recorded(end), start_seconds=patience(), begun=begun)
    with pytest.raises(KeyboardInterrupt):
        case.run()
    assert case.view.snapshots[-1].captured > 3
    assert case.view.snapshots[-1].spark is None
    assert case.view.steps[-1].name == "ended"
    assert case.engines[0].stops == 1


def test_the_time_counts_from_the_first_visible_row(tmp_path: Path) -> None:
    case = Case(tmp_path, 0.6, Recorded(), start_seconds=0.7)
    case.run()
    (up,) = [step.seconds for step in case.view.steps if step.text == "spark is up"]
    closing = min(step.seconds for step in case.view.steps if step.name == "closing")
    assert closing >= up + 0.6
    running = [shown.left for shown in case.view.snapshots if shown.phase == "running"]
    assert running
    assert max(left for left in running if left is not None) <= 0.6


def test_a_request_ends_it_early_and_still_compares(tmp_path: Path) -> None:
    def end(snapshot: Snapshot) -> None:
        if snapshot.phase == "running" and snapshot.lookup is not None:
            case.ending.event.set()

    case = Case(tmp_path, 600, Recorded(end))
    assert case.run().right


def test_the_lookup_and_the_changes_move_as_one_watches(tmp_path: Path) -> None:
    shown: list[Snapshot] = []

    def end(snapshot: Snapshot) -> None:
        if snapshot.phase == "running" and snapshot.lookup is not None:
            shown.append(snapshot)
        ops = {change.op for each in shown for change in each.changes}
        if len({s.lookup.orders for s in shown if s.lookup}) > 1 and len(ops) == 3:
            case.ending.event.set()

    case = Case(tmp_path, LONG, Recorded(end))
    case.run()
    assert {change.op for s in shown for change in s.changes} == {"insert", "update", "delete"}
    assert all(s.lookup.customer == goods.FAVOURITE for s in shown[-1:] if s.lookup)


def _wrong_status(rows: dict[int, Row]) -> None:
    rows[17] = {**rows.get(17, rows[min(rows)]), "id": 17, "status": "lost"}


def test_one_wrong_row_is_found_and_named(tmp_path: Path) -> None:
    summary = Case(tmp_path, 0.3, Recorded(), plant=_wrong_status).run()
    assert not summary.right
    assert summary.comparison is not None
    (found,) = summary.comparison.differences
    assert found.key == 17
    assert found == RowDifference(17, "extra") or "status" in found.columns


def test_a_second_run_on_the_same_folder_goes_on(tmp_path: Path) -> None:
    first = Case(tmp_path, 0.3, Recorded()).run()
    again = Case(tmp_path, 0.3, Recorded())
    assert again.run().right
    assert first.comparison is not None
    assert "shop with 3,000 orders" not in again.view.steps[0].text


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
    assert [step.name for step in case.view.steps] == ["shop"]


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
    write, read, again, ask = next_steps(SqliteShop(data), "shop", "orders")
    assert str(tmp_path) not in ask.line
    done = pasted(ask.line, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "'paid'" in done.stdout
    lines = f"{write.line}; {read.line}; {again.line}"
    checked = subprocess.run(["/bin/sh", "-nc", lines], check=False)
    assert checked.returncode == 0
    assert "read.parquet" in read.line


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
    write, read, *_ = next_steps(SqliteShop(data), SOURCE, ORDERS.table)
    for _ in range(2):
        done = pasted(write.line, tmp_path)
        assert done.returncode == 0, done.stderr
    (found,) = data.glob("*.parquet")
    assert str(found.relative_to(tmp_path)) in read.line.replace("'\"'\"'", "'")
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
    assert any("Spark's own pages: http://" in event.get("text", "") for event in events)
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


def fake_demo(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.interfaces.fake_engine", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": PATHS},
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_signal_ends_it_in_order(number: signal.Signals, tmp_path: Path) -> None:
    child = fake_demo("--for", "10m", "--plain", cwd=tmp_path)
    assert child.stdout is not None
    for line in child.stdout:
        if "first rows visible" in line:
            break
    child.send_signal(number)
    out, err = child.communicate(timeout=patience())
    assert (child.returncode, err) == (0, "")
    assert "target = source: yes" in out


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    child = fake_demo("--for", "10m", "--plain", cwd=tmp_path)
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr is not None
    assert child.stderr.read() == ""
    child.stderr.close()
    assert child.wait(timeout=patience()) == 1
