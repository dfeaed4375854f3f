"""The demo on a terminal, looked at through one in memory."""

from __future__ import annotations

import re
import termios
from pathlib import Path

import pytest

from tests.interfaces.terminal import Terminal

pytestmark = pytest.mark.process

DEMO = ["-m", "tests.interfaces.demo_engine", "--for", "10m", "--data", "d"]


@pytest.mark.parametrize("columns", [60, pytest.param(80, marks=pytest.mark.ci), 200])
def test_the_picture_is_drawn_in_place_and_q_ends_it_right(columns: int, tmp_path: Path) -> None:
    terminal = Terminal(DEMO, tmp_path, columns, 30)
    terminal.until(lambda text: "customer 7" in text and "q to quit" in text)
    shown = terminal.text
    assert shown.count("headrace demo") == 1
    for said in (
        "PIPELINE",
        "SQLite",
        "change log",
        "Spark 4.2.1",
        "memory",
        "p50",
        "p95",
        "0001-",
    ):
        assert said in shown
    terminal.child.send("q")
    assert terminal.to_the_end() == 0
    text = terminal.all_text
    assert "target = source: yes" in text
    assert "try next" in text
    assert "Traceback" not in text
    # Nothing was drawn twice on its way up: the last picture stands above the summary once.
    assert sum(line.startswith("headrace demo") for line in text.splitlines()) == 1


def test_ctrl_c_ends_it_right_and_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    terminal = Terminal(DEMO, tmp_path, 80)
    terminal.until(lambda text: "customer 7" in text)
    terminal.child.sendintr()
    assert terminal.to_the_end() == 0
    assert "target = source: yes" in terminal.all_text
    assert b"\x1b[?25h" in terminal.raw[terminal.raw.rindex(b"\x1b[?25l") :]


def test_a_key_that_means_nothing_is_ignored(tmp_path: Path) -> None:
    terminal = Terminal(DEMO, tmp_path, 60)
    terminal.until(lambda text: "customer 7" in text)
    terminal.child.send("x\n")
    before = terminal.text
    terminal.until(lambda text: text != before)
    assert terminal.child.isalive()
    terminal.child.send("Q")
    assert terminal.to_the_end() == 0


@pytest.mark.parametrize("view", [[], pytest.param(["--plain"], marks=pytest.mark.ci)])
def test_k_kills_the_recorder_and_its_return_is_shown(view: list[str], tmp_path: Path) -> None:
    terminal = Terminal([*DEMO, "--kill", *view], tmp_path, 80, 30)
    terminal.until(lambda text: "press k to kill the recorder" in text)
    before = termios.tcgetattr(terminal.child.fileno())
    assert not before[3] & (termios.ICANON | termios.ECHO)
    terminal.child.send("k")
    terminal.until(lambda text: "recorder is back after" in text)
    terminal.child.send("q")
    assert terminal.to_the_end() == 0
    text = terminal.all_text
    assert text.count("recorder killed: SIGKILL to process ") == 1
    assert "killed once, back after" in text
    assert "nothing lost" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("end", ["q", "\x03"])
def test_the_terminal_is_left_as_it_was_found(end: str, tmp_path: Path) -> None:
    terminal = Terminal([*DEMO, "--kill", "--plain"], tmp_path, 80)
    found = termios.tcgetattr(terminal.child.fileno())
    terminal.until(lambda text: "press k" in text)
    assert termios.tcgetattr(terminal.child.fileno()) != found
    terminal.child.send(end)
    assert terminal.to_the_end() == 0
    assert terminal.left_behind == found


def test_no_colour_is_drawn_where_none_is_wanted(tmp_path: Path) -> None:
    terminal = Terminal(DEMO, tmp_path, 80, no_color="1")
    terminal.until(lambda text: "dead-letters" in text)
    terminal.child.send("q")
    assert terminal.to_the_end() == 0
    colours = re.findall(rb"\x1b\[[0-9;]*m", terminal.raw)
    assert not [each for each in colours if re.search(rb"[\[;](3|4|9)[0-7]", each)]


def test_q_before_the_first_row_ends_it_with_a_word(tmp_path: Path) -> None:
    terminal = Terminal(DEMO, tmp_path, 60)
    terminal.until(lambda text: "orders in shop.db" in text)
    terminal.child.send("q")
    code = terminal.to_the_end()
    # The first row may have been quicker than the key: then it ended the ordinary way.
    expected = {130: "stopped before the first row", 0: "target = source: yes"}
    assert expected[code] in terminal.all_text
