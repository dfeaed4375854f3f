"""
Connect's protocol as bytes: paths, messages in JSON, envelopes of streams, errors.

An error of ours is a detail of type `headrace.v1.Error`. The client restores it, with its class
and facts. See https://connectrpc.com/docs/protocol.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from headrace.errors import (
    BadRequest,
    ControlError,
    FellBehind,
    Forbidden,
    HeadraceError,
    InvalidConfiguration,
    LimitReached,
    NotAvailable,
    NotUnique,
    RequestTimeout,
    TooManyRows,
    Unauthenticated,
    UnknownIndex,
    UnknownPipeline,
    UnknownTable,
    all_errors,
    with_facts,
)

SERVICE = "/headrace.v1.ControlService/"
UNARY = "application/json"
STREAMING = "application/connect+json"

LARGEST_REQUEST = 1 << 20
"""In bytes; no command of ours comes close to it."""

DEEPEST_REQUEST = 16
"""In levels of objects and lists; the keys of a request are lists of values."""

_HEAD = struct.Struct(">BI")
_ENDS = 0b10
"""The flag of a stream's last envelope, which holds its error, if any, and no message."""

_DETAIL = "headrace.v1.Error"

_STATUS = {
    "invalid_argument": 400,
    "failed_precondition": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "resource_exhausted": 429,
    "internal": 500,
    "unimplemented": 501,
    "unavailable": 503,
    "deadline_exceeded": 504,
}
_REFUSALS: Mapping[str, type[HeadraceError]] = {
    "unauthenticated": Unauthenticated,
    "permission_denied": Forbidden,
}
"""The classes of errors that come without a detail: a proxy may send them, too."""

_BY_EXIT_CODE = {
    2: "invalid_argument",
    3: "failed_precondition",
    4: "unavailable",
    5: "permission_denied",
}


class Reads(Protocol):
    """A stream from which envelopes are read."""

    def read(self, amt: int) -> bytes: ...


def message(fields: Mapping[str, Any]) -> bytes:
    """Return a message as JSON."""
    return json.dumps(fields, ensure_ascii=False, allow_nan=False).encode()


def parsed(data: bytes) -> dict[str, Any]:
    """Return the fields of a message; names may be in protobuf's JSON form (camelCase)."""
    try:
        fields = json.loads(data or b"{}", parse_constant=_no_number)
    except RecursionError:
        raise BadRequest("The message is nested too deeply") from None
    except ValueError:
        raise BadRequest("The message is not JSON") from None
    if not isinstance(fields, dict):
        raise BadRequest("The message is not an object")
    return fields


def asked(data: bytes) -> dict[str, Any]:
    """Return the fields of a request, which an answer can quote."""
    fields = parsed(data)
    level: list[Any] = [fields]
    for _ in range(DEEPEST_REQUEST):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    if level:
        raise BadRequest(f"The message is nested more than {DEEPEST_REQUEST} levels deep")
    try:
        message(fields)
    except UnicodeEncodeError:
        raise BadRequest("The message contains half of a surrogate pair") from None
    except ValueError:
        raise BadRequest("The message contains a number that is too large") from None
    return fields


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def envelope(fields: Mapping[str, Any]) -> bytes:
    """Return one message of a stream."""
    data = message(fields)
    return _HEAD.pack(0, len(data)) + data


def last_envelope(error: HeadraceError | None) -> bytes:
    """Return the end of a stream."""
    data = message({} if error is None else {"error": error_fields(error)[1]})
    return _HEAD.pack(_ENDS, len(data)) + data


def envelopes(stream: Reads) -> Iterator[dict[str, Any]]:
    """Yield the messages of a stream; raises its error, and `EOFError` if it was cut off."""
    while True:
        flags, length = _HEAD.unpack(_exactly(stream, _HEAD.size))
        fields = parsed(_exactly(stream, length))
        if flags & _ENDS:
            if "error" in fields:
                raise error_from(fields["error"])
            return
        yield fields


def opened(data: bytes) -> dict[str, Any]:
    """Return the one message of a request for a stream."""
    if len(data) < _HEAD.size:
        raise BadRequest("A streaming request must be one message in an envelope")
    flags, length = _HEAD.unpack(data[: _HEAD.size])
    if flags or length != len(data) - _HEAD.size:
        raise BadRequest("A streaming request must be one message in an envelope")
    return asked(data[_HEAD.size :])


def error_fields(error: HeadraceError, code: str | None = None) -> tuple[int, dict[str, Any]]:
    """Return an error's HTTP status and its JSON; `code` overrides the usual Connect code."""
    code = code or _code(error)
    detail = error_object(error)
    return _STATUS[code], {
        "code": code,
        "message": error.message,
        "details": [{"type": _DETAIL, "value": _encoded(detail), "debug": detail}],
    }


def error_from(fields: Mapping[str, Any]) -> HeadraceError:
    """Return the error that was sent, as its own class if this version has it."""
    text = str(fields.get("message", "The engine refused the request"))
    for detail in fields.get("details", ()):
        if detail.get("type") == _DETAIL:
            return _made({"message": text, **detail.get("debug", {})})
    code = str(fields.get("code", "unknown"))
    return _REFUSALS[code](text) if code in _REFUSALS else ControlError(text, status=code)


def internal_error(error: BaseException) -> ControlError:
    """Return the error for a mistake of ours, which the caller has logged."""
    return ControlError(
        f"Internal error ({type(error).__name__})",
        remedy="Please report this, and include the end of logs/headrace.log in the data"
        " directory.",
    )


def error_object(error: HeadraceError) -> dict[str, Any]:
    """Return an error as `--json` prints it; for a configuration, with all its errors."""
    shown: dict[str, Any] = {
        "code": error.code,
        "message": error.message,
        "facts": {name: _plain(value) for name, value in error.facts.items()},
        "remedy": error.remedy,
    }
    if isinstance(error, InvalidConfiguration) and error.errors:
        shown["errors"] = [error_object(each) for each in error.errors]
    return shown


def error_of(shown: Mapping[str, Any] | None) -> HeadraceError | None:
    """Return the error of an `error_object`; None for None."""
    return None if shown is None else _made(shown)


def sentence_of(shown: Mapping[str, Any] | None, subject: str = "") -> str:
    """Return an `error_object` as a sentence with its facts; empty for None."""
    return "" if shown is None else with_facts(shown["message"], shown.get("facts", {}), subject)


def _made(shown: Mapping[str, Any]) -> HeadraceError:
    known = {each.code: each for each in all_errors()}
    kind = known.get(str(shown.get("code")), ControlError)
    # Not as keywords: a fact may have any name.
    made = kind(str(shown["message"]), remedy=str(shown.get("remedy", "")) or None)
    made.facts = dict(shown.get("facts", {}))
    if isinstance(made, InvalidConfiguration):
        made.holding(_made(each) for each in shown.get("errors", ()))
    return made


def _code(error: HeadraceError) -> str:
    if isinstance(error, UnknownPipeline | UnknownIndex):
        return "not_found"
    if isinstance(error, NotAvailable):
        return "unimplemented"
    if isinstance(error, UnknownTable | NotUnique):
        return "failed_precondition"
    if isinstance(error, Unauthenticated):
        return "unauthenticated"
    if isinstance(error, RequestTimeout):
        return "deadline_exceeded"
    if isinstance(error, FellBehind | LimitReached | TooManyRows):
        return "resource_exhausted"
    return _BY_EXIT_CODE.get(error.exit_code, "internal")


def _plain(value: object) -> object:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return str(value)


def _encoded(shown: Mapping[str, Any]) -> str:
    """Return the detail in protobuf form, as `headrace.v1.Error`."""
    return base64.b64encode(_error(shown)).decode().rstrip("=")


def _error(shown: Mapping[str, Any]) -> bytes:
    """Return code 1, message 2, remedy 3, facts 4, a map, and errors 5, which are the same."""
    texts = (shown["code"], shown["message"], shown["remedy"])
    data = b"".join(_field(number, text.encode()) for number, text in enumerate(texts, 1))
    for name, value in shown["facts"].items():
        data += _field(4, _field(1, name.encode()) + _field(2, str(value).encode()))
    return data + b"".join(_field(5, _error(each)) for each in shown.get("errors", ()))


def _field(number: int, data: bytes) -> bytes:
    """Return a length-delimited protobuf field: tag, length, bytes."""
    length, size = b"", len(data)
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


def _exactly(stream: Reads, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (more := stream.read(count - len(data))):
            raise EOFError
        data += more
    return data
