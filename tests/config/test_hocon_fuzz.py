"""All JSON is read as JSON; anything else gives a value or an error of ours, never a crash."""

from __future__ import annotations

import json
import random
import re

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.config.hocon import parse
from headrace.config.text import Node
from headrace.errors import ConfigText
from tests.support.tiers import examples, share

PLAIN_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | PLAIN_TEXT
)
OBJECTS = st.dictionaries(
    PLAIN_TEXT,
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(PLAIN_TEXT, inner, max_size=5),
        max_leaves=25,
    ),
    max_size=5,
)


@examples(100)
@given(OBJECTS, st.booleans(), st.sampled_from([None, 0, 2]))
def test_what_json_wrote_is_read_as_it_was(
    value: dict[str, object], ascii_only: bool, indent: int | None
) -> None:
    written = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert parse(written, "x").plain() == value


_LETTERS = (
    "abz AZ09_-.,:;=+#/\\\"'`~!?@$%^&*()[]{}<>|\b\f\n\r\t\x7f\x80\xa0é\u2028\ufeff中😀\U0010ffff"
)


class Values:
    """Makes values of JSON by chance, and counts them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.count = 0

    def value(self, depth: int) -> object:
        self.count += 1
        chance = self.chance
        kind = chance.randrange(9 if depth else 7)
        match kind:
            case 0:
                return chance.choice([None, True, False])
            case 1:
                return chance.randint(-9, 99)
            case 2:
                return chance.getrandbits(chance.choice([31, 64, 200])) * chance.choice([1, -1])
            case 3:
                return chance.uniform(-1, 1) * 10 ** chance.randint(-300, 300)
            case 4 | 5 | 6:
                return self.text()
            case 7:
                return [self.value(depth - 1) for _ in range(chance.randrange(6))]
            case _:
                return self.section(depth - 1, chance.randrange(6))

    def section(self, depth: int, size: int) -> dict[str, object]:
        return {self.text(): self.value(depth) for _ in range(size)}

    def text(self) -> str:
        return "".join(self.chance.choices(_LETTERS, k=self.chance.randrange(12)))


def test_ten_thousand_values_of_json_are_read_as_they_were() -> None:
    seen = 0
    seed = 0
    while seen < share(20_000):
        values = Values(seed)
        made = values.section(4, 40)
        layout = {"indent": seed % 3 or None, "ensure_ascii": seed % 2 == 0}
        written = json.dumps(made, **layout)  # type: ignore[arg-type]
        found = parse(written, "x").plain()
        assert found == made, f"seed {seed}"
        assert json.dumps(found, **layout) == written, f"seed {seed}: types, or order"  # type: ignore[arg-type]
        seen += values.count
        seed += 1


TOKENS = [
    *('"', '"""', "{", "}", "[", "]", ",", ":", "=", "+=", "+", ".", "$", "${", "${?", "}"),
    *("#", "//", "/", "\n", " ", "\t", "\r\n", "\\", "\\u00e9"),
    *("include ", "required(", "file(", ")"),
    *("a", "b", "a.b", "a = ", "b { ", "${a}", "${?b}", "${a.b}"),
    *('"q"', "1", "-2.5e+3", "true", "null"),
    *("\0", "\x01", "\x7f", "\x85", "\ufeff", "\u2028", "é", "😀", "\ud800", "'", "*", "@", "://"),
]
SAMPLES = [
    'a { b = [1, 2.5, "x"], c = ${a.b} [y] }\n# done\nlist += ${?HOME} x\n"a.b".c = """t"""',
    'include "other.conf"\nx.y = ${other.z}"s", x { z : null }, x = ${x} { w = [[], {}] }',
    json.dumps({"a": {"b": [1, None, True, "é\n"], "c d": {"": -1.5e300}}}),
]


def read(name: str, beside: str) -> tuple[str, str] | None:
    return (name, f'other.z = 1, include "{beside}"') if name == "other.conf" else None


@examples(300)
@given(st.lists(st.sampled_from(TOKENS), max_size=60).map("".join))
@example("a = ${a.b}\na.b = ${a}")
@example("a = ${b} {x = ${a}}\nb = ${a} {y = ${b}}")
@example("a = [${a}]\na += ${a}\na = ${a} ${a}")
def test_tokens_in_any_order_do_not_crash_the_reader(text: str) -> None:
    answered(text)


@examples(200)
@given(st.text(max_size=200))
def test_any_text_does_not_crash_the_reader(text: str) -> None:
    answered(text)


@examples(200)
@given(st.sampled_from(SAMPLES), st.data())
def test_a_text_with_something_changed_does_not_crash_the_reader(
    text: str, data: st.DataObject
) -> None:
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 10)))
        text = text[:start] + data.draw(st.sampled_from(["", *TOKENS])) + text[end:]
    answered(text)


def test_texts_of_many_tokens_do_not_crash_the_reader() -> None:
    for seed in range(share(300)):
        chance = random.Random(seed)
        answered("".join(chance.choices(TOKENS, k=chance.randrange(400))))


def test_a_text_that_ends_anywhere_does_not_crash_the_reader() -> None:
    for sample in SAMPLES:
        for end in range(len(sample)):
            answered(sample[:end])


def answered(text: str) -> None:
    """Read it; an error must be ours, and say where."""
    try:
        found = parse(text, "x", read=read, environment={"HOME": "/root", "a": "1"})
    except ConfigText as error:
        assert re.match(r"(x|other\.conf):\d+:\d+: \S", error.message), error.message
        assert error.remedy
        place = re.match(r"x:(\d+):(\d+)", error.message)
        if place:
            line = [*text.split("\n"), ""][int(place[1]) - 1]
            assert 1 <= int(place[2]) <= len(line) + 1
    else:
        assert isinstance(found, Node)
        json.dumps(found.plain())
