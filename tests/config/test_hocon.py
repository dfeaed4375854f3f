"""What the reader reads: the examples of the language's own specification, and ours."""

from __future__ import annotations

import pickle

import pytest

from headrace.config.hocon import parse
from headrace.config.text import Fraction, Node, SourceLocation
from headrace.errors import ConfigSyntax, ConfigText

SAME = [
    # Braces around everything may be left out, commas at the end of a line, and = before {.
    ('{ "a" : 1 }', "a = 1"),
    ("", "{}"),
    ("# only a comment", "{}"),
    ("a { b = 1 }", "a = { b = 1 }"),
    ("a = [1, 2, 3]", "a = [1,\n 2\n 3\n]"),
    ("a = [1, 2]", "a = [1, 2,]"),
    ("a = 1, b = 2", "a = 1,\nb = 2,"),
    ("a = 1 // one\n# two\nb = 2 # three", "a = 1, b = 2"),
    ('a = "b // c # d"', 'a = b" // c # d"'),
    # Duplicate keys: the last one wins, objects merge, another value between prevents it.
    ('{"foo": {"a": 42}, "foo": {"b": 43}}', '{"foo": {"a": 42, "b": 43}}'),
    ('{"foo": {"a": 42}, "foo": null, "foo": {"b": 43}}', '{"foo": {"b": 43}}'),
    ("a = 1, a = 2", "a = 2"),
    # Paths as keys.
    ("foo.bar : 42", "foo { bar : 42 }"),
    ("foo.bar.baz : 42", "foo { bar { baz : 42 } }"),
    ("a.x : 42, a.y : 43", "a { x : 42, y : 43 }"),
    ("a b c : 42", '"a b c" : 42'),
    ("true : 42", '"true" : 42'),
    ("3.14 : 42", '"3" : { "14" : 42 }'),
    ("10.0foo : 42", '"10" : { "0foo" : 42 }'),
    ('foo"10.0" : 42', '"foo10.0" : 42'),
    ('a."".b = 1', 'a { "" { b = 1 } }'),
    ("foo include : 42", '"foo include" : 42'),
    # Concatenation of text keeps the space between its parts, and only that.
    ("a =   foo bar baz  ", 'a = "foo bar baz"'),
    ("a = 1 2", 'a = "1 2"'),
    ("a = true foo", 'a = "true foo"'),
    ("a = truefoo", 'a = "truefoo"'),
    ("a = 10.0bar", 'a = "10.0bar"'),
    ("a = null x", 'a = "null x"'),
    ("a = 1e5 x", 'a = "1e5 x"'),
    ('a = "x"  y', 'a = "x  y"'),
    # Of lists and of objects.
    ("a = [1, 2] [3, 4]", "a = [1, 2, 3, 4]"),
    ("a = { b = 1 } { c = 2 }", "a = { b = 1, c = 2 }"),
    ("a = { b { x = 1 } } { b { y = 2 } }", "a.b { x = 1, y = 2 }"),
    ("a = [ 1 2 3 4 ]", 'a = ["1 2 3 4"]'),
    ("a = [ 1\n 2 ]", "a = [1, 2]"),
    # += and self-reference.
    ("a += 1, a += 2", "a = [1, 2]"),
    ("a = [1], a += [2]", "a = [1, [2]]"),
    ("a { b += x }, a.b += y", "a { b = [x, y] }"),
    ("l = [{ x += 1, x += 2 }]", "l = [{ x = [1, 2] }]"),
    ('path = "a:b:c", path = ${path}":d"', 'path = "a:b:c:d"'),
    ("path = [ /etc, /home ], path = ${path} [ /usr/bin ]", "path = [/etc, /home, /usr/bin]"),
    ("foo : { a : 1 }, foo : ${foo} { b : 2 }", "foo : { a : 1, b : 2 }"),
    ("a : ${?a}foo", "a : foo"),
    ("a = x, a = ${a}y, a = ${a}z", "a = xyz"),
    ("a = [1], a = [${a}, 2]", "a = [[1], 2]"),
    ("bar : { foo : 42, baz : ${bar.foo} }", "bar : { foo : 42, baz : 42 }"),
    (
        "bar : { foo : 42, baz : ${bar.foo} }\nbar : { foo : 43 }",
        "bar : { foo : 43, baz : 43 }",
    ),
    (
        "bar : { a : ${foo.d}, b : 1 }\nbar.b = 3\nfoo : { c : ${bar.b}, d : 2 }\nfoo.d = 4",
        "bar : { a : 4, b : 3 }, foo : { c : 3, d : 4 }",
    ),
    (
        "foo : { a : { c : 1 } }\nfoo : ${foo.a}\nfoo : { a : 2 }",
        "foo : { a : 2, c : 1 }",
    ),
    # Substitution: it looks forward, keeps the type, merges objects, and hides nothing if optional.
    ("a = ${b}, b = 1, b = 2", "a = 2, b = 2"),
    ("a = ${b}, b = { c = [null, 1.5] }", "a = { c = [null, 1.5] }, b = { c = [null, 1.5] }"),
    ("b = 5, a = ${b} m", 'b = 5, a = "5 m"'),
    ("b = 1e5, a = ${b}x", 'b = 1e5, a = "1e5x"'),
    ("b = null, a = ${b}x", 'b = null, a = "nullx"'),
    (
        'generic = { size = 6 }, east = ${generic} { name = "east" }',
        'generic = { size = 6 }, east = { size = 6, name = "east" }',
    ),
    (
        "generic = { size = 6 }, east = ${generic}, east { name = x, size = 9 }",
        "generic = { size = 6 }, east = { size = 9, name = x }",
    ),
    ("a = 1, a = ${?nothing}", "a = 1"),
    ("a = ${?nothing}", "{}"),
    ("a = [${?nothing}, 1]", "a = [1]"),
    ("a = ${?nothing} [1] ${?nothing}", "a = [1]"),
    ("a = ${?nothing}x", "a = x"),
    ("a = ${nothing}, a = 3", "a = 3"),
    ("a = [${nothing}], a { b = 1 }", "a { b = 1 }"),
    ("x { y = ${x.z}, z = 1 }, a = ${x.y}", "x { y = 1, z = 1 }, a = 1"),
    ("a : ${b}, b : { c : ${a.d}, d : 2 }", "a { c = 2, d = 2 }, b { c = 2, d = 2 }"),
    ('"b c".d = 1, a = ${"b c".d}', 'a = 1, "b c" { d = 1 }'),
    # An object that came after another value merges with nothing before it, wherever it is used.
    ("a = { x { y = 1 } } { x = 5, x.z = 2 }", "a { x { z = 2 } }"),
    ("b = 1, b { y = 2 }, a { x = 1 }, a = ${b}", "a { y = 2 }, b { y = 2 }"),
    # Words that only look like something else.
    ("included = true, include_tables = [a]", '"included" = true, "include_tables" = ["a"]'),
    ("include.x = 1", '"include" { x = 1 }'),
    ("a = include", 'a = "include"'),
    ('quoted."a.b" = 1', 'quoted { "a.b" = 1 }'),
    # White space of any kind, and a byte order mark.
    ("\ufeffa\u00a0=\u20031\r\nb = 2\r\n", "a = 1, b = 2"),
    ("a\n=\n1", "a = 1"),
]


@pytest.mark.parametrize(("text", "same"), SAME)
def test_two_ways_to_write_it_are_the_same(text: str, same: str) -> None:
    assert plain(text) == plain(same)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-0", 0),
        ("-12.50", -12.5),
        ("1e3", 1000.0),
        ("1E+3", 1000.0),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ("true", True),
        ("false", False),
        ("null", None),
        ("yes", "yes"),
        ("on", "on"),
        ("01", "01"),
        ("1.", "1."),
        ("-", "-"),
        ("1.2.3", "1.2.3"),
        ("2026-11-15", "2026-11-15"),
        ("250ms", "250ms"),
        ("/var/lib/shop.db", "/var/lib/shop.db"),
        ("a_b-c.d/e|f~g<h>i%j;k'l(m)", "a_b-c.d/e|f~g<h>i%j;k'l(m)"),
        ('""', ""),
        (r'"\u00e9 \" \\ \/ \b \f \n \r \t"', 'é " \\ / \b \f \n \r \t'),
        (r'"\ud83d\ude00"', "😀"),
        ('"""two\nlines, \\n and "quotes"""""', 'two\nlines, \\n and "quotes""'),
        ('""""""', ""),
        ("[]", []),
        ("{}", {}),
    ],
)
def test_a_value_is_read_as(text: str, value: object) -> None:
    found = plain(f"a = {text}")["a"]
    assert found == value
    assert type(found) is type(value) or isinstance(found, Fraction)


def test_a_number_with_a_fraction_keeps_its_text() -> None:
    found = parse("a = 1.10", "x").plain()
    assert isinstance(found, dict)
    assert str(found["a"]) == "1.10"
    again = pickle.loads(pickle.dumps(found["a"]))
    assert (again, str(again)) == (1.1, "1.10")


def test_every_value_knows_its_place() -> None:
    root = parse('a = 1\nb {\n  c = [x, "y"]\n}\n', "shop.conf")
    section = at(root, "b")
    items = at(root, "b", "c")
    assert str(at(root, "a").location) == "shop.conf:1:5"
    assert str(section.location) == "shop.conf:2:3"
    assert str(items.location) == "shop.conf:3:7"
    assert isinstance(items.value, list)
    assert [str(item.location) for item in items.value] == ["shop.conf:3:8", "shop.conf:3:11"]


def test_a_substituted_value_has_the_place_where_it_is_written() -> None:
    assert str(at(parse("a = ${b}\nb = 1", "x"), "a").location) == "x:2:5"


def test_the_environment_gives_what_the_text_does_not() -> None:
    given = {"DATABASE_URL": "postgres://…", "EMPTY": "", "b": "never", "a.c": "dotted"}
    text = "a = ${DATABASE_URL}, b = 1, e = ${EMPTY}, n = ${b}, d = ${a.c}, m = ${?NONE}"
    root = parse(text, "x", environment=given)
    assert root.plain() == {"a": "postgres://…", "b": 1, "e": "", "n": 1, "d": "dotted"}
    assert at(root, "a").location == SourceLocation("environment variable DATABASE_URL")


def test_a_key_may_have_the_name_of_the_variable_it_comes_from() -> None:
    root = parse("PATH = ${PATH}:/opt".replace(":", '":"'), "x", environment={"PATH": "/bin"})
    assert root.plain() == {"PATH": "/bin:/opt"}


def test_text_from_the_environment_is_never_taken_for_a_number() -> None:
    assert parse("a = ${N}", "x", environment={"N": "007"}).plain() == {"a": "007"}


def test_text_that_holds_a_variable_is_placed_where_it_is_joined() -> None:
    root = parse('a = "u:"${NAME}"@h"', "x", environment={"NAME": "me"})
    assert root.plain() == {"a": "u:me@h"}
    assert str(at(root, "a").location) == "x:1:5"


# -- include ----------------------------------------------------------------------------

FILES = {
    "base.conf": "x = 10, y = ${x}, keep = 1",
    "list.conf": "[1]",
    "bad.conf": "a = [",
    "loop.conf": 'include "again.conf"',
    "again.conf": 'include "loop.conf"',
    "nested.conf": 'inner { include "base.conf" }',
    "outer.conf": "z = ${top}",
}


def read(name: str, beside: str) -> tuple[str, str] | None:
    return (name, FILES[name]) if name in FILES else None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('include "base.conf"', {"x": 10, "y": 10, "keep": 1}),
        ('include file("base.conf")', {"x": 10, "y": 10, "keep": 1}),
        ('include required(file("base.conf"))', {"x": 10, "y": 10, "keep": 1}),
        ('include required( "base.conf" ), x = 11', {"x": 11, "y": 11, "keep": 1}),
        ('x = 9\ninclude "base.conf"', {"x": 10, "y": 10, "keep": 1}),
        ('include "not there.conf"\na = 1', {"a": 1}),
        # Paths in an included file begin where it is included, or else at the root.
        ('a { include "base.conf" }', {"a": {"x": 10, "y": 10, "keep": 1}}),
        ('a { include "base.conf" }, a.x = 42', {"a": {"x": 42, "y": 42, "keep": 1}}),
        ('a.b { include "nested.conf" }', {"a": {"b": {"inner": {"x": 10, "y": 10, "keep": 1}}}}),
        ('a { include "outer.conf" }, top = 1', {"a": {"z": 1}, "top": 1}),
        ('a { include "outer.conf", top = 2 }, top = 1', {"a": {"z": 2, "top": 2}, "top": 1}),
    ],
)
def test_a_file_is_included(text: str, value: object) -> None:
    assert parse(text, "main.conf", read=read).plain() == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('include required("not there.conf")', "main.conf:1:18: The included file does not exist"),
        ('include "list.conf"', "list.conf:1:1: A list where keys are expected"),
        ('include "bad.conf"', "bad.conf:1:5: The list that begins here is not closed"),
        ('include "loop.conf"', "again.conf:1:9: Files include each other: loop.conf → again.conf"),
        ('include "main.conf"', "main.conf:1:9: Files include each other"),
        ("include base.conf", "include must be followed by a file name in double quotes"),
        ("include = 1", "include must be followed by a file name in double quotes"),
        ('include url("http://x/y")', "Only files can be included"),
        ('include file("base.conf"', "The text ends where ) is expected"),
        ('a = [{ include "base.conf" }]', "A file cannot be included in a list"),
    ],
)
def test_an_include_that_cannot_be(text: str, says: str) -> None:
    FILES["main.conf"] = text
    with pytest.raises(ConfigText) as caught:
        parse(text, "main.conf", read=read)
    assert says in caught.value.message


def test_without_a_way_to_read_files_none_is_included() -> None:
    with pytest.raises(ConfigSyntax, match="No file can be included here"):
        parse('include "x.conf"', "x")


def plain(text: str) -> dict[str, object]:
    found = parse(text, "x").plain()
    assert isinstance(found, dict)
    return found


def at(node: Node, *path: str) -> Node:
    for key in path:
        assert isinstance(node.value, dict)
        node = node.value[key]
    return node
