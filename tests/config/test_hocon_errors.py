"""What is wrong with a text is said with its place, its line, a caret and what to do."""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Callable

import pytest

from headrace.config.hocon import DEPTH, LARGEST, parse
from headrace.errors import ConfigSyntax, ConfigText, ConfigUnresolved

WRONG = [
    ("a = [1,,2]", "1:8", "No value before the comma"),
    (",a = 1", "1:1", "No value before the comma"),
    ("a = 1,, b = 2", "1:7", "No value before the comma"),
    ("a = { b = 1", "1:5", "The object that begins here is not closed"),
    ("a = [1\nb = 2", "2:3", "The value is followed by = where a comma or a new line is expected"),
    ("a = 1\n}", "2:1", "Unmatched }"),
    ("{ a = 1 } b", "1:11", "Text after the closing }"),
    ("[1, 2]", "1:1", "A list where keys are expected"),
    ('a = 1\nb = "x', "2:5", "The string is not closed"),
    ('a = """x"', "1:5", "The string is not closed"),
    ('a = "x\ty"', "1:7", "Control character in a string"),
    (r'a = "C:\data"', "1:8", "Unknown escape sequence"),
    (r'a = "\u12"', "1:6", "Unknown escape sequence"),
    (r'a = "\ud800"', "1:5", "an escape for a NUL or for an unpaired surrogate"),
    (r'a = "\u0000"', "1:5", "an escape for a NUL or for an unpaired surrogate"),
    ("a = 1\nb", "2:2", "The key has no value"),
    ("a\nb = 1", "1:2", "The key has no value"),
    ("a =", "1:4", "A value is missing"),
    ("a = , b = 1", "1:5", "A value is missing"),
    ("a = }", "1:5", "A value is missing"),
    ("a = b = c", "1:7", "The value is followed by = where a comma or a new line is expected"),
    ("u = postgres://h/db", "1:13", "The value is followed by : where a comma or a new line"),
    ("a = x@y", "1:6", "The value is followed by @ where a comma or a new line is expected"),
    ("a = *", "1:5", "There is * where a value is expected"),
    ("a = x\x01y", "1:6", "The value is followed by U+0001 where"),
    ("a & b = 1", "1:3", "The key is followed by & where = is expected"),
    ("= 1", "1:1", "There is = where a key is expected"),
    ("a..b = 1", "1:1", "A key is missing before or after a dot"),
    (".a = 1", "1:1", "A key is missing before or after a dot"),
    ("a. = 1", "1:1", "A key is missing before or after a dot"),
    ("a = $x", "1:5", "A $ outside of quotes"),
    ("a = ${x", "1:8", "The ${ is not closed where } is expected"),
    ("a = ${}", "1:7", "There is } where a key is expected"),
    ("a = ${x?}", "1:8", "In ${…} there is ? where } is expected"),
    ("a = [1] x", "1:5", "Values of different kinds side by side"),
    ("a = {} []", "1:5", "Values of different kinds side by side"),
    ("a = \0", "1:5", "Unexpected NUL byte"),
    ("a = \ud800", "1:5", "Unpaired surrogate"),
    ("a = " + "9" * 5_000, "1:5", "The number has more than 4000 characters"),
    ("a = 1e999", "1:5", "The number is too large"),
    ("a=" + "[" * 100_000, f"1:{DEPTH + 3}", "nested more than"),
    ("a{" * 100_000, f"1:{2 * DEPTH + 2}", "nested more than"),
    ("a." * 100_000 + "b = 1", "1:1", "nested more than"),
    ("#" + "x" * LARGEST, "1:1", "The text is longer than"),
]

UNRESOLVED = [
    ("a = ${b}", "1:5", "There is no value for b"),
    ("a = x\nb = ${a.c}", "2:5", "There is no value for a.c"),
    ("a = ${b}\nb = ${a}", "2:5", "The lookup of a leads back to itself"),
    ("a = ${a}", "1:5", "The lookup of a leads back to itself"),
    ("a = { b = ${a} }", "1:11", "A value contains itself"),
    ("a = { b = 1, c = [${a}] }", "1:19", "A value contains itself"),
    ("b = [1]\na = ${b}x", "2:5", "Values of different kinds side by side"),
    ("a = 1\na += 2", "2:6", "Values of different kinds side by side"),
    ("a = x\n" + "a = ${a}x\n" * 1_000, "1001:5", "The chain of substitutions is too long"),
    (
        "".join(f"a{n} = ${{a{n + 1}}}\n" for n in range(5_000)),
        "",
        "The chain of substitutions is too long",
    ),
]


@pytest.mark.parametrize(("text", "place", "says"), WRONG)
def test_what_is_no_configuration(text: str, place: str, says: str) -> None:
    error = raised(text, ConfigSyntax)
    assert says in error.message
    assert error.message.startswith(f"shop.conf:{place}: ")
    assert error.facts["place"] == f"shop.conf:{place}"


@pytest.mark.parametrize(("text", "place", "says"), UNRESOLVED)
def test_what_cannot_be_looked_up(text: str, place: str, says: str) -> None:
    error = raised(text, ConfigUnresolved)
    assert says in error.message
    assert error.message.startswith(f"shop.conf:{place}")


def bomb(first: str, again: str) -> str:
    lines = [f"a{n + 1} = {again.replace('@', f'${{a{n}}}')}" for n in range(70)]
    return "\n".join([f"a0 = {first}", *lines])


@pytest.mark.parametrize(
    "text",
    [
        bomb("[1, 1]", "[@, @]"),
        pytest.param(bomb("xx", "@@"), marks=pytest.mark.slow),
        pytest.param(bomb("[1]", "@@"), marks=pytest.mark.slow),
        bomb("{ x = 1 }", "{ x = @, y = @ }"),
        bomb("1", "{ x = @ }"),
        pytest.param("a = x\n" + "a = ${a}${a}\n" * 40, marks=pytest.mark.slow),
        # A knot: each of thirty values refers to all of them.
        "".join(f"a{n} = 1\n" for n in range(30))
        + "".join(f"a{n} = [{', '.join(f'${{a{m}}}' for m in range(30))}]\n" for n in range(30)),
    ],
)
def test_a_small_text_that_would_come_to_a_huge_value_is_refused(text: str) -> None:
    error = raised(text, ConfigUnresolved)
    assert "Substitutions make the configuration too large or too deep" in error.message


def test_the_deepest_that_is_allowed_is_read() -> None:
    assert parse("a=" + "[" * DEPTH + "]" * DEPTH, "x").plain()
    assert parse("a{" * DEPTH + "}" * DEPTH, "x").plain()
    assert parse(".".join("a" * DEPTH) + " = 1", "x").plain()


def test_an_error_shows_the_line_and_a_caret_under_the_place() -> None:
    error = raised("a = 1\n  b = x@y   # mail\nc = 2", ConfigSyntax)
    assert error.excerpt == ("  2 |   b = x@y   # mail", "    |        ^")
    assert str(error).endswith("\n  2 |   b = x@y   # mail\n    |        ^")
    assert error.remedy.endswith("in double quotes.")


def test_an_error_keeps_its_lines_when_it_is_pickled() -> None:
    error = raised("a = x@y", ConfigSyntax)
    again = pickle.loads(pickle.dumps(error))
    assert (again.excerpt, again.message, again.remedy) == (
        error.excerpt,
        error.message,
        error.remedy,
    )


def test_of_a_long_line_the_part_around_the_place_is_shown() -> None:
    error = raised("a = [" + "1, " * 1_000 + "@" + ", 2" * 1_000, ConfigSyntax)
    line, caret = error.excerpt
    assert len(line) < 120
    assert line[caret.index("^")] == "@"


@pytest.mark.parametrize(
    "text",
    [
        'password = "planted',
        "sources.x { type = y, password : planted@x",
        "connection = postgres://me:planted@host/db",
        "x = postgres://me:planted@host/db",
        "api_token = planted@",
        '"secret" = planted ]',
        'password =\n\n  "planted',
        'password_ref = "planted',
        "sources.x { type = y, password_ref = planted@x",
        'api_token_file =\n  "planted',
        'spark.conf.spark.hadoop.fs.azure.sas.c.a = "sv=1&sig=planted',
    ],
)
def test_a_password_in_the_line_is_not_shown(text: str) -> None:
    error = raised(text, ConfigSyntax)
    assert "planted" not in f"{error} {error.remedy} {error.facts} {error.excerpt}"
    assert len(error.excerpt) == 2


def test_what_the_environment_says_is_in_no_error() -> None:
    with pytest.raises(ConfigUnresolved) as caught:
        parse("a = [1]\nb = ${a}${PW}", "x", environment={"PW": "planted"})
    assert "planted" not in str(caught.value)
    with pytest.raises(ConfigUnresolved, match="The environment variable PW is not UTF-8"):
        parse("b = ${PW}", "x", environment={"PW": "planted\udc80"})


@pytest.mark.parametrize(
    "made",
    [
        lambda n: "a = 1\n" * n,
        lambda n: "a { b { c = [1, x y] } }\n" * n,
        lambda n: "a += 1\n" * n,
        lambda n: "a += { x = 1 }\n" * n,
        lambda n: "x { y = 1 }\n" + "a = ${x}\na { z = 1 }\n" * n,
        lambda n: "a = [" + "1, 2.5, x, " * n + "]",
        lambda n: 'a = "' + r"\n" * n + '"',
        lambda n: "a = " + "/ " * n,
        lambda n: "a = " + "://" * n,
        lambda n: 'a = "' + r"\n" * n,
        lambda n: '"' * n,
        lambda n: "a0 = 1\n" + "".join(f"a{i + 1} = ${{a{i}}}\n" for i in range(n)),
    ],
)
def test_four_times_the_text_takes_about_four_times_the_steps(made: Callable[[int], str]) -> None:
    # Something quadratic would take sixteen times. How long a step takes is measured in bench/.
    assert steps(made(1_000)) < 6 * steps(made(250)) + 100


def steps(text: str) -> int:
    """Return how many functions are called to read a text: the same on every machine."""
    count = 0

    def called(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        with contextlib.suppress(ConfigText):
            parse(text, "x")
    finally:
        sys.setprofile(before)
    return count


def raised(text: str, kind: type[ConfigText]) -> ConfigText:
    with pytest.raises(kind) as caught:
        parse(text, "shop.conf")
    assert caught.value.exit_code == 2
    assert caught.value.remedy
    assert len(caught.value.excerpt) == 2
    return caught.value
