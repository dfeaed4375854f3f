"""Single messages: what they say, and that they end where they should."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture.postgres.decode import pgoutput
from headrace.capture.postgres.decode.pgoutput import Commit, Relation, RelationColumn
from headrace.errors import BadMessage
from tests.postgres import messages as m

names = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=9)
oids = st.integers(0, 2**32 - 1)
columns = st.builds(RelationColumn, names, oids, st.integers(-(2**31), 2**31 - 1), st.booleans())
relations = st.builds(
    Relation,
    oids,
    names.filter(bool),
    names,
    st.sampled_from("dnfi"),
    st.lists(columns, max_size=5).map(tuple),
)


@given(relation=relations, xid=st.none() | oids)
def test_a_relation_is_read_as_it_was_written(relation: Relation, xid: int | None) -> None:
    message = m.relation(relation, xid=xid)
    assert pgoutput.read_relation(message, streamed=xid is not None) == relation


def test_the_namespace_that_is_left_out_is_the_servers_own() -> None:
    relation = Relation(1, "pg_catalog", "t", "d", ())
    assert b"pg_catalog" not in m.relation(relation)
    assert pgoutput.read_relation(m.relation(relation)) == relation


@given(st.lists(oids, max_size=5), st.none() | oids)
def test_a_truncate_names_each_table_once(tables: list[int], xid: int | None) -> None:
    message = m.truncate(tables, xid=xid)
    found = pgoutput.read_truncate(message, streamed=xid is not None)
    assert found == tuple(dict.fromkeys(tables))


def test_only_a_message_outside_transactions_has_a_place() -> None:
    alone = pgoutput.read_message(m.message(77, "p", b"content", transactional=False))
    assert alone == (77, "p", b"content")
    within = pgoutput.read_message(m.message(77, "p", b"content", xid=3), streamed=True)
    assert within.lsn is None


def test_a_message_of_our_prefix_marks_a_place_unless_it_says_too_much() -> None:
    def marker(prefix: str, content: bytes) -> str:
        return pgoutput.read_message(m.message(1, prefix, content)).marker

    assert marker("headrace", b"deployed") == "deployed"
    assert marker("other", b"deployed") == ""
    assert marker("headrace", b"x" * 201) == ""
    assert marker("headrace", b"\xff") == "\ufffd"


def test_the_position_of_a_streamed_commit_is_the_end_of_its_record() -> None:
    found = pgoutput.read_stream_commit(m.stream_commit(2**32 - 1, 900, time=5))
    assert found == Commit(2**32 - 1, 900, 5, 892)


def test_a_stream_abort_may_say_when() -> None:
    assert pgoutput.read_stream_abort(m.stream_abort(5, 6)) == (5, 6)
    assert pgoutput.read_stream_abort(m.stream_abort(5, 6) + bytes(16)) == (5, 6)


READERS: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "relation": (
        m.relation(Relation(1, "s", "t", "d", (RelationColumn("a", 20, -1, True),))),
        pgoutput.read_relation,
    ),
    "truncate": (m.truncate([1, 2]), pgoutput.read_truncate),
    "message": (m.message(1, "p", b"abc"), pgoutput.read_message),
    "type": (m.type_(1, "s", "t"), pgoutput.check_type),
    "origin": (m.origin(1, "o"), pgoutput.check_origin),
    "stream start": (m.stream_start(1, first=True), pgoutput.read_stream_start),
    "stream stop": (m.stream_stop(), pgoutput.check_stream_stop),
    "stream commit": (m.stream_commit(1, 9), pgoutput.read_stream_commit),
    "stream abort": (m.stream_abort(1, 2), pgoutput.read_stream_abort),
}


@pytest.mark.parametrize("which", READERS)
def test_a_message_that_ends_elsewhere_is_refused(which: str) -> None:
    message, read = READERS[which]
    read(message)
    read(memoryview(message))  # type: ignore[arg-type]
    for broken in [message[:size] for size in range(len(message))] + [message + b"\0"]:
        with pytest.raises(BadMessage) as caught:
            read(broken)
        assert isinstance(caught.value.facts["offset"], int)


@given(which=st.sampled_from(sorted(READERS)), rest=st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(which: str, rest: bytes) -> None:
    message, read = READERS[which]
    try:
        read(message[:1] + rest)
    except BadMessage as error:
        assert isinstance(error.facts["offset"], int)
