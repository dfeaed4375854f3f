"""The runner of the tests: what it shares out, what it counts, what it complains about."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import cpu
from tests.support.cpu import MARK, Meter
from tests.support.worker import SHARED
from tools.run_tests import (
    MARKED,
    REASONS,
    ROOT,
    Outcome,
    Result,
    budgets,
    environment,
    exits,
    folder_of,
    gathered,
    slowest,
    spent,
    too_slow,
)


def ran(name: str, outcome: str = "passed", seconds: float = 0.1, cpu: float = 0.1) -> Result:
    return Result(name, outcome, seconds, cpu, "fast")


# -- two processes that share files -----------------------------------------------------------

FILES = {f"test_{letter}.py": "def test_one(): pass\ndef test_two(): pass\n" for letter in "abcd"}


def run_two(folder: Path, files: dict[str, str], *words: str) -> Outcome:
    """Run both processes of a run on these files, and read the end."""
    shared = folder / "shared"
    (shared / "seen").mkdir(parents=True)
    (shared / "times.json").write_text("{}")
    project = folder / "project"
    project.mkdir()
    (project / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    process: x\n    spark: x\n    ci: x\n"
    )
    for name, text in files.items():
        (project / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.worker", *words],
        cwd=project,
        env={**environment("test", shared, 2), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout, done.stderr, (shared / "output-1.txt").read_text()
    outcome = gathered(shared)
    outcome.exits = exits(shared, done.returncode)
    assert outcome.collected, said
    return outcome


@pytest.mark.process
def test_every_test_is_run_by_one_of_two_processes(tmp_path: Path) -> None:
    outcome = run_two(tmp_path, FILES)
    ids = [test.id for test in outcome.tests]
    assert sorted(ids) == sorted(f"{f}::test_{n}" for f in FILES for n in ("one", "two"))
    assert outcome.problems() == []


@pytest.mark.process
def test_failures_and_tests_left_out_are_counted(tmp_path: Path) -> None:
    files = {
        "test_bad.py": "def test_bad(): assert False\n",
        "test_skipped.py": "import pytest\ndef test_skipped(): pytest.skip('no')\n",
        "test_ci.py": "import pytest\n@pytest.mark.ci\ndef test_ci(): pass\n",
        "test_setup.py": "import pytest\n@pytest.fixture\ndef broken(): 1 / 0\n"
        "def test_setup(broken): pass\n",
    }
    outcome = run_two(tmp_path, files, "-m", "not ci")
    assert {test.id: test.outcome for test in outcome.tests} == {
        "test_bad.py::test_bad": "failed",
        "test_skipped.py::test_skipped": "skipped",
        "test_setup.py::test_setup": "failed",
    }
    assert outcome.skipped() == ["skipped: 1, Skipped: no"]
    assert outcome.left_out == {"ci": 1}


@pytest.mark.process
def test_what_goes_wrong_after_the_last_test_is_a_problem(tmp_path: Path) -> None:
    late = (
        "class Late:\n"
        "    def __init__(self): self.me = self\n"
        "    def __del__(self): raise ValueError('late')\n"
        "def test_it():\n"
        "    import gc\n"
        "    gc.disable()\n"
        "    Late()\n"
    )
    outcome = run_two(tmp_path, {"test_late.py": late}, "-W", "error")
    assert [test.outcome for test in outcome.tests] == ["passed"]
    assert any("though no test failed" in problem for problem in outcome.problems())


@pytest.mark.process
def test_a_test_that_starts_a_process_must_say_so(tmp_path: Path) -> None:
    start = "import subprocess, sys\nimport pytest\n{}\ndef test_it(): {}\n"
    call = "subprocess.run([sys.executable, '-c', ''], check=True)"
    outcome = run_two(
        tmp_path,
        {
            "test_silent.py": start.format("", call),
            "test_marked.py": start.format("@pytest.mark.process", call),
        },
    )
    assert {test.id: test.outcome for test in outcome.tests} == {
        "test_silent.py::test_it": "failed",
        "test_marked.py::test_it": "passed",
    }


WORKING = """
import sys, time
while time.process_time() < 0.5: pass
print('done', flush=True)
sys.stdin.read()
"""
DAEMON = "import os\nif os.fork(): os._exit(0)\nos.setsid()\n" + WORKING


@contextmanager
def worked(program: str, environ: Mapping[str, str] | None = None) -> Iterator[None]:
    """Run a program until it has worked for half a second; it lives as long as this."""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"done\n"
        yield


@pytest.mark.process
def test_the_work_of_a_daemon_is_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, f"counted-{os.getpid()}")
    meter = Meter()
    before = meter.seconds()
    with worked(DAEMON):
        assert meter.seconds() - before > 0.2  # counted in ticks
        assert meter.seconds(with_others=False) >= before


@pytest.mark.process
def test_the_work_of_a_server_that_hides_its_environment_is_counted_while_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(MARK, f"hidden-{os.getpid()}")
    meter = Meter()
    before = meter.seconds()
    with worked(WORKING, environ={}):
        assert meter.seconds() - before > 0.4


@pytest.mark.process
def test_the_work_of_a_child_is_not_counted_again_when_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(MARK, f"ended-{os.getpid()}")
    meter = Meter()
    with worked(WORKING):
        running = meter.seconds()
    assert meter.seconds(with_others=False) - running < 0.4


def lay(proc: Path, pid: int, parent: int, seconds: float, begun: int) -> None:
    """Show a process as the kernel would."""
    ticks = int(seconds * os.sysconf("SC_CLK_TCK"))
    fields = ["S", str(parent), *["0"] * 9, str(ticks), "0", "0", "0", *["0"] * 4, str(begun)]
    (proc / str(pid)).mkdir(exist_ok=True)
    (proc / str(pid) / "stat").write_text(f"{pid} (a) b) {' '.join(fields)} 0")
    (proc / str(pid) / "environ").write_bytes(b"")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cpu, "_PROC", tmp_path)
    return tmp_path


def test_a_process_with_the_number_of_an_ended_one_is_somebody_elses(proc: Path) -> None:
    meter = Meter("a worker")
    lay(proc, 100, parent=os.getpid(), seconds=1, begun=5)
    before = meter.seconds()
    lay(proc, 100, parent=7, seconds=60, begun=9)
    assert meter.seconds() - before < 30


def test_a_child_may_have_a_lower_number_than_its_parent(proc: Path) -> None:
    meter = Meter("a worker")
    before = meter.seconds()
    lay(proc, 200, parent=os.getpid(), seconds=1, begun=5)
    lay(proc, 100, parent=200, seconds=60, begun=9)
    assert meter.seconds() - before > 60


def test_what_was_used_stays_counted_where_a_whole_tree_is_killed(proc: Path) -> None:
    meter = Meter("a worker")
    lay(proc, 100, parent=os.getpid(), seconds=1, begun=5)
    lay(proc, 101, parent=100, seconds=60, begun=6)
    before = meter.seconds()
    for pid in ("100", "101"):
        shutil.rmtree(proc / pid)
    assert meter.seconds() >= before


# -- what is said at the end ------------------------------------------------------------------


def test_a_process_that_broke_down_is_a_problem_though_no_test_failed() -> None:
    outcome = Outcome([ran("a.py::test")], collected=1, exits=[0, 3])
    assert outcome.problems() == ["pytest ended with [0, 3]: not all tests were run"]


def test_a_process_that_ended_badly_without_a_failed_test_is_a_problem() -> None:
    outcome = Outcome([ran("a.py::test")], collected=1, exits=[1, 0])
    assert outcome.problems() == ["pytest ended with [1, 0] though no test failed"]


def test_a_run_of_which_all_is_skipped_proves_nothing() -> None:
    outcome = Outcome([ran("a.py::test", "skipped")], collected=1, exits=[0])
    assert outcome.problems() == ["no test ran"]


def test_tests_that_nobody_ran_are_a_problem() -> None:
    outcome = Outcome([ran("a.py::test")], collected=2, exits=[0, 0])
    assert outcome.problems() == ["1 tests ran, 2 were collected"]


def test_a_run_without_tests_is_a_problem() -> None:
    assert Outcome(exits=[0]).problems() == ["no test ran"]


def test_a_line_that_is_being_written_is_left_for_the_next_look(tmp_path: Path) -> None:
    whole = json.dumps({"id": "a::b", "outcome": "passed", "seconds": 1, "cpu": 1, "cost": "fast"})
    (tmp_path / "worker-1.jsonl").write_text(f"{whole}\n{whole[:20]}")
    assert len(gathered(tmp_path).tests) == 1


def test_the_slowest_twenty_are_shown() -> None:
    lines = slowest([ran(f"a.py::test_{n}", seconds=n) for n in range(30)])
    assert len(lines) == 21
    assert lines[1].endswith("a.py::test_29")


def test_a_test_beyond_a_second_is_not_fast() -> None:
    assert too_slow([ran("a::b", cpu=1.2), ran("a::c", cpu=0.9)], 1.0) == [
        "a::b took 1.2 CPU s: mark it slow"
    ]
    assert too_slow([ran("a::b", cpu=1.2)], slower=1.5) == []


def test_a_folder_that_uses_more_than_its_budget_is_named() -> None:
    tests = [ran("tests/a/test_x.py::t", cpu=6), ran("tests/a/b/test_y.py::t", cpu=5)]
    lines, over = spent(tests, {"tests/a": 10}, 1.0)
    assert over == ["tests/a used 11 CPU s, its budget is 10"]
    assert "11.0 of   10  tests/a" in lines[1]
    assert spent(tests, {"tests/a": 10}, slower=1.2)[1] == []


def test_a_folder_without_a_budget_is_named() -> None:
    assert spent([ran("tests/new/test_x.py::t")], {}, 1.0)[1] == [
        "tests/new has no budget: give it one in tests/budget.toml"
    ]


MOST = {"fast": 140, "test": 1_650, "ci": 3_200}
"""CPU seconds of a tier on two cores; budgets have room for a noisy moment, all of them not."""


@pytest.mark.parametrize("tier", ["fast", "test", "ci"])
def test_every_folder_of_tests_has_a_budget(tier: str) -> None:
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    folders = {folder_of(file) for file in files} - {"tests/s3"}  # run in the night alone
    assert folders == set(budgets(tier))
    assert sum(budgets(tier).values()) <= MOST[tier]


def test_every_reason_to_leave_a_test_out_can_be_said() -> None:
    for word in MARKED["fast"].removeprefix("not (").rstrip(")").split(" or "):
        assert word in REASONS


def test_a_pytest_that_a_test_starts_does_not_join_the_run() -> None:
    assert SHARED not in os.environ
