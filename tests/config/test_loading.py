"""A configuration from its file, its fragments, the environment and options, merged."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from headrace.config.load import RESERVED, load
from headrace.config.text import Node, SourceLocation
from headrace.errors import ConfigSyntax, ConfigText, ConfigUnreadable, ConfigUnresolved

SRC = Path(__file__).parent.parent.parent / "src" / "headrace"
NO_VARIABLES: dict[str, str] = {}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "headrace.conf"
    made.write_text(
        "service = shop\nsources.shop { type = sqlite, path = shop.db }\nlog.keep = 1h\n"
    )
    return made


def test_later_wins_and_objects_merge(file: Path) -> None:
    folder = file.with_name("headrace.conf.d")
    folder.mkdir()
    (folder / "10-first.conf").write_text("log { keep = 2h, cap = 1GB }\nfrom = first")
    (folder / "20-second.conf").write_text("log.keep = 3h\nfrom = second")
    (folder / "notes.txt").write_text("not = read")
    (folder / ".20-second.conf").write_text("not = read")
    assert load(file, environment=NO_VARIABLES).plain() == {
        "service": "shop",
        "sources": {"shop": {"type": "sqlite", "path": "shop.db"}},
        "log": {"keep": "3h", "cap": "1GB"},
        "from": "second",
    }
    variables = {"HEADRACE_LOG__KEEP": "4h", "HEADRACE_SOURCES__SHOP__PATH": "/data/shop.db"}
    found = load(file, environment=variables)
    assert value(found, "log", "keep") == "4h"
    assert value(found, "sources", "shop", "path") == "/data/shop.db"
    assert value(found, "sources", "shop", "type") == "sqlite"
    found = load(file, environment=variables, sets=["log.keep=5h", "log.keep=6h"])
    assert value(found, "log", "keep") == "6h"


def test_substitutions_see_what_was_merged(file: Path) -> None:
    file.write_text("folder = /here\npath = ${folder}/shop.db\nhome = ${?HOME}")
    found = load(file, environment={"HOME": "/root"}, sets=["folder=/there", "again=${path}"])
    assert found.plain() == {
        "folder": "/there",
        "path": "/there/shop.db",
        "home": "/root",
        "again": "/there/shop.db",
    }


def test_every_value_says_where_it_comes_from(file: Path) -> None:
    found = load(
        file,
        environment={"HEADRACE_A": "[1, 2]", "SECRET": "planted"},
        sets=["b.c=1", "sources.shop.path=${SECRET}"],
    )
    assert str(node(found, "service").location) == f"{file}:1:11"
    assert node(found, "a").location == SourceLocation("environment variable HEADRACE_A")
    assert node(found, "b", "c").location == SourceLocation("--set")
    assert node(found, "sources", "shop", "path").location == SourceLocation(
        "environment variable SECRET"
    )
    items = node(found, "a").value
    assert isinstance(items, list)
    assert {str(item.location) for item in items} == {"environment variable HEADRACE_A"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", 5),
        ("-1.5", -1.5),
        ("true", True),
        ("null", None),
        ("[a, 1]", ["a", 1]),
        ('{ "a.b" = 1, cC = 2 }', {"a.b": 1, "cC": 2}),
        ('"5"', "5"),
        ('" a b "', " a b "),
        ("${service}", "shop"),
        ("${service}-${service}", "shop-shop"),
        # Whatever else it is, it is text as it stands.
        ("", ""),
        ("yes", "yes"),
        ("  a  ", "  a  "),
        ("a#b", "a#b"),
        ("a//b", "a//b"),
        ("5 # five", "5 # five"),
        ('"a" # b', '"a" # b'),
        ('a"b"', 'a"b"'),
        ('"a" "b"', '"a" "b"'),
        ("pa$$word", "pa$$word"),
        ("x${service}", "x${service}"),
        ("${service}#", "${service}#"),
        ("[1, 2", "[1, 2"),
        ("a, b", "a, b"),
        ("C:\\data", "C:\\data"),
        ("postgres://u@h/db?x=1", "postgres://u@h/db?x=1"),
        ("two\nlines", "two\nlines"),
        ("01", "01"),
    ],
)
def test_a_variable_or_an_option_gives(file: Path, text: str, expected: object) -> None:
    assert value(load(file, environment={"HEADRACE_X": text}), "x") == expected
    assert value(load(file, environment=NO_VARIABLES, sets=[f"x={text}"]), "x") == expected


def test_keys_of_options_are_paths(file: Path) -> None:
    sets = ['spark.conf."spark.sql.x"=1', "tables+=a", "tables += b", "cC . d = 1"]
    found = load(file, environment=NO_VARIABLES, sets=sets).plain()
    assert isinstance(found, dict)
    assert found["spark"] == {"conf": {"spark.sql.x": 1}}
    assert found["tables"] == ["a", " b"]


def test_an_object_in_a_variable_reaches_keys_that_its_name_cannot(file: Path) -> None:
    variables = {
        "HEADRACE_SPARK__CONF": '{ "spark.sql.ansi.enabled" = false, someKey = 1 }',
        "HEADRACE_SPARK__CONF__OTHER": "2",
        "HEADRACE_SPARK__MASTER": "local[2]",
    }
    assert value(load(file, environment=variables), "spark") == {
        "conf": {"spark.sql.ansi.enabled": False, "someKey": 1, "other": 2},
        "master": "local[2]",
    }


def test_variables_of_the_product_itself_are_no_keys(file: Path) -> None:
    before = load(file, environment=NO_VARIABLES).plain()
    variables = dict.fromkeys(RESERVED, "x") | {"PATH": "x", "headrace_service": "x"}
    assert load(file, environment=variables).plain() == before


def test_every_variable_the_code_reads_is_reserved() -> None:
    named = {
        found
        for module in SRC.rglob("*.py")
        for found in re.findall(r'["\'](HEADRACE_[A-Z_]+)["\']', module.read_text())
    }
    # The prefix alone, and the key `data`, which verbs look for where there is no file.
    assert named - {"HEADRACE_", "HEADRACE_DATA"} <= RESERVED


@pytest.mark.parametrize(
    ("variables", "sets", "says"),
    [
        ({"HEADRACE_": "1"}, [], "environment variable HEADRACE_: A key in it is empty"),
        ({"HEADRACE_A____B": "1"}, [], "A key in it is empty"),
        ({"HEADRACE_A": "planted\udcff"}, [], "environment variable HEADRACE_A: The value is not"),
        ({}, ["planted"], "--set: No = after the key"),
        ({}, ["=planted"], "--set: There is = where a key is expected"),
        ({}, ["a..b=planted"], "--set: A key is missing before or after a dot"),
        ({}, ['"a=planted'], "--set: The string is not closed"),
        ({}, ["a b:planted"], "--set: No = after the key"),
        ({}, ["a=planted\0"], "--set: "),
    ],
)
def test_what_cannot_be_set(
    file: Path, variables: dict[str, str], sets: list[str], says: str
) -> None:
    with pytest.raises(ConfigText) as caught:
        load(file, environment=variables, sets=sets)
    assert says in caught.value.message
    assert "planted" not in f"{caught.value} {caught.value.remedy}"


def test_without_a_file_there_must_be_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigUnreadable, match=r"headrace\.conf cannot be read: No such file"):
        load(None, environment=NO_VARIABLES)
    assert load(None, environment={"HEADRACE_A": "1"}).plain() == {"a": 1}
    assert load(None, environment=NO_VARIABLES, sets=["a=1"]).plain() == {"a": 1}
    (tmp_path / "headrace.conf").write_text("b = 2")
    assert load(None, environment=NO_VARIABLES).plain() == {"b": 2}
    assert str(node(load(None, environment=NO_VARIABLES), "b").location) == "headrace.conf:1:5"


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigUnreadable, match="cannot be read"):
        load(tmp_path / "other.conf", environment={"HEADRACE_A": "1"}, sets=["a=1"])
    with pytest.raises(ConfigUnreadable, match="cannot be read: Is a directory"):
        load(tmp_path, environment=NO_VARIABLES)


def test_fragments_may_be_elsewhere(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    with pytest.raises(ConfigUnreadable, match=r"The folder .* does not exist"):
        load(file, fragments=folder, environment=NO_VARIABLES)
    folder.mkdir()
    (folder / "one.conf").write_text("a = ${service}")
    assert value(load(file, fragments=folder, environment=NO_VARIABLES), "a") == "shop"


def test_files_are_included_from_where_the_text_stands(tmp_path: Path) -> None:
    deep = tmp_path / "conf" / "deep"
    deep.mkdir(parents=True)
    (tmp_path / "headrace.conf").write_text('include "conf/one.conf"\ninclude "missing.conf"')
    (tmp_path / "conf" / "one.conf").write_text('one = 1\ninclude required("deep/two.conf")')
    (deep / "two.conf").write_text(f'two = 2\nx {{ include file("{tmp_path}/three.conf") }}')
    (tmp_path / "three.conf").write_text("three = [")
    with pytest.raises(ConfigSyntax, match=r"three\.conf:1:9: The list that begins here"):
        load(tmp_path / "headrace.conf", environment=NO_VARIABLES)
    (tmp_path / "three.conf").write_text("three = 3, again = ${three}")
    found = load(tmp_path / "headrace.conf", environment=NO_VARIABLES)
    assert found.plain() == {"one": 1, "two": 2, "x": {"three": 3, "again": 3}}
    assert node(found, "two").location == SourceLocation(str(deep / "two.conf"), 1, 7)


def test_files_that_include_each_other_are_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "a.conf", tmp_path / "b.conf"
    first.write_text('include "./b.conf"')
    second.write_text('include "../' + tmp_path.name + '/a.conf"')
    with pytest.raises(ConfigSyntax, match="Files include each other"):
        load(first, environment=NO_VARIABLES)
    # By another name each time, it is the depth that ends it.
    second.unlink()
    (tmp_path / "link").symlink_to(tmp_path)
    first.write_text('include "link/a.conf"')
    with pytest.raises(ConfigText):
        load(first, environment=NO_VARIABLES)


def test_many_files_that_include_many_are_refused(tmp_path: Path) -> None:
    for number in range(19):
        below = f'include "{number + 1}.conf"\n' * 2
        (tmp_path / f"{number}.conf").write_text(below)
    (tmp_path / "19.conf").write_text("a = 1")
    with pytest.raises(ConfigSyntax, match="too many, or too large in total"):
        load(tmp_path / "0.conf", environment=NO_VARIABLES)


@pytest.mark.parametrize(
    ("data", "says", "remedy"),
    [
        (b"a = 1\nb = \xff\n", "headrace.conf:2:5: Byte that is not UTF-8", "UTF-8"),
        (b"a = caf\xe9", "headrace.conf:1:8: Byte that is not UTF-8", "UTF-8"),
        ("a = 1".encode("utf-16"), "headrace.conf:1:1: Byte that is not UTF-8", "UTF-8"),
        ("a = 1".encode("utf-16-le"), "headrace.conf:1:2: Unexpected NUL byte", "UTF-16"),
        (b"a = " + b"x" * 5_000_000, "is larger than", "Check the path"),
    ],
)
def test_what_is_no_text(file: Path, data: bytes, says: str, remedy: str) -> None:
    file.write_bytes(data)
    with pytest.raises(ConfigText) as caught:
        load(file, environment=NO_VARIABLES)
    assert says in caught.value.message
    assert remedy in caught.value.remedy


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(file: Path) -> None:
    file.chmod(0)
    with pytest.raises(ConfigUnreadable, match="Permission denied"):
        load(file, environment=NO_VARIABLES)


def test_an_include_that_no_file_can_be(file: Path) -> None:
    file.write_text(f'include "{"x" * 300}"')
    with pytest.raises(ConfigUnreadable, match=r"headrace\.conf:1:9: The file cannot be read"):
        load(file, environment=NO_VARIABLES)
    file.write_text('include "."')
    with pytest.raises(ConfigUnreadable, match="Is a directory"):
        load(file, environment=NO_VARIABLES)


def test_what_may_never_end_is_not_included(file: Path) -> None:
    os.mkfifo(file.parent / "pipe.conf")
    for name in ("pipe.conf", "/dev/tty"):
        file.write_text(f'include "{name}"')
        with pytest.raises(ConfigUnreadable, match="pipe, a device or a socket"):
            load(file, environment=NO_VARIABLES)
    file.write_text("a = 1")
    (file.parent / "headrace.conf.d").mkdir()
    os.mkfifo(file.parent / "headrace.conf.d" / "more.conf")
    with pytest.raises(ConfigUnreadable, match=r"more\.conf is a pipe"):
        load(file, environment=NO_VARIABLES)


def test_a_configuration_may_come_through_a_pipe_that_was_named(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, b"a = 1")
    os.close(write)
    assert load(Path(f"/dev/fd/{read}"), environment=NO_VARIABLES).plain() == {"a": 1}
    os.close(read)


def test_a_missing_substitution_names_the_variable_that_would_do(file: Path) -> None:
    file.write_text("a = ${DATABASE_URL}")
    with pytest.raises(ConfigUnresolved) as caught:
        load(file, environment=NO_VARIABLES)
    assert "set the environment variable DATABASE_URL" in caught.value.remedy


def node(root: Node, *path: str) -> Node:
    for key in path:
        assert isinstance(root.value, dict)
        root = root.value[key]
    return root


def value(root: Node, *path: str) -> object:
    return node(root, *path).plain()
