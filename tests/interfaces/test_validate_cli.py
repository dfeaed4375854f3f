"""`headrace validate` and `headrace config`: all errors with places, all values masked."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pytest

from headrace.cli.main import exit_code

SECRET = "hunter2-4711"

SHOP = """
service = shop
sources.shop { type = sqlite, path = shop.db }
pipelines.paid {
  source = shop
  tables = [orders]
  filters = [{ type = field-equals, field = status, value = paid }]
  target { type = indexed-memory, indexes.by_customer { fields = [customer_id] } }
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a shop and its configuration, to stand in."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("HEADRACE_"):
            monkeypatch.delenv(name)
    app = sqlite3.connect("shop.db")
    app.execute("create table orders (id integer primary key, customer_id integer, status text)")
    app.close()
    (tmp_path / "headrace.conf").write_text(SHOP)
    return tmp_path


def write(folder: Path, text: str) -> None:
    (folder / "headrace.conf").write_text(text)


def test_a_right_configuration_is_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["validate"]) == 0
    assert capsys.readouterr().out == "✓ 1 source, 1 pipeline\n"
    assert not (folder / "headrace-data").exists()


def test_a_right_configuration_is_one_object_of_json(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["validate", "--offline", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"valid": True, "sources": 1, "pipelines": 1, "offline": True, "warnings": []}


def test_every_error_is_told_with_file_line_and_column(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, SHOP.replace("path = shop.db", "pth = shop.db").replace("[orders]", "orders"))
    assert exit_code(["validate"]) == 2
    told = capsys.readouterr().err
    assert "✗ 3 errors in the configuration" in told
    assert "headrace.conf:3:37: sources.shop.pth is not a known key" in told
    assert "→ Did you mean path?" in told
    assert "headrace.conf:3:14: sources.shop.path is missing" in told
    assert "headrace.conf:6:12: pipelines.paid.tables must be a list" in told


@pytest.mark.parametrize(
    ("target", "steps", "told"),
    [
        ("indexes.by_cust { fields = [nope] }", "", "Index by_cust names the column nope"),
        ("lookup_fields = [email]", "", "lookup_fields names the column email"),
        ("key_fields = [status]", "", "The table already has a primary key"),
        ("indexes.i { fields = [status] }", "drop-fields, fields = [status]", "Index i names"),
        (
            "indexes.i { fields = [customer_id] }",
            "rename-fields, mapping { customer_id = buyer }",
            "columns: id, buyer, status",
        ),
    ],
)
def test_columns_of_the_target_that_no_row_will_have_are_errors(
    target: str, steps: str, told: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transforms = f"transforms = [{{ type = {steps} }}]" if steps else ""
    write(
        folder,
        "sources.shop { type = sqlite, path = shop.db }\n"
        f"pipelines.paid {{ source = shop, tables = [orders], {transforms}\n"
        f"target {{ type = memory, {target} }} }}",
    )
    assert exit_code(["validate"]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert told in shown
    assert "headrace.conf:3:" in shown


def test_columns_that_steps_make_may_be_looked_up_by(folder: Path) -> None:
    for step, column in (
        ('{ type = derive, columns { half = "customer_id / 2" } }', "half"),
        ("{ type = rename-fields, mapping { customer_id = buyer } }", "buyer"),
    ):
        write(
            folder,
            "sources.shop { type = sqlite, path = shop.db }\n"
            f"pipelines.paid {{ source = shop, tables = [orders], transforms = [{step}]\n"
            f"target {{ type = memory, indexes.i {{ fields = [id, {column}] }} }} }}",
        )
        assert exit_code(["validate"]) == 0


def test_a_database_that_is_down_is_no_error_in_the_configuration(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = 'connection = "postgresql://me@127.0.0.1:1/none?connect_timeout=2"'
    down = f"sources.pg {{ type = postgres, {server}, record = [t] }}\n"
    write(folder, down)
    assert exit_code(["validate"]) == 4
    shown = capsys.readouterr().err
    assert "in the configuration" not in shown
    assert "capture goes on" not in shown
    # Together with a mistake it is the mistake that has to be mended.
    write(folder, SHOP.replace("[orders]", "[gone]") + down)
    assert exit_code(["validate"]) == 2


def test_errors_are_json_for_those_who_ask(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["validate", "--json", "--set", "sources.shop.pth=x"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "config.invalid"
    assert [each["facts"]["place"] for each in error["errors"]] == ["--set"]


def test_the_databases_are_looked_at_unless_offline(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, SHOP.replace("[orders]", "[orders, custmers]").replace("status,", "state,"))
    assert exit_code(["validate", "--offline"]) == 0
    assert exit_code(["validate"]) == 2
    told = capsys.readouterr().err
    assert "headrace.conf:6:21: " in told
    assert "custmers" in told
    assert "headrace.conf:7:14: Filter 1" in told


def test_text_that_cannot_be_read_is_shown_with_a_caret(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, 'data = "abc\n')
    assert exit_code(["validate"]) == 2
    told = capsys.readouterr().err
    assert "headrace.conf:1:8: " in told
    assert '1 | data = "abc' in told
    assert "^" in told


def test_a_missing_file_says_what_to_type_next(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["validate", "--config", "other.conf"]) == 2
    assert "headrace init" in capsys.readouterr().err


def test_values_in_effect_are_shown_with_where_they_come_from(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_SOURCES__SHOP__PATH", "other.db")
    (folder / "headrace.conf.d").mkdir()
    (folder / "headrace.conf.d" / "a.conf").write_text("pipelines.paid.mode = changes\n")
    assert exit_code(["config", "--set", "data=here"]) == 0
    lines = {
        line.partition("  #")[0].strip(): line for line in capsys.readouterr().out.splitlines()
    }
    assert lines['data = "here"'].endswith("# --set")
    origin = "# environment variable HEADRACE_SOURCES__SHOP__PATH"
    assert lines['sources.shop.path = "other.db"'].endswith(origin)
    assert lines['pipelines.paid.mode = "changes"'].endswith("# headrace.conf.d/a.conf:1:23")
    assert lines['pipelines.paid.tables[0] = "orders"'].endswith("# headrace.conf:6:13")
    assert lines["spark.ui = false"].endswith("# default")


def test_values_in_effect_are_json_in_the_shape_they_are_written_in(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["config", "--json", "--given"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "service": "shop",
        "sources": {"shop": {"type": "sqlite", "path": "shop.db"}},
        "pipelines": {
            "paid": {
                "source": "shop",
                "tables": ["orders"],
                "filters": [{"type": "field-equals", "field": "status", "value": "paid"}],
                "target": {
                    "type": "indexed-memory",
                    "indexes": {"by_customer": {"fields": ["customer_id"]}},
                },
            }
        },
    }


def test_json_may_say_where_each_value_comes_from(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["config", "--json", "--origins"]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert {"key": "service", "value": "shop", "from": "headrace.conf:2:11"} in settings
    assert {"key": "spark.ui", "value": False, "from": "default"} in settings


SECRETS = {
    "in a connection": f'connection = "postgresql://me:{SECRET}@127.0.0.1:1/shop"',
    "in a connection's pairs": f'connection = "host=127.0.0.1 port=1 password={SECRET}"',
    "in a connection that is none": f'connection = "{SECRET}"',
    "in a connection of the wrong kind": f"connection = [{SECRET}]",
    "as a reference": f'connection = "host=127.0.0.1 port=1", password_ref = "{SECRET}"',
    "in the wrong line": f'connection = "host=127.0.0.1 port=1", slot_mode = "{SECRET}"',
    "under a wrong key": f'connection = "host=127.0.0.1 port=1", pasword = "{SECRET}"',
    "as a number of bytes": f'connection = "host=127.0.0.1 port=1", wal_budget = "{SECRET}"',
    "as a duration": f'connection = "host=127.0.0.1 port=1", create_slot_timeout = {SECRET}',
    "as a type": f'type = "{SECRET}"',
    "in a broken line": f'connection = "postgresql://me:{SECRET}@127.0.0.1/shop',
    "in a section": f"connection = {{ password = {SECRET} }}",
    "in Spark's settings": f'connection = "host=127.0.0.1 port=1" }}\n'
    f'spark.conf {{ "spark.hadoop.fs.s3a.secret.key" = {SECRET}',
}


@pytest.mark.parametrize("written", SECRETS.values(), ids=SECRETS.keys())
@pytest.mark.parametrize("inline", ["warn", "refuse"])
def test_a_planted_secret_is_in_no_output(
    folder: Path, capsys: pytest.CaptureFixture[str], written: str, inline: str
) -> None:
    text = f"\nsources.main {{ type = postgres, record = [orders]\n  {written}\n}}"
    write(folder, f"secrets.inline = {inline}\n{SHOP}{text}\n")
    for arguments in (
        ["validate"],
        ["validate", "--offline"],
        ["validate", "--json"],
        ["config"],
        ["config", "--json"],
        ["config", "--json", "--origins"],
        ["validate", "--offline", "--set", f"sources.main.connection=host=a password={SECRET}"],
        ["validate", "--offline", "--set", f"data=[{SECRET}"],
        ["config", "--set", f'sources.main.connection="{SECRET}" "'],
    ):
        exit_code(arguments)
        shown = capsys.readouterr()
        assert SECRET not in shown.out + shown.err, arguments
    logged = "".join(path.read_text() for path in folder.rglob("*.log"))
    assert SECRET not in logged


def test_a_password_written_out_is_warned_about_or_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = f'connection = "postgresql://me:{SECRET}@127.0.0.1:1/shop"'
    write(folder, f"{SHOP}\nsources.main {{ type = pg, record = [orders], {connection} }}\n")
    assert exit_code(["validate", "--offline"]) == 0
    told = capsys.readouterr().err
    assert (
        "! headrace.conf:11:59: sources.main.connection contains a password in plain text" in told
    )
    assert exit_code(["validate", "--offline", "--set", "secrets.inline=refuse"]) == 2
    assert "config.inline_secret" in capsys.readouterr().err


def test_another_file_may_be_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "headrace.conf").rename(folder / "other.conf")
    assert exit_code(["config", "--config", "other.conf", "--given"]) == 0
    assert "other.conf:" in capsys.readouterr().out
