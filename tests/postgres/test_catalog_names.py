"""Names of tables as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture.postgres.options import parse_name, quoted, written
from headrace.errors import TableRefused

PARTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("orders", ("public", "orders")),
        ("Orders", ("public", "orders")),
        ("shop.orders", ("shop", "orders")),
        ('"Odd".name', ("Odd", "name")),
        ('"a.b"."say ""hi"""', ("a.b", 'say "hi"')),
        ('"Orders"', ("public", "Orders")),
        ("ÄRGER", ("public", "Ärger")),
    ],
)
def test_a_name_is_read_as_postgresql_reads_it(text: str, meant: tuple[str, str]) -> None:
    assert parse_name(text) == meant


@pytest.mark.parametrize(
    "text", ["", ".", "a.", ".a", "a.b.c", "a b", '"', '""', '"a"b', 'a"b"', "a\0", "a\nb"]
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(TableRefused):
        parse_name(text)


@given(PARTS, PARTS)
def test_a_name_that_was_written_is_read_back(schema: str, table: str) -> None:
    assert parse_name(written(schema, table)) == (schema, table)
    assert parse_name(quoted(schema, table)) == (schema, table)
