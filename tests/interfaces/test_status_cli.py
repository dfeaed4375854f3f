"""`headrace status`, `top`, `pause`, `resume`, `reload`, `explain`: what they say and return."""

from __future__ import annotations

import io
import json
import threading
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headrace.api.messages import Rates, pipeline_fields
from headrace.api.server import serve
from headrace.cli import errors, main
from headrace.cli.run import change_text
from headrace.cli.status import (
    copy_bar,
    copy_text,
    counts_table,
    lag_text,
    live_view,
    rate_text,
    remarks,
    status_view,
    time_text,
)
from headrace.engine.engine import Engine
from headrace.errors import SourceRefused
from headrace.observe.counters import OperationCounts
from headrace.observe.events import NullObserver
from headrace.pipeline.definition import Pipeline
from headrace.runtime.info import BatchInfo
from headrace.targets.memory import memory
from headrace.testing import MemorySource
from tests.interfaces.at_work import AtWork, at_work, lines_of, told
from tests.interfaces.terminal import Terminal
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience
from tests.support.shop import await_seen, await_that

VERBS: list[list[str]] = [
    ["status"],
    ["top", "--once"],
    ["health"],
    ["metrics"],
    ["query", "orders"],
    ["schema", "orders"],
    ["watch", "orders", "--rows", "--limit", "1"],
    ["pause", "orders"],
    ["resume", "orders"],
    ["reload", "orders"],
    ["reset", "shop", "--yes"],
]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_every_verb_finds_its_engine_as_it_is_told(
    verb: list[str],
    here: AtWork,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.exit_code(verb) == 0  # by headrace.conf in this folder
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert main.exit_code(verb) == 4
    assert main.exit_code([*verb, "--data", here.data]) == 0
    # What a file says begins where the file lies, an option where we stand.
    assert main.exit_code([*verb, "--config", str(tmp_path / "headrace.conf")]) == 0
    assert main.exit_code([*verb, "--set", "data=../data"]) == 0
    assert "No engine is running" in capsys.readouterr().err


def test_explain_needs_spark_and_says_so(here: AtWork, capsys: pytest.CaptureFixture[str]) -> None:
    for options in (
        ["--data", here.data],
        ["--config", "headrace.conf"],
        ["--set", "data=data"],
        ["--json"],
    ):
        assert main.exit_code(["explain", "orders", *options]) == 3
    out, err = capsys.readouterr()
    assert "runs without Spark" in err
    assert json.loads(out)["error"]["code"] == "control.not_running"


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_without_an_engine_every_verb_says_what_to_type(
    verb: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.exit_code(verb) == 4
    assert "headrace run" in capsys.readouterr().err
    assert main.exit_code([*verb, "--json"]) == 4
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], "headrace run" in error["remedy"]) == ("control.no_engine", True)


def test_status_is_the_table_of_the_manual(
    here: AtWork, capsys: pytest.CaptureFixture[str]
) -> None:
    head, row, *sources, last = told(capsys, "status").splitlines()
    assert " ".join(head.split()) == "PIPELINE SOURCE TARGET STATE ROWS LAG RATE POSITION"
    name, source, target, state, rows, *_, position = row.split()
    assert (name, source, target, state, rows) == (
        "orders",
        "shop",
        "indexed-memory",
        "streaming",
        "10",
    )
    assert position == str(here.engine.pipelines()[0].position)
    assert last.startswith("✓ ready (pid ")
    head, row = sources
    assert " ".join(head.split()) == "SOURCE STATE SINCE ORDER SOURCE POSITION"
    info = here.engine.source_info("shop")
    since = f"{datetime.fromtimestamp(info.since):%Y-%m-%d %H:%M:%S}"
    assert " ".join(row.split()) == f"shop streaming {since} total {info.source_position}"


def test_verbose_status_has_the_counts_by_table_and_operation(
    here: AtWork, capsys: pytest.CaptureFixture[str]
) -> None:
    head, row, *rest = told(capsys, "status", "--verbose").splitlines()
    assert head.split()[:6] == ["PIPELINE", "TABLE", "INSERTS", "UPDATES", "DELETES", "TRUNCATES"]
    assert row.split() == ["orders", "orders", "0", "0", "0", "0", "10", "0", "0", "0", "-"]
    assert rest == told(capsys, "status").splitlines()
    (shown,) = lines_of(told(capsys, "status", "--json"))[0]["pipelines"]
    assert shown["counts"]["baseline_rows"] == 10
    assert shown["tables"][0]["counts"] == shown["counts"]


def test_with_several_tables_verbose_status_also_has_those_of_the_pipeline() -> None:
    def of(**counts: int) -> dict[str, Any]:
        return {"counts": asdict(OperationCounts(**counts)), "last_change": None}

    tables = [{"table": name, **of(inserts=1)} for name in ("orders", "customers")]
    pipeline = {"name": "shop", "tables": tables, **of(inserts=2, expired=4, errors=3)}
    shown = io.StringIO()
    Console(file=shown, width=200).print(counts_table({"pipelines": [pipeline]}))
    _, *rows = [line.split() for line in shown.getvalue().splitlines()]
    assert rows == [
        ["shop", "orders", "1", "0", "0", "0", "0", "0", "0", "0", "-"],
        ["shop", "customers", "1", "0", "0", "0", "0", "0", "0", "0", "-"],
        ["shop", "(all)", "2", "0", "0", "0", "0", "4", "3", "0", "-"],
    ]


def test_an_observer_that_missed_events_or_raised_is_named(
    here: AtWork, capsys: pytest.CaptureFixture[str]
) -> None:
    here.engine.observe(NullObserver(), "well")
    (shown,) = lines_of(told(capsys, "status", "--json"))
    assert [each["name"] for each in shown["observers"]] == ["well"]
    assert list(remarks(shown)) == []
    well = shown["observers"][0]
    wrong = [{**well, "name": "slow", "dropped": 1_000}, {**well, "name": "bad", "errors": 2}]
    assert [each.what for each in remarks({**shown, "observers": wrong})] == [
        "observer slow missed 1,000 events, because it is too slow",
        "observer bad raised 2 times; the log file has the first error",
    ]


def test_status_as_json_is_one_object(here: AtWork, capsys: pytest.CaptureFixture[str]) -> None:
    (status,) = lines_of(told(capsys, "status", "--json"))
    assert (status["ready"], status["service"], status["phase"]) == (True, "shop", "running")


@pytest.mark.meets("R20")
@pytest.mark.parametrize(
    ("measured", "current", "shown"),
    [(None, None, None), (1.0, None, None), (None, 63.0, 63.0), (0.1, 3.0, 0.1)],
)
def test_while_a_source_is_not_measured_no_lag_is_shown_that_is_too_small(
    here: AtWork, measured: float | None, current: float | None, shown: float | None
) -> None:
    pipeline, [source] = here.engine.pipeline_info("orders"), here.engine.sources()
    since = replace(source, state="streaming", lag_seconds=measured, current_seconds=current)
    assert pipeline_fields(pipeline, since, ready=False, rate=None)["lag_seconds"] == shown


@pytest.mark.meets("R20")
def test_a_target_that_does_not_finish_a_batch_is_not_called_a_missing_spark(here: AtWork) -> None:
    pipeline, [source] = here.engine.pipeline_info("orders"), here.engine.sources()
    hangs = replace(pipeline, lag_seconds=0.0, applying=BatchInfo(changes=5, seconds=30.0))
    fields = pipeline_fields(hangs, source, ready=False, rate=None)
    assert fields["reason"] == "a batch has been applied for 30 s, and is not done"


@pytest.mark.meets("R12")
def test_a_paused_pipeline_is_not_green(here: AtWork, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "pause", "orders") == "orders is paused\n"
    told(capsys, "status")
    assert main.exit_code(["status", "--ready"]) == 3
    out = capsys.readouterr().out
    assert "paused" in out
    assert "✗ not ready: orders" in out
    assert "headrace resume orders" in out
    assert main.exit_code(["status", "--wait", "50ms"]) == 3
    capsys.readouterr()
    assert lines_of(told(capsys, "resume", "--all", "--json"))[0]["name"] == "orders"
    assert main.exit_code(["status", "--wait", f"{patience():.0f}s", "--ready"]) == 0


def test_pause_takes_a_source_or_all_and_never_nothing(
    here: AtWork, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.exit_code(["pause"]) == 2
    assert main.exit_code(["pause", "orders", "--all"]) == 2
    capsys.readouterr()
    assert told(capsys, "pause", "--source", "shop") == "orders is paused\n"
    told(capsys, "resume", "--source", "shop")
    paused = lines_of(told(capsys, "pause", "--all", "--json"))
    assert paused == [{"name": "orders", "state": "paused", "ready": False, "reason": ""}]
    assert main.exit_code(["pause", "other"]) == 2
    assert "pipelines orders" in capsys.readouterr().err


def test_a_failed_pipeline_is_told_with_its_remedy_and_resume_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    bad = {11}
    runner = ArrowRunner(fails=lambda pipeline, row: "NO" if row["id"] in bad else None)
    with at_work(tmp_path, runner) as here:
        here.shop.insert(range(11, 12))
        assert await_that(here.engine, lambda: here.engine.pipelines()[0].state == "failed")
        assert main.exit_code(["status", "--ready"]) == 3
        out = capsys.readouterr().out
        assert "pipeline orders failed" in out
        assert "pipeline.row_failed" in out
        assert "→ " in out
        assert "✗ not ready: orders" in out
        assert main.exit_code(["query", "orders", "--count"]) == 0
        assert "! orders failed" in capsys.readouterr().err
        bad.clear()
        told(capsys, "resume", "orders")
        assert here.engine.await_ready(patience())
        assert "✓ ready" in told(capsys, "status")


def test_a_source_that_failed_is_read_again_and_nothing_is_called_done_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = MemorySource("shop")
    source.set_schema("orders", {"id": "int64"}, ["id"])
    source.inject_error(SourceRefused("Somebody must look"), at="open")
    orders = Pipeline(source, "orders", memory())
    engine = Engine(orders, data=tmp_path / "data", runner=ArrowRunner(), recorder="thread")
    with engine, serve(engine, tmp_path / "data"):
        assert not engine.await_ready(patience())
        # The pipeline alone gets nothing from a source that stands still.
        assert main.exit_code(["resume", "orders", "--data", "data"]) == 3
        out, err = capsys.readouterr()
        assert "source shop failed" in out
        assert "Somebody must look" in err
        assert "headrace resume --source shop" in err
        assert main.exit_code(["resume", "orders", "--data", "data", "--json"]) == 3
        *_, told_of = lines_of(capsys.readouterr().out)
        assert (told_of["source"], told_of["state"]) == ("shop", "failed")
        assert main.exit_code(["resume", "--source", "nope", "--data", "data"]) == 2
        assert "sources shop" in capsys.readouterr().err
        assert main.exit_code(["resume", "--source", "shop", "--data", "data"]) == 0
        assert engine.await_ready(patience())


def test_a_source_is_reset_once_that_is_confirmed(
    here: AtWork, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = here.engine.pipelines()[0].tables[0].baseline
    shown = "orders would be copied again\n"
    assert told(capsys, "reset", "shop", "--dry-run", "--drop-publication") == shown
    (plan,) = lines_of(told(capsys, "reset", "shop", "--json"))
    assert plan == {
        "source": "shop", "asked": False, "done": False,
        "tables": ["orders"], "pipelines": ["orders"],
    }  # fmt: skip
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert main.exit_code(["reset", "shop"]) == 0
    assert "Reset source shop?" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main.exit_code(["reset", "shop"]) == 2  # nobody answers
    assert "--yes" in capsys.readouterr().err
    assert here.engine.pipelines()[0].tables[0].baseline == before
    wait = f"{patience():.0f}s"
    assert (
        told(capsys, "reset", "shop", "--yes", "--wait", wait) == f"{shown}source shop was reset\n"
    )
    assert here.engine.pipelines()[0].tables[0].baseline > before
    assert main.exit_code(["reset", "nowhere", "--yes"]) == 2
    assert "There is no source nowhere" in capsys.readouterr().err


def test_an_error_at_work_names_its_objects_wherever_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = MemorySource("shop")
    source.set_schema("orders", {"id": "int64"}, ["id"])
    why = SourceRefused("There is no such table", table="public.goods", source="shop")
    source.inject_error(why, at="open")
    engine = Engine(
        Pipeline(source, "orders", memory(), name="all"),
        data=tmp_path / "data",
        runner=ArrowRunner(),
        recorder="thread",
    )
    with engine, serve(engine, tmp_path / "data"):
        assert await_that(engine, lambda: engine.sources()[0].state == "failed")
        log = (tmp_path / "data" / "logs" / "headrace.log").read_text()
        status = told(capsys, "status", "--data", "data")
        (report,) = lines_of(told(capsys, "status", "--data", "data", "--json"))
        assert main.exit_code(["resume", "all", "--data", "data"]) == 3
        resumed = capsys.readouterr().err
    (failed,) = [each for each in lines_of(log) if each["event"] == "recorder failed"]
    assert "table=public.goods" in failed["problem"]
    assert report["sources"][0]["error"]["facts"]["table"] == "public.goods"
    named = "There is no such table (table public.goods)"
    changed = "\n".join(change_text("source", "shop", "streaming", report["sources"][0]))
    for text in (
        report["sources"][0]["reason"],
        report["pipelines"][0]["reason"],
        status,
        resumed,
        changed,
    ):
        assert named in text


def test_a_batch_in_progress_is_told_with_its_size_and_since_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    entered, go = threading.Event(), threading.Event()

    class Slow(ArrowRunner):
        def rows(self, *given: Any) -> Any:
            entered.set()
            assert go.wait(patience())
            return super().rows(*given)

    with at_work(tmp_path, Slow()) as here:
        here.shop.insert(range(11, 311))
        assert entered.wait(patience())
        (report,) = lines_of(told(capsys, "status", "--json"))
        (pipeline,) = report["pipelines"]
        assert pipeline["applying"]["changes"] == 300
        assert pipeline["applying"]["seconds"] >= 0
        pipeline["applying"]["seconds"] = 7.0
        assert "pipeline orders has been applying 300 changes for 7 s" in drawn(status_view(report))
        go.set()
        assert await_that(here.engine, lambda: here.engine.pipelines()[0].rows == 310)
        assert here.engine.pipelines()[0].applying is None


def test_a_reload_is_asked_for_or_waited_for(
    here: AtWork, capsys: pytest.CaptureFixture[str]
) -> None:
    before = here.engine.pipelines()[0].tables[0].baseline
    assert (
        told(capsys, "reload", "orders", "--wait", f"{patience():.0f}s")
        == "orders was copied again\n"
    )
    assert here.engine.pipelines()[0].tables[0].baseline > before
    (asked,) = lines_of(told(capsys, "reload", "orders", "--table", "orders", "--json"))
    assert [each["table"] for each in asked["tables"]] == ["orders"]
    assert main.exit_code(["reload", "orders", "--table", "other"]) == 2
    assert here.engine.await_ready(patience())
    wait = ["--wait", f"{patience():.0f}s"]
    again = "orders was copied again\n"
    for chosen in (["--source", "shop"], ["--source", "shop", "--table", "orders"], ["--all"]):
        before = here.engine.pipelines()[0].tables[0].baseline
        assert told(capsys, "reload", *chosen, *wait) == again
        assert here.engine.pipelines()[0].tables[0].baseline > before
    for wrong in ([], ["orders", "--all"], ["--all", "--table", "orders"], ["--source", "other"]):
        assert main.exit_code(["reload", *wrong]) == 2
    assert here.engine.await_ready(patience())
    here.engine.pause("orders")
    capsys.readouterr()
    assert main.exit_code(["reload", "orders", "--wait", "200ms"]) == 3
    out, err = capsys.readouterr()
    assert (out, "paused" in err) == ("orders will be copied again\n", True)


def test_top_looks_once_or_again_and_again(
    here: AtWork, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "streaming" in told(capsys, "top", "--once")
    assert lines_of(told(capsys, "top", "--once", "--json"))[0]["ready"] is True


@pytest.mark.process
@pytest.mark.parametrize("end", ["q", "\x03"], ids=["q", "ctrl-c"])
def test_top_on_a_terminal_is_live_and_ends_when_asked(
    here: AtWork, tmp_path: Path, end: str
) -> None:
    terminal = Terminal(["-m", "headrace", "top"], tmp_path, 110)
    terminal.until(lambda text: "streaming" in text and "q to quit" in text)
    here.engine.pause("orders")
    terminal.until(lambda text: "paused" in text and "not ready" in text)
    terminal.child.send(end)
    assert terminal.to_the_end() == 0


def test_an_engine_that_starts_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.exit_code(["status", "--wait", "50ms"]) == 4
    assert main.exit_code(["status", "--wait", "soon"]) == 2


STARTING: dict[str, Any] = {
    "pid": 7,
    "seconds": 3.2,
    "phase": "starting",
    "step": "recording shop",
    "ready": False,
    "pipelines": [],
    "sources": [
        {
            "name": "shop",
            "state": "waiting",
            "reason": "transaction of pid 99",
            "phase": "connecting",
            "since": 1_700_000_000.0,
            "ordering": "total",
            "source_position": "0/16B3748",
            "error": None,
            "left_out": {"audit": {"message": "No key", "remedy": "Give it one.", "code": "x.y"}},
            "lag_bytes": 5_120,
            "current_seconds": None,
            "silence_seconds": 2.5,
            "notices": [],
            "copies": [
                {
                    "table": "orders",
                    "rows": 500,
                    "expected": 2_000,
                    "rows_per_s": 250.0,
                    "left_seconds": 6.0,
                    "waits": "",
                    "seconds": 2.0,
                }
            ],
        }
    ],
}


def drawn(view: object, width: int = 120) -> str:
    paper = io.StringIO()
    Console(width=width, file=paper).print(view)
    return paper.getvalue()


NUMBERS = ("streaming", "12,345,678", "2.3 s", "4,212/s")


@pytest.mark.parametrize(
    ("name", "width", "columns"),
    [
        ("orders", 120, "PIPELINE SOURCE TARGET STATE ROWS LAG RATE POSITION"),
        ("orders", 80, "PIPELINE SOURCE TARGET STATE ROWS LAG RATE"),
        ("orders", 64, "PIPELINE SOURCE STATE ROWS LAG RATE"),
        ("orders", 55, "PIPELINE STATE ROWS LAG RATE"),
        ("o" * 64, 80, "PIPELINE STATE ROWS LAG RATE"),
    ],
)
def test_a_narrow_terminal_shows_fewer_columns_and_every_figure_whole(
    name: str, width: int, columns: str, here: AtWork
) -> None:
    asked = here.serving.service.unary["Status"]({})
    figures = {"rows": 12_345_678, "lag_seconds": 2.34, "rate_per_s": 4_212.0, "name": name}
    asked["pipelines"] = [{**asked["pipelines"][0], **figures, "source": "warehouse-db"}]
    for view in (status_view(asked), live_view(asked)):
        head, *rows = drawn(view, width).splitlines()
        assert head.split() == columns.split()
        assert all(figure in rows[0] for figure in NUMBERS)
        assert "…" not in "".join(rows[:2])
        assert "".join(row.split()[0] for row in rows[:2]).startswith(name)


def test_an_engine_that_starts_shows_how_far_it_is() -> None:
    text = drawn(status_view(STARTING))
    assert "copying orders: 500 of about 2,000 rows, 250 rows/s, 6 s left" in text
    assert "source shop is waiting: transaction of pid 99" in text
    assert "source shop left out table audit: No key" in text
    assert "… starting: recording shop" in text


def test_a_source_with_a_stream_shows_when_anything_was_received_last() -> None:
    text = drawn(status_view(STARTING))
    assert "source shop: 5,120 bytes behind the server, last message 2.5 s ago" in text


def test_a_source_that_streams_and_is_not_current_says_why() -> None:
    [source] = STARTING["sources"]
    behind = {**source, "state": "streaming", "reason": "Reading is 34 s behind the source"}
    text = drawn(status_view({**STARTING, "sources": [behind]}))
    assert "source shop is behind: Reading is 34 s behind the source" in text


def test_a_notice_is_shown_for_an_hour() -> None:
    def shown(ago: timedelta) -> str:
        time = (datetime.now(UTC) - ago).isoformat(timespec="seconds")
        notice = {"number": 1, "time": time, "message": "Table orders is copied again: a reason"}
        source = {**STARTING["sources"][0], "notices": [notice]}
        return drawn(status_view({**STARTING, "sources": [source]}))

    assert "source shop: Table orders is copied again: a reason" in shown(timedelta(minutes=50))
    assert "copied again" not in shown(timedelta(minutes=70))


def test_a_bar_shows_share_speed_and_time_left() -> None:
    copy = STARTING["sources"][0]["copies"][0]
    assert "25%" in drawn(copy_bar(copy))
    assert "250 rows/s, 6 s left" in drawn(copy_bar(copy))
    unknown = {**copy, "expected": None, "left_seconds": None, "waits": "pid 9"}
    assert "%" not in drawn(copy_bar(unknown))
    assert copy_text(unknown) == "copying orders: 500 rows, 250 rows/s, waiting for pid 9"


def test_a_rate_looks_at_the_last_seconds_only() -> None:
    now, count = 0.0, 1_000
    rates = Rates(lambda: [("orders", count)], clock=lambda: now)
    assert rates.look() == {"orders": None}  # one look tells nothing
    for _ in range(19):
        now, count = now + 1, count + 40
        shown = rates.look()["orders"]
    assert shown == pytest.approx(40)
    for _ in range(6):
        now += 1
        shown = rates.look()["orders"]
    assert shown == 0.0


def test_commands_that_are_suggested_lead_to_the_same_engine(
    here: AtWork,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told(capsys, "pause", "orders")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for options in (["--data", "../data"], ["--config", "../headrace.conf"]):
        for verb in (["status"], ["top", "--once"]):
            shown = told(capsys, *verb, *options)
            assert f"headrace resume orders {options[0]} {options[1]}" in shown


def test_figures_are_no_finer_than_known() -> None:
    assert [lag_text(each) for each in (None, 0.038, 2.34, 75, 600)] == [
        "-",
        "38 ms",
        "2.3 s",
        "75 s",
        "10 min",
    ]
    assert [rate_text(each) for each in (None, 0.0, 0.4, 212.4)] == ["-", "0/s", "0.4/s", "212/s"]
    assert time_text(2 * 3600 + 60) == "2 h 01 min"


@pytest.mark.parametrize(
    ("shell", "said"),
    [("bash", "complete -o"), ("zsh", "#compdef"), ("fish", "complete --no-files")],
)
def test_completion_is_a_script_of_the_shell(
    shell: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = told(capsys, "completion", shell)
    assert said in script
    assert "_HEADRACE_COMPLETE" in script


def test_a_shell_is_told_the_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_HEADRACE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "headrace sta")
    monkeypatch.setenv("COMP_CWORD", "1")
    with pytest.raises(SystemExit):
        main.exit_code([])
    assert "status" in capsys.readouterr().out


def test_a_shell_is_told_the_pipelines_of_the_running_engine(
    here: AtWork, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_HEADRACE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "headrace query or")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        main.exit_code([])
    assert capsys.readouterr().out.split() == ["plain,orders"]
    here.serving.close()
    with pytest.raises(SystemExit):
        main.exit_code([])
    assert capsys.readouterr().out.strip() == ""


@pytest.mark.slow
def test_nothing_that_a_view_needs_is_missing_in_what_the_engine_tells(here: AtWork) -> None:
    asked = here.serving.service.unary["Status"]({})
    assert "streaming" in drawn(status_view(asked))
    assert errors.DONE == 0
    assert await_seen(lambda: here.serving.service.rates.look()["orders"] is not None)


@pytest.mark.meets("R27")
def test_a_running_engine_tells_what_its_log_is_kept_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with at_work(tmp_path) as work:
        assert main.exit_code(["log", "--data", work.data]) == 0
        shown = capsys.readouterr().out
        assert "kept for" in shown
        assert "orders" in shown
        assert main.exit_code(["log", "--data", work.data, "--json"]) == 0
        kept = json.loads(capsys.readouterr().out)["kept"]
        assert kept["pins"]
        assert {"kind", "whose", "position"} == set(kept["pins"][0])
    assert main.exit_code(["log", "--data", work.data, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kept"] is None
