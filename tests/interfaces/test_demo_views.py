from __future__ import annotations

import io
import json
from typing import Any

import pyte
import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.live import Live

from headrace.cli.demo.session import Comparison, RowDifference
from headrace.cli.demo.view import (
    DemoLines,
    comparison_lines,
    is_right,
    picture,
    snapshot_line,
    step_line,
    summary_lines,
)
from tests.interfaces.snapshots import (
    EXTREME,
    LETTER,
    LIST,
    RUNNING,
    STARTING,
    changed,
    copy,
    status_of,
)
from tests.support.tiers import thinned

BATCH = {
    "rows_in": 3,
    "rows_out": 2,
    "ms": 47.9,
    "way": "job",
    "plan": "Scan parquet → Filter → Project",
    "whole": None,
}
SUMMARY: dict[str, Any] = {
    "last": RUNNING,
    "written": 2_400,
    "comparison": Comparison(2_801).fields(),
    "commands": [{"about": "look", "line": "python -c 'pass'"}],
    "last_batch": BATCH,
    "healed": [],
}
HELD = {**RUNNING, "letters": [LETTER]}
EMPTY = {**STARTING, "phase": "running", "seconds": 1.0, "captured": 0}

SIZES = [(60, 24), (80, 24), (110, 30), (120, 40), (200, 60)]


@pytest.fixture(autouse=True)
def _called_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.common.program", lambda: ("headrace",))


def drawn(shown: dict[str, Any], width: int, height: int) -> list[str]:
    console = Console(record=True, width=width, height=height, file=io.StringIO())
    console.print(pictured(shown, console))
    return console.export_text().splitlines()


def pictured(shown: dict[str, Any], console: Console) -> RenderableType:
    return picture(shown, status_of(shown), "headrace-demo", console)


def test_a_step_is_a_line_with_its_time() -> None:
    assert (
        step_line({"seconds": 9.84, "name": "engine", "text": "Spark is ready"})
        == "   9.8 s  Spark is ready"
    )


def test_the_line_while_spark_starts_counts_what_is_captured() -> None:
    assert snapshot_line(STARTING) == "   3.2 s  waiting for Spark, 41 changes captured"


def test_the_line_while_a_table_is_copied_says_how_far_it_is() -> None:
    copying = {**STARTING, "copies": [copy(1_500, 6_000, 500.0, 9.0)]}
    assert snapshot_line(copying) == (
        "   3.2 s  copying orders: 1,500 of about 6,000 rows, 500 rows/s, 9 s left,"
        " 41 changes captured"
    )
    unknown = {**STARTING, "copies": [copy(0, None, 0.0, None)]}
    assert snapshot_line(unknown) == "   3.2 s  copying orders: 0 rows, 41 changes captured"


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_start_is_shown_as_top_shows_it_with_a_bar_for_a_copy(width: int, height: int) -> None:
    copying = {**STARTING, "copies": [copy(1_500, 6_000, 500.0, 9_000.0)]}
    bar, start, captured = drawn(copying, width, height)
    assert bar.startswith("copying orders ━━━━")
    assert " 25% 1,500 rows" in bar
    assert width < 80 or bar.rstrip().endswith("25% 1,500 rows, 500 rows/s, 2 h 30 min left")
    assert start.startswith("… starting: recording shop (pid 4711")
    assert captured == "waiting for Spark, 41 changes captured"


def test_a_running_line_shows_counts_rates_latency_a_row_and_a_lookup() -> None:
    assert snapshot_line(RUNNING) == (
        "  14.2 s  2,412 captured (41/s), 2,398 applied (40/s), 2,801 rows"
        " · latency p50 61 ms, p95 110 ms"
        " · insert 3022: customer 45, 1 lamp, 29.90, new · customer 7: 53 orders, 12,345.60 paid"
    )


def test_a_line_of_a_snapshot_without_anything_yet_is_still_a_line() -> None:
    line = snapshot_line(EMPTY)
    assert line == "   1.0 s  0 captured (0/s), 0 applied (0/s), 0 rows"


def test_the_verdict_says_yes_with_the_rows_compared() -> None:
    assert comparison_lines(Comparison(2_801).fields()) == [
        "target = source: yes, 2,801 rows compared"
    ]


def test_the_verdict_says_which_rows_are_held() -> None:
    assert comparison_lines(Comparison(2_801, (), (3_021,)).fields()) == [
        "target = source: yes, 2,801 rows compared",
        "  (1 row is held by a dead letter: order 3021)",
    ]
    assert comparison_lines(Comparison(9, (), (1, 2, 3, 4)).fields())[-1] == (
        "  (4 rows are held by dead letters: orders 1, 2, 3, …)"
    )


def test_the_verdict_says_which_letters_are_wrong() -> None:
    found = (RowDifference(1, "causeless"), RowDifference(2, "letterless"))
    assert comparison_lines(Comparison(9, found, (1,)).fields())[1:] == [
        "  order 1 is held by a dead letter but can be computed",
        "  order 2 cannot be computed but has no dead letter",
        "  (1 row is held by a dead letter: order 1)",
    ]


def test_a_line_counts_dead_letters_and_restarts_once_there_are_any() -> None:
    line = snapshot_line({**HELD, "restarts": 2})
    assert " · 1 dead letter, 1 change waiting · recorder streaming, 2 restarts · " in line


def test_the_summary_tells_letter_kills_and_the_last_batch() -> None:
    text = summary_lines({**SUMMARY, "last": HELD, "healed": [1.24, 0.6]})
    assert "held      order 3021: ARITHMETIC_OVERFLOW, 1 change waiting" in text
    assert "recorder  killed 2 times, back after 1.2, 0.6 s, nothing lost" in text
    assert "last      3 rows in, 2 out, 48 ms, by a Spark job" in text
    assert "plan      Scan parquet → Filter → Project" in text
    assert all(len(line) <= 62 for line in text[: text.index("try next")])


def test_nothing_lost_is_said_only_where_it_was_seen() -> None:
    for unknown in (None, Comparison(9, (RowDifference(1, "missing"),)).fields()):
        summary = {**SUMMARY, "comparison": unknown, "healed": [1.0]}
        text = "\n".join(summary_lines(summary))
        assert "nothing lost" not in text
        assert "killed once, back after 1.0 s" in text
    text = "\n".join(summary_lines({**SUMMARY, "healed": [1.0, None]}))
    assert "killed 2 times, not back by the end" in text


def test_a_long_plan_is_wrapped_and_the_whole_one_is_printed_as_it_is() -> None:
    whole = "== Physical Plan ==\n" + "x" * 100
    batch = {**BATCH, "plan": " → ".join(["Operator"] * 30), "whole": whole}
    lines = summary_lines({**SUMMARY, "last_batch": batch})
    assert "x" * 100 in lines
    assert all(len(line) <= 60 for line in lines if "Operator" in line)


def test_the_verdict_says_which_rows_differ_and_in_what() -> None:
    differences = (
        RowDifference(17, "columns", ("status", "total_cents")),
        RowDifference(18, "missing"),
        RowDifference(19, "extra"),
    )
    text = comparison_lines(Comparison(2_801, differences).fields())
    assert text[0].startswith("target = source: NO, 2,801 rows compared")
    assert text[1:] == [
        "  order 17 differs in status, total_cents",
        "  order 18 is missing in the target",
        "  order 19 is in the target but should not be",
    ]


def test_a_target_that_did_not_get_there_is_not_called_right() -> None:
    summary = {**SUMMARY, "comparison": None}
    assert not is_right(summary)
    assert "unknown" in "\n".join(summary_lines(summary))


def test_the_summary_fits_60_columns_but_for_commands() -> None:
    lines = summary_lines(SUMMARY)
    commands = [f"  {command['line']}" for command in SUMMARY["commands"]]
    assert all(len(line) <= 60 for line in lines if line not in commands)
    assert commands[0] in lines
    for said in ("2,400", "2,412", "2,398", "305 Spark jobs", "p50 61 ms", "p95 110 ms"):
        assert said in "\n".join(lines)


def test_plain_prints_a_line_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    view = DemoLines(as_json=False)
    view.step({"seconds": 0.0, "name": "visible", "text": "first rows visible"})
    for tick in range(41):
        view.show({**RUNNING, "seconds": tick / 4}, {})
    view.summary(SUMMARY)
    lines = capsys.readouterr().out.splitlines()
    assert sum("captured (" in line for line in lines) == 10
    assert "target = source: yes, 2,801 rows compared" in lines


def test_json_lines_parse_and_name_their_event(capsys: pytest.CaptureFixture[str]) -> None:
    view = DemoLines(as_json=True)
    view.step({"seconds": 0.5, "name": "engine", "text": "Spark is ready"})
    for tick in range(9):
        view.show({**RUNNING, "seconds": tick / 4}, {})
    view.summary(SUMMARY)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == ["step", "snapshot", "snapshot", "summary"]
    assert events[0] == {
        "event": "step",
        "seconds": 0.5,
        "name": "engine",
        "text": "Spark is ready",
    }
    assert events[1]["hops"][-1] == {"name": "total", "p50_ms": 61.3, "p95_ms": 110.0}
    assert events[1]["lookup"]["paid_cents"] == 1_234_560
    assert events[-1]["comparison"] == {
        "rows": 2_801,
        "differences": [],
        "held": [],
        "equal": True,
    }
    assert events[-1]["commands"][0]["line"] == "python -c 'pass'"


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("shown", [RUNNING, HELD, EXTREME, EMPTY])
def test_the_picture_fits_its_terminal(shown: dict[str, Any], width: int, height: int) -> None:
    lines = drawn(shown, width, height)
    assert all(cell_len(line.rstrip()) <= width for line in lines)
    assert len(lines) < height


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_picture_shows_the_table_the_flow_hops_changes_lookup_and_spark(
    width: int, height: int
) -> None:
    text = "\n".join(drawn(RUNNING, width, height))
    for said in (
        "17 s left, q to quit",
        "PIPELINE",
        "streaming",
        "2,801",
        "38 ms",
        "40/s",
        "✓ ready",
        "SQLite, 41 changes/s",
        "2,412 captured, 310 flushes, 1.2 MB",
        "Spark 4.2.1",
        "290 direct batches, 305 jobs, last 48 ms",
        "2,398 applied at 0001-000000000000096c-00000000",
        "customer 7: 53 orders, 12,345.60 paid",
        "→captured",
        "p50",
        "p95",
        "61 ms",
        "110 ms",
        "3022  customer 45, 1 lamp",
        "1934  status paid → shipped",
        "778  customer 31",
    ):
        assert said in text, said


@pytest.mark.parametrize("width", [60, 80, 110])
def test_the_picture_shows_a_dead_letter_and_the_command_that_lists_it(width: int) -> None:
    text = " ".join(" ".join(drawn(HELD, width, 24)).split())
    assert f"• pipeline orders has 1 dead letter → {LIST}" in text


def test_the_picture_shows_keys_and_restarts() -> None:
    shown = {**RUNNING, "killable": True, "restarts": 1, "source_state": "reconnecting"}
    text = "\n".join(drawn(shown, 80, 24))
    assert "17 s left, k kills the recorder, q to quit" in text
    assert "SQLite, 41 changes/s, 1 restart" in text
    assert "source shop is reconnecting" in text


def test_the_address_of_sparks_pages_is_shown_whole() -> None:
    shown = {**RUNNING, "spark": {**RUNNING["spark"], "ui": "http://127.0.0.1:40401"}}
    assert "http://127.0.0.1:40401, 290 direct" in "\n".join(drawn(shown, 60, 24))


def test_every_size_of_terminal_down_to_tiny_gets_a_picture() -> None:
    for width in thinned(range(10, 130, 7), every=3):
        for height in (3, 10, 17, 24):
            for line in drawn(EXTREME, width, height):
                assert cell_len(line.rstrip()) <= width


def test_changes_are_coloured_by_operation() -> None:
    console = Console(width=80, force_terminal=True, color_system="standard", file=io.StringIO())
    with console.capture() as capture:
        console.print(pictured(RUNNING, console))
    lines = capture.get().splitlines()
    colours = {"3022": "32m", "1934": "33m", "778": "31m"}
    for key, colour in colours.items():
        line = next(line for line in lines if f"{key}  " in line)
        assert colour in line


def test_a_terminal_shows_one_picture_however_often_it_is_drawn() -> None:
    screen = pyte.Screen(60, 24)
    stream = pyte.Stream(screen)
    file = io.StringIO()
    console = Console(
        file=file, width=60, height=24, force_terminal=True, legacy_windows=False, highlight=False
    )
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        live.update(pictured(STARTING, console), refresh=True)
        for tick in range(12):
            shown = {**RUNNING, "captured": 2_412 + tick, "seconds": float(tick)}
            live.update(pictured(shown, console), refresh=True)
    stream.feed(file.getvalue().replace("\n", "\r\n"))
    text = "\n".join(screen.display)
    assert text.count("headrace demo") == 1
    assert "2,423 captured" in text
    assert "2,422 captured" not in text
    assert "starting" not in text


def test_a_small_terminal_shows_fewer_changes() -> None:
    many = {**RUNNING, "changes": [changed("insert", str(n), "a lamp") for n in range(40)]}
    counts = [sum("a lamp" in line for line in drawn(many, 80, height)) for height in (10, 24, 40)]
    assert counts == [1, 7, 12]
