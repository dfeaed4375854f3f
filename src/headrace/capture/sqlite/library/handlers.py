"""
Handlers that come with the library: lines of text, lines of JSON, and HTTP.

A handler is any callable that takes a batch. When it returns, the batch is acknowledged. If it
raises, the run ends, and the batch's records are delivered again in the next run, perhaps in
another batch with another id.
"""

from __future__ import annotations

import base64
import errno
import http.client
import json
import ssl
import time
from typing import IO
from urllib.parse import quote, unquote, urlsplit

from headrace.capture.sqlite.library.records import CaptureBatch, Interrupted, RecordFormat
from headrace.errors import RecordsRefused, SourceRefused, TargetError

TIMEOUT_SECONDS = 30.0
RETRY_SECONDS = 300.0
FIRST_REST_SECONDS = 0.1
LONGEST_REST_SECONDS = 10.0
_ASKED_REST_SECONDS = 60.0
"""The longest wait that a `Retry-After` can ask for."""

_LOOK_SECONDS = 0.05
"""How often a pause checks whether the capture is being closed."""

_LATER = frozenset({408, 425, 429})
_REFUSED = 422
_NOTHING = b'{"changes":[]}'


class Words:
    """Writes a readable line for each record: time, table, operation."""

    def __init__(self, stream: IO[bytes], form: RecordFormat) -> None:
        self._stream = stream
        self._form = form

    def __call__(self, batch: CaptureBatch) -> None:
        """Write, and return only when the operating system has accepted it."""
        lines = [
            f"{self._form.stamp(round(record.timestamp.timestamp() * 1000))}"
            f" {record.table} {record.operation}\n"
            for record in batch
        ]
        _write(self._stream, "".join(lines).encode(errors="backslashreplace"))


class JsonLineHandler:
    """Writes a line of JSON for each record."""

    def __init__(self, stream: IO[bytes], form: RecordFormat) -> None:
        self._stream = stream
        self._form = form

    def __call__(self, batch: CaptureBatch) -> None:
        """Write, and return only when the operating system has accepted it."""
        if lines := self._form.lines(batch):
            _write(self._stream, lines)


def _write(stream: IO[bytes], data: bytes) -> None:
    try:
        stream.write(data)
        stream.flush()
    except BrokenPipeError:
        raise  # the reader has closed the pipe, which is no error of the output
    except OSError as error:
        raise TargetError(
            "Output cannot be written",
            error=errno.errorcode.get(error.errno or 0, "OSError"),
            remedy="Free some space or choose another output, and start again. It continues with"
            " this batch.",
        ) from error


class Post:
    """
    Sends each batch by HTTP POST, as `{"changes": […]}`, until it is accepted.

    Any status from 200 to 299 means accepted. Timeouts, broken connections, 408, 425, 429 and
    every status from 500 on are retried with growing pauses; a batch that is not accepted after
    `retry_seconds` raises `TargetError`. Any other status raises it at once, except 422 with
    `{"refused": [3], "reason": "…"}`: then all records but these, by their indexes, were accepted,
    and `RecordsRefused` is raised, with which a capture can store them. Each request has the
    batch's id as Idempotency-Key, the same one if the batch is sent again. In another run the same
    changes may be sent in a batch with another range, which may overlap with this one; a receiver
    recognises changes that it already has by the records' positions.
    """

    def __init__(
        self,
        url: str,
        form: RecordFormat,
        *,
        timeout: float = TIMEOUT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SourceRefused("The URL is not valid", remedy="Use http://… or https://….")
        self._parts = parts
        self._form = form
        self._timeout = timeout
        self._retry_seconds = retry_seconds
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._connection: http.client.HTTPConnection | None = None
        self._stopped = False
        self._answer = b""
        self._headers = {"Content-Type": "application/json"}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"

    def __call__(self, batch: CaptureBatch) -> None:
        """Send, and return only when the batch was accepted."""
        body = self._form.changes(batch)
        if body == _NOTHING:
            return  # the end of a table, which only the envelope has
        headers = dict(self._headers)
        if batch.id is not None:
            # An id may contain a table's name, which may have any characters.
            headers["Idempotency-Key"] = quote(batch.id, safe="/")
        until = time.monotonic() + self._retry_seconds
        rest = FIRST_REST_SECONDS
        while True:
            status, asked = self._sent(body, headers)
            if 200 <= status < 300:
                return
            if status == _REFUSED and (refused := _refused_records(self._answer)) is not None:
                raise refused
            if status and status < 500 and status not in _LATER:
                raise TargetError(
                    "The URL refused a batch",
                    host=self._parts.hostname,
                    status=status,
                    remedy="Check the URL and what it expects. Redirects are not followed.",
                )
            if time.monotonic() >= until:
                raise TargetError(
                    "The URL did not accept a batch in time",
                    host=self._parts.hostname,
                    status=status or "no answer",
                    remedy="Check that it is up, and start again. It continues with this batch.",
                )
            self._rest(max(rest, asked))
            rest = min(2 * rest, LONGEST_REST_SECONDS)

    def stop(self) -> None:
        """Stop retrying, because the capture is being closed."""
        self._stopped = True

    def close(self) -> None:
        """Close the connection; called by the owner after the last batch."""
        self._hang_up()

    def _rest(self, seconds: float) -> None:
        # Not an event: `stop` may be called in a signal handler, on the thread that waits here.
        until = time.monotonic() + seconds
        while not self._stopped:
            if (left := until - time.monotonic()) <= 0:
                return
            time.sleep(min(left, _LOOK_SECONDS))
        raise Interrupted

    def _sent(self, body: bytes, headers: dict[str, str]) -> tuple[int, float]:
        """Send once; return the status, 0 for none, and how long to wait before a retry."""
        try:
            connection = self._connected()
            connection.request("POST", self._path, body, headers)
            answer = connection.getresponse()
            self._answer = answer.read()
        except (OSError, http.client.HTTPException):
            self._hang_up()
            return 0, 0.0
        asked = answer.getheader("Retry-After") or ""
        seconds = float(asked) if asked.isascii() and asked.isdigit() else 0.0
        return answer.status, min(seconds, _ASKED_REST_SECONDS)

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            host, port = self._parts.hostname or "", self._parts.port
            if self._parts.scheme == "https":
                self._connection = http.client.HTTPSConnection(
                    host, port, timeout=self._timeout, context=ssl.create_default_context()
                )
            else:
                self._connection = http.client.HTTPConnection(host, port, timeout=self._timeout)
        return self._connection

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _refused_records(answer: bytes) -> RecordsRefused | None:
    """Return what an answer of status 422 says; None if it names no records."""
    try:
        said = json.loads(answer)
    except ValueError:
        return None
    records = said.get("refused") if isinstance(said, dict) else None
    if not isinstance(records, list) or not records:
        return None
    refused = RecordsRefused("The URL refused records", records=records)
    refused.detail = str(said.get("reason") or "")
    return refused
