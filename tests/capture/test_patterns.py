"""Which tables a list of names and patterns stands for."""

from __future__ import annotations

import pytest

from headrace.capture.table_selection import chosen, is_pattern, matches, split_table_name

NAMES = ["orders", "order_items", "audit_log", "sales.orders", '"Odd.Name"', 'sales."Big"']


@pytest.mark.parametrize("entry", ["*", "public.*", "order?", "!orders", "!public.audit_*", "a*b"])
def test_an_entry_with_a_star_a_question_mark_or_a_bang_is_a_pattern(entry: str) -> None:
    assert is_pattern(entry)


@pytest.mark.parametrize("entry", ["orders", "public.orders", '"Odd.Name"', "a[b]"])
def test_any_other_entry_is_a_name(entry: str) -> None:
    assert not is_pattern(entry)


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["*"], ["orders", "order_items", "audit_log", '"Odd.Name"']),
        (["public.*"], ["orders", "order_items", "audit_log", '"Odd.Name"']),
        (["public.*", "!public.audit_*"], ["orders", "order_items", '"Odd.Name"']),
        (["!audit_*", "*"], ["orders", "order_items", '"Odd.Name"']),
        (["*.orders"], ["orders", "sales.orders"]),
        (["sales.*"], ["sales.orders", 'sales."Big"']),
        (["*.*"], NAMES),
        (["*.*", "!sales.*", "!audit_log", '!"Odd*"'], ["orders", "order_items"]),
        (["order?"], ["orders"]),
        (["ORDER*"], ["orders", "order_items"]),
        (['"Odd*"'], ['"Odd.Name"']),
        (["odd*"], []),
        (["!orders"], []),
        ([], []),
    ],
)
def test_names_are_chosen_and_taken_away(patterns: list[str], expected: list[str]) -> None:
    assert list(chosen(NAMES, patterns)) == expected


def test_a_name_is_chosen_once_however_many_patterns_match_it() -> None:
    assert chosen(["orders", "orders"], ["*", "ord*"]) == ("orders",)


@pytest.mark.parametrize("name", ["a[b", "a.b", "a+b", "a\\b"])
def test_only_star_and_question_mark_mean_more_than_themselves(name: str) -> None:
    assert matches(name, name.replace("b", "?"))
    assert not matches(name.replace(name[-2], "x"), name[:-1] + "*")


def test_a_name_has_the_schema_that_it_is_written_with_or_public() -> None:
    assert (
        split_table_name("orders")
        == split_table_name("public.orders")
        == split_table_name("PUBLIC.Orders")
    )
    assert split_table_name('sales."A ""b"" .c"') == ("sales", 'A "b" .c')
