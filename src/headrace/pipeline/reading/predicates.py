"""
`where`: which rows are wanted, in the words of SQL, decided before they reach Spark.

    status = 'paid' and (total > 10 or customer_id in (1, 2)) and card is not null

Comparisons of a column with a literal, `in`, `between`, `like`, `is null`, `and`, `or`, `not`
and parentheses. A row passes exactly where Spark's own filter of the same text lets it pass:
what cannot be promised to mean the same is refused, and can be filtered after `load()`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from headrace.changelog.values import ValueType
from headrace.config.nearest import nearest
from headrace.errors import BadExpression, UnknownColumn
from headrace.pipeline.reading.literal import TYPED, Literal, fitted

OUR_TYPES: Final = {
    "_change_type": ValueType("text"),
    "_commit_version": ValueType("int64"),
    "_commit_timestamp": ValueType("timestamptz"),
    "_position": ValueType("text"),
}


@dataclass(frozen=True, slots=True)
class Compare:
    """A column beside a literal; `op` is one of `= <> < <= > >= <=> like`."""

    column: str
    op: str
    value: object
    """In the column's type; None only beside `<=>`."""


@dataclass(frozen=True, slots=True)
class In:
    """A column's value is among these, none of them null."""

    column: str
    values: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    """A column has no value."""

    column: str


@dataclass(frozen=True, slots=True)
class Holds:
    """A column of true and false is true."""

    column: str


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite; unknown stays unknown."""

    of: Predicate


@dataclass(frozen=True, slots=True)
class And:
    """All of them."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """One of them."""

    parts: tuple[Predicate, ...]


Predicate: TypeAlias = Compare | In | IsNull | Holds | Not | And | Or

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)
    | (?P<text>'(?:[^'\\]|\\.|'')*')
    | (?P<quoted>`(?:[^`]|``)+`)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<sign><=>|<>|!=|<=|>=|==|[=<>(),-])
    )""",
    re.X,
)
_COMPARED: Final = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<=>": "<=>"} | {
    sign: sign for sign in ("<", "<=", ">", ">=")
}
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a"}
_CODES: Final = frozenset("0123456789uU")
"""Behind a backslash these begin the number of a character, or do not, as more of them follow."""

_LIKE: Final = re.compile(r"(?:[^\\]|\\[%_\\])*", re.S)
_KEPT: Final = frozenset("%_")
"""Behind a backslash these keep it: `like` takes them at their word then."""


def parse_where(text: str, types: Mapping[str, ValueType]) -> Predicate:
    """Return what a text says of columns of these types; `BadExpression` or `UnknownColumn`."""
    return _Parser(text, {**OUR_TYPES, **types}).whole()


def columns_of(predicate: Predicate) -> Iterator[str]:
    """Yield the columns that it looks at."""
    match predicate:
        case And(parts) | Or(parts):
            for part in parts:
                yield from columns_of(part)
        case Not(of):
            yield from columns_of(of)
        case Compare() | In() | IsNull() | Holds():
            yield predicate.column


class _Parser:
    def __init__(self, text: str, types: Mapping[str, ValueType]) -> None:
        self._types = types
        self._tokens = list(_tokens(text))
        self._at = 0

    def whole(self) -> Predicate:
        found = self._either()
        if self._at < len(self._tokens):
            raise _bad("There is more than a predicate", self._at)
        return found

    # --- looking ahead

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _next(self) -> tuple[str, str]:
        found = self._peek()
        self._at += 1
        return found

    def _word(self, *words: str) -> bool:
        kind, text = self._peek()
        if kind == "word" and text.lower() in words:
            self._at += 1
            return True
        return False

    def _sign(self, sign: str) -> bool:
        if self._peek() == ("sign", sign):
            self._at += 1
            return True
        return False

    def _need(self, sign: str) -> None:
        if not self._sign(sign):
            raise _bad(f"Expected {sign}", self._at)

    # --- the grammar

    def _either(self) -> Predicate:
        parts = [self._both()]
        while self._word("or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _both(self) -> Predicate:
        parts = [self._negated()]
        while self._word("and"):
            parts.append(self._negated())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _negated(self) -> Predicate:
        if self._word("not"):
            return Not(self._negated())
        if self._sign("("):
            found = self._either()
            self._need(")")
            return found
        return self._about_column()

    def _about_column(self) -> Predicate:
        kind, _ = self._peek()
        begins = kind in ("number", "text") or self._peek() == ("sign", "-")
        if begins or (kind == "word" and self._is_literal()):
            literal = self._literal()
            op = self._comparison()
            column = self._column()
            return self._compare(column, _MIRRORED.get(op, op), literal)
        column = self._column()
        if self._word("is"):
            negated = self._word("not")
            if not self._word("null"):
                raise _bad("Expected null", self._at)
            return Not(IsNull(column)) if negated else IsNull(column)
        negated = self._word("not")
        found = self._behind(column)
        if found is not None:
            return Not(found) if negated else found
        if negated:
            raise _bad("Expected in, between or like", self._at)
        kind, text = self._peek()
        if kind == "sign" and text in _COMPARED:
            return self._compare(column, self._comparison(), self._literal())
        if self._types[column].kind != "boolean":
            raise _bad("Expected a comparison", self._at)
        return Holds(column)

    def _behind(self, column: str) -> Predicate | None:
        if self._word("in"):
            self._need("(")
            values = [self._value(column)]
            while self._sign(","):
                values.append(self._value(column))
            self._need(")")
            return In(column, tuple(values))
        if self._word("between"):
            low = self._value(column)
            if not self._word("and"):
                raise _bad("Expected and", self._at)
            return And((Compare(column, ">=", low), Compare(column, "<=", self._value(column))))
        if self._word("like"):
            literal = self._literal()
            if self._types[column].kind not in ("text", "json") or literal.kind != "text":
                raise _bad("Only text is like text", self._at)
            if _LIKE.fullmatch(literal.text) is None:
                raise _bad("In like, a backslash stands before %, _ or a backslash", self._at)
            return Compare(column, "like", literal.text)
        return None

    def _compare(self, column: str, op: str, literal: Literal) -> Predicate:
        if literal.kind == "null":
            if op != "<=>":
                raise _bad("Nothing compares with null: write is null", self._at)
            return IsNull(column)
        return Compare(column, op, fitted(column, self._types[column], literal))

    def _comparison(self) -> str:
        kind, text = self._next()
        if kind != "sign" or text not in _COMPARED:
            raise _bad("Expected a comparison", self._at)
        return _COMPARED[text]

    def _value(self, column: str) -> object:
        literal = self._literal()
        if literal.kind == "null":
            raise _bad("Nothing compares with null: write is null", self._at)
        return fitted(column, self._types[column], literal)

    def _is_literal(self) -> bool:
        _, text = self._peek()
        if text in self._types:
            return False
        follows = self._tokens[self._at + 1] if self._at + 1 < len(self._tokens) else ("end", "")
        return text.lower() in ("true", "false", "null") or (
            text.lower() in TYPED and follows[0] == "text"
        )

    def _literal(self) -> Literal:
        sign = "-" if self._sign("-") else ""
        kind, text = self._next()
        if kind == "number":
            return Literal("number", sign + text)
        if not sign and kind == "text":
            return Literal("text", _unquoted(text, self._at))
        if not sign and kind == "word":
            word = text.lower()
            if word in ("true", "false", "null"):
                return Literal("null" if word == "null" else "boolean", word)
            if word in TYPED and self._peek()[0] == "text":
                return Literal(word, _unquoted(self._next()[1], self._at))
        raise _bad("Expected a literal", self._at)

    def _column(self) -> str:
        kind, text = self._next()
        if kind == "quoted":
            text = text[1:-1].replace("``", "`")
        elif kind != "word":
            raise _bad("Expected a column", self._at)
        if self._peek() == ("sign", "("):
            raise _bad("Expected a column, not a function", self._at)
        if text not in self._types:
            near = nearest(text, self._types)
            raise UnknownColumn(
                "The option where names no column of the table",
                column=text,
                columns=" ".join(self._types),
                remedy=f"Did you mean {near}?" if near else "Use one of those that are listed.",
            )
        return text


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    end = len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            raise _bad("This is no part of a predicate", at)
        yield found.lastgroup, found[found.lastgroup]
        at = found.end()


def _unquoted(text: str, place: int) -> str:
    """Return what a quoted text says, as Spark reads it; `BadExpression` of what it reads oddly."""

    def plain(found: re.Match[str]) -> str:
        mark = found[0]
        if mark == "''":
            return "'"
        letter = mark[1]
        if mark != r"\0" and letter in _CODES:
            raise _bad("A character by its number", place)
        return mark if letter in _KEPT else _ESCAPES.get(letter, letter)

    return re.sub(r"\\0\d|\\.|''", plain, text[1:-1], flags=re.S)


def _bad(what: str, place: int) -> BadExpression:
    # Without the text: it has values in it.
    return BadExpression(
        f"The option where cannot be read: {what}",
        place=place,
        remedy="It takes comparisons of a column with a literal, in, between, like, is null, and,"
        " or, not. Anything else: .where(…) behind load().",
    )
