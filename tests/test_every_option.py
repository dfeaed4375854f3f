"""Every command and option is run by a test: how that is seen, and judged when all have run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import click
import pytest

from headrace.cli.main import headrace
from tests import invocations
from tests.invocations import Use, offered
from tools.cli_reference import page

ROOT = Path(__file__).parent.parent


def test_every_command_and_option_is_in_the_reference() -> None:
    text = "\n".join(page())
    for path, name in sorted(offered()):
        section = text.split(f"\n## {' '.join(path)}\n")[1].split("\n## ")[0]
        assert name in section


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("status --json", {(("headrace", "status"), "--json")}),
        ("dead-letters list orders --data=x", {(("headrace", "dead-letters", "list"), "--data")}),
        ("query orders --key --json", {(("headrace", "query"), "--key")}),
        ("query orders --count -- --json", {(("headrace", "query"), "--count")}),
        ("status --nonsense", set()),
    ],
)
def test_what_a_command_line_uses_is_read_from_it(line: str, found: set[Use]) -> None:
    assert {each for each in invocations.used(headrace, line.split()) if each[1]} == found


def test_a_command_that_nobody_ran_would_be_missed() -> None:
    @click.command()
    @click.option("--never")
    def unseen(never: str) -> None:
        """Stand here."""

    headrace.add_command(unseen)
    try:
        assert (("headrace", "unseen"), "--never") in offered() - invocations.seen()
    finally:
        del headrace.commands["unseen"]


def kept(folder: Path, monkeypatch: pytest.MonkeyPatch, seen: Iterable[Use]) -> None:
    """Let a process that saw this end."""
    monkeypatch.setattr(invocations, "_seen", set(seen))
    monkeypatch.setenv(invocations.FOLDER, str(folder))
    invocations.pytest_sessionfinish()


def test_what_several_processes_saw_is_judged_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = sorted(offered())
    for start in range(3):
        kept(tmp_path / "seen", monkeypatch, everything[start::3])
    assert len(list((tmp_path / "seen").iterdir())) == 3
    assert invocations.judge(tmp_path / "seen") == 0
    commands = sum(not option for _, option in everything)
    told = f"{commands} commands, {len(everything) - commands} options"
    assert capsys.readouterr().out == f"every command and option was run: {told}\n"


def test_what_nobody_ran_is_named_and_the_judge_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unrun = {(("headrace", "status"), "--json"), (("headrace", "log", "read"), "")}
    kept(tmp_path, monkeypatch, offered() - unrun)
    assert invocations.judge(tmp_path) == 1
    assert capsys.readouterr().out.splitlines() == [
        "no test ran: headrace log read",
        "no test ran: headrace status --json",
    ]


def test_a_process_that_is_not_asked_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(invocations.FOLDER, raising=False)
    monkeypatch.chdir(tmp_path)
    invocations.pytest_sessionfinish()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_a_run_of_tests_is_judged_by_the_command_of_its_runner(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(
        "from headrace.cli import main\n\n\n"
        "def test_one():\n    assert main.exit_code(['status', '--json']) != 0\n"
    )
    paths = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", invocations.FOLDER: str(tmp_path / "seen")}
    options = ["-p", "tests.invocations", "-p", "no:cacheprovider", "-c", os.devnull]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, "test_one.py"],
        check=True,
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, **paths},
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.invocations", str(tmp_path / "seen")],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **paths},
    )
    assert done.returncode == 1, done.stderr
    assert "no test ran: headrace run\n" in done.stdout
    assert "no test ran: headrace status --json\n" not in done.stdout
