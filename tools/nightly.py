"""
Runs what is too long for every commit, part by part, and keeps a ledger of what passed.

The ledger, `tests/nightly.tsv`, holds for each part the last run: its commit, day, counts and
minutes. A part that passed for the code as it stands is not run again, so that a night can be
done piece by piece. Commit the ledger with the work it belongs to. What a part printed last is
kept in `.cache/nightly`, so that a part that failed while nobody looked can be explained.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEDGER = ROOT / "tests" / "nightly.tsv"
PRINTED = ROOT / ".cache" / "nightly"
"""What each part printed when it ran last."""

JUDGED = (
    *("src", "tests", "tools", "bench", "examples", "docs", "README.md"),
    *("pyproject.toml", "requirements.lock"),
)
"""What a change of which makes a part's result old."""

WRITTEN = ("bench/results.json", "*/RESULTS.md", "tests/simulation/passed.json")
"""What the parts themselves write."""

LONGEST = 40
"""Minutes a part may take; a longer one is to be divided."""


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of the night: a name and the words of a command of ours."""

    name: str
    about: str
    words: tuple[str, ...]
    counted: bool = False
    """Whether the command writes its counts to the file named by `--report`."""

    before: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()


def _tests(name: str, about: str, marked: str, *paths: str, jobs: int = 2) -> Part:
    words = ("tools.run_tests", "nightly", "--marked", marked, "--jobs", str(jobs), *paths)
    return Part(name, about, words, counted=True)


_WORLD = "process or server or spark or crash or cluster or s3"
_BEYOND = "cluster or s3"

PARTS = (
    _tests(
        "properties",
        "tests within one process: ten times the examples, whole sweeps",
        f"not ({_WORLD})",
    ),
    _tests("processes", "tests that start or kill processes", "(process or crash) and not spark"),
    _tests(
        "servers", "tests on PostgreSQL", f"server and not (spark or process or crash or {_BEYOND})"
    ),
    _tests(
        "spark",
        "tests on Spark, JVMs with their usual flags",
        f"spark and not ({_BEYOND})",
        *("tests/pipeline", "--ignore=tests/pipeline/lake"),
    ),
    _tests("lake", "tables on Spark, all stories", "spark", "tests/pipeline/lake"),
    _tests(
        "engines",
        "engines, pages and demos on Spark",
        f"spark and not ({_BEYOND})",
        *("tests", "--ignore=tests/pipeline"),
    ),
    Part(
        "zone",
        "tests within one process, in another time zone",
        ("tools.run_tests", "test", "--marked", f"not ({_WORLD} or ci or nightly)"),
        counted=True,
        environ=(("TESTS_ZONE", "America/St_Johns"),),
    ),
    *(
        Part(
            f"simulate-{number}",
            f"seeds {first:,} to {first + 24_999:,}",
            ("tests.simulation", "--from", str(first), "--seeds", "25000", "--jobs", "2"),
        )
        for number, first in enumerate(range(0, 200_000, 25_000), 1)
    ),
    Part("crash", "rounds of kills", ("tests.crash", "--minutes", "10")),
    Part("rounds", "rounds of kills on PostgreSQL", ("tests.postgres.rounds", "--minutes", "10")),
    Part(
        "witness",
        "the status under faults, compared with the truth",
        ("tests.postgres.witness", "--minutes", "30"),
    ),
    Part("lake-rounds", "rounds of kills into Delta", ("tests.pipeline.lake.rounds",)),
    _tests("cluster", "a Spark cluster", "cluster", jobs=1),
    Part(
        "s3",
        "a log on a server of S3",
        ("tools.run_tests", "nightly", "--marked", "s3", "--jobs", "1"),
        counted=True,
        before=("tests.s3.server",),
    ),
    *(
        Part(
            f"postgres-{major}",
            f"PostgreSQL {major}",
            ("tools.test_postgres", "--versions", str(major)),
        )
        for major in (14, 15, 16, 17)
    ),
    *(
        Part(f"spark-{minor}", f"Spark {minor}", ("tools.test_spark", "--versions", minor))
        for minor in ("4.1", "4.3")
    ),
    Part("mutate", "our own code broken on purpose", ("tests.mutate", "--jobs", "2")),
    Part("soak", "a steady load, and whether anything grows", ("tests.soak", "--minutes", "15")),
    Part("bench", "figures against their floors", ("bench", "--quick")),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """The last run of a part."""

    part: str
    result: str
    commit: str
    day: str
    passed: str
    failed: str
    skipped: str
    minutes: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts that are asked for and have not passed; return 0 if all that ran passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("parts", nargs="*", help="; ".join(f"{p.name}: {p.about}" for p in PARTS))
    parser.add_argument("--list", action="store_true", help="only print the ledger")
    parser.add_argument("--again", action="store_true", help="run what has passed, too")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.parts) - {part.name for part in PARTS}:
        parser.error(f"not a part: {' '.join(sorted(unknown))}")
    chosen = [part for part in PARTS if not asked.parts or part.name in asked.parts]
    good = True
    for part in chosen if not asked.list else ():
        if not asked.again and is_current(read().get(part.name)):
            print(f"{part.name}: passed for this code already", flush=True)
            continue
        entry = run(part)
        write({**read(), part.name: entry})
        good = good and entry.result == "passed"
        print(f"{part.name}: {entry.result} in {entry.minutes} minutes", flush=True)
    print("\n" + table())
    return 0 if good else 1


def run(part: Part) -> Entry:
    """Run a part to its end."""
    print(f"\n{part.name}: {part.about}", flush=True)
    began = time.monotonic()
    commit = _state()
    counts: dict[str, int] = {}
    printed = PRINTED / f"{part.name}.log"
    printed.parent.mkdir(parents=True, exist_ok=True)
    printed.write_bytes(b"")
    code = _command(part.before, part, printed) if part.before else 0
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "counts.json"
        words = (*part.words, "--report", str(report)) if part.counted else part.words
        code = code or _command(words, part, printed)
        if report.exists():
            counts = json.loads(report.read_text())
    minutes = (time.monotonic() - began) / 60
    if minutes > LONGEST:
        print(f"{part.name} took {minutes:.0f} minutes: divide it, {LONGEST} are the limit")
    return Entry(
        part=part.name,
        result="failed" if code else "passed",
        commit=commit if commit == _state() else f"{commit.rstrip('+')}+",
        day=datetime.now(UTC).date().isoformat(),
        passed=str(counts.get("passed", "")),
        failed=str(counts.get("failed", "")),
        skipped=str(counts.get("skipped", "")),
        minutes=f"{minutes:.1f}",
    )


def _command(words: Sequence[str], part: Part, printed: Path) -> int:
    """Run a command of a part, show what it prints, add that to `printed`; return its code."""
    environ = [f"{name}={value}" for name, value in part.environ]
    command = [*(["env", *environ] if environ else []), sys.executable, "-m", *words]
    with (
        printed.open("ab") as kept,
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            kept.write(line)
            sys.stdout.buffer.write(line)
            sys.stdout.flush()
    return process.returncode


# -- the ledger ---------------------------------------------------------------------------------


def read(path: Path = LEDGER) -> dict[str, Entry]:
    """Return the last run of each part."""
    if not path.exists():
        return {}
    lines = path.read_text().splitlines()[1:]
    entries = [Entry(*line.split("\t")) for line in lines]
    return {entry.part: entry for entry in entries}


def write(entries: dict[str, Entry], path: Path = LEDGER) -> None:
    """Write the ledger in the order of the parts."""
    known = [entries[part.name] for part in PARTS if part.name in entries]
    lines = ["\t".join(field.name for field in fields(Entry))]
    lines += ["\t".join(astuple(entry)) for entry in known]
    path.write_text("\n".join(lines) + "\n")


def table(path: Path = LEDGER) -> str:
    """Return the ledger for people, with a word on what is old."""
    entries = read(path)
    lines = [f"{'part':<13}{'result':<8}{'commit':<10}{'day':<12}{'passed':>7}{'minutes':>9}"]
    for part in PARTS:
        entry = entries.get(part.name)
        if entry is None:
            lines.append(f"{part.name:<13}never run")
            continue
        old = "" if is_current(entry) else "  the code has changed since"
        lines.append(
            f"{entry.part:<13}{entry.result:<8}{entry.commit[:8]:<10}{entry.day:<12}"
            f"{entry.passed:>7}{entry.minutes:>9}{old if entry.result == 'passed' else ''}"
        )
    return "\n".join(lines)


def is_current(entry: Entry | None) -> bool:
    """Whether a part passed for the code as it stands."""
    if entry is None or entry.result != "passed" or entry.commit.endswith("+"):
        return False
    return is_clean() and _git("diff", "--quiet", entry.commit, "HEAD", *_paths()).returncode == 0


def is_clean() -> bool:
    """Whether the code is that of a commit."""
    return not _git("status", "--porcelain", *_paths()).stdout.strip()


def _state() -> str:
    """Return the commit, with a plus where there are changes besides."""
    return head() + ("" if is_clean() else "+")


def head() -> str:
    """Return the commit that is checked out."""
    return _git("rev-parse", "HEAD").stdout.strip()


def _paths() -> tuple[str, ...]:
    ledger = LEDGER.relative_to(ROOT).as_posix()
    return ("--", *JUDGED, *(f":!{path}" for path in (ledger, *WRITTEN)))


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
