"""Parts of other packages, by entry points: sources, targets, filters, transforms, secrets."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.capture import registry
from headrace.capture.postgres.options import PostgresOptions, read_password
from headrace.capture.source import SourceSpec
from headrace.config.schema import Plain, node_of
from headrace.config.secrets import Secret, read_secret, schemes
from headrace.config.text import SourceLocation
from headrace.engine.apply_config import planned
from headrace.engine.from_config import EngineConfig, configured
from headrace.errors import BadPart, InvalidConfiguration, SourceRefused, SourceUnreachable
from headrace.observe.events import LogObserver
from headrace.pipeline.steps import where
from tests.support.children import python

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_target"
PLACE = SourceLocation("headrace.conf", 7, 3)

MODULE = '''
import headrace as hr
from headrace.config.schema import Key
from headrace.config.schema import Entries, Integer, ListOf, Reference, Text


class Source:
    """A source of our own."""

    config_keys = (
        Key("url", Text(), "Where.", required=True),
        Key("token_ref", Reference(), "The token."),
        Key("names", ListOf(Text()), "Names.", default=["a"]),
    )

    def __init__(self, spec, reader=None):
        self.spec, self.name, self.reader = spec, spec.name, reader


class Target:
    """A target of our own."""

    config_keys = (Key("size", Integer(1), "How large.", default=3), Key("at", Reference(), "A."))

    def __init__(self, *, size, at):
        self.size, self.at = size, at
        if size == 7:
            raise RuntimeError("hunter2")


def recent(*, days):
    """Recent rows."""
    return hr.where(f"at > now() - {days}")


recent.config_keys = (Key("days", Integer(1), "Days.", required=True),)


def plain():
    return hr.drop("a")


class Observer:
    """An observer of our own."""

    config_keys = (Key("size", Integer(1), "How large.", default=3),)

    def __init__(self, *, size):
        self.size, self.events = size, []
        if size == 7:
            raise RuntimeError("hunter2")

    def on_event(self, event):
        self.events.append(event)


def nobody():
    return object()


def vault(name):
    if name == "broken":
        raise RuntimeError("hunter2")
    return f"secret of {name}" if name != "nothing" else ""
'''

ENTRIES = """
[headrace.sources]
own = own_parts:Source
[headrace.targets]
own = own_parts:Target
broken = own_parts:Nothing
indexed-memory = own_parts:Target
[headrace.filters]
recent = own_parts:recent
[headrace.transforms]
plain = own_parts:plain
[headrace.observers]
own = own_parts:Observer
nobody = own_parts:nobody
[headrace.secrets]
vault = own_parts:vault
env = own_parts:vault
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with parts, as an installer would leave it."""
    (tmp_path / "own_parts.py").write_text(MODULE)
    metadata = tmp_path / "own_parts-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own-parts\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_parts", raising=False)


def of(**pipeline: Plain) -> EngineConfig:
    plain: Plain = {
        "sources": {"shop": {"type": "own", "url": "x", "token_ref": "vault:a"}},
        "pipelines": {
            "orders": {
                "source": "shop",
                "tables": ["orders"],
                "target": {"type": "own"},
                **pipeline,
            }
        },
    }
    return configured(node_of(plain, PLACE))


@pytest.mark.usefixtures("installed")
def test_parts_of_a_package_are_built_from_their_own_keys() -> None:
    built = of(
        filters=[{"type": "recent", "days": 3}],
        transforms=[{"type": "plain"}],
        target={"type": "own", "size": 5, "at": "vault:b"},
    ).build()
    (pipeline,) = built.pipelines
    assert pipeline.filters == (where("at > now() - 3"),)
    assert len(pipeline.transforms) == 1
    target: Any = pipeline.target
    assert (target.size, target.at, target.at.read()) == (5, Secret("vault:b"), "secret of b")


@pytest.mark.usefixtures("installed")
def test_a_source_of_a_package_is_built_again_where_it_is_recorded() -> None:
    source: Any = of().build().sources["shop"]
    assert source.spec == SourceSpec(
        "own", "shop", {"url": "x", "token_ref": "vault:a", "names": ["a"]}
    )
    again: Any = registry.build(source.spec, "reader")
    assert (type(again), again.reader) == (type(source), "reader")
    # What crosses to another process is plain.
    assert json.loads(json.dumps(dict(source.spec.options))) == source.spec.options


@pytest.mark.usefixtures("installed")
def test_keys_of_a_package_are_checked_as_ours_are() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        of(target={"type": "own", "size": 0, "sze": 1}, filters=[{"type": "recnt"}])
    assert [(each.code, each.remedy) for each in caught.value.errors] == [
        ("config.unknown_part", "Did you mean recent?"),
        ("config.unknown_key", "Did you mean size?"),
        ("config.wrong_value", "Change it to such a number."),
    ]


def observed(**observers: Plain) -> EngineConfig:
    plain: Plain = {
        "sources": {"shop": {"type": "sqlite", "path": "shop.db", "record": ["orders"]}},
        "observers": observers,
    }
    return configured(node_of(plain, PLACE))


@pytest.mark.usefixtures("installed")
def test_observers_of_a_package_and_of_ours_take_the_events_of_a_configured_engine() -> None:
    engine = observed(
        mine={"type": "own", "size": 4}, lines={"type": "log", "events": ["AttemptFailed"]}
    ).engine()
    assert [each.name for each in engine.observers()] == ["mine", "lines"]
    mine, lines = (each.observer for each in engine._state.events._observers)
    assert isinstance(lines, LogObserver)
    assert getattr(mine, "size", 0) == 4


@pytest.mark.usefixtures("installed")
def test_observers_are_checked_as_other_parts_are() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        observed(
            a={"type": "own", "sze": 1},
            b={"type": "lgo"},
            c={"type": "log", "events": ["AttemptFialed"]},
        )
    assert [(each.code, each.remedy) for each in caught.value.errors] == [
        ("config.unknown_key", "Did you mean size?"),
        ("config.unknown_part", "Did you mean log?"),
        ("config.wrong_value", "Did you mean AttemptFailed?"),
    ]
    names: dict[str, Plain] = {"not an id": {"type": "log"}}
    with pytest.raises(InvalidConfiguration, match="Observer name 'not an id' is not a valid id"):
        observed(**names)


@pytest.mark.usefixtures("installed")
def test_an_observer_that_cannot_be_built_is_an_error_with_its_place() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        observed(a={"type": "own", "size": 7}, b={"type": "nobody"}).engine()
    raised, no_observer = caught.value.errors
    assert (raised.code, raised.facts["error"]) == ("config.bad_part", "RuntimeError")
    assert "hunter2" not in str(raised)
    assert no_observer.message.startswith("headrace.conf:7:3")
    assert "on_event" in no_observer.message


@pytest.mark.usefixtures("installed")
def test_changed_observers_are_planned_for_the_next_start() -> None:
    plan = planned(observed(), observed(lines={"type": "log"}))
    assert {(step.kind, step.what.split(".")[0]) for step in plan.steps} == {("later", "observers")}


@pytest.mark.usefixtures("installed")
def test_no_package_takes_the_place_of_our_types_and_schemes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (pipeline,) = of(target={"type": "indexed-memory"}).build().pipelines
    assert pipeline.target.traits.type == "indexed-memory"
    monkeypatch.setenv("TOKEN", "of ours")
    assert read_secret("env:TOKEN") == "of ours"
    assert schemes() == ("env", "file", "vault")


@pytest.mark.usefixtures("installed")
def test_a_part_that_cannot_be_imported_is_an_error_with_its_place() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        of(target={"type": "broken"})
    (error,) = caught.value.errors
    assert (error.code, error.facts["error"]) == ("config.bad_part", "AttributeError")
    assert error.facts["place"] == "headrace.conf:7:3"


@pytest.mark.usefixtures("installed")
def test_a_part_that_fails_tells_where_and_not_what() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        of(target={"type": "own", "size": 7}).build()
    (error,) = caught.value.errors
    assert (error.code, error.facts["error"]) == ("config.bad_part", "RuntimeError")
    assert str(error.facts["raised"]).startswith("own_parts.py:")
    assert "hunter2" not in str(error)


@pytest.mark.usefixtures("installed")
def test_what_provides_secrets_may_fail_without_telling_them() -> None:
    with pytest.raises(BadPart) as caught:
        read_secret("vault:broken")
    assert "hunter2" not in str(caught.value)


@pytest.mark.usefixtures("installed")
def test_a_password_of_postgresql_may_come_from_a_package() -> None:
    options = PostgresOptions("shop", "host=db", password_ref="vault:pg")
    assert read_password(options) == "secret of pg"
    with pytest.raises(SourceRefused):
        read_password(replace(options, password_ref="vault:nothing"))
    with pytest.raises(SourceUnreachable) as caught:
        read_password(replace(options, password_ref="vault:broken"))
    assert "hunter2" not in str(caught.value)


# -- the example ------------------------------------------------------------------------

PROGRAM = """
import json, sqlite3, sys
from pathlib import Path
from headrace.config.load import load
from headrace.engine.from_config import configured
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience
from tests.support.shop import await_that

found = configured(load(Path("headrace.conf"), environment={}))
with found.engine(runner=ArrowRunner()) as engine:
    assert engine.await_ready(patience()), engine.pipelines()
    shop = sqlite3.connect("shop.db")
    with shop:
        shop.execute("update orders set status = 'paid' where id = 1")
        shop.execute("delete from orders where id = 2")
    shop.close()
    told = lambda: [json.loads(line) for line in Path("paid.jsonl").read_text().splitlines()]
    assert await_that(engine, lambda: len(told()) == 3), told()
"""


@pytest.mark.process
def test_the_example_is_installed_and_run(tmp_path: Path) -> None:
    site, work = tmp_path / "site", tmp_path / "work"
    install(EXAMPLE, site)
    work.mkdir()
    (work / "headrace.conf").write_text((EXAMPLE / "headrace.conf").read_text())
    shop = sqlite3.connect(work / "shop.db")
    shop.execute("create table orders (id integer primary key, status text)")
    shop.execute("insert into orders values (1, 'open'), (2, 'paid')")
    shop.commit()
    shop.close()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
        "PYTHONPATH": os.pathsep.join([str(site), str(ROOT / "src"), str(ROOT)]),
    }
    for arguments in (["-m", "headrace", "validate"], ["-c", PROGRAM]):
        done = python(*arguments, cwd=work, env=environment, seconds=120)
        assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (work / "paid.jsonl").read_text().splitlines()]
    assert [(line["op"], line["row"]["id"]) for line in lines] == [
        ("baseline", 2),
        ("insert", 1),
        ("delete", 2),
    ]


def install(project: Path, site: Path) -> None:
    """Build a wheel and unpack it, as an installer does; without a network."""
    wheels = site.parent / "wheels"
    wheels.mkdir()
    build = f"from hatchling.build import build_wheel; print(build_wheel({str(wheels)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=project, capture_output=True, text=True, check=True
    )
    wheel = wheels / done.stdout.split()[-1]
    zipfile.ZipFile(io.BytesIO(wheel.read_bytes())).extractall(site)
