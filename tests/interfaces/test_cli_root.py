from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import click
import pexpect
import pytest

from headrace.api.connect import error_fields, error_from, error_object
from headrace.cli import errors as show
from headrace.cli import main
from headrace.errors import (
    BadName,
    HeadraceError,
    InvalidConfiguration,
    Locked,
    SourceUnreachable,
    StorageFull,
    TableError,
    UnknownColumn,
    all_errors,
)
from tests.support.children import python

ROOT = Path(__file__).parent.parent.parent

LOCKED = Locked(
    "Process 4711 on box has been using /data since 2026-11-15T06:41:02+00:00",
    data="/data",
    pid=4711,
    host="box",
    since="2026-11-15T06:41:02+00:00",
)


def headrace(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line as a child."""
    return python(
        "-m",
        "headrace",
        *arguments,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **(env or {})},
    )


def failing_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the root a verb that fails."""

    @click.command()
    @click.option("--json", "as_json", is_flag=True)
    def fail(as_json: bool) -> None:
        raise error

    monkeypatch.setitem(main.headrace.commands, "fail", fail)


@pytest.mark.parametrize("kind", list(all_errors()), ids=lambda kind: kind.__name__)
def test_every_error_ends_with_its_own_exit_code(
    kind: type[HeadraceError],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    failing_with(kind("It went wrong", table="orders"), monkeypatch)
    assert main.exit_code(["fail"]) == kind.exit_code
    out, err = capsys.readouterr()
    assert out == ""
    assert "It went wrong (table orders)" in err
    assert "→ " in err
    assert kind.code in err
    assert "Traceback" not in err


def test_an_error_says_what_where_and_what_to_do() -> None:
    error = UnknownColumn("No column total", table="orders", columns=["id", "qty"])
    assert [line for _, line in show.error_lines(error, 100)] == [
        "✗ No column total (table orders, columns id qty)",
        "  → Use one of the columns that the message lists.",
        "    pipeline.unknown_column"[2:],
    ]


def test_facts_that_the_sentence_tells_are_not_told_again() -> None:
    first = show.error_lines(LOCKED, 200)[0][1]
    assert first == "✗ Process 4711 on box has been using /data since 2026-11-15T06:41:02+00:00"


def test_lines_fit_a_narrow_terminal() -> None:
    for _, line in show.error_lines(StorageFull("No room left", path="/data/log"), 40):
        assert len(line) <= 40


def test_a_configuration_lists_all_its_errors() -> None:
    error = InvalidConfiguration.of([BadName("Bad name A"), UnknownColumn("No column b")])
    text = "\n".join(line for _, line in show.error_lines(error, 80))
    for said in (
        "2 errors",
        "Bad name A",
        "No column b",
        "control.bad_name",
        "Nothing was started",
    ):
        assert said in text
    told = error_object(error)
    assert [each["code"] for each in told["errors"]] == [
        "control.bad_name",
        "pipeline.unknown_column",
    ]


@pytest.mark.parametrize(
    ("errors", "code", "where"),
    [
        ([SourceUnreachable("Down")], 4, "1 error before starting"),
        ([SourceUnreachable("Down"), SourceUnreachable("Too")], 4, "2 errors before starting"),
        ([SourceUnreachable("Down"), BadName("Bad")], 2, "2 errors in the configuration"),
        ([TableError("Not so")], 2, "1 error in the configuration"),
        ([], 2, "Nothing"),
    ],
)
def test_errors_that_are_of_one_kind_end_with_the_exit_code_of_that_kind(
    errors: list[HeadraceError], code: int, where: str
) -> None:
    error = InvalidConfiguration.of(errors) if errors else InvalidConfiguration("Nothing")
    _, fields = error_fields(error)
    for each in (error, pickle.loads(pickle.dumps(error)), error_from(fields)):
        assert each.exit_code == code
        assert where in show.error_lines(each, 80)[0][1]
    assert InvalidConfiguration.exit_code == 2


def test_json_errors_are_one_object_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing_with(LOCKED, monkeypatch)
    assert main.exit_code(["fail", "--json"]) == 3
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out)["error"] == {
        "code": "control.locked",
        "message": LOCKED.message,
        "facts": {
            "data": "/data",
            "pid": 4711,
            "host": "box",
            "since": "2026-11-15T06:41:02+00:00",
        },
        "remedy": LOCKED.remedy,
    }


@pytest.mark.parametrize("as_json", [False, True])
def test_a_mistake_of_ours_is_one_sentence_and_a_traceback_in_the_log(
    as_json: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    failing_with(ZeroDivisionError("division by zero"), monkeypatch)
    assert main.exit_code(["fail", *(["--json"] if as_json else [])]) == 1
    out, err = capsys.readouterr()
    shown = out if as_json else err
    assert "ZeroDivisionError" in shown
    assert "internal" in shown
    assert "Traceback" not in out + err
    assert "Traceback" in (tmp_path / "headrace" / "logs" / "headrace.log").read_text()


def test_ctrl_c_ends_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing_with(KeyboardInterrupt(), monkeypatch)
    assert main.exit_code(["fail"]) == 130
    assert "Traceback" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dem"], "No such command 'dem'"),
        (["demo", "--for", "soon"], "not a duration"),
        (["demo", "--rate", "0"], "Invalid value for '--rate'"),
        (["version", "--colour"], "No such option"),
    ],
)
def test_wrong_usage_is_told_with_the_way_to_help(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.exit_code(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "--help" in err


def test_wrong_usage_in_json_is_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.exit_code(["demo", "--for", "soon", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "cli.usage"


@pytest.mark.process
def test_colours_go_to_terminals_alone_and_not_under_no_color(tmp_path: Path) -> None:
    def shown(**extra: str) -> str:
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", **extra}
        text, code = pexpect.run(
            f"{sys.executable} -m headrace demo --data a[1]",
            withexitstatus=True,
            cwd=str(tmp_path),
            env=env,
            encoding="utf-8",
        )
        assert code == 2
        return str(text)

    assert "\x1b[" in shown(NO_COLOR="")
    assert "\x1b[" not in shown(NO_COLOR="1")
    assert "\x1b[" not in headrace("demo", "--data", "a[1]", cwd=tmp_path).stderr


@pytest.mark.meets("P7")
@pytest.mark.parametrize("name", ["a[1]", "what?", "{x}", "star*"])
def test_a_data_directory_spark_cannot_read_is_refused_and_not_made(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.exit_code(["demo", "--data", name]) == 2
    out, err = capsys.readouterr()
    assert "control.bad_data_directory" in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_a_reader_that_goes_away_is_no_error_to_talk_about(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "version"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    os.close(write)
    assert done.stderr == ""


@pytest.mark.process
def test_version_names_everything_without_loading_it(tmp_path: Path) -> None:
    done = headrace("version", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"headrace", "python", "pyspark", "pyarrow", "java"}
    assert found["pyspark"][0].isdigit()
    assert headrace("version", cwd=tmp_path).stdout.startswith("headrace")


def test_the_option_prints_our_version_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.exit_code(["--version"]) == 0
    out = capsys.readouterr().out
    assert main.exit_code(["version", "--json"]) == 0
    assert out == f"headrace {json.loads(capsys.readouterr().out)['headrace']}\n"


AT_THE_END = """
import atexit, os, sys
from headrace.cli import main

class Freed:
    def __del__(self):
        os.write(2, b"freed")

def unwritten(*_, **__):
    atexit.register(print, "at the end")
    sys.stdout.write("and the rest")
    return 3

kept = Freed()
main._ended = unwritten
main.run()
"""


@pytest.mark.process
def test_a_process_ends_with_all_it_printed_before_its_memory_is_freed(tmp_path: Path) -> None:
    ended = python(
        "-c", AT_THE_END, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}
    )
    # A thread of Arrow that frees bytes of ours meanwhile would abort the process.
    assert (ended.returncode, ended.stderr) == (3, "")
    assert ended.stdout == "and the restat the end\n"


def test_help_and_no_arguments_show_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.exit_code(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "demo" in shown
    assert "version" in shown
    assert main.exit_code([]) == 2
    assert capsys.readouterr().out == shown
