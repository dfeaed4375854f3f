"""Reads expressions of Prometheus roughly: finds typing errors, and the metrics that are used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

TOKEN = re.compile(
    r"""\s*(?:
      (?P<duration>\d+(?:ms|[smhdwy]))(?![\w.])
    | (?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?!\w)
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    | (?P<sign>=~|!~|==|!=|>=|<=|[-+*/%^<>=(){}\[\],])
    )""",
    re.X,
)
FUNCTIONS = {"rate", "increase", "delta", "time", "absent", "histogram_quantile", "max_over_time"}
RANGED = {"rate", "increase", "delta", "max_over_time"}
AGGREGATIONS = {"sum", "max", "min", "avg", "count"}
BINARY = {"or", "and", "unless", "==", "!=", ">", "<", ">=", "<=", "+", "-", "*", "/", "%", "^"}


@dataclass(frozen=True)
class Selector:
    """The samples that an expression reads."""

    metric: str
    matchers: dict[str, str]
    """Label and the value or pattern that is asked for."""

    ranged: bool


class Expression:
    """An expression; raises `ValueError` where it cannot be read."""

    def __init__(self, text: str) -> None:
        self.selectors: list[Selector] = []
        self.grouped: set[str] = set()
        """Labels by which something is added up."""

        self._tokens = list(_tokens(text))
        self._at = 0
        self._operation()
        if self._at < len(self._tokens):
            raise ValueError(f"unexpected {self._tokens[self._at][1]!r}")

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _take(self, wanted: str | None = None) -> str:
        _, text = self._peek()
        if not text or (wanted is not None and text != wanted):
            raise ValueError(f"expected {wanted or 'more'}, found {text!r}")
        self._at += 1
        return text

    def _operation(self) -> None:
        self._operand()
        while self._peek()[1] in BINARY:
            self._take()
            if self._peek()[1] in ("on", "ignoring"):
                self._take()
                self.grouped |= self._names()
            self._operand()

    def _operand(self) -> None:
        kind, text = self._peek()
        if kind == "number":
            self._take()
        elif text == "(":
            self._take()
            self._operation()
            self._take(")")
        elif text in AGGREGATIONS:
            self._take()
            if self._peek()[1] in ("by", "without"):
                self._take()
                self.grouped |= self._names()
            self._take("(")
            self._operation()
            self._take(")")
        elif text in FUNCTIONS:
            self._call(self._take())
        elif kind == "name":
            self._selector(self._take())
        else:
            raise ValueError(f"unexpected {text!r}")

    def _call(self, function: str) -> None:
        self._take("(")
        before = len(self.selectors)
        while self._peek()[1] != ")":
            self._operation()
            if self._peek()[1] == ",":
                self._take()
        self._take(")")
        if function in RANGED and not all(each.ranged for each in self.selectors[before:]):
            raise ValueError(f"{function} needs a range")

    def _selector(self, metric: str) -> None:
        matchers = {}
        if self._peek()[1] == "{":
            self._take()
            while self._peek()[1] != "}":
                label = self._take()
                if self._take() not in ("=", "!=", "=~", "!~"):
                    raise ValueError(f"{label}: no operator")
                kind, value = self._peek()
                if kind != "string":
                    raise ValueError(f"{label}: {value!r} is no text")
                matchers[label] = self._take()[1:-1]
                if self._peek()[1] == ",":
                    self._take()
            self._take("}")
        ranged = self._peek()[1] == "["
        if ranged:
            self._take()
            if self._peek()[0] != "duration":
                raise ValueError(f"{self._peek()[1]!r} is no duration")
            self._take()
            self._take("]")
        self.selectors.append(Selector(metric, matchers, ranged))

    def _names(self) -> set[str]:
        found = set()
        self._take("(")
        while self._peek()[1] != ")":
            found.add(self._take())
            if self._peek()[1] == ",":
                self._take()
        self._take(")")
        return found


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while text[at:].strip():
        match = TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"cannot be read: {text[at : at + 20]!r}")
        at = match.end()
        assert match.lastgroup is not None
        yield match.lastgroup, match[match.lastgroup]
