"""Which type of the log a column of PostgreSQL has, from its oid and modifier alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture.postgres.server.catalog import NUMERIC, as_text, sends_binary, value_type


def modifier(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


@pytest.mark.meets("S6")
@pytest.mark.parametrize(
    ("oid", "kind"),
    [
        (16, "boolean"),
        (17, "bytes"),
        (18, "text"),  # "char"
        (19, "text"),  # name
        (20, "int64"),
        (21, "int16"),
        (23, "int32"),
        (25, "text"),
        (26, "int64"),  # oid
        (28, "text"),  # xid
        (114, "json"),
        (142, "text"),  # xml
        (700, "float32"),
        (701, "float64"),
        (790, "text"),  # money
        (869, "text"),  # inet
        (1007, "text"),  # integer[]
        (1042, "text"),  # char(n)
        (1043, "text"),  # varchar
        (1082, "date"),
        (1083, "time"),
        (1114, "timestamp"),
        (1184, "timestamptz"),
        (1186, "interval"),
        (1266, "timetz"),
        (2950, "uuid"),
        (3802, "json"),
        (3904, "text"),  # int4range
        (16_384, "text"),  # somebody's own
    ],
)
def test_an_oid_has_its_kind(oid: int, kind: str) -> None:
    assert str(value_type(oid, -1)) == kind


@pytest.mark.meets("S6")
@pytest.mark.parametrize(
    ("precision", "scale", "kind"),
    [
        (10, 2, "decimal(10,2)"),
        (38, 0, "decimal(38,0)"),
        (38, 38, "decimal(38,38)"),
        (39, 0, "numeric"),
        (1000, 1000, "numeric"),
        (3, 5, "numeric"),
        (5, -2, "numeric"),
        (1000, -1000, "numeric"),
    ],
)
def test_a_numeric_with_limits_is_a_decimal_where_one_holds_it(
    precision: int, scale: int, kind: str
) -> None:
    assert str(value_type(NUMERIC, modifier(precision, scale))) == kind
    assert sends_binary(NUMERIC, modifier(precision, scale))


def test_a_numeric_without_limits_is_numeric() -> None:
    assert str(value_type(NUMERIC, -1)) == "numeric"


@given(st.integers(0, 2**32 - 1), st.integers(-1, 2**31 - 1))
def test_every_oid_and_modifier_has_a_type(oid: int, given_modifier: int) -> None:
    value_type(oid, given_modifier)
    value_type(NUMERIC, given_modifier)


@pytest.mark.meets("R18")
@pytest.mark.parametrize("oid", [18, 142, 790, 869, 1007, 3904, 16_384])
def test_what_has_a_binary_form_of_its_own_is_copied_as_text(oid: int) -> None:
    assert not sends_binary(oid, -1)


def test_text_is_asked_for_by_the_output_function_and_not_by_a_cast() -> None:
    assert "::" not in as_text('"v"')
    assert "cast" not in as_text('"v"')
    assert 'concat("v")' in as_text('"v"')
