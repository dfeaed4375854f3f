from __future__ import annotations

import json
import logging
import stat
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog

from headrace.changelog.position import Position
from headrace.errors import BadPosition, StorageError
from headrace.observe import logs
from tests.support.children import python

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    close = logs.log_into(tmp_path / "data" / "logs")
    yield tmp_path / "data" / "logs"
    close()


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / logs.FILE).read_text().splitlines()]


def test_a_line_is_one_object_with_time_level_and_part(folder: Path) -> None:
    logs.logger("capture").info("flushed", entry=12, rows=340)
    (line,) = lines(folder)
    assert line["event"] == "flushed"
    assert (line["entry"], line["rows"]) == (12, 340)
    assert (line["level"], line["part"]) == ("info", "capture")


@pytest.mark.meets("P8")
def test_times_are_utc_with_microseconds(folder: Path) -> None:
    logs.logger("capture").info("flushed")
    (line,) = lines(folder)
    assert line["time"].endswith("Z")
    assert len(line["time"]) == len("2026-11-15T06:41:02.123456Z")
    assert datetime.fromisoformat(line["time"]).utcoffset() == timedelta(0)


@pytest.mark.meets("P8")
def test_file_and_folder_are_their_owners_alone(folder: Path) -> None:
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / logs.FILE).stat().st_mode) == 0o600


def test_secrets_are_masked_whoever_logs_them(folder: Path) -> None:
    logs.logger("capture").info(
        "connecting to postgresql://me:hunter2@host/db",
        password="hunter2",
        options={"api_key": "hunter2", "address": "amqp://a:hunter2@b"},
        addresses=["http://a:hunter2@b"],
        user="me",
    )
    assert "hunter2" not in (folder / logs.FILE).read_text()
    assert lines(folder)[0]["user"] == "me"
    assert "postgresql://me:***@host/db" in lines(folder)[0]["event"]


def test_an_error_is_logged_with_its_traceback_and_code(folder: Path) -> None:
    with pytest.raises(BadPosition) as caught:
        Position.parse("nonsense")
    logs.logger("control").failed("batch failed", caught.value, code=caught.value.code)
    (line,) = lines(folder)
    assert line["code"] == "changelog.bad_position"
    assert "Traceback" in line["exception"]


def test_before_a_folder_is_named_and_after_lines_go_nowhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logs.logger("capture").info("too early")
    close = logs.log_into(tmp_path)
    close()
    close()
    logs.logger("capture").info("too late")
    assert (tmp_path / logs.FILE).read_text() == ""
    assert capfd.readouterr() == ("", "")


def test_the_last_folder_named_gets_the_lines_and_the_one_before_it_again(tmp_path: Path) -> None:
    outer = logs.log_into(tmp_path / "outer")
    inner = logs.log_into(tmp_path / "inner")
    logs.logger("a").info("first")
    inner()
    logs.logger("a").info("second")
    outer()
    assert [line["event"] for line in lines(tmp_path / "inner")] == ["first"]
    assert [line["event"] for line in lines(tmp_path / "outer")] == ["second"]


def test_the_users_own_structlog_is_left_as_it_is(tmp_path: Path) -> None:
    before = structlog.get_config()
    logs.log_into(tmp_path)()
    assert structlog.get_config() == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(StorageError) as caught:
        logs.log_into(tmp_path / "taken")
    assert "taken" in str(caught.value.facts["path"])


def test_a_long_file_is_set_aside_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "KEEP_BYTES", 100)
    for _ in range(2):
        close = logs.log_into(tmp_path)
        logs.logger("a").info("x" * 200)
        close()
    assert len(lines(tmp_path)) == 1
    assert (tmp_path / logs.PREVIOUS).exists()


def test_lines_of_many_threads_stay_whole(folder: Path) -> None:
    def log() -> None:
        for number in range(50):
            logs.logger("a").info("x" * 500, number=number)

    threads = [threading.Thread(target=log) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines(folder)) == 200


@pytest.mark.process
def test_a_command_keeps_libraries_off_the_terminal(tmp_path: Path) -> None:
    program = f"""
import logging, threading, warnings
from pathlib import Path
from headrace.observe import logs
logs.take_over_process()
logs.log_into(Path({str(tmp_path)!r}))
logging.getLogger("py4j").error("gateway is gone")
warnings.warn("a warning")
class Bad:
    def __del__(self): raise ValueError("in a finalizer")
del_me = Bad(); del del_me
t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()
"""
    done = python("-c", program, env={"PYTHONPATH": str(ROOT / "src")}, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    text = (tmp_path / logs.FILE).read_text()
    for said in ("gateway is gone", "a warning", "in a finalizer", "ZeroDivisionError"):
        assert said in text


@pytest.mark.process
def test_a_library_that_only_imports_us_keeps_its_logging() -> None:
    program = """
import logging, warnings
import headrace.observe.logs
assert not logging.getLogger().handlers
"""
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={"PYTHONPATH": str(ROOT / "src")}
    )
    assert logging.getLogger("headrace").level == logging.NOTSET
    assert warnings.filters
