import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import BadDataDirectory, Locked
from headrace.runtime.lease import Lease, usable_folder


def test_a_second_engine_is_told_who_holds_the_directory_and_since_when(tmp_path: Path) -> None:
    lease = Lease(tmp_path, lambda: 1_700_000_000.0)
    with pytest.raises(Locked) as caught:
        Lease(tmp_path, lambda: 1_800_000_000.0)
    assert caught.value.facts["pid"] == os.getpid()
    assert caught.value.facts["since"] == "2023-11-14T22:13:20+00:00"
    assert f"Process {os.getpid()}" in caught.value.message
    assert caught.value.exit_code == 3
    lease.release()
    Lease(tmp_path, lambda: 0.0).release()


@pytest.mark.meets("R31")
@pytest.mark.process
def test_a_killed_engine_leaves_no_lock_behind(tmp_path: Path) -> None:
    held = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, pathlib, sys; from headrace.runtime.lease import Lease;"
            f"lease = Lease(pathlib.Path({str(tmp_path)!r}), lambda: 0.0);"
            "os.kill(os.getpid(), 9)",
        ],
        check=False,
    )
    assert held.returncode == -9
    assert (tmp_path / "lock").stat().st_size > 0
    Lease(tmp_path, lambda: 0.0).release()


@pytest.mark.parametrize("name", ["a[1]", "what?", "all*", "{x}"])
def test_a_path_that_spark_takes_for_a_pattern_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadDataDirectory) as caught:
        usable_folder(tmp_path / name)
    assert not (tmp_path / name).exists()
    assert caught.value.exit_code == 2


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadDataDirectory):
        usable_folder(tmp_path / "file")


def test_a_directory_in_which_others_could_place_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = usable_folder(tmp_path / "data")
    (data / "lost+found").mkdir()
    data.chmod(0o777)
    with pytest.raises(BadDataDirectory, match="Every user can write") as caught:
        usable_folder(data)
    assert caught.value.remedy == f"Restrict access: chmod 700 {data}"
    data.chmod(0o755)
    assert usable_folder(data) == data
    monkeypatch.setattr(os, "geteuid", lambda: data.stat().st_uid + 1)
    with pytest.raises(BadDataDirectory, match="belongs to another user") as caught:
        usable_folder(data)
    assert f"chown -R {os.geteuid()} {data}" in caught.value.remedy


@pytest.mark.parametrize("name", ["lock", "log"])
def test_a_link_of_another_user_in_the_directory_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    data = usable_folder(tmp_path / "data")
    (data / name).symlink_to(tmp_path / "elsewhere")
    real = Path.lstat

    def of_another(path: Path) -> os.stat_result:
        found = real(path)
        if path.name != name:
            return found
        return os.stat_result((*found[:4], os.geteuid() + 1, *found[5:10]))

    assert usable_folder(data) == data
    monkeypatch.setattr(Path, "lstat", of_another)
    with pytest.raises(BadDataDirectory) as caught:
        usable_folder(data)
    assert caught.value.facts["path"] == str(data / name)
    assert not (tmp_path / "elsewhere").exists()


def test_the_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    made = usable_folder(tmp_path / "data")
    assert made.stat().st_mode & 0o777 == 0o700
