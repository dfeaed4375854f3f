"""
The option `where`: a condition in SQL, evaluated before rows reach Spark.

    status = 'paid' and (total > 10 or customer_id in (1, 2)) and card is not null

It has comparisons of a column with a literal, `in`, `between`, `like`, `is null`, `and`, `or`,
`not` and parentheses. A row passes exactly if Spark's own filter with the same text would pass it.
A condition for which that cannot be guaranteed is refused, and can be used after `load()` instead.

A literal takes the type of the column that it is compared with. One that does not fit its column is
refused rather than rounded: if the column holds whole numbers, `id > 1.5` does not mean what it
seems to.

A predicate is evaluated on Arrow columns as Spark evaluates it on rows: with Kleene's three-valued
logic. A comparison with null is unknown, and a row passes if the whole condition is true. Unlike
Arrow, Spark treats NaN as greater than all other numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.values import ValueType
from headrace.config.schema import nearest
from headrace.errors import BadExpression, UnknownColumn

# --- literals -------------------------------------------------------------------------------------

TYPED: Final = ("date", "timestamp", "timestamp_ntz")


@dataclass(frozen=True, slots=True)
class Literal:
    """
    A literal as it was written.

    `kind` is `number`, `text`, `boolean`, `null`, or the type before it: one of `TYPED`.
    """

    kind: str
    text: str


def fitted(column: str, type: ValueType, literal: Literal) -> object:
    """Return the literal as a value of the column; `BadExpression` if that is not possible."""
    made = None
    make = _MAKERS.get(type.kind)
    if make is not None and literal.kind in make[0]:
        try:
            made = make[1](literal.text, type)
        except (ValueError, InvalidOperation, OverflowError):
            made = None
    if made is None:
        raise BadExpression(
            "The option where compares a column with a literal of another type",
            column=column,
            type=str(type),
            literal=literal.kind,
            remedy="Write the literal in the column's type, or filter after load(): .where(…).",
        )
    return made


_MOST_DIGITS: Final = 38
"""Maximum digits of a decimal in Spark."""


def comparable(type: ValueType) -> bool:
    """Whether columns of this type can be compared here as Spark compares them."""
    return type.kind in _MAKERS


def _exact(text: str) -> Decimal:
    # With an exponent, the literal is a double for Spark, which then compares both as doubles.
    if "e" in text.lower():
        raise ValueError
    return Decimal(text)


def _whole(text: str, type: ValueType) -> int | None:
    number = _exact(text)
    bits = type.arrow.bit_width - 1
    return int(number) if number == int(number) and -(2**bits) <= number < 2**bits else None


def _float(text: str, type: ValueType) -> float:
    return float(text)


def _decimal(text: str, type: ValueType) -> Decimal | None:
    # Keeps its own digits: 1.005 is not rounded when compared with a decimal(5,2).
    number = _exact(text)
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    whole, scale = max(len(digits) + exponent, 0), max(-exponent, 0)
    return number if whole + scale <= _MOST_DIGITS else None


def _text(text: str, type: ValueType) -> str:
    return text


def _boolean(text: str, type: ValueType) -> bool:
    return text == "true"


def _date(text: str, type: ValueType) -> date:
    return date.fromisoformat(text)


def _timestamp(text: str, type: ValueType) -> datetime | None:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is None else None  # with an offset, it is not a local time


def _timestamptz(text: str, type: ValueType) -> datetime | None:
    found = datetime.fromisoformat(text)
    # Without an offset, it would depend on the session's time zone, which is not known here.
    return None if found.tzinfo is None else found.astimezone(UTC)


_WHOLE = (frozenset({"number"}), _whole)
_REAL = (frozenset({"number"}), _float)
_MAKERS: Final[Mapping[str, tuple[frozenset[str], Callable[[str, ValueType], object]]]] = {
    "int16": _WHOLE,
    "int32": _WHOLE,
    "int64": _WHOLE,
    "float32": _REAL,
    "float64": _REAL,
    "decimal": (frozenset({"number"}), _decimal),
    "text": (frozenset({"text"}), _text),
    "json": (frozenset({"text"}), _text),
    "boolean": (frozenset({"boolean"}), _boolean),
    "date": (frozenset({"date", "text"}), _date),
    # Compared with `timestamp '…'`, Spark converts such a column by the session's time zone.
    "timestamp": (frozenset({"timestamp_ntz", "text"}), _timestamp),
    "timestamptz": (frozenset({"timestamp", "text"}), _timestamptz),
}


# --- predicates, and their parser -----------------------------------------------------------------

OUR_TYPES: Final = {
    "_change_type": ValueType("text"),
    "_commit_version": ValueType("int64"),
    "_commit_timestamp": ValueType("timestamptz"),
    "_position": ValueType("text"),
}


@dataclass(frozen=True, slots=True)
class Compare:
    """A column compared with a literal; `op` is one of `= <> < <= > >= <=> like`."""

    column: str
    op: str
    value: object
    """In the column's type; None only with `<=>`."""


@dataclass(frozen=True, slots=True)
class In:
    """A column's value is one of these, none of which is null."""

    column: str
    values: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    """A column is null."""

    column: str


@dataclass(frozen=True, slots=True)
class IsTrue:
    """A boolean column is true."""

    column: str


@dataclass(frozen=True, slots=True)
class Not:
    """The negation; unknown stays unknown."""

    of: Predicate


@dataclass(frozen=True, slots=True)
class And:
    """All parts are true."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """At least one part is true."""

    parts: tuple[Predicate, ...]


Predicate: TypeAlias = Compare | In | IsNull | IsTrue | Not | And | Or

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
"""After a backslash, these may begin a character's number, depending on what follows."""

_LIKE: Final = re.compile(r"(?:[^\\]|\\[%_\\])*", re.S)
_KEPT: Final = frozenset("%_")
"""After a backslash, these keep it: `like` then takes them literally."""


def parse_where(text: str, types: Mapping[str, ValueType]) -> Predicate:
    """Parse a condition on columns of these types; `BadExpression` or `UnknownColumn`."""
    return _Parser(text, {**OUR_TYPES, **types}).whole()


def columns_of(predicate: Predicate) -> Iterator[str]:
    """Yield the columns in a predicate."""
    match predicate:
        case And(parts) | Or(parts):
            for part in parts:
                yield from columns_of(part)
        case Not(of):
            yield from columns_of(of)
        case Compare() | In() | IsNull() | IsTrue():
            yield predicate.column


class _Parser:
    def __init__(self, text: str, types: Mapping[str, ValueType]) -> None:
        self._types = types
        found = list(_tokens(text))
        self._tokens = [(kind, token) for kind, token, _ in found]
        self._starts = [*(start for _, _, start in found), len(text.rstrip())]
        self._at = 0

    def whole(self) -> Predicate:
        found = self._either()
        if self._at < len(self._tokens):
            raise self._bad("unexpected text after the condition")
        return found

    def _bad(self, what: str, back: int = 0) -> BadExpression:
        """Return the error at the next token, or at the one that is so many before it."""
        return _bad(what, self._starts[min(self._at - back, len(self._tokens))])

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
            raise self._bad(f"expected {sign}")

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
                raise self._bad("expected null")
            return Not(IsNull(column)) if negated else IsNull(column)
        negated = self._word("not")
        found = self._operator(column)
        if found is not None:
            return Not(found) if negated else found
        if negated:
            raise self._bad("expected in, between or like")
        kind, text = self._peek()
        if kind == "sign" and text in _COMPARED:
            return self._compare(column, self._comparison(), self._literal())
        if self._types[column].kind != "boolean":
            raise self._bad("expected a comparison")
        return IsTrue(column)

    def _operator(self, column: str) -> Predicate | None:
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
                raise self._bad("expected and")
            return And((Compare(column, ">=", low), Compare(column, "<=", self._value(column))))
        if self._word("like"):
            literal = self._literal()
            if self._types[column].kind not in ("text", "json") or literal.kind != "text":
                raise self._bad("like needs a text column and a text literal", 1)
            if _LIKE.fullmatch(literal.text) is None:
                raise self._bad("in like, a backslash must be followed by %, _ or \\", 1)
            return Compare(column, "like", literal.text)
        return None

    def _compare(self, column: str, op: str, literal: Literal) -> Predicate:
        if literal.kind == "null":
            if op != "<=>":
                raise self._bad("a comparison with null is never true; write is null", 1)
            return IsNull(column)
        return Compare(column, op, fitted(column, self._types[column], literal))

    def _comparison(self) -> str:
        kind, text = self._next()
        if kind != "sign" or text not in _COMPARED:
            raise self._bad("expected a comparison", 1)
        return _COMPARED[text]

    def _value(self, column: str) -> object:
        literal = self._literal()
        if literal.kind == "null":
            raise self._bad("a comparison with null is never true; write is null", 1)
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
            return Literal("text", _unquoted(text, self._starts[self._at - 1]))
        if not sign and kind == "word":
            word = text.lower()
            if word in ("true", "false", "null"):
                return Literal("null" if word == "null" else "boolean", word)
            if word in TYPED and self._peek()[0] == "text":
                return Literal(word, _unquoted(self._next()[1], self._starts[self._at - 1]))
        raise self._bad("expected a literal", 1)

    def _column(self) -> str:
        kind, text = self._next()
        if kind == "quoted":
            text = text[1:-1].replace("``", "`")
        elif kind != "word":
            raise self._bad("expected a column", 1)
        if self._peek() == ("sign", "("):
            raise self._bad("expected a column, not a function", 1)
        if text not in self._types:
            near = nearest(text, self._types)
            raise UnknownColumn(
                "The option where names a column that the table does not have",
                column=text,
                columns=" ".join(self._types),
                remedy=f"Did you mean {near}?" if near else "Use one of the listed columns.",
            )
        return text


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield kind, text and start of each token."""
    at = 0
    end = len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            blanks = len(text[at:]) - len(text[at:].lstrip())
            raise _bad("unexpected character", at + blanks)
        yield found.lastgroup, found[found.lastgroup], found.start(found.lastgroup)
        at = found.end()


def _unquoted(text: str, at: int) -> str:
    """
    Return the value of a quoted text that starts at `at`, as Spark reads it.

    Raises `BadExpression` for a character's number.
    """

    def plain(found: re.Match[str]) -> str:
        escape = found[0]
        if escape == "''":
            return "'"
        escaped = escape[1]
        if escape != r"\0" and escaped in _CODES:
            raise _bad("a character cannot be written by its number", at + 1 + found.start())
        return escape if escaped in _KEPT else _ESCAPES.get(escaped, escaped)

    return re.sub(r"\\0\d|\\.|''", plain, text[1:-1], flags=re.S)


def _bad(what: str, at: int) -> BadExpression:
    # Without the text, which contains values.
    return BadExpression(
        f"The option where cannot be parsed: {what}",
        character=at + 1,
        remedy="It supports comparisons of a column with a literal, in, between, like, is null,"
        " and, or, not. For anything else, filter after load(): .where(…).",
    )


# --- evaluating a predicate -----------------------------------------------------------------------

_COMPUTED: Final[Mapping[str, Callable[..., Any]]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


_LIKE_PARTS: Final = re.compile(r"\\.|.", re.DOTALL)
_ANY: Final = {"%": ".*", "_": "."}


def passing(predicate: Predicate, column: Callable[[str], pa.Array]) -> npt.NDArray[np.bool_]:
    """Return which rows pass; `column` returns a column by its name."""
    found = _decided(predicate, column)
    return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False), np.bool_)


def _decided(predicate: Predicate, column: Callable[[str], pa.Array]) -> pa.Array:
    match predicate:
        case And(parts):
            return _joined(pc.and_kleene, parts, column)
        case Or(parts):
            return _joined(pc.or_kleene, parts, column)
        case Not(of):
            return pc.invert(_decided(of, column))
        case IsNull(name):
            return column(name).is_null()
        case IsTrue(name):
            return column(name)
        case In(name, values):
            parts = tuple(Compare(name, "=", value) for value in values)
            if _plain(column(name).type):
                return _among(column(name), values)
            return _joined(pc.or_kleene, parts, column)
        case Compare(name, op, value):
            return _compared(column(name), op, value)


def _like(pattern: str) -> str:
    """Return the regular expression of a `like` pattern of Spark."""
    parts = _LIKE_PARTS.findall(pattern)
    made = (_ANY.get(part) or re.escape(part.removeprefix("\\") or part) for part in parts)
    return rf"\A(?s:{''.join(made)})\z"


def _joined(
    join: Callable[..., Any], parts: tuple[Predicate, ...], column: Callable[[str], pa.Array]
) -> pa.Array:
    found = _decided(parts[0], column)
    for part in parts[1:]:
        found = join(found, _decided(part, column))
    return found


def _plain(shape: pa.DataType) -> bool:
    return bool(pa.types.is_integer(shape) or pa.types.is_string(shape))


def _among(values: pa.Array, wanted: tuple[object, ...]) -> pa.Array:
    found = pc.is_in(values, value_set=pa.array(wanted, values.type))
    # For null, Arrow returns false, but in SQL the result is unknown.
    return pc.if_else(values.is_valid(), found, pa.scalar(None, pa.bool_()))


def _compared(values: pa.Array, op: str, value: object) -> pa.Array:
    if op == "like":
        # Not with `match_like`, which reads a backslash after a leading % as two.
        return pc.match_substring_regex(values, pattern=_like(str(value)))
    if op == "starts":
        return pc.starts_with(values, pattern=value)
    if op == "ends":
        return pc.ends_with(values, pattern=value)
    if op == "contains":
        return pc.match_substring(values, pattern=value)
    if op == "<=>":
        return pc.fill_null(_compared(values, "=", value), False)
    if pa.types.is_floating(values.type):
        values = values.cast(pa.float64())
        found = _COMPUTED[op](values, pa.scalar(value, pa.float64()))
        return pc.or_(found, pc.is_nan(values)) if op in (">", ">=") else found
    if pa.types.is_decimal(values.type):
        # Wide enough for the digits of both, whatever their scales.
        scale = max(values.type.scale, -Decimal(str(value)).as_tuple().exponent)  # type: ignore[operator]
        wide = pa.decimal256(76, scale)
        return _COMPUTED[op](values.cast(wide), pa.scalar(value, wide))
    return _COMPUTED[op](values, pa.scalar(value, values.type))
