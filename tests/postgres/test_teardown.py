"""`headrace teardown` on a real server: slot and publication, with and without the data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import exit_code
from tests.postgres.followed import FollowedOrders
from tests.postgres.servers import Database
from tests.support.patience import patience

PATIENCE = patience()


class Configured(FollowedOrders):
    """Orders that are followed, and the configuration of the same engine."""

    def __init__(self, database: Database, folder: Path, slot: str = "") -> None:
        super().__init__(database, folder / "headrace-data")
        self.options: dict[str, Any] = (
            {"slot_name": slot, "publication": f"{slot}_pub"} if slot else {}
        )
        named = f', slot_name = "{slot}", publication.name = "{slot}_pub"' if slot else ""
        (folder / "headrace.conf").write_text(
            f'sources.shop {{ type = postgres, connection = "{database.dsn}"{named} }}\n'
            "pipelines.orders { source = shop, tables = [orders],"
            " target { type = indexed-memory } }\n"
        )

    def follow(self) -> None:
        with self.engine(**self.options) as engine:
            assert engine.await_ready(PATIENCE)

    def publications(self) -> list[str]:
        return [name for (name,) in self.database.rows("select pubname::text from pg_publication")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, str]]:
    capsys.readouterr()
    assert exit_code(["teardown", "--json", *words]) == 0
    (source,) = json.loads(capsys.readouterr().out)["sources"]
    return {each["name"]: each for each in source["objects"]}


def test_slot_and_publication_go_also_after_the_data_directory(
    database: Database, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Configured(database, folder)
    shop.follow()
    (slot,) = shop.slots()
    shutil.rmtree(shop.data)
    assert exit_code(["doctor", "--json"]) == 0
    told = [
        each
        for each in json.loads(capsys.readouterr().out)["results"]
        if "no longer exists" in each["says"]
    ]
    assert [(each["part"], slot in each["says"]) for each in told] == [("source shop", True)]
    assert "MB of WAL" in told[0]["says"]
    assert "teardown shop" in told[0]["remedy"]
    found = listed(capsys)
    assert {name for name, each in found.items() if not each["kept"]} == {slot, f"{slot}_pub"}
    assert shop.slots() == [slot]
    listed(capsys, "--yes")
    assert (shop.slots(), shop.publications()) == ([], [])


def test_a_slot_that_is_not_known_to_be_ours_stays(
    database: Database, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"mine_{database.name}"
    shop = Configured(database, folder, name)
    database.value("select pg_create_logical_replication_slot(%s, 'pgoutput')::text", name)
    database.execute(f"create publication {name}_pub")
    found = listed(capsys, "--yes")
    assert "not known to be ours" in found[name]["kept"]
    assert "not created by Headrace" in found[f"{name}_pub"]["kept"]
    assert shop.slots() == [name]
    database.execute(f"drop publication {name}_pub")
    database.value("select pg_drop_replication_slot(%s)::text", name)
    # One that an engine created under the same name is known by its publication.
    shop.follow()
    shutil.rmtree(shop.data)
    listed(capsys, "--yes", "shop")
    assert (shop.slots(), shop.publications()) == ([], [])


def test_a_slot_that_is_read_from_is_not_dropped(
    database: Database, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Configured(database, folder)
    with shop.engine() as engine:
        assert engine.await_ready(PATIENCE)
        # Without its folder, nothing but the slot shows that an engine runs.
        assert exit_code(["teardown", "--yes"]) == 3
        shop.data.rename(folder / "elsewhere")
        capsys.readouterr()
        assert exit_code(["teardown", "--yes"]) == 4
        out, err = capsys.readouterr()
        assert "reads from it" in out
        assert "in use" in err
        (folder / "elsewhere").rename(shop.data)
        assert len(shop.slots()) == len(shop.publications()) == 1
