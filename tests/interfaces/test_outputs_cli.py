"""Files that verbs are asked to write: none that is there is lost, and none is others' to read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.targets.memory import memory
from tests.interfaces.at_work import CONFIGURATION
from tests.support.patience import patience
from tests.support.shop import Shop, await_seen

READ = ["log", "read", "shop", "orders", "--data", "data"]
WRITING = [
    [*READ, "--output"],
    [*READ, "--format", "parquet", "--output"],
    ["doctor", "--bundle"],
    ["init", "shop.db", "--output"],
]
IDS = ["lines", "parquet", "bundle", "init"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a configuration, its database, and a log with a change."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "headrace.conf").write_text(CONFIGURATION)
    shop = Shop(folder)
    live = memory()
    with shop.engine(shop.pipeline(live)) as engine:
        assert engine.await_ready(patience())
        shop.insert(range(20, 22))
        assert await_seen(lambda: live.count() == 12)
    yield folder
    shop.close()


@pytest.fixture(autouse=True)
def stand(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(place)
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("command", WRITING, ids=IDS)
def test_a_file_that_is_there_is_kept_unless_told(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "precious"
    taken.write_text("mine")
    assert main.exit_code([*command, str(taken)]) == 2
    assert "use --force to overwrite it" in " ".join(capsys.readouterr().err.split())
    assert taken.read_text() == "mine"
    assert main.exit_code([*command, str(taken), "--force"]) == 0
    assert taken.read_bytes() != b"mine"
    assert list(tmp_path.iterdir()) == [taken]


@pytest.mark.parametrize("command", WRITING[:3], ids=IDS[:3])
def test_what_may_hold_rows_is_its_owners_alone(command: list[str], tmp_path: Path) -> None:
    made = tmp_path / "made"
    assert main.exit_code([*command, str(made)]) == 0
    assert made.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("command", WRITING, ids=IDS)
def test_a_folder_that_is_missing_is_told_as_that(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.exit_code([*command, str(tmp_path / "gone" / "file")]) == 1
    told = capsys.readouterr().err
    assert "storage.failed" in told
    assert "Check that its folder exists" in told
    assert "Internal error" not in told


def test_a_pipe_or_a_device_needs_no_force() -> None:
    assert main.exit_code([*READ, "--output", os.devnull]) == 0
