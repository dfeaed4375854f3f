"""`headrace init --from`: another engine's configuration becomes one of ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.capture.messages import Retries
from headrace.cli.import_laredo import Conversion, converted
from headrace.cli.init import PlaceholderEnvironment, entry
from headrace.cli.main import exit_code
from headrace.config.hocon import parse
from headrace.engine.from_config import configured
from headrace.pipeline.definition import LagLimit

SECRET = "hunter2-4711"

THEIRS = f"""
sources {{
  pg_main {{
    type = postgresql
    connection = "postgres://me:{SECRET}@db:5432/shop"
    slot_mode = stateful
    slot_name = their_slot
    reconnect {{ max_attempts = 10 }}
  }}
  "PG Other" {{
    type = pg
    connection = "postgres://me:"${{DB_PASSWORD}}"@db/other"
    publication {{
      create = true, publish = [insert]
      tables.orders {{ where = "a > 1", columns = [a] }}
    }}
  }}
  lake {{ type = archive, store = local }}
}}
tables = [
  {{
    source = pg_main, schema = public, table = orders
    targets = [
      {{
        type = indexed-memory
        lookup_fields = [id]
        additional_indexes = [{{ name = by_customer, fields = [customer_id] }}]
        filters = [{{ type = field-equals, field = status, value = paid }}]
        transforms = [
          {{ type = drop-fields, fields = [card] }}
          {{ type = add-timestamp, field = seen_at }}
          {{ type = rename-fields, mapping {{ cust = customer_id }} }}
        ]
        error_handling {{ max_retries = 5, on_persistent_failure = isolate }}
        buffer {{ max_size = 100 }}
      }}
      {{ type = http-sync, base_url = "https://x", auth_header = "Bearer {SECRET}" }}
    ]
    ttl {{ mode = field, field = "until", check_interval = "30s", then = delete }}
  }}
  {{
    source = "PG Other", schema = sales, table = orders
    targets = [
      {{ type = indexed-memory, error_handling.on_persistent_failure = stop_all }}
      {{ type = indexed-memory, filters = [{{ type = custom, x = "{SECRET}" }}] }}
    ]
    ttl {{ mode = function, field = x }}
  }}
  {{ source = lake, schema = public, table = x, targets = [{{ type = indexed-memory }}] }}
]
grpc {{ port = 4001 }}
"""


@pytest.fixture
def made() -> Conversion:
    return converted(THEIRS, "their.conf")


def test_what_has_a_counterpart_is_carried_over(made: Conversion) -> None:
    tree = parse(made.text, "headrace.conf", environment={"DB_PASSWORD": "x"})
    found = configured(tree)
    found.build()
    shown = found.masked()
    assert list(shown["sources"]) == ["pg_main", "pg_other"]
    main, other = shown["sources"].values()
    assert main["connection"] == "postgres://me@db:5432/shop"
    assert main["password_ref"] == "env:PG_MAIN_PASSWORD"
    assert (main["slot_mode"], other["slot_mode"]) == ("stateful", "ephemeral")
    assert other["publication"]["publish"] == ["insert"]
    assert other["publication"]["tables"] == {"orders": {"columns": ["a"], "where": "a > 1"}}
    orders = shown["pipelines"]["orders"]
    assert (orders["source"], orders["tables"]) == ("pg_main", ["orders"])
    assert orders["filters"] == [{"type": "field-equals", "field": "status", "value": "paid"}]
    assert orders["transforms"] == [
        {"type": "drop-fields", "fields": ["card"]},
        {"type": "add-timestamp", "field": "seen_at", "of": "commit"},
        {"type": "rename-fields", "mapping": {"cust": "customer_id"}},
    ]
    assert orders["target"] == {
        "type": "indexed-memory",
        "lookup_fields": ["id"],
        "indexes": {"by_customer": {"fields": ["customer_id"]}},
    }
    assert orders["ttl"] == {"field": "until", "scan": "30000ms"}
    assert shown["pipelines"]["sales.orders"]["tables"] == ["sales.orders"]
    assert "ttl" not in shown["pipelines"]["sales.orders"]
    assert (made.sources, made.pipelines) == (2, 2)


@pytest.mark.parametrize(
    "left",
    [
        "sources.pg_main.slot_name",
        "sources.lake",
        "tables[0].targets[0].buffer.max_size",
        "tables[0].targets[1]",
        "tables[0].ttl.then",
        "tables[1].ttl.mode",
        "tables[1].targets[1]",
        "tables[2].targets[0]",
        "grpc.port",
    ],
)
def test_what_has_no_counterpart_is_named_in_a_comment(made: Conversion, left: str) -> None:
    comments = " ".join(
        line.strip().removeprefix("# ") for line in made.text.splitlines() if "#" in line
    )
    (note,) = [note for note in made.notes if note.startswith((f"{left} ", f"{left}:"))]
    assert note in comments
    assert "(their.conf:" in note


def policies(source: str = "", target: str = "") -> Conversion:
    """Return the conversion of a configuration with these settings."""
    return converted(
        f"""
        sources.pg {{ type = pg, connection = "postgres://me@db/shop", {source} }}
        tables = [
          {{ source = pg, table = orders, targets = [{{ type = indexed-memory, {target} }}] }}
        ]
        """,
        "their.conf",
    )


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("buffer { max_size = 100, policy = drop_oldest }", LagLimit(None, 100, None, "release")),
        ("buffer { policy = drop_oldest }", LagLimit(None, 10_000, None, "release")),
        ("buffer { max_size = 100, policy = error }", LagLimit(None, 100, None, "error")),
        ("buffer { policy = block }", LagLimit()),
    ],
)
def test_a_buffer_policy_becomes_a_lag_limit(target: str, expected: LagLimit) -> None:
    made = policies(target=target)
    (pipeline,) = configured(parse(made.text, "headrace.conf")).build().pipelines
    assert pipeline.lag == expected
    assert not any("buffer" in note for note in made.notes)


@pytest.mark.parametrize("policy", ["isolate", "stop_source", "stop_all"])
def test_an_error_policy_and_retries_are_carried_over(policy: str) -> None:
    handling = f"max_retries = 5, on_persistent_failure = {policy}, retry_backoff_ms = 200"
    made = policies(
        "reconnect { max_attempts = 7, initial_backoff = 1s, max_backoff = 1m,"
        " backoff_multiplier = 2.0 }",
        f"error_handling {{ {handling}, retry_max_ms = 9000 }}",
    )
    found = configured(parse(made.text, "headrace.conf"))
    (pipeline,) = found.build().pipelines
    assert pipeline.on_failure == policy
    assert (pipeline.on_error == "stop") == (policy != "isolate")
    assert pipeline.retry == Retries(6, 0.2, 9.0)
    assert found.reconnects() == {"pg": Retries(7, 1.0, 60.0)}
    assert not any("retr" in note or "reconnect" in note for note in made.notes)


@pytest.mark.parametrize(
    ("source", "target", "left"),
    [
        ("reconnect { max_attempts = -1 }", "", "sources.pg.reconnect.max_attempts"),
        ("reconnect { max_backoff = soon }", "", "sources.pg.reconnect.max_backoff"),
        ("reconnect { backoff_multiplier = 3 }", "", "sources.pg.reconnect.backoff_multiplier"),
        (
            "",
            "error_handling.max_retries = many",
            "tables[0].targets[0].error_handling.max_retries",
        ),
        ("", "buffer.policy = other", "tables[0].targets[0].buffer.policy"),
        (
            "",
            "error_handling.on_persistent_failure = other",
            "tables[0].targets[0].error_handling.on_persistent_failure",
        ),
    ],
)
def test_a_policy_that_makes_no_sense_is_named_and_left_out(
    source: str, target: str, left: str
) -> None:
    made = policies(source, target)
    assert [note for note in made.notes if note.startswith((f"{left} ", f"{left}:"))] != []
    configured(parse(made.text, "headrace.conf")).build()


def test_a_variable_stays_a_variable(made: Conversion) -> None:
    assert 'connection = "postgres://me:"${DB_PASSWORD}"@db/other"' in made.text


def test_no_secret_is_taken_over(made: Conversion) -> None:
    assert SECRET not in made.text + "".join(made.notes)
    assert any("PG_MAIN_PASSWORD" in note for note in made.notes)


def test_it_is_written_beside_and_never_over_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("their.conf").write_text(THEIRS)
    assert exit_code(["init", "--from", "their.conf"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "✓ headrace.conf written: 2 sources, 2 pipelines\n"
    assert "headrace validate" in shown.err
    assert SECRET not in shown.out + shown.err
    written = Path("headrace.conf").read_text()
    assert exit_code(["init", "--from", "their.conf"]) == 2
    assert "--force" in capsys.readouterr().err
    assert exit_code(["init", "--from", "their.conf", "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pipelines"] == 2
    assert Path("headrace.conf").read_text() == written
    assert exit_code(["init", "--from", "their.conf", "--output", "other.conf"]) == 0
    assert Path("other.conf").read_text() == written
    monkeypatch.setenv("DB_PASSWORD", "x")
    assert exit_code(["validate", "--offline"]) == 0


@pytest.mark.parametrize(
    "value",
    [
        "plain",
        "with space",
        'quo"te',
        "true",
        "5",
        "a.b",
        "ünï",
        "",
        "${x}",
        "inc",
        "line\n",
        5,
        True,
    ],
)
def test_what_is_written_reads_back(value: object) -> None:
    tree = parse(f"key = {entry(value)}", "x.conf")
    assert tree.plain() == {"key": value}
    if isinstance(value, str) and value:
        assert parse(f"{entry(value)} = 1", "x.conf").plain() == {value: 1}


def test_variables_are_written_as_substitutions() -> None:
    tree = parse("key = a${B}c${?D}", "x.conf", environment=PlaceholderEnvironment())
    text = f"key = {entry(tree.plain()['key'])}"  # type: ignore[index,call-overload]
    assert parse(text, "y.conf", environment={"B": "b", "D": "d"}).plain() == {"key": "abcd"}


@pytest.mark.parametrize(
    "written",
    [
        f'"postgresql://u:{SECRET}@"${{DB_HOST}}":5432/x"',
        f'"postgresql://u:"${{DB_PASSWORD}}"{SECRET}@db/x"',
        f'"postgresql://"${{DB_USER}}":{SECRET}@db/x"',
        f'${{SCHEME}}"://u:{SECRET}@db/x"',
        f'"host="${{DB_HOST}}" password={SECRET} user=u"',
        f'"postgresql://"${{DB_HOST}}"/x?user=u&password={SECRET}"',
    ],
)
def test_a_password_is_not_taken_over_because_a_variable_stands_beside_it(written: str) -> None:
    made = converted(f"sources.main {{ type = pg, connection = {written} }}", "their.conf")
    assert SECRET not in made.text + "".join(made.notes)
    assert 'password_ref = "env:MAIN_PASSWORD"' in made.text


@pytest.mark.parametrize(
    "written",
    ["${URL}", '"postgresql://u:"${A}${B}"@db/x"', '"host=db password=\'"${DB_PASSWORD}"\'"'],
)
def test_a_connection_whose_password_is_a_variable_stays_as_it_is(written: str) -> None:
    made = converted(f"sources.main {{ type = pg, connection = {written} }}", "their.conf")
    assert f"connection = {written}" in made.text
    assert "password_ref" not in made.text


def test_what_is_written_in_another_shape_is_named_and_not_dropped() -> None:
    source = 'sources.main { type = pg, connection = "host=db" }\n'
    for text, left in (
        ("sources = [{ name = main, type = pg }]", "sources has"),
        (f"{source} tables {{ orders {{ source = main }} }}", "tables.orders.source has"),
        (f"{source} tables = [{{ source = main, table = t }}]", "tables[0]: it has no target"),
        (
            f"{source} tables = [{{ source = main, table = t, targets = [{{ type = indexed-memory,"
            " filters { type = field-equals, field = a, value = 1 } }] }]",
            "tables[0].targets[0]: one of its filters",
        ),
    ):
        made = converted(text, "their.conf")
        assert [note for note in made.notes if note.startswith(left)], (text, made.notes)
        assert made.pipelines == 0
