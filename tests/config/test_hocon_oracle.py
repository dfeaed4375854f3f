"""
Our reader against the original: the same value, or refused by both.

The texts are made so that both are expected to agree. Where they do not, and are not meant
to, stands in the table below, which docs/guides/configuration.md tells in words.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterator
from typing import TypeVar

import pytest

from headrace.config.hocon import parse
from headrace.errors import ConfigText
from tests.config.oracle import Broken, Refused, Theirs, jar, original
from tests.config.test_hocon import SAME
from tests.config.test_hocon_errors import UNRESOLVED, WRONG
from tests.support.tiers import share

pytestmark = [pytest.mark.spark, pytest.mark.ci]

_Each = TypeVar("_Each")

REFUSED = "refused"

DIFFERENT = {
    # Numbers are JSON's; others are text.
    "a = 01": ({"a": "01"}, {"a": 1}),
    "a = 1.": ({"a": "1."}, {"a": 1}),
    "a = 1e999": (REFUSED, {"a": float("inf")}),
    # Characters no setting needs.
    r'a = "\u0000"': (REFUSED, {"a": "\0"}),
    "a = x\x01y": (REFUSED, {"a": "x\x01y"}),
    # They drop what follows a list or an object in its line.
    "a = [1] x": (REFUSED, {"a": [1]}),
    "a = {} x": (REFUSED, {"a": {}}),
    "b = [1]\na = ${b}x": (REFUSED, {"a": [1], "b": [1]}),
    # They do not join an object that stands without = with what follows.
    "b = { x = 1 }, a { y = 2 } ${b}": ({"a": {"x": 1, "y": 2}, "b": {"x": 1}}, REFUSED),
    # += in a list.
    "a = [{ b += 1 }]": ({"a": [{"b": [1]}]}, REFUSED),
    # White space between optional substitutions that are missing.
    "a = ${?b} ${?c} [1]": ({"a": [1]}, REFUSED),
    # A value that contains itself is not looked for any less.
    "a { b = 1, c = ${?a} }": (REFUSED, {"a": {"b": 1}}),
    # Objects that refer to each other's parts.
    "a = ${b}, b { c = ${a.d}, d = 2 }": (
        {"a": {"c": 2, "d": 2}, "b": {"c": 2, "d": 2}},
        REFUSED,
    ),
    # What is hidden is not looked up.
    "a = ${nothing}, a = ${b}, b = 1": ({"a": 1, "b": 1}, REFUSED),
    # A value of the same key that came before, in a list.
    "a = [1], a = [${a}, 2]": ({"a": [[1], 2]}, REFUSED),
    "x.y = 1, x.y = [${?x.y}]": ({"x": {"y": [1]}}, {"x": {"y": []}}),
}


@pytest.fixture(scope="module")
def theirs() -> Iterator[Theirs]:
    if (found := jar()) is None:
        pytest.skip("com.typesafe:config cannot be fetched: is there mvn?")
    with original(found) as reader:
        yield reader


def test_the_examples_mean_there_what_they_mean_here(theirs: Theirs) -> None:
    for text in {each for pair in SAME for each in pair} - DIFFERENT.keys():
        if "[{ x += 1" in text or "${a.d}, d : 2" in text or text == "":
            continue  # in the table, in other words
        assert (text, answer_of(theirs, text)) == (text, ours(text))


def test_what_is_wrong_here_is_wrong_there(theirs: Theirs) -> None:
    for text, _, _ in (*WRONG, *UNRESOLVED):
        if len(text) < 200 and text not in DIFFERENT and not re.search(r"\0|\ud800|\\ud", text):
            assert (text, answer_of(theirs, text)) == (text, REFUSED)


@pytest.mark.parametrize("text", DIFFERENT)
def test_where_they_differ_it_is_known(theirs: Theirs, text: str) -> None:
    here, there = DIFFERENT[text]
    assert ours(text) == here
    assert answer_of(theirs, text) == there


def test_made_texts_mean_the_same(theirs: Theirs) -> None:
    agreed = 0
    count = share(1_500)
    for seed in range(count):
        text = Writer(random.Random(seed)).text()
        here = ours(text)
        with contextlib.suppress(Broken):
            assert answer_of(theirs, text) == here, f"seed {seed}:\n{text}"
        agreed += here != REFUSED
    assert agreed > count // 3, "most of them must mean something"


class Writer:
    """Writes texts: settled keys first, then keys that refer to those above them."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.known: dict[str, list[str]] = {"text": [], "list": [], "object": []}

    def text(self) -> str:
        fields = [self.field(number) for number in range(self.chance.randint(2, 9))]
        return self.pick("\n", "\n\n", " # end\n", "\n// note = ${x}\n").join(fields)

    def field(self, number: int) -> str:
        kind = self.chance.choice(list(self.known))
        key = self.pick(f"k{number}", f"a.k{number}", f'"q.{number}"', f"some key {number}")
        written = f"{key}{self.pick(' = ', ': ', '=')}{self.value(kind, 2)}"
        again = self.chance.random()
        if again < 0.2:
            written += f"\n{key} = {self.value(kind, 1)}"
        elif again < 0.4:
            written += f"\n{key} = ${{{self.pick('', '?')}{key}}}{self.pick('', ' ')}"
            written += self.value(kind, 1)
        elif again < 0.5:
            written += f"\n{key} += {self.value('text', 0)}"
        self.known[kind].append(key)
        return written

    def value(self, kind: str, depth: int) -> str:
        parts = [self.part(kind, depth) for _ in range(self.pick(1, 1, 2, 3))]
        # Not "": of two numbers side by side they make one.
        return self.pick(" ", "  ").join(parts)

    def part(self, kind: str, depth: int) -> str:
        kind = kind if depth >= 0 else "text"
        named = self.known[kind]
        if named and self.chance.random() < 0.3:
            return f"${{{self.pick('', '?')}{self.chance.choice(named)}}}"
        if kind == "text":
            return self.scalar()
        inner = [
            self.value(self.pick("text", "text", *self.known), depth - 1)
            for _ in range(self.chance.randrange(4))
        ]
        between = self.pick(", ", ",", "\n", " ,\n ")
        if kind == "list":
            return f"[{between.join(inner)}{self.pick('', ',') if inner else ''}]"
        keys = (self.pick("x", "y", "z", "x.y", '"d e"', "x.y.z") for _ in inner)
        return (
            f"{{{between.join(f'{key} = {each}' for key, each in zip(keys, inner, strict=True))}}}"
        )

    def scalar(self) -> str:
        return self.pick(
            *("0", "1", "-2.5", "1e3", "true", "false", "null", "yes", "foo", "foo bar", "1 2"),
            *('"q s"', '""', '"""t"r"""', "/usr/bin", "a.b", "10 ms", r'"\u00e9\n"', "-", "x-1"),
        )

    def pick(self, *choices: _Each) -> _Each:
        return self.chance.choice(choices)


def ours(text: str) -> object:
    try:
        return parse(text, "x").plain()
    except ConfigText:
        return REFUSED


def answer_of(theirs: Theirs, text: str) -> object:
    try:
        return theirs.plain(text)
    except Refused:
        return REFUSED
