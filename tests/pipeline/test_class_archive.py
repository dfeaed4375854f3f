"""Which archive of classes a JVM is given, and how one is made; without Spark."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import SparkFailed
from headrace.spark_session import class_archive, jvm
from headrace.spark_session.class_archive import (
    archive_path,
    discard,
    dump_command,
    main,
    make,
    options,
)
from headrace.spark_session.java import Java

LOCAL = {"spark.master": "local[*,4]"}
COMMAND = [
    "java",
    *("-cp", "/spark/conf:/spark/jars/*", "-XX:DumpLoadedClassList=/x", "-XX:+UseSerialGC"),
    *("-Xmx1g", "--add-opens=a=b", "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"),
]


class Installed:
    """A Java and a Spark of a few bytes, and a folder for archives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "archives"
        self.home = folder / "spark"
        (self.home / "jars").mkdir(parents=True)
        for name in ("a.jar", "spark-launcher_2.13-4.2.1.jar"):
            (self.home / "jars" / name).write_bytes(b"jar")
        self.java = Java(str(folder / "java"), str(folder), 17, True, "PATH")

    def with_archive(self) -> Path:
        self.folder.mkdir()
        archive = archive_path(self.java, self.home, self.folder)
        archive.write_bytes(bytes(2_000_000))
        archive.chmod(0o644)
        return archive

    def options(self, **settings: str) -> list[str]:
        return options(self.java, self.home, {**LOCAL, **settings}, self.folder)

    def writes(self, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let Java be a shell script, which is asked for an archive and whether it is fit."""
        script = Path(self.java.executable)
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(0o755)
        command = [str(script), *COMMAND[1:]]
        monkeypatch.setattr(class_archive, "_list_classes", lambda *_: command)


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


def test_without_an_archive_a_jvm_is_told_nothing(installed: Installed) -> None:
    assert installed.options() == []


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*,4]"])
def test_a_local_session_uses_the_archive_and_is_silent_about_it(
    installed: Installed, master: str
) -> None:
    archive = installed.with_archive()
    words = installed.options(**{"spark.master": master})
    assert words[-2:] == ["-Xshare:auto", f"-XX:SharedArchiveFile={archive}"]
    assert words[0] == "-Xlog:cds*=off"


@pytest.mark.parametrize(
    "master", ["spark://host:7077", "spark://127.0.0.1:7077", "local-cluster[1,1,512]", "yarn"]
)
def test_a_cluster_does_not_use_it(installed: Installed, master: str) -> None:
    installed.with_archive()
    assert installed.options(**{"spark.master": master}) == []


def test_other_jars_have_another_archive(installed: Installed) -> None:
    installed.with_archive()
    jar = installed.home / "jars" / "a.jar"
    jar.write_bytes(b"another")
    assert installed.options() == []
    jar.unlink()
    assert installed.options() == []


def test_jars_that_were_written_again_have_another_archive(installed: Installed) -> None:
    installed.with_archive()
    os.utime(installed.home / "jars" / "a.jar", (1, 1))
    assert installed.options() == []


def test_another_java_has_another_archive(installed: Installed) -> None:
    installed.with_archive()
    Path(installed.java.executable).write_bytes(b"17.0.16")
    assert installed.options() == []
    installed.java = replace(installed.java, version=21)
    assert installed.options() == []


def test_a_java_that_was_not_tried_gets_none(installed: Installed) -> None:
    installed.java = replace(installed.java, version=24)
    installed.with_archive()
    assert installed.options() == []
    assert make(installed.java, installed.home, installed.folder) is None


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_an_archive_that_others_can_write_to_is_not_used(installed: Installed, mode: int) -> None:
    installed.with_archive().chmod(mode)
    assert installed.options() == []


def test_what_is_too_small_or_no_file_is_not_used(installed: Installed) -> None:
    archive = installed.with_archive()
    archive.write_bytes(b"half")
    assert installed.options() == []
    archive.unlink()
    archive.mkdir()
    assert installed.options() == []


def test_an_archive_can_be_discarded_twice(installed: Installed) -> None:
    archive = installed.with_archive()
    for _ in range(2):
        discard(installed.java, installed.home, installed.folder)
        assert not archive.exists()


def test_an_archive_is_made_for_the_class_path_of_the_session(tmp_path: Path) -> None:
    words = [*dump_command(COMMAND, tmp_path / "list", tmp_path / "made")]
    assert words[:2] == ["java", "-Xshare:dump"]
    assert words[-4:] == ["-cp", "/spark/conf:/spark/jars/*", "-Xmx1g", "--add-opens=a=b"]
    assert [word for word in words if "GC" in word] == ["-XX:+UseG1GC"]
    assert not [word for word in words if "DumpLoadedClassList" in word]


MAKES = """
for word; do case $word in
-XX:SharedArchiveFile=*) file=${word#*=} ;;
-Xshare:on) exit "${UNFIT:-0}" ;;
esac; done
head -c 2000000 /dev/zero >"$file"
"""


@pytest.mark.process
def test_an_archive_is_made_once_and_lies_alone_in_its_folder(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.writes(MAKES, monkeypatch)
    archive = make(installed.java, installed.home, installed.folder)
    assert archive is not None
    assert [*installed.folder.iterdir()] == [archive]
    assert archive.stat().st_mode & 0o777 == 0o644
    assert installed.options()[-1] == f"-XX:SharedArchiveFile={archive}"
    written = archive.stat().st_ino
    assert make(installed.java, installed.home, installed.folder) == archive
    assert archive.stat().st_ino == written


@pytest.mark.process
@pytest.mark.parametrize("body", ["exit 1", "UNFIT=1\n" + MAKES], ids=["failed", "unfit"])
def test_an_archive_that_cannot_be_made_leaves_nothing_and_is_told_in_a_line(
    installed: Installed,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    body: str,
) -> None:
    installed.writes(body, monkeypatch)
    monkeypatch.setattr(class_archive, "FOLDER", installed.folder)
    monkeypatch.setattr("headrace.spark_session.java.find_java", lambda _: installed.java)
    monkeypatch.setattr("headrace.spark_session.jvm.spark_home", lambda: installed.home)
    assert main() == 1
    assert [*installed.folder.iterdir()] == []
    assert capsys.readouterr().err.startswith("The archive of Spark's classes could not be made: ")


@pytest.mark.process
def test_a_jvm_that_an_archive_kills_is_started_without_it_and_the_archive_removed(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = "$_PYSPARK_DRIVER_CONN_INFO_PATH"
    hurt, well = tmp_path / "hurt", tmp_path / "well"
    hurt.write_text("kill -ABRT $$\n")
    well.write_text(
        f"printf '\\000\\000\\000\\001\\000\\000\\000\\002ab' > {gateway}.x\n"
        f"mv {gateway}.x {gateway}\nread line\n"
    )
    installed.writes(rf"printf '\0\n/bin/sh\0{well}\0'", monkeypatch)
    monkeypatch.setattr(class_archive, "FOLDER", installed.folder)
    monkeypatch.setattr(class_archive, "_quiet", lambda _: [str(hurt)])
    archive = installed.with_archive()
    environ = {"PATH": "/usr/bin:/bin"}
    machine = jvm.launch(installed.java, installed.home, LOCAL, environ, tmp_path / "logs")
    assert (machine.port, machine.secret) == (1, "ab")
    machine.stop()
    assert not archive.exists()


@pytest.mark.process
def test_a_jvm_that_ends_by_itself_is_not_started_again(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = tmp_path / "counted"
    ends = tmp_path / "ends"
    ends.write_text(f"echo once >> {counted}\nexit 3\n")
    installed.writes(rf"printf '\0\n/bin/sh\0{ends}\0'", monkeypatch)
    monkeypatch.setattr(class_archive, "FOLDER", installed.folder)
    monkeypatch.setattr(class_archive, "_quiet", lambda _: [str(ends)])
    archive = installed.with_archive()
    with pytest.raises(SparkFailed):
        jvm.launch(installed.java, installed.home, LOCAL, {}, tmp_path / "logs")
    assert counted.read_text() == "once\n"
    assert archive.exists()
