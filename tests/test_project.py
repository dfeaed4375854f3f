"""The commands a newcomer meets first: `make`, `tools/setup`, `.ci/run`, `make fresh`'s eye."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.sources import ROOT
from tools.check import LINE, TESTS
from tools.fresh import PROGRAMS, Failed, after_setup, check_demo
from tools.run_tests import MARKED

PYTHON = """#!/bin/sh
# Stands in for Python: notes what it is asked for, and obeys where setup depends on it.
printf '%s\\n' "$*" >>"$NOTES"
case "$1 $2" in
"-c import sys; sys.exit"*) exit "${OLD:-0}" ;;
"-c import ensurepip"*) exit "${PARTIAL:-0}" ;;
"-c import sys; print"*) echo "Python 3.11.0" ;;
"-m venv") mkdir -p .venv/bin && : >.venv/pyvenv.cfg && cp "$0" .venv/bin/python ;;
"-m headrace.spark_session.class_archive") exit "${NO_ARCHIVE:-0}" ;;
"-m pip") case "$*" in *require-hashes*) exit "${BROKEN:-0}" ;; esac ;;
esac
"""


class Clone:
    """A folder with what setup looks at, and a PATH that holds coreutils and maybe a Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "clone"
        self.programs = folder / "bin"
        self.notes = folder / "notes"
        (self.folder / "tools").mkdir(parents=True)
        self.programs.mkdir()
        shutil.copy(ROOT / "tools" / "setup", self.folder / "tools")
        for name in ("requirements.lock", "pyproject.toml"):
            (self.folder / name).write_text("one\n")
        for program in PROGRAMS.split():
            if found := shutil.which(program):
                (self.programs / program).symlink_to(found)

    def with_python(self) -> Clone:
        path = self.programs / "python3"
        path.write_text(PYTHON)
        path.chmod(0o755)
        return self

    def setup(self, **variables: str) -> subprocess.CompletedProcess[str]:
        self.notes.write_text("")
        return subprocess.run(
            ["sh", "tools/setup"],
            cwd=self.folder,
            env={"PATH": str(self.programs), "NOTES": str(self.notes), **variables},
            capture_output=True,
            text=True,
        )

    def asked(self) -> str:
        return self.notes.read_text()


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


@pytest.mark.process
def test_without_python_setup_says_in_one_sentence_how_to_get_it(clone: Clone) -> None:
    done = clone.setup()
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert all(command in done.stderr for command in ("apt install", "dnf install", "brew install"))
    assert not (clone.folder / ".venv").exists()


@pytest.mark.process
def test_an_old_python_is_as_good_as_none(clone: Clone) -> None:
    done = clone.with_python().setup(OLD="1")
    assert done.returncode == 2
    assert done.stderr.startswith("Headrace needs Python 3.11 or newer")


@pytest.mark.process
def test_a_python_without_venv_is_told_what_to_install(clone: Clone) -> None:
    done = clone.with_python().setup(PARTIAL="1")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "python3-venv" in done.stderr


@pytest.mark.process
def test_the_size_is_said_before_anything_is_installed_by_hash(clone: Clone) -> None:
    done = clone.with_python().setup()
    assert (done.returncode, done.stdout) == (0, "")
    said = done.stderr
    assert "about 600 MB once, 1.5 GB on disk, a minute or a few" in said
    assert said.rstrip().endswith("Ready.")
    asked = clone.asked()
    assert "-m pip install --require-hashes -r requirements.lock" in asked
    assert "-m pip install --quiet --no-deps --no-build-isolation -e ." in asked


@pytest.mark.process
@pytest.mark.parametrize("code", ["0", "1"])
def test_spark_is_prepared_for_quick_starts_and_a_failure_of_that_does_not_count(
    clone: Clone, code: str
) -> None:
    done = clone.with_python().setup(NO_ARCHIVE=code)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.endswith("once.\nReady.\n")
    # Last of all: whatever becomes of it, all is installed.
    assert clone.asked().splitlines()[-1] == "-m headrace.spark_session.class_archive"
    assert (clone.folder / ".venv" / "headrace-setup").exists()
    assert clone.setup().stderr == ""


@pytest.mark.process
def test_a_second_run_is_silent_and_asks_for_nothing(clone: Clone) -> None:
    clone.with_python().setup()
    done = clone.setup()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "pip" not in clone.asked()


@pytest.mark.process
def test_another_lock_is_installed_into_the_same_environment(clone: Clone) -> None:
    clone.with_python().setup()
    (clone.folder / "requirements.lock").write_text("two\n")
    done = clone.setup()
    assert done.returncode == 0
    assert "only what changed" in done.stderr
    assert "require-hashes" in clone.asked()
    assert "-m venv" not in clone.asked()


@pytest.mark.process
def test_what_was_interrupted_is_made_anew(clone: Clone) -> None:
    failed = clone.with_python().setup(BROKEN="1")
    assert failed.returncode == 1
    assert failed.stderr.rstrip().endswith("then run this again.")
    assert clone.setup().returncode == 0
    assert "-m venv .venv" in clone.asked()
    assert clone.setup().stderr == ""


@pytest.mark.process
def test_a_second_setup_waits_for_the_first(clone: Clone) -> None:
    clone.with_python().setup()
    mark = clone.folder / ".venv" / "headrace-unfinished"
    # A setup that lives: this very process. It is done as soon as its mark is gone.
    mark.write_text(f"{os.getpid()}\n")
    sleep = clone.programs / "sleep"
    sleep.unlink()
    sleep.write_text(f"#!/bin/sh\nrm -f '{mark}'\n")
    sleep.chmod(0o755)
    done = clone.setup()
    assert done.returncode == 0
    assert (
        done.stderr == f"Another setup is at work here (process {os.getpid()}): waiting for it.\n"
    )
    assert "pip" not in clone.asked()


@pytest.mark.process
def test_an_environment_that_was_moved_is_made_anew(clone: Clone, tmp_path: Path) -> None:
    clone.with_python().setup()
    clone.folder = clone.folder.rename(tmp_path / "elsewhere")
    assert clone.setup().returncode == 0
    assert "-m venv .venv" in clone.asked()


@pytest.mark.meets("S16")
def test_the_lock_holds_the_spark_that_connectors_are_made_for() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert re.search(r"^pyspark==4\.2\.\d+ ", lock, re.MULTILINE)
    assert re.search(r"^pandas==2\.", lock, re.MULTILINE), "PySpark does not fully know pandas 3"
    assert "://" not in lock, "a registry's address"


@pytest.mark.process
def test_make_alone_lists_the_targets() -> None:
    done = subprocess.run(
        ["make"], cwd=ROOT, capture_output=True, text=True, check=True, env=_without_make()
    )
    for target in (
        *("setup", "demo", "test", "check", "nightly", "fresh", "bench", "simulate"),
        *("test-crash", "test-cluster", "test-s3", "soak", "mutate", "lock", "wheel", "clean"),
    ):
        assert re.search(rf"^  make {target} +\S", done.stdout, re.M), target


def test_ci_runs_the_checks_and_the_cluster() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().endswith("\nmake check\n")
    assert re.search(r"^check: .*\n\t@\S+ -m tools\.check$", (ROOT / "Makefile").read_text(), re.M)
    assert [name for name, _ in LINE] == ["ruff check", "ruff format", "mypy"]
    assert TESTS == ("tools.run_tests", "ci")
    assert MARKED["ci"] == "not (nightly or s3)", "what needs a cluster is run too"


SHOWN = "lookup    customer 7\ntarget = source: yes, 1,204 rows compared\n"


def test_fresh_takes_a_demo_that_showed_rows_and_a_lookup() -> None:
    check_demo(SHOWN, "Installing what Headrace needs …\nCollecting pyspark\nReady.\n")


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("lookup\ntarget = source: yes, 0 rows compared", ""),
        ("lookup\ntarget = source: NO, 12 rows compared", ""),
        ("target = source: yes, 12 rows compared", ""),
        (SHOWN, "WARN NativeCodeLoader: Unable to load native-hadoop library"),
        (
            SHOWN,
            "Installing what Headrace needs …\nCollecting x\nReady.\n[Stage 0:>   (0 + 1) / 1]",
        ),
    ],
)
def test_fresh_refuses_a_demo_without_rows_or_with_foreign_lines(printed: str, said: str) -> None:
    with pytest.raises(Failed):
        check_demo(printed, said)


def test_lines_of_a_setup_are_told_from_those_after_it() -> None:
    said = "before\nSetting up .venv with Python 3.11.0.\nCollecting x\nReady.\nafter\n"
    assert [*after_setup(said)] == ["before", "after"]


def _without_make() -> dict[str, str]:
    """Return the environment as a shell has it, also when make runs these tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
