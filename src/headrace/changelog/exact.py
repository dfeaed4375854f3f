"""
The exact text of a value, and the way back.

A value that its column cannot hold stands in the log as text (R23f), and the text must
still tell text from number and number from bytes: `12` in a column of whole numbers is a
fact, `'12'` there is somebody's mistake worth seeing. So the text is a literal, as SQL
writes it, except that words stay as they are while nothing else is written that way.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from math import isfinite

_INTEGER = re.compile(r"-?[0-9]+")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?(inf|nan)", re.I)
_BYTES = re.compile(r"X'([0-9A-F]*)'")
_BROKEN = re.compile(r"cast\(X'([0-9A-F]*)' as text\)")
_WORDS = {"true": True, "false": False}


def exact_text(value: object) -> str:
    """Return a text from which the value can be told: itself for most texts, else a literal."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            # Not UTF-8 at the source; a text of ours always is.
            return f"cast(X'{text_bytes(value).hex().upper()}' as text)"
        if from_exact(value) == value:
            return value
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"X'{bytes(value).hex().upper()}'"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # Through Decimal: Python refuses to print an int of more than 4,300 digits.
        return format(Decimal(value), "f")
    if isinstance(value, Decimal):
        return numeric_text(value) or str(value)
    return str(value)


def from_exact(text: str) -> object:
    """Return the number, bytes, truth value or text that `text` stands for."""
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    if match := _BYTES.fullmatch(text):
        return bytes.fromhex(match[1])
    if match := _BROKEN.fullmatch(text):
        return bytes.fromhex(match[1]).decode(errors="surrogateescape")
    if _INTEGER.fullmatch(text):
        return int(Decimal(text))
    if _NUMBER.fullmatch(text):
        number = float(text)
        if str(number) == text or not isfinite(number):
            return number
        try:
            # A text that is not a float's own has more to say than a float can hold.
            return Decimal(text)
        except InvalidOperation:
            return number  # its exponent has more digits than there can be: it is nothing
    return _WORDS.get(text, text)


def text_bytes(text: str) -> bytes:
    """Return the bytes of a text that may hold bytes smuggled in as lone surrogates."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")


_NUMERIC = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,9})?")
_SPECIAL = {"nan": "NaN", "infinity": "Infinity", "-infinity": "-Infinity"}
_PLAIN = range(-16_383, 131_073)
"""Exponents written out as digits: those of PostgreSQL's numeric; a text stays bounded."""


def numeric_text(value: object) -> str | None:
    """Return the canonical text of a number without limits, or None where it is not one."""
    if type(value) is int:
        value = Decimal(value)
    elif isinstance(value, str):
        if special := _SPECIAL.get(value.lower()):
            return special
        # Decimal takes underscores, blanks and the digits of every script; sources do not.
        if _NUMERIC.fullmatch(value) is None:
            return None
        try:
            value = Decimal(value)
        except InvalidOperation:
            return None
    if not isinstance(value, Decimal):
        return None
    if not value.is_finite():
        text = str(value)
        return text if text in _SPECIAL.values() else None
    exponent = value.as_tuple().exponent
    plain = value.adjusted() in _PLAIN and isinstance(exponent, int) and exponent in _PLAIN
    return format(value, "f") if plain else str(value)
