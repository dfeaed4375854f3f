"""Sections are checked against their keys: everything wrong at once, with place and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config.schema import (
    Anything,
    Boolean,
    Choice,
    Connection,
    Duration,
    Entries,
    FilePath,
    Integer,
    Key,
    Kind,
    ListOf,
    Number,
    Plain,
    Reference,
    Section,
    Size,
    Text,
    Values,
    checked,
    node_of,
)
from headrace.config.secrets import Secret
from headrace.config.text import Node, SourceLocation
from headrace.errors import InvalidConfiguration

OPTION = SourceLocation("--set")

KEYS = (
    Key("path", Text("shop.db"), "The file.", required=True),
    Key("mode", Choice(("stateful", "ephemeral")), "The mode.", default="stateful"),
    Key("limit", Integer(0), "The limit.", default=20),
    Key("names", ListOf(Text(), 1), "Names."),
)


def errors_of(plain: Plain, keys: tuple[Key, ...] = KEYS) -> list[tuple[str, str, str]]:
    """Return code, key and remedy of everything that is wrong."""
    with pytest.raises(InvalidConfiguration) as caught:
        checked(node_of(plain, SourceLocation("a.conf", 3, 5)), keys, "sources.shop")
    for error in caught.value.errors:
        assert error.message.startswith("a.conf:3:5: ")
        assert error.facts["place"] == "a.conf:3:5"
    return [(each.code, str(each.facts["key"]), each.remedy) for each in caught.value.errors]


def value_of(kind: Kind, plain: Plain, place: SourceLocation = OPTION) -> object:
    return checked(node_of({"key": plain}, place), [Key("key", kind, "A key.")])["key"]


def wrong(kind: Kind, plain: Plain) -> str:
    with pytest.raises(InvalidConfiguration) as caught:
        value_of(kind, plain)
    (error,) = caught.value.errors
    return f"{error.code}: {error.message}"


def test_values_that_are_not_given_have_their_defaults() -> None:
    values = checked(node_of({"path": "shop.db"}), KEYS)
    assert dict(values) == {"path": "shop.db", "mode": "stateful", "limit": 20, "names": None}


def test_everything_wrong_is_told_at_once_in_order() -> None:
    found = errors_of({"mode": "statefull", "limit": "many", "names": [], "pth": 1})
    assert [(code, key) for code, key, _ in found] == [
        ("config.unknown_key", "sources.shop.pth"),
        ("config.missing_key", "sources.shop.path"),
        ("config.wrong_value", "sources.shop.mode"),
        ("config.wrong_type", "sources.shop.limit"),
        ("config.wrong_value", "sources.shop.names"),
    ]


def test_an_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    ((_, _, remedy),) = errors_of({"path": "x", "limt": 3})
    assert remedy == "Did you mean limit?"


def test_a_key_like_no_other_is_refused_with_all_there_are() -> None:
    ((_, _, remedy),) = errors_of({"path": "x", "zzzzzz": 3})
    assert remedy == "The keys of sources.shop are path, mode, limit, names."


def test_a_wrong_value_is_never_repeated() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        checked(node_of({"path": ["hunter2"], "mode": "hunter2", "limit": "hunter2"}), KEYS)
    assert len(caught.value.errors) == 3
    assert "hunter2" not in str(caught.value) + "".join(e.remedy for e in caught.value.errors)


def test_null_takes_a_value_away_again() -> None:
    assert checked(node_of({"path": "x", "limit": None}), KEYS)["limit"] == 20
    assert errors_of({"path": None})[0][0] == "config.missing_key"


def test_what_is_no_section_is_refused() -> None:
    assert errors_of("text")[0][0] == "config.wrong_type"


def test_values_are_frozen_and_do_not_print() -> None:
    values = checked(node_of({"path": "hunter2"}), KEYS, "sources.shop")
    assert repr(values) == "Values(sources.shop: path, mode, limit, names)"
    with pytest.raises(TypeError):
        values["path"] = "other"  # type: ignore[index]


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        (Text(), "a", "a"),
        (Text(), 42, "42"),
        (Text(), True, "true"),
        (Text(empty=True), "", ""),
        (Boolean(), True, True),
        (Boolean(), "off", False),
        (Integer(), "42", 42),
        (Integer(), 42.0, 42),
        (Integer(), 10**400, 10**400),
        (Number(), "0.5", 0.5),
        (Number(more_than=0), 3, 3),
        (Duration(), "500ms", 0.5),
        (Duration(), "24h", 86400.0),
        (Duration(), 0, 0.0),
        (Size(), "1GiB", 1 << 30),
        (Size(), 4096, 4096),
        (Choice(("a", "b")), "b", "b"),
        (Anything(), None, None),
        (Anything(), 7, 7),
        (ListOf(Integer()), [1, "2"], (1, 2)),
        (Entries(Text()), {"a": "x", "b": None}, {"a": "x"}),
        (Entries(Text(), flat=True), {"a": {"b": {"c": 1}}, "d.e": 2}, {"a.b.c": "1", "d.e": "2"}),
        (Reference(), "env:X", Secret("env:X")),
        (Connection(), "host=a", "host=a"),
    ],
)
def test_a_value_of_a_kind_is_read(kind: Kind, written: Plain, value: object) -> None:
    assert value_of(kind, written) == value


@pytest.mark.parametrize(
    ("kind", "written", "code"),
    [
        (Text(), {}, "wrong_type"),
        (Text(), "", "wrong_value"),
        (Boolean(), "maybe", "wrong_type"),
        (Integer(), 1.5, "wrong_type"),
        (Integer(), True, "wrong_type"),
        (Integer(1, 5), 6, "wrong_value"),
        (Number(), "nan", "wrong_type"),
        (Number(more_than=0), 0, "wrong_value"),
        (Duration(), 30, "wrong_type"),
        (Duration(), "30", "wrong_type"),
        (Duration(), "soon", "wrong_type"),
        (Duration(), [], "wrong_type"),
        (Size(), "much", "wrong_type"),
        (Size(64 << 20), "1MiB", "wrong_value"),
        (Choice(("a", "b")), "c", "wrong_value"),
        (Anything(), [1], "wrong_type"),
        (ListOf(Text()), "a", "wrong_type"),
        (ListOf(Text(), 1), [], "wrong_value"),
        (Entries(Text()), "a", "wrong_type"),
        (Entries(Text(), least=1), {}, "wrong_value"),
        (Section(KEYS), 3, "wrong_type"),
        (Reference(), "hunter2", "wrong_value"),
        (Reference(), "vault:x", "wrong_value"),
    ],
)
def test_a_value_of_another_kind_is_refused(kind: Kind, written: Plain, code: str) -> None:
    assert wrong(kind, written).startswith(f"config.{code}: --set: key ")


def test_a_bad_entry_is_named_by_its_number() -> None:
    assert "key[1] must be a text" in wrong(ListOf(Text()), ["a", []])


def test_a_path_begins_where_the_file_that_says_it_lies() -> None:
    in_file = SourceLocation("conf/shop.conf", 2, 1)
    assert value_of(FilePath(), "shop.db", in_file) == Path("conf/shop.db")
    assert value_of(FilePath(), "/shop.db", in_file) == Path("/shop.db")
    assert value_of(FilePath(), "shop.db", SourceLocation("environment variable X")) == Path(
        "shop.db"
    )


def test_a_value_knows_where_it_was_written_or_else_its_section() -> None:
    section, own = SourceLocation("a.conf", 1, 1), SourceLocation("a.conf", 2, 3)
    values: Values = checked(Node({"path": Node("x", own)}, section), KEYS)
    assert (values.location_of("path"), values.location_of("mode")) == (own, section)
