"""`headrace run` with engines on Arrow, in this process and as a child: to a clean stop."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import threading
from pathlib import Path
from typing import IO, Any

import pytest

from headrace.cli import main
from headrace.cli.run import EngineRun, JsonView, LinesView, Notices, change_text
from headrace.engine import state
from headrace.engine.engine import Engine
from headrace.pipeline.definition import Pipeline
from headrace.testing.target import ScriptedTarget
from tests.interfaces.at_work import CONFIGURATION, lines_of, started
from tests.interfaces.inside import Asked, Begin, inside
from tests.interfaces.terminal import Terminal
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience
from tests.support.shop import Market, Shop, await_seen

__all__ = ["inside"]

RUN = ["-m", "tests.interfaces.at_work", "run"]


def test_the_next_run_goes_on_where_this_one_stopped(
    shop: Shop, inside: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    for count in (10, 12):
        with inside("run", "--json") as run:
            run.ready()

            def all_there(count: int = count) -> bool:
                capsys.readouterr()
                assert main.exit_code(["query", "orders", "--count", "--json"]) == 0
                return bool(json.loads(capsys.readouterr().out) == {"count": count})

            run.until(all_there)
            code, out, err = run.ended()
        assert (code, err) == (0, "")
        events = lines_of(out)
        steps = [event["text"] for event in events if event["event"] == "step"]
        assert steps[0] == "recording shop"
        assert events[-1] == {"event": "stopped", "failed": []}
        shop.insert(range(count + 1, count + 3))


def test_a_wrong_configuration_ends_it_with_exit_code_2(
    shop: Shop, tmp_path: Path, inside: Begin
) -> None:
    (tmp_path / "headrace.conf").write_text(CONFIGURATION.replace("[orders]", "[order]"))
    with inside("run") as run:
        code, _, err = run.over()
    assert code == 2
    assert "order" in err
    assert "→ " in err
    assert "Traceback" not in err


def test_options_say_where_everything_is(
    shop: Shop, tmp_path: Path, inside: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    config = str(tmp_path / "headrace.conf")
    with inside("run", "--config", config, "--set", "data=here") as run:
        run.ready(elsewhere / "here")
        run.said("watch orders")
        code, _, err = run.ended()
    assert code == 0
    assert f"status --config {config} --set data=here" in err
    with inside("run", "--config", config, "--data", "there") as run:
        run.ready(elsewhere / "there")
        run.said("watch orders")
        code, _, err = run.ended()
    assert code == 0
    assert "status --data there" in err


def test_states_that_change_are_told_as_they_do(
    shop: Shop, inside: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    with inside("run", "--json") as run:
        run.said('"ready"')
        assert main.exit_code(["pause", "orders"]) == 0
        run.said('"new": "paused"')
        code, out, _ = run.ended()
    assert code == 0
    events = lines_of(out)
    (ready,) = [event for event in events if event["event"] == "ready"]
    assert ready["status"]["pipelines"][0]["rows"] == 10
    after = [event for event in events[events.index(ready) :] if event["event"] == "changed"]
    assert [(each["name"], each["old"], each["new"]) for each in after] == [
        ("orders", "streaming", "paused")
    ]
    # A restart keeps to the pause: it is never ready, and says why.
    with inside("run") as run:
        run.until(lambda: main.exit_code(["status"]) == 0)
        capsys.readouterr()
        assert main.exit_code(["status", "--wait", "100ms"]) == 3
        assert "headrace resume orders" in capsys.readouterr().out
        assert run.ended()[0] == 0


DROP_TABLE = ["drop table orders"]
DAMAGE_CAPTURE = [
    "update __headrace_meta set value = 99 where name = 'format'",
    "create table other (id)",  # so that the capture is looked at
]

causes = pytest.mark.parametrize(
    ("cause", "what", "name"),
    [(DROP_TABLE, "pipeline", "orders"), (DAMAGE_CAPTURE, "source", "shop")],
    ids=["pipeline", "source"],
)


@causes
def test_what_failed_is_told_and_the_exit_code_says_so(
    shop: Shop, inside: Begin, cause: list[str], what: str, name: str
) -> None:
    with inside("run") as run:
        run.ready()
        alter(shop, cause)
        run.said("→ failed")
        assert main.exit_code(["status", "--ready"]) == 3
        code, _, err = run.ended()
    assert code == 1
    assert f"stopped; these had failed: {what} {name}" in err
    assert f"{what} {name}: " in err.partition("stopped; ")[2]
    assert "→ " in err.partition("stopped; ")[2]


@causes
def test_what_failed_is_named_in_the_last_line_for_programs(
    shop: Shop, inside: Begin, cause: list[str], what: str, name: str
) -> None:
    with inside("run", "--json") as run:
        run.ready()
        alter(shop, cause)
        run.said('"new": "failed"')
        assert main.exit_code(["status", "--ready"]) == 3
        code, out, _ = run.ended()
    last = lines_of(out)[-1]
    assert (code, last["event"]) == (1, "stopped")
    assert [(each["what"], each["name"]) for each in last["failed"]] == [(what, name)]
    assert last["failed"][0]["error"]["code"]


def test_dead_letters_are_told_once_with_the_command_and_not_one_by_one(
    shop: Shop, inside: Begin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = {3}
    monkeypatch.setattr(
        "tests.interfaces.inside.ArrowRunner",
        lambda: ArrowRunner(fails=lambda pipeline, row: "NO" if row["id"] in bad else None),
    )

    def counted(letters: int) -> bool:
        capsys.readouterr()
        assert main.exit_code(["status", "--json"]) == 0
        (pipeline,) = json.loads(capsys.readouterr().out)["pipelines"]
        return bool(pipeline["dead_letters"] == letters)

    with inside("run") as run:
        run.ready()
        run.said("pipeline orders has 1 dead letter\n")
        run.said("dead-letters list orders\n")
        bad |= {20, 21}
        shop.insert(range(20, 22))
        run.until(lambda: counted(3))
        _, _, err = run.ended()
    assert err.count("dead letter") == 1
    with inside("run", "--json") as run:
        run.said('"count": 3')
        _, out, _ = run.ended()
    (told,) = [event for event in lines_of(out) if event["event"] == "dead_letters"]
    assert told == {"event": "dead_letters", "pipeline": "orders", "count": 3}


def test_a_request_to_end_is_answered_at_once_and_ends_the_start(
    shop: Shop, tmp_path: Path, inside: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go = threading.Event(), threading.Event()

    class Slow(ArrowRunner):
        """Takes as long to start as Spark may."""

        def prepare(self, *given: Any) -> Any:
            entered.set()
            assert go.wait(patience())
            return super().prepare(*given)

    monkeypatch.setattr("tests.interfaces.inside.ArrowRunner", Slow)
    with inside("run") as run:
        assert entered.wait(patience())
        asking = threading.Thread(target=run.ended)
        asking.start()
        run.said("stopping …")
        go.set()
        asking.join(patience())
        code, _, err = run.over()
    assert code == 0
    assert "pipelines compiled" not in err
    assert err.rstrip().endswith("stopped")
    assert (tmp_path / "data" / "lock").read_bytes() == b""


def test_a_batch_that_takes_long_is_told_with_its_size(capsys: pytest.CaptureFixture[str]) -> None:
    batch = {"changes": 500_000, "seconds": 12.3}
    report = {"sources": [], "pipelines": [{"name": "orders", "applying": batch}]}
    view = LinesView(())
    for _ in range(3):
        view.show(report)  # not again and again
    told = capsys.readouterr().err
    assert told.endswith(" pipeline orders has been applying 500,000 changes for 12 s\n")
    assert told.count("applying") == 1
    batch["seconds"] = 0.1
    LinesView(()).show(report)
    assert capsys.readouterr().err == ""


def alter(shop: Shop, statements: list[str]) -> None:
    app = sqlite3.connect(shop.path)
    for each in statements:
        app.execute(each)
    app.commit()
    app.close()


def test_the_end_may_be_asked_for_while_it_starts(
    shop: Shop, tmp_path: Path, inside: Begin
) -> None:
    with inside("run") as run:
        run.until((tmp_path / "data" / "run" / "engine.json").exists)
        code, _, err = run.ended()
    assert code == 0
    assert "stopped" in err


@pytest.mark.parametrize("view", [LinesView(()), JsonView()])
def test_a_notice_is_told_once_with_its_remedy(
    capsys: pytest.CaptureFixture[str], view: LinesView | JsonView
) -> None:
    def notice(number: int) -> dict[str, object]:
        text = f"Table t{number} is copied again"
        return {"number": number, "message": text, "remedy": "Wait.", "code": "x.y", "time": "now"}

    notices = Notices()
    for count in (0, 1, 1, 3, 3):
        source = {"name": "shop", "notices": [notice(number + 1) for number in range(count)]}
        for name, new in notices.new({"sources": [source]}):
            view.notice(name, new)
    told = "".join(capsys.readouterr())
    assert [told.count(f"Table t{number} is copied again") for number in (1, 2, 3)] == [1, 1, 1]
    assert told.count("Wait.") == 3
    # The source was dropped, and added again: it counts from 1.
    for sources in ([], [{"name": "shop", "notices": [notice(1)]}]):
        for name, new in notices.new({"sources": sources}):
            view.notice(name, new)
    assert "Table t1 is copied again" in "".join(capsys.readouterr())
    again = Notices()
    for numbers in ((1, 2), (1,)):
        found = {"name": "shop", "notices": [notice(number) for number in numbers]}
        assert [new["number"] for _, new in again.new({"sources": [found]})] == [*numbers]


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["lines", "json"])
def test_tables_that_are_copied_again_are_told_once_everywhere(
    shop: Shop, inside: Begin, capsys: pytest.CaptureFixture[str], form: list[str]
) -> None:
    with inside("run", *form) as run:
        run.ready()
        shop.app.execute("alter table orders add column note text")
        shop.app.execute("insert into orders (id, status) values (11, 'paid')")
        run.said("Table orders is copied again: its columns were altered")
        run.ready()
        capsys.readouterr()
        assert main.exit_code(["status", "--json"]) == 0
        (status,) = lines_of(capsys.readouterr().out)
        assert main.exit_code(["status"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        _, out, err = run.ended()
    (notice,) = status["sources"][0]["notices"]
    assert notice["code"] == "capture.copied_again"
    assert shown.count(notice["message"]) == 1
    if form:
        (event,) = [each for each in lines_of(out) if each["event"] == "notice"]
        assert event == {"event": "notice", "source": "shop", **notice}
    else:
        assert err.count(notice["message"]) == 1
        assert notice["remedy"] in " ".join(err.split())


def test_a_source_that_is_away_is_one_line_however_many_pipelines_it_has(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = LinesView(())
    away = {"state": "not_ready", "reason": "source shop is reconnecting: gone", "error": None}
    back = {"state": "streaming", "reason": "", "error": None}
    for name in ("orders", "goods"):
        view.changed("pipeline", name, "streaming", away)
        view.changed("pipeline", name, "not_ready", away)
    view.changed("pipeline", "orders", "not_ready", back)
    assert capsys.readouterr().err == ""
    loading = {"state": "loading", "reason": "goods: its columns changed", "error": None}
    view.changed("pipeline", "goods", "not_ready", loading)
    told = capsys.readouterr().err
    assert told.endswith("pipeline goods: streaming → loading: goods: its columns changed\n")


def test_a_run_that_is_ended_does_not_wait_for_a_target_whose_open_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(state, "_OPEN_SECONDS", 20 * patience())
    opening, free = threading.Event(), threading.Event()

    class Unopenable(ScriptedTarget):
        def open(self, *_: object) -> None:
            opening.set()
            free.wait()

    market, end, codes = Market(tmp_path), Asked(), list[int]()
    configured = _Configured(market, market.pipeline(Unopenable(), name="lame"))
    run = EngineRun(configured, market.data, LinesView(()), end)
    thread = threading.Thread(target=lambda: codes.append(run.run()))
    thread.start()
    assert opening.wait(patience())
    end.event.set()
    thread.join(patience())
    free.set()
    assert codes == [0]
    assert "pipeline lame did not stop in time and was left behind" in capsys.readouterr().err


def test_pipelines_that_are_behind_their_source_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reason = "source shop: Reading is 25 s behind the source"
    behind = {"state": "not_ready", "reason": reason, "error": None}
    LinesView(()).changed("pipeline", "orders", "streaming", behind)
    assert capsys.readouterr().err.endswith(f"pipeline orders: streaming → not ready: {reason}\n")


def test_a_name_is_told_as_it_is_written() -> None:
    new = {"state": "catching_up", "reason": "", "error": None}
    told = change_text("pipeline", "odd_name", "not_started", new)
    assert told == ["pipeline odd_name: not started → catching up"]


# -- as a child: signals, terminals, and what a process of its own shows and holds --------------


def ready(child: subprocess.Popen[str], data: Path | str = "data") -> None:
    """Wait until the engine of a child is ready, and no longer than the child lives."""

    def is_ready() -> bool:
        if child.poll() is not None:
            pytest.fail(f"it ended: {child.communicate()}")
        return main.exit_code(["status", "--ready", "--data", str(data)]) == 0

    assert await_seen(is_ready, patience())


def said(child: subprocess.Popen[str], text: str, stream: IO[str] | None = None) -> str:
    """Read what a child says, by default to stderr, until it says this; return all of it."""
    stream = stream or child.stderr
    assert stream is not None
    read = ""
    for line in stream:
        read += line
        if text in line:
            return read
    return pytest.fail(f"it never said {text!r}: {read}")


def ended(child: subprocess.Popen[str], number: int = signal.SIGINT) -> tuple[int, str, str]:
    """Ask a child to end; return its exit code, and what it said that was not read yet."""
    assert child.stdout is not None
    assert child.stderr is not None
    child.send_signal(number)
    # Not `communicate`, which knows nothing of what lies in the buffers of a reader of lines.
    out, err = child.stdout.read(), child.stderr.read()
    return child.wait(patience()), out, err


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_a_run_is_ready_says_what_to_type_and_stops_cleanly(
    shop: Shop, tmp_path: Path, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with started("run", cwd=tmp_path) as child:
        begun = said(child, "watch orders")
        ready(child)
        code, out, rest = ended(child, number)
    err = begun + rest
    assert (code, out) == (0, "")
    assert "recording shop" in err
    assert "ready: 1 pipeline, 10 rows" in err
    for command in ("status", "query orders", "watch orders"):
        assert f"headrace {command}" in err
    assert err.rstrip().endswith("stopped")
    assert main.exit_code(["status"]) == 4
    assert not (tmp_path / "data" / "run" / "engine.json").exists()
    assert (tmp_path / "data" / "lock").read_bytes() == b""


@pytest.mark.process
def test_a_second_run_is_told_who_holds_the_directory_and_the_first_goes_on(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with started("run", cwd=tmp_path) as child:
        ready(child)
        with started("run", cwd=tmp_path) as second:
            _, err = second.communicate(timeout=patience())
        assert second.returncode == 3
        assert f"Process {child.pid}" in err
        ready(child)
        assert ended(child)[0] == 0


@pytest.mark.process
def test_on_a_terminal_it_draws_and_leaves_lines_behind(shop: Shop, tmp_path: Path) -> None:
    shop.insert(range(11, 5_000))
    terminal = Terminal(RUN, tmp_path, 100, no_color="1")
    terminal.until(lambda text: "try next, in another terminal" in text)
    assert "ready: 1 pipeline, 4,999 rows" in terminal.all_text
    terminal.child.sendintr()
    assert terminal.to_the_end() == 0
    assert "stopped" in terminal.all_text
    assert "copying" not in terminal.text
    assert not [code for code in (b"\x1b[31m", b"\x1b[32m") if code in terminal.raw]


@pytest.mark.process
def test_a_table_that_is_copied_has_a_bar_with_its_rate_and_time_left(
    shop: Shop, tmp_path: Path
) -> None:
    shop.insert(range(11, 30_001))
    shop.app.execute("analyze")  # else SQLite does not know how many rows there are
    slowly = CONFIGURATION.replace('"shop.db" }', '"shop.db", copy_rows_per_s = 10000 }')
    (tmp_path / "headrace.conf").write_text(slowly)
    terminal = Terminal(RUN, tmp_path, 100)
    moving = re.compile(r"copying orders .* \d+% [\d,]+ rows, [\d,]+ rows/s, \d+ s left")
    terminal.until(lambda text: bool(moving.search(text)))
    terminal.until(lambda text: "try next, in another terminal" in text)
    assert "ready: 1 pipeline, 30,000 rows" in terminal.all_text
    assert "copying orders" not in terminal.text
    terminal.child.sendintr()
    assert terminal.to_the_end() == 0
    assert "stopped" in terminal.all_text


@pytest.mark.process
def test_no_planted_secret_is_in_what_is_shown_or_logged(shop: Shop, tmp_path: Path) -> None:
    address = "postgresql://bob:hush-hush@127.0.0.1:1/shop"
    more = f'''
sources.main {{ type = postgres, connection = "{address}" }}
pipelines.goods {{ source = main, tables = [goods], target {{ type = indexed-memory }} }}
'''
    (tmp_path / "headrace.conf").write_text(CONFIGURATION + more)
    for options in ([], ["--json"]):
        with started("run", *options, cwd=tmp_path) as child:
            begun = said(child, "main is away", child.stdout if options else child.stderr)
            code, out, err = ended(child)
        assert code == 0
        assert "hush-hush" not in begun + out + err
    logs = [each for each in tmp_path.rglob("*.log") if each.is_file()]
    assert not any("hush-hush" in each.read_text() for each in logs)


class _Configured:
    """A configuration of an engine on Arrow; it says with what the engine is stopped."""

    service = "shop"

    def __init__(self, market: Market, *pipelines: Pipeline) -> None:
        self.data = market.data
        self._pipelines = pipelines

    def engine(self, **overrides: Any) -> Engine:
        return Engine(
            *self._pipelines, runner=ArrowRunner(), recorder="thread", shutdown_timeout=0.6,
            **overrides,
        )  # fmt: skip


def test_a_run_ends_in_order_although_writes_of_two_pipelines_hang(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    market, end = Market(tmp_path), Asked()
    targets = {"one": ScriptedTarget(), "two": ScriptedTarget()}
    pipelines = [market.pipeline(target, name=name) for name, target in targets.items()]
    configured = _Configured(market, *pipelines)
    view = LinesView(())
    run = EngineRun(configured, market.data, view, end)
    codes = list[int]()
    thread = threading.Thread(target=lambda: codes.append(run.run()))
    thread.start()
    engine = run._running.engine
    assert engine.await_ready(patience()) or await_seen(engine.is_ready)
    for target in targets.values():
        target.hold()
    market.put("orders", 11)
    assert all(target.holding.wait(patience()) for target in targets.values())
    end.event.set()
    thread.join(patience())
    for target in targets.values():
        target.release()
    assert codes == [0]
    told = capsys.readouterr().err
    for name in targets:
        assert f"pipeline {name} did not stop in time and was left behind" in told
    # Nothing of theirs was closed while they write.
    assert [target.calls["close"] for target in targets.values()] == [0, 0]
