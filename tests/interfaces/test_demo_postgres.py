"""The demo over PostgreSQL as a newcomer meets it: real server, real log, real Spark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.interfaces.terminal import Terminal
from tests.interfaces.test_demo_end_to_end import SECONDS, Done, demo, pasted, processes_in
from tests.support.patience import patience

pytestmark = [
    pytest.mark.spark,
    pytest.mark.server,
    pytest.mark.ci,
    pytest.mark.timeout(2 * patience(240)),
]


@pytest.fixture(scope="module")
def plain(open_folder: Path) -> Done:
    """Run the demo once, without a terminal, with its default folder."""
    done = demo("--source", "postgres", "--for", "8s", "--plain", cwd=open_folder)
    return Done(open_folder, done.stdout, done.stderr, done.returncode)


def test_the_server_is_told_and_target_is_source(plain: Done) -> None:
    assert (plain.code, plain.err) == (0, ""), plain.out
    assert re.search(r"PostgreSQL \d+ started on 127\.0\.0\.1:\d+$", plain.out, re.MULTILINE)
    assert re.search(r"^target = source: yes, [\d,]+ rows compared$", plain.out, re.MULTILINE)
    assert re.search(r"(insert|update|delete) \d+: ", plain.out)


@pytest.mark.meets("R30")
def test_the_spoilt_order_is_a_dead_letter_and_the_verdict_says_so(plain: Done) -> None:
    (order,) = re.findall(r"order (\d+): a barcode was scanned as its quantity", plain.out)
    assert f"dead letter: order {order}, ARITHMETIC_OVERFLOW" in plain.out
    assert f"\n  (1 row is held by a dead letter: order {order})\n" in plain.out


def test_everything_that_was_written_was_captured(plain: Done) -> None:
    (written,) = re.findall(r"^written   ([\d,]+) changes", plain.out, re.MULTILINE)
    assert f"\ncaptured  {written} changes in " in plain.out


def test_the_server_is_stopped_and_everything_stays_in_the_folder(plain: Done) -> None:
    assert [path.name for path in plain.folder.iterdir()] == ["headrace-demo-postgres"]
    assert processes_in(plain.folder) == []


def test_the_command_that_writes_the_log_works_when_pasted(plain: Done) -> None:
    (line,) = re.findall(r"^  (\S*headrace log read .*)$", plain.out, re.MULTILINE)
    shown, said = pasted(line, plain.folder)
    assert shown == ""
    assert re.fullmatch(r"[\d,]+ changes in headrace-demo-postgres/changes.parquet\n", said)


def test_on_a_terminal_it_goes_on_and_a_killed_recorder_comes_back(plain: Done) -> None:
    options = ["--source", "postgres", "--for", "10m", "--kill", "--explain"]
    terminal = Terminal(["-m", "headrace", "demo", *options], plain.folder, 60, 40)
    terminal.until(lambda text: "customer 7:" in text and "PostgreSQL," in text, SECONDS)
    shown = terminal.text
    assert sum(line.startswith("headrace demo") for line in shown.splitlines()) == 1
    for part in ("change log", "Spark ", "memory", "p50", "0001-"):
        assert part in shown
    terminal.child.send("k")
    terminal.until(lambda text: "recorder is back after" in text, SECONDS)
    terminal.child.send("q")
    assert terminal.to_the_end(SECONDS) == 0
    text = terminal.all_text
    for said in ("target = source: yes", "nothing lost", "directly, without a Spark job"):
        assert said in text
    assert "Traceback" not in text
    assert "shop with 3,000 orders" not in text
    assert processes_in(plain.folder) == []
