"""Two ways to know what must come out: a decoder that reads row by row, and random histories."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.capture.postgres.decode.pgoutput import (
    Relation,
    RelationColumn,
    RelationLayout,
    read_relation,
)
from headrace.capture.postgres.position import LsnPosition
from headrace.capture.postgres.stream.spill import Spill
from headrace.capture.postgres.stream.transactions import Transactions
from headrace.changelog.change import Changes
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType, exact_text
from tests.postgres import messages as m

FIELDS = {"id": 1, "note": 2, "big": 3, "extra": 9}
KINDS = {20: "int64", 25: "text"}
KNOWN = {("id", 20), ("extra", 20), ("note", 25), ("big", 25), ("hidden", 25)}


class Tables:
    """The tables of the tests; those called `other…` are not captured."""

    def layout(self, relation: Relation) -> RelationLayout | None:
        if relation.table.startswith("other"):
            return None
        if any((c.name, c.type) not in KNOWN for c in relation.columns):
            return None  # A broken message; no table of ours.
        if len({c.name for c in relation.columns}) < len(relation.columns):
            return None
        kept = [c for c in relation.columns if c.name != "hidden"]
        if "id" not in {c.name for c in kept}:
            return None
        columns = tuple(Column(c.name, ValueType(KINDS[c.type]), FIELDS[c.name]) for c in kept)
        places = tuple(kept.index(c) if c in kept else None for c in relation.columns)
        return RelationLayout(TableSchema(relation.table, columns, ("id",)), places)


def place(lsn: int) -> LsnPosition:
    return LsnPosition("7", 5, 0, 1, lsn)


def made(*, after: int = 0, around: int = 1000, spill: Spill | None = None) -> Transactions:
    return Transactions(
        Tables(), spill or Spill(None), after=after, position_at=place, near_xid=around
    )


def taken(
    transactions: Transactions, messages: Iterable[bytes], wire: m.Wire = m.WIRE
) -> list[Changes]:
    got = wire.received(messages)
    return list(transactions.take(got.buffer, got.starts, got.stops))


Found = tuple[str, tuple[str, ...], dict[str, Any]]


def rows(changes: Iterable[Changes]) -> list[Found]:
    """Return the rows with their table and its columns, in the order of their positions."""
    found = [
        (table.schema.table, table.schema.names, row)
        for each in changes
        for table in each.tables
        for row in table.rows.set_column(4, "_time", table.rows["_time"].cast("int64")).to_pylist()
    ]
    return sorted(found, key=lambda it: (it[2]["_commit"], it[2]["_ordinal"], it[0]))


# --- row by row ----------------------------------------------------------------------------


@dataclass
class _Open:
    messages: list[tuple[int, bytes, int]] = field(default_factory=list)
    """Sub-transaction, message without it, number of receipt."""


class Naive:
    """Reads one message after the other, one value after the other."""

    def __init__(self, after: int, around: int) -> None:
        self.after, self.around = after, around
        self.found: list[Found] = []
        self.relations: dict[int, tuple[Relation, int]] = {}
        self.streams: dict[int, _Open] = {}
        self.inside: int | None = None
        self.whole = _Open()
        self.xid = 0
        self.number = 0

    def take(self, message: bytes) -> None:
        self.number += 1
        kind = message[:1]
        if self.inside is not None and kind != b"E":
            if kind == b"O":
                self.streams[self.inside].messages.append((self.inside, message, self.number))
                return
            (sub,) = struct.unpack_from(">I", message, 1)
            self.streams[self.inside].messages.append((sub, kind + message[5:], self.number))
        elif kind == b"B":
            (self.xid,) = struct.unpack_from(">I", message, 17)
            self.whole = _Open()
        elif kind == b"C":
            end, time = struct.unpack_from(">Qq", message, 10)
            self._commit(self.whole, self.xid, end, time + m.EPOCH, self.relations)
        elif kind == b"S":
            (self.inside,) = struct.unpack_from(">I", message, 1)
            self.streams.setdefault(self.inside, _Open())
        elif kind == b"E":
            self.inside = None
        elif kind == b"A":
            top, sub = struct.unpack_from(">II", message, 1)
            if top == sub:
                del self.streams[top]
            else:
                kept = self.streams[top].messages
                self.streams[top].messages = [each for each in kept if each[0] != sub]
        elif kind == b"c":
            xid, _, _, end, time = struct.unpack_from(">IBQQq", message, 1)
            own: dict[int, tuple[Relation, int]] = {}
            self._commit(self.streams.pop(xid), xid, end, time + m.EPOCH, own)
            for oid, (relation, number) in own.items():
                if number > self.relations.get(oid, (relation, -1))[1]:
                    self.relations[oid] = (relation, number)
        elif kind != b"M":
            self.whole.messages.append((self.xid, message, self.number))

    def _commit(
        self,
        it: _Open,
        xid: int,
        end: int,
        time: int,
        relations: dict[int, tuple[Relation, int]],
    ) -> None:
        ordinal = 0
        wide = min((xid + (turn << 32) for turn in range(4)), key=lambda x: abs(x - self.around))
        for _, message, number in it.messages:
            kind = chr(message[0])
            if kind == "R":
                relation = read_relation(message)
                relations[relation.oid] = (relation, number)
            if kind not in "IUDT":
                continue
            stamp = {"_commit": end, "_ordinal": ordinal, "_xid": wide, "_time": time}
            ordinal += 1
            if end <= self.after:
                continue
            for oid in self._oids(kind, message):
                layout = Tables().layout(relations[oid][0])
                if layout is not None:
                    row = {"_op": "IUDT".index(kind), **stamp}
                    row.update(_images(layout, kind, message))
                    self.found.append((layout.schema.table, layout.schema.names, row))

    def _oids(self, kind: str, message: bytes) -> Sequence[int]:
        if kind != "T":
            return [struct.unpack_from(">I", message, 1)[0]]
        (count,) = struct.unpack_from(">I", message, 1)
        return list(struct.unpack_from(f">{count}I", message, 6))


def _images(layout: RelationLayout, kind: str, message: bytes) -> dict[str, Any]:
    at = 5
    tuples: dict[str, list[tuple[str, bytes]]] = {}
    while kind != "T" and at < len(message):
        mark = chr(message[at])
        (count,) = struct.unpack_from(">H", message, at + 1)
        at += 3
        values = []
        for _ in range(count):
            how = chr(message[at])
            at += 1
            data = b""
            if how == "t":
                (size,) = struct.unpack_from(">i", message, at)
                data = message[at + 4 : at + 4 + size]
                at += 4 + size
            values.append((how, data))
        tuples[mark] = values
    old, new = tuples.get("O") or tuples.get("K"), tuples.get("N")
    unsent = []
    if new is not None:
        for index, (how, _) in enumerate(new):
            slot = layout.indexes[index]
            if how != "u":
                continue
            if old is not None and (
                old[index][0] == "t" or ("O" in tuples and old[index][0] == "n")
            ):
                new[index] = old[index]
            elif slot is not None:
                unsent.append(layout.schema.columns[slot].field)
    exact: list[tuple[int, str]] = []
    before, after = _image(layout, old, exact, -1), _image(layout, new, exact, 1)
    return {"_unsent": unsent or None, "_exact": exact or None, "before": before, "after": after}


def _image(
    layout: RelationLayout,
    values: list[tuple[str, bytes]] | None,
    exact: list[tuple[int, str]],
    sign: int,
) -> dict[str, Any] | None:
    if values is None:
        return None
    image: dict[str, Any] = {}
    for slot, (how, data) in zip(layout.indexes, values, strict=True):
        if slot is None:
            continue
        column = layout.schema.columns[slot]
        text = data.decode() if how == "t" else None
        image[column.name] = text
        if text is not None and column.type.kind == "int64":
            try:
                image[column.name] = int(text)
            except ValueError:
                exact.append((sign * column.field, exact_text(text)))
                image[column.name] = None
    return image


# --- random histories ----------------------------------------------------------------------


def relation(oid: int, version: int) -> Relation:
    """Table 1 is `kept` with a key, 2 is `full`, 3 is `other`, which nobody captures."""
    name = {1: "kept", 2: "full", 3: "other"}[oid]
    columns = [("id", 20), ("note", 25), ("big", 25), ("hidden", 25)]
    if version % 2:
        columns.insert(2, ("extra", 20))
    full = oid == 2
    return Relation(
        oid,
        "public",
        name,
        "f" if full else "d",
        tuple(RelationColumn(n, t, -1, full or n == "id") for n, t in columns),
    )


@dataclass
class _Streaming:
    sent: set[int] = field(default_factory=set)
    subs: list[int] = field(default_factory=list)
    begun: bool = False


class History:
    """What a server might send: transactions in one piece and in streams, one within the other."""

    def __init__(self, source: random.Random) -> None:
        self._random = source
        self._lsn = 1000
        self._xid = 2**32 - 20
        self._version = {1: 0, 2: 0, 3: 0}
        self._sent: set[int] = set()
        self._open: dict[int, _Streaming] = {}
        self.messages: list[bytes] = []
        self.commits: list[int] = []

    def run(self, steps: int) -> History:
        acts: list[Callable[[], None]] = [
            self._plain,
            self._plain,
            self._stream,
            self._stream,
            self._end,
            self._roll_back,
            self._alone,
        ]
        for _ in range(steps):
            self._random.choice(acts)()
        return self

    def _new_xid(self) -> int:
        self._xid += 1
        if not self._xid & 0xFFFFFFFF:
            self._xid += 3  # PostgreSQL keeps the first three for itself.
        return self._xid & 0xFFFFFFFF

    def _next_lsn(self) -> int:
        self._lsn += self._random.randint(1, 100)
        return self._lsn

    def _plain(self) -> None:
        time = self._random.randint(0, 2**50)
        self.messages.append(m.begin(self._new_xid(), final=self._lsn, time=time))
        if self._random.random() < 0.2:
            self.messages.append(m.origin(5, "elsewhere"))
        for _ in range(self._random.randint(0, 6)):
            self._change(self._sent, None)
        self.messages.append(m.commit(self._next_lsn(), time=time))
        self.commits.append(self._lsn)

    def _stream(self) -> None:
        xid = self._random.choice([*self._open, 0])
        if not xid:
            xid = self._new_xid()
            self._open[xid] = _Streaming()
        it = self._open[xid]
        self.messages.append(m.stream_start(xid, first=not it.begun))
        it.begun = True
        for _ in range(self._random.randint(0, 8)):
            chance = self._random.random()
            if chance < 0.3:
                it.subs.append(self._new_xid())
            elif chance < 0.4:
                # Savepoints released: none of them can be rolled back alone any more.
                it.subs.clear()
            self._change(it.sent, it.subs[-1] if it.subs else xid)
        self.messages.append(m.stream_stop())

    def _end(self) -> None:
        if not self._open:
            return
        xid = self._random.choice(list(self._open))
        it = self._open.pop(xid)
        if self._random.random() < 0.3:
            self.messages.append(m.stream_abort(xid, xid))
            return
        self.messages.append(m.stream_commit(xid, self._next_lsn(), time=self._lsn))
        self.commits.append(self._lsn)
        self._sent |= it.sent

    def _roll_back(self) -> None:
        candidates = [xid for xid, it in self._open.items() if it.subs]
        if candidates:
            xid = self._random.choice(candidates)
            it = self._open[xid]
            # The last ones go together, as nested savepoints do; the server says so of each.
            for _ in range(self._random.randint(1, len(it.subs))):
                self.messages.append(m.stream_abort(xid, it.subs.pop()))
            it.sent = set()

    def _alone(self) -> None:
        self.messages.append(m.message(self._next_lsn(), "p", b"content", transactional=False))

    def _change(self, sent: set[int], xid: int | None) -> None:
        oid = self._random.choice([1, 1, 2, 2, 3])
        chance = self._random.random()
        if chance < 0.05:
            self._version[oid] += 1
            sent.discard(oid)
            self._sent.discard(oid)
            for it in self._open.values():
                it.sent.discard(oid)
        if chance > 0.97:
            sent.discard(oid)
        named = [1, 3] if chance > 0.9 else [oid]
        for each in named:
            if each not in sent:
                self.messages.append(m.relation(relation(each, self._version[each]), xid=xid))
                sent.add(each)
        self.messages.append(
            m.truncate(named, xid=xid) if chance > 0.87 else self._row_change(oid, xid)
        )
        if self._random.random() < 0.1:
            self.messages.append(m.message(self._lsn, "p", b"x" * 3, xid=xid))
        if self._random.random() < 0.1:
            self.messages.append(m.type_(77, "public", "mood", xid=xid))

    def _row_change(self, oid: int, xid: int | None) -> bytes:
        kind = self._random.choice("IIUUD")
        if kind == "I":
            return m.insert(oid, self._row(oid), xid=xid)
        names = [c.name for c in relation(oid, self._version[oid]).columns]
        key = [str(self._random.randint(0, 9)) if n == "id" else None for n in names]
        if kind == "D":
            if oid == 2:
                return m.delete(oid, old=self._row(oid), xid=xid)
            return m.delete(oid, key=key, xid=xid)
        new = [
            m.UNCHANGED if n in ("big", "hidden", "note") and self._random.random() < 0.3 else v
            for n, v in zip(names, self._row(oid), strict=True)
        ]
        if oid == 2:
            return m.update(oid, new, old=self._row(oid), xid=xid)
        return m.update(oid, new, key=key if self._random.random() < 0.3 else None, xid=xid)

    def _row(self, oid: int) -> list[m.Value]:
        return [self._value(c.type) for c in relation(oid, self._version[oid]).columns]

    def _value(self, type: int) -> m.Value:
        if self._random.random() < 0.15:
            return None
        if type == 20:
            return (
                "no number" if self._random.random() < 0.05 else str(self._random.randint(-9, 99))
            )
        return self._random.choice(["", "a", "ünï", "long " * 20, "line\nline"])


def cut(source: random.Random, messages: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yield messages in parts of any size, as they may be received."""
    at = 0
    most = source.choice([1, 3, 20, 200])
    while at < len(messages):
        size = source.randint(1, most)
        yield messages[at : at + size]
        at += size
