"""The demo as a newcomer meets it: real log, real Spark, real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.demo.goods import BARCODE
from tests.interfaces.terminal import Terminal
from tests.support import mounting
from tests.support.children import python
from tests.support.patience import patience

pytestmark = [pytest.mark.spark, pytest.mark.timeout(2 * patience(240))]

ROOT = Path(__file__).parent.parent.parent
SECONDS = 180


def environment() -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


def demo(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "headrace", "demo", *arguments, cwd=cwd, env=environment(), seconds=SECONDS)


def processes_in(folder: Path) -> list[str]:
    """Return the command lines of processes that speak of `folder` or stand in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            where = str((process / "cwd").readlink())
        except (OSError, UnicodeDecodeError):
            continue
        if process.name != str(os.getpid()) and (str(folder) in line or where == str(folder)):
            found.append(line)
    return found


@dataclass(frozen=True)
class Done:
    folder: Path
    out: str
    err: str
    code: int


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Run the demo once, without a terminal, with its default folder."""
    folder = tmp_path_factory.mktemp("demo")
    done = demo("--for", "8s", "--plain", cwd=folder)
    return Done(folder, done.stdout, done.stderr, done.returncode)


def test_the_demo_prints_rows_a_lookup_and_that_target_is_source(plain: Done) -> None:
    assert (plain.code, plain.err) == (0, ""), plain.out
    assert re.search(r"^target = source: yes, [\d,]+ rows compared$", plain.out, re.MULTILINE)
    assert re.search(r"(insert|update|delete) \d+: ", plain.out)
    assert re.search(r"customer \d+: \d+ orders, [\d,.]+ paid", plain.out)
    assert re.search(r"p50 [\d.,]+ ms, p95 [\d.,]+ ms", plain.out)


def test_the_demo_prints_no_foreign_line(plain: Done) -> None:
    known = re.compile(
        r"$| *\d+\.\d s  |(written|captured|applied|latency|p50/hop|lookup|last|plan|held) "
        r"|target = source|  \(1 row is held| +\([\d,]+ more were part of|try next|  # "
        r"|  \S*python\S* -[cm] |  \S*headrace (demo|dead-letters|log) "
    )
    strange = [line for line in plain.out.splitlines() if not known.match(line)]
    assert strange == []
    for word in ("WARN", "log4j", "NativeCodeLoader", "Stage", "Traceback", "Exception"):
        assert word not in plain.out


@pytest.mark.meets("R30", "S2")
def test_the_spoilt_order_is_a_dead_letter_and_the_verdict_says_so(plain: Done) -> None:
    (order,) = re.findall(r"order (\d+): a barcode was scanned as its quantity", plain.out)
    assert f"dead letter: order {order}, ARITHMETIC_OVERFLOW" in plain.out
    assert f"\nheld      order {order}: ARITHMETIC_OVERFLOW" in plain.out
    assert f"\n  (1 row is held by a dead letter: order {order})\n" in plain.out


def test_everything_that_was_written_was_captured(plain: Done) -> None:
    (written,) = re.findall(r"^written   ([\d,]+) changes", plain.out, re.MULTILINE)
    assert f"\ncaptured  {written} changes in " in plain.out


def test_how_spark_ran_the_last_batch_is_told(plain: Done) -> None:
    assert re.search(
        r"^last      \d+ rows? in, \d+ out, [\d.,]+ ms, directly$", plain.out, re.MULTILINE
    )
    assert re.search(r"^plan      Scan parquet → ", plain.out, re.MULTILINE)


def test_changes_were_counted_while_spark_started(plain: Done) -> None:
    assert re.search(r"waiting for Spark, [1-9]\d* changes captured", plain.out)


def test_everything_stays_in_the_folder_and_no_process_is_left(plain: Done) -> None:
    assert [path.name for path in plain.folder.iterdir()] == ["headrace-demo"]
    assert processes_in(plain.folder) == []


def test_the_log_file_is_json_without_card_numbers(plain: Done) -> None:
    text = (plain.folder / "headrace-demo" / "logs" / "headrace.log").read_text()
    for line in text.splitlines():
        assert json.loads(line)["time"].endswith("Z")
    assert "0000-0000-" not in text


def commands_of(plain: Done) -> list[str]:
    lines = plain.out.splitlines()
    return [after.strip() for line, after in pairwise(lines) if "  # " in line]


def pasted(command: str, folder: Path) -> tuple[str, str]:
    """Paste a command; return what it printed and what it said."""
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=patience(SECONDS),
        env=environment(),
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout, done.stderr


def test_the_commands_without_spark_work_when_pasted(plain: Done) -> None:
    letter, write, _, _, ask = commands_of(plain)
    shown, said = pasted(letter, plain.folder)
    assert said == ""
    assert "ARITHMETIC_OVERFLOW" in shown
    assert str(BARCODE) in shown
    _, said = pasted(write, plain.folder)
    assert re.fullmatch(r"[\d,]+ changes in headrace-demo/changes\.parquet\n", said)
    shown, said = pasted(ask, plain.folder)
    assert said == ""
    assert "'paid'" in shown


@pytest.mark.ci
@pytest.mark.meets("S5", "S17")
def test_the_commands_with_spark_work_when_pasted_and_a_killed_recorder_comes_back(
    plain: Done,
) -> None:
    _, write, with_spark, again, _ = commands_of(plain)
    pasted(write, plain.folder)
    shown, said = pasted(with_spark, plain.folder)
    assert said == ""
    assert re.search(r"\|insert\|\s*\d+\|", shown)

    # The same demo goes on, now on a terminal; with Spark's pages, until its recorder was killed.
    line = f"{again} --for 10m --kill --spark-ui --explain"
    terminal = Terminal(["-c", line], plain.folder, 80, 40, program="/bin/sh")
    wanted = ("q to quit", "dead-letters", "customer 7:")
    terminal.until(lambda text: all(part in text for part in wanted), SECONDS)
    shown = terminal.text
    assert sum(line.startswith("headrace demo") for line in shown.splitlines()) == 1
    for part in ("PIPELINE", "SQLite", "change log", "Spark ", "p50", "0001-", "k kills the"):
        assert part in shown
    (address,) = set(re.findall(r"Spark web UI: (http://127\.0\.0\.1:\d+)", shown))
    with urllib.request.urlopen(address, timeout=patience()) as page:
        assert page.status == 200
        assert b"headrace" in page.read()
    terminal.child.send("k")
    terminal.until(lambda text: "recorder is back after" in text, SECONDS)
    terminal.until(lambda text: "1 restart" in text, SECONDS)
    terminal.child.send("q")
    assert terminal.to_the_end(SECONDS) == 0
    text = terminal.all_text
    way = "directly, without a Spark job"
    for part in ("target = source: yes", "nothing lost", way, "Pipeline orders"):
        assert part in text
    assert "Traceback" not in text


@pytest.mark.ci
@pytest.mark.meets("R31")
def test_programs_read_json_lines_and_a_second_demo_is_told_who_holds_the_data(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "headrace", "demo", "--for", "30m", "--json", "--data", "d"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment(),
    ) as first:
        assert first.stdout is not None
        read = until_step(first.stdout, "writer")
        second = demo("--data", "d", "--plain", cwd=tmp_path)
        assert second.returncode == 3
        assert f"{first.pid}" in second.stderr
        assert "since" in second.stderr
        assert "control.locked" in second.stderr
        assert "Traceback" not in second.stdout + second.stderr
        told = json.loads(demo("--data", "d", "--json", cwd=tmp_path).stdout.splitlines()[-1])
        assert told["error"]["code"] == "control.locked"
        read += until_step(first.stdout, "visible")
        read += until(first.stdout, lambda event: event["event"] == "snapshot" and event["applied"])
        first.send_signal(signal.SIGINT)
        read += first.stdout.readlines()
        _, err = first.communicate(timeout=patience(SECONDS))
    assert (first.returncode, err) == (0, "")
    events = [json.loads(line) for line in read]
    assert {event["event"] for event in events} == {"step", "snapshot", "summary"}
    summary = events[-1]
    assert summary["comparison"]["equal"] is True
    # The baseline by jobs, the changes without.
    assert summary["last"]["spark"]["jobs"] > 0
    assert summary["last"]["spark"]["direct"] > 0
    assert {hop["name"] for hop in summary["last"]["hops"]} >= {"captured", "job", "total"}
    assert summary["last"]["captured"] == summary["written"]
    assert summary["last_batch"]["rows_in"] > 0


def until_step(lines: Iterable[str], name: str) -> list[str]:
    return until(lines, lambda event: event.get("name") == name)


def until(lines: Iterable[str], seen: Callable[[dict[str, Any]], object]) -> list[str]:
    """Return the lines until the one that was looked for, with it."""
    read = []
    for line in lines:
        read.append(line)
        if seen(json.loads(line)):
            return read
    return pytest.fail(f"it never came: {read[-3:]}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with room for a shop and little more, where mounting is allowed."""
    folder = tmp_path / "small"
    with mounting.small_disk(folder, "6m"):
        yield folder


@pytest.mark.ci
@pytest.mark.meets("P7")
def test_a_full_disk_ends_the_demo_with_a_remedy(small_disk: Path, tmp_path: Path) -> None:
    arguments = ("--data", str(small_disk / "d"), "--rate", "1000", "--for", "5m", "--plain")
    done = demo(*arguments, cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    assert "storage.full" in done.stderr
    assert "Free space" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
