"""Rows of a COPY are walked by their lengths, and a length is believed only inside its row."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import pytest

from headrace.capture.postgres.copy.reader import SIGNATURE, batch_of, fields_of, header_size
from headrace.capture.postgres.stream.wire import CopyMessages
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import BadMessage

HEADER = SIGNATURE + struct.pack(">Ii", 0, 0)


def row(*fields: bytes | None) -> bytes:
    return struct.pack(">h", len(fields)) + b"".join(
        struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
        for field in fields
    )


def columns(rows: Sequence[bytes], count: int) -> list[list[bytes | None]]:
    return [array.to_pylist() for array in fields_of(CopyMessages.joined(rows), count)]


def test_fields_come_back_as_they_were_sent() -> None:
    rows = [row(b"a", None, b""), row(b"", b"long" * 9, None), row(None, None, None)]

    assert columns(rows, 3) == [[b"a", b"", None], [None, b"long" * 9, None], [b"", None, None]]


def test_no_rows_are_no_fields() -> None:
    assert columns([], 2) == [[], []]


def test_any_rows_come_back() -> None:
    for seed in range(30):
        chance = random.Random(seed)
        width = chance.randint(1, 6)
        sent = [
            [
                None if chance.random() < 0.2 else chance.randbytes(chance.randint(0, 20))
                for _ in range(width)
            ]
            for _ in range(chance.randint(1, 50))
        ]

        assert columns([row(*fields) for fields in sent], width) == [
            list(column) for column in zip(*sent, strict=True)
        ]


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"\0",
        row(b"a"),
        row(b"a", b"b", b"c"),
        row(b"a", b"b") + b"x",
        row(b"a", b"b")[:-1],
        row(b"a", b"b")[:5],
        struct.pack(">hi", 2, -2),
        struct.pack(">hi", 2, 2**31 - 1) + b"abc",
        struct.pack(">hii", 2, -1, -5),
    ],
)
def test_a_length_that_leads_out_of_its_row_is_refused(broken: bytes) -> None:
    whole = row(b"a", b"b")
    for rows in ([broken], [whole, broken], [broken, whole]):
        with pytest.raises(BadMessage):
            fields_of(CopyMessages.joined(rows), 2)


def test_bytes_that_were_changed_on_the_way_are_refused_or_read_as_other_bytes() -> None:
    rows = [row(b"abc", None, b"\0" * 8), row(None, b"d", b"efgh")]
    for seed in range(400):
        chance = random.Random(seed)
        changed = [bytearray(each) for each in rows]
        for _ in range(chance.randint(1, 4)):
            one = chance.choice(changed)
            one[chance.randrange(len(one))] = chance.randrange(256)
        try:
            found = fields_of(CopyMessages.joined([bytes(each) for each in changed]), 3)
        except BadMessage:
            continue
        assert [len(array) for array in found] == [2, 2, 2]


def test_a_header_is_taken_off_with_its_extension() -> None:
    assert header_size(HEADER + b"rest") == len(HEADER)
    extended = SIGNATURE + struct.pack(">Ii", 7, 3) + b"ext"
    assert header_size(extended + b"rest") == len(extended)


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"PGCOPY\n",
        HEADER[:-1],
        b"x" + HEADER,
        SIGNATURE + struct.pack(">Ii", 1 << 16, 0),
        SIGNATURE + struct.pack(">Ii", 0, 5),
        SIGNATURE + struct.pack(">Ii", 0, -1),
    ],
)
def test_a_header_of_another_kind_is_refused(broken: bytes) -> None:
    with pytest.raises(BadMessage):
        header_size(broken)


@pytest.mark.meets("R23f")
def test_marks_stand_under_the_columns_own_number() -> None:
    schema = TableSchema(
        "t", (Column("id", ValueType("int32"), 1), Column("n", ValueType("decimal", 3, 1), 5))
    )
    rows = [row(struct.pack(">i", 1), b"1.5"), row(struct.pack(">i", 2), b"NaN")]

    batch, exact = batch_of(schema, [True, False], CopyMessages.joined(rows))

    assert batch.column("id").to_pylist() == [1, 2]
    assert batch.column("n").null_count == 1
    assert exact is not None
    assert exact.to_pylist() == [None, [(5, "NaN")]]
