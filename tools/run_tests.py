"""
Runs a tier of the tests in several processes: what it ran, what it left out, what it cost.

The tiers contain each other: `fast` needs neither a process nor a server nor Spark; `test` adds
them; `ci` adds what is too long for a developer's coffee; `nightly` has no limits and is run by
parts (`tools/nightly.py`). A tier fails when a test fails, when a folder uses more CPU than
`tests/budget.toml` gives it, or when a command or option of the CLI was run by no test.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.cpu import MARK
from tests.support.patience import slowness
from tests.support.worker import ENDED, FORKED, JOBS, SHARED

ROOT = Path(__file__).resolve().parent.parent
TIMES = ROOT / ".cache" / "test-times.json"
"""Seconds that each file took here the last time; the longest are begun first."""

ZONE = "Pacific/Chatham"
"""An offset of 12:45 or 13:45: a local time that is taken for UTC shows at once."""

MARKED = {
    "fast": "not (process or slow or server or spark or crash or cluster or s3 or ci or nightly)",
    "test": "not (ci or nightly or cluster or s3)",
    "ci": "not (nightly or s3)",
    "nightly": "not (cluster or s3)",
}
REASONS = {
    "slow": "work or wait longer than 0.3 s: make test",
    "process": "start processes: make test",
    "server": "need a PostgreSQL server: make test",
    "spark": "need Spark: make test",
    "crash": "kill processes: make test",
    "ci": "are left to CI: make check",
    "cluster": "start a Spark cluster: make check runs some, make nightly all",
    "s3": "need a server of S3: make nightly PARTS=s3",
    "nightly": "are left to the night: make nightly",
}
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
"""
Test JVMs live for seconds: the optimising compiler would cost more than it gives.

Without it a JVM has room for 48 MB of code. Spark with Delta needs more, and code that was thrown
away is compiled again: a fifth of the CPU of Delta's stories.
"""

READ_BY_SPARK = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")
"""Variables by which Spark's own launcher, and so every JVM that we start, is given options."""

FAST_LIMIT = 1.0
"""CPU seconds that a test may use in the fast tier."""

MOST_SLOWNESS = 2.0
"""CPU time grows little with load, whatever the start of an interpreter says of a busy moment."""

SHOWN = 20


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one test."""

    id: str
    outcome: str
    seconds: float
    cpu: float
    cost: str
    reason: str = ""
    """Why it was skipped."""

    @property
    def file(self) -> str:
        """The file it stands in."""
        return self.id.partition("::")[0]


@dataclass(slots=True)
class Outcome:
    """What became of a run."""

    tests: list[Result] = field(default_factory=list)
    collected: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    cpu: float = 0.0
    exits: list[int] = field(default_factory=list)

    def count(self, outcome: str) -> int:
        """Return how many tests ended so."""
        return sum(test.outcome == outcome for test in self.tests)

    def problems(self) -> list[str]:
        """Return why the run as such is no good, whatever its tests say."""
        found = []
        if any(code not in (0, 1) for code in self.exits):
            found.append(f"pytest ended with {self.exits}: not all tests were run")
        elif len({test.id for test in self.tests}) != self.collected:
            found.append(f"{len(self.tests)} tests ran, {self.collected} were collected")
        if 1 in self.exits and not self.count("failed"):
            found.append(f"pytest ended with {self.exits} though no test failed")
        if self.count("skipped") == len(self.tests):
            found.append("no test ran")
        return found

    def skipped(self) -> list[str]:
        """Return why tests were skipped, with how many."""
        reasons = Counter(test.reason for test in self.tests if test.outcome == "skipped")
        return [f"skipped: {count}, {reason}" for reason, count in reasons.most_common()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a tier; return 0 if all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("tier", choices=tuple(MARKED))
    parser.add_argument("paths", nargs="*", help="folders, files or tests; all if empty")
    parser.add_argument("--jobs", type=int, help="processes that share the tests")
    parser.add_argument("--marked", help="a marker expression in place of the tier's own")
    parser.add_argument("--report", type=Path, help="write the counts there, as JSON")
    asked, words = parser.parse_known_args(arguments)
    asked.paths += words  # options of pytest's
    # Tests wait for threads and processes now and then: others have the cores meanwhile.
    jobs = asked.jobs or 4
    whole = not asked.paths and asked.marked is None
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-tests-") as folder:
        shared = Path(folder)
        outcome = run(shared, asked.tier, asked.paths, jobs, asked.marked)
        unused = _unused(shared) if whole and asked.tier in ("test", "ci") else None
    problems = outcome.problems()
    if asked.tier == "fast":
        problems += too_slow(outcome.tests, slowness())
    print()
    print("\n".join(slowest(outcome.tests)))
    if whole and asked.tier in ("fast", "test", "ci"):
        lines, over = spent(outcome.tests, budgets(asked.tier), min(slowness(), MOST_SLOWNESS))
        print("\n".join(lines))
        problems += over
        remember(outcome.tests)
    for reason, count in sorted(outcome.left_out.items()):
        print(f"not run: {count} tests that {REASONS.get(reason, reason)}")
    print("\n".join(outcome.skipped()) or "skipped: none")
    if unused is not None:
        print(unused[1])
        problems += ["commands or options that no test ran"] if unused[0] else []
    for problem in problems:
        print(f"PROBLEM: {problem}")
    seconds = time.monotonic() - began
    print(f"{asked.tier}: {seconds:.0f} s, {outcome.cpu:.0f} CPU s on {os.cpu_count()} cores")
    failed = outcome.count("failed") + len(problems)
    print(f"{outcome.count('passed')} passed, {failed} failed, {outcome.count('skipped')} skipped")
    if asked.report:
        asked.report.write_text(
            json.dumps(
                {
                    "passed": outcome.count("passed"),
                    "failed": failed,
                    "skipped": outcome.count("skipped"),
                    "seconds": round(seconds),
                }
            )
        )
    return 1 if failed else 0


# -- running ------------------------------------------------------------------------------------


def run(
    shared: Path, tier: str, paths: Sequence[str], jobs: int, marked: str | None = None
) -> Outcome:
    """Run the tests of a tier in processes that share them, and wait for the end."""
    (shared / "seen").mkdir()
    (shared / "times.json").write_text(TIMES.read_text() if TIMES.exists() else "{}")
    words = ["-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-m"]
    seed = os.environ.get("SEED") or str(random.randrange(2**32))
    print(f"The tests of a file are run in the order of SEED={seed}.", flush=True)
    words += [marked or MARKED[tier], f"--randomly-seed={seed}", *paths]
    with (shared / "output-0.txt").open("wb") as printed:
        first = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=environment(tier, shared, jobs),
            stdout=printed,
            stderr=subprocess.STDOUT,
        )
    try:
        outcome = _watch(shared, first)
    finally:
        if not (shared / ENDED).exists():
            for pid in _read(shared / FORKED):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGINT)
        if first.poll() is None:
            first.send_signal(signal.SIGINT)
            first.wait()
    for output in sorted(shared.glob("output-*.txt")):
        _show_failures(output.read_text(errors="replace"), outcome)
    return outcome


def _read(numbers: Path) -> list[int]:
    """Return what a worker wrote; nothing if it forked none."""
    return json.loads(numbers.read_text()) if numbers.exists() else []


def environment(tier: str, shared: Path, jobs: int) -> dict[str, str]:
    """Return what a process of the run sees: one zone, bytecode, a JVM for short lives."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {
        **kept,
        "TZ": os.environ.get("TESTS_ZONE", ZONE),
        **({} if tier == "nightly" else dict.fromkeys(READ_BY_SPARK, JVM)),
        "TESTS_TIER": tier,
        "TESTS_SLOWNESS": str(slowness()),
        "TESTS_SEEN_DIR": str(shared / "seen"),
        SHARED: str(shared),
        JOBS: str(jobs),
        MARK: f"{shared.name}-0",
    }


def _watch(shared: Path, first: subprocess.Popen[bytes]) -> Outcome:
    """Print how far the run is until all processes have ended; return what they wrote."""
    shown, failed = 0, set[str]()
    while True:
        ended = first.poll() is not None
        outcome = gathered(shared)
        for test in outcome.tests:
            if test.outcome == "failed" and test.id not in failed:
                failed.add(test.id)
                print(f"FAILED {test.id}", flush=True)
        step = max(1, outcome.collected // 20)
        if len(outcome.tests) >= shown + step:
            shown = len(outcome.tests)
            print(f"{shown} of {outcome.collected} tests, {len(failed)} failed", flush=True)
        if ended:
            outcome.exits = exits(shared, first.returncode)
            return outcome
        time.sleep(0.5)


def exits(shared: Path, first: int) -> list[int]:
    """Return the exit codes of the first process, and of those that it forked and waited for."""
    return [first, *_read(shared / ENDED)]


def gathered(shared: Path) -> Outcome:
    """Read what the processes have written so far."""
    outcome = Outcome()
    for path in sorted(shared.glob("worker-*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # being written
            if "id" in entry:
                outcome.tests.append(Result(**entry))
            elif "collected" in entry:
                outcome.collected = max(outcome.collected, entry["collected"])
                outcome.left_out = entry["left_out"]
            else:
                outcome.cpu += entry["total_cpu"]
    return outcome


def _show_failures(output: str, outcome: Outcome) -> None:
    """Print what pytest has to say beyond its dots."""
    starts = [output.find(f"= {word} =") for word in ("FAILURES", "ERRORS")]
    found = [start for start in starts if start >= 0]
    if found:
        print(output[output.rfind("\n", 0, min(found)) :])
    elif outcome.problems():
        print(output[-3000:])


# -- judging ------------------------------------------------------------------------------------


def slowest(tests: Iterable[Result]) -> list[str]:
    """Return the lines about the slowest tests."""
    ranked = sorted(tests, key=lambda test: -test.seconds)[:SHOWN]
    return [f"slowest {len(ranked)}:   s  CPU s"] + [
        f"{test.seconds:12.1f} {test.cpu:6.1f}  {test.id[:120]}" for test in ranked
    ]


def too_slow(tests: Iterable[Result], slower: float) -> list[str]:
    """Return a line for each test that is not fast."""
    return [
        f"{test.id} took {test.cpu:.1f} CPU s: mark it slow"
        for test in tests
        if test.cpu > FAST_LIMIT * slower
    ]


def budgets(tier: str) -> Mapping[str, float]:
    """Return the CPU seconds that each folder may use in a tier."""
    table = tomllib.loads((ROOT / "tests" / "budget.toml").read_text())
    return {folder: float(seconds) for folder, seconds in table[tier].items()}


def spent(
    tests: Iterable[Result], budget: Mapping[str, float], slower: float
) -> tuple[list[str], list[str]]:
    """Return what each folder used, as lines, and what it used too much of."""
    used: dict[str, float] = defaultdict(float)
    for test in tests:
        used[folder_of(test.file)] += test.cpu
    lines, over = ["CPU seconds by folder, used of budget:"], []
    for folder, seconds in sorted(used.items(), key=lambda pair: -pair[1]):
        allowed = budget.get(folder)
        lines.append(f"{seconds:8.1f} of {allowed or 0:4.0f}  {folder}")
        if allowed is None:
            over.append(f"{folder} has no budget: give it one in tests/budget.toml")
        elif seconds > allowed * slower:
            over.append(f"{folder} used {seconds:.0f} CPU s, its budget is {allowed:.0f}")
    return lines, over


def folder_of(file: str) -> str:
    """Return the folder whose budget a test file uses: the one under tests/."""
    parts = file.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else "tests"


def remember(tests: Iterable[Result]) -> None:
    """Keep how long each file took, so that the next run begins with the longest."""
    files: dict[str, float] = json.loads(TIMES.read_text()) if TIMES.exists() else {}
    now: dict[str, float] = defaultdict(float)
    for test in tests:
        now[test.file] += test.seconds
    TIMES.parent.mkdir(exist_ok=True)
    TIMES.write_text(json.dumps(files | {name: round(took, 1) for name, took in now.items()}))


def _unused(shared: Path) -> tuple[int, str]:
    """Return whether options were run by no test, and the line about it."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.invocations", str(shared / "seen")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, (done.stdout + done.stderr).strip()


if __name__ == "__main__":
    sys.exit(main())
