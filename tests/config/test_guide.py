"""The guide's examples say what the reader says."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.config.hocon import parse
from headrace.errors import ConfigText

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guides" / "configuration.md"
BLOCKS = re.findall(r"^```([\w-]*)\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)
PAIRS = [
    (text, result)
    for (kind, text), (next_kind, result) in pairwise(BLOCKS)
    if (kind, next_kind) == ("hocon", "json")
]
FAILURES = [(text, shown) for (kind, text), (_, shown) in pairwise(BLOCKS) if kind == "hocon-error"]


def test_there_are_examples() -> None:
    assert len(PAIRS) >= 5
    assert len(FAILURES) >= 2


@pytest.mark.parametrize(("text", "result"), PAIRS)
def test_an_example_means_what_stands_below_it(text: str, result: str) -> None:
    assert parse(text, "headrace.conf").plain() == json.loads(result)


@pytest.mark.parametrize("text", [text for kind, text in BLOCKS if kind == "hocon"])
def test_an_example_can_be_read(text: str) -> None:
    variables = {"DATABASE_URL": "postgres://…"}
    assert parse(text, "headrace.conf", read=anything, environment=variables)


@pytest.mark.parametrize(("text", "shown"), FAILURES)
def test_an_error_is_shown_as_it_is(text: str, shown: str) -> None:
    with pytest.raises(ConfigText) as caught:
        parse(text, "headrace.conf")
    error = caught.value
    assert shown == "\n".join([error.message, *error.excerpt, f"→ {error.remedy}", ""])


def anything(name: str, beside: str) -> tuple[str, str]:
    return name, "a = 1"
