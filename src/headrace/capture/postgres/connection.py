"""
Connections to a PostgreSQL server, statements on them, and what the server's errors mean.

The text that PostgreSQL sends for a value depends on the session's settings. So each of our
sessions has the same settings from the start, whatever the server, the database or the role
defines: copied rows and streamed rows must not differ (R18). No timeout may end a long or idle
session of ours (R14).

Errors are distinguished by SQLSTATE, because a server may write its messages in another language.
Their text is left out, since it can contain values of rows. Only a failed attempt to connect has
no SQLSTATE, because libpq does not pass it on. There the text decides, and after an unrecognised
error the attempt is repeated.

Statements never block a thread inside the driver. Rows of a baseline are read between changes, by
the thread that must also report to the server that it is alive (R7). A statement can wait long,
for a lock or for a busy server. So each function that runs one is a generator, which yields None
while there is no answer yet.
"""

from __future__ import annotations

import re
import select
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from headrace.capture.postgres.options import (
    PostgresOptions,
    ask_hook,
    may_change,
    read_password,
)
from headrace.capture.postgres.stream.wire import StreamEnded
from headrace.errors import (
    BadMessage,
    CaptureError,
    CredentialsRefused,
    HeadraceError,
    NoRoom,
    NotPermitted,
    SchemaChanged,
    ServerRefused,
    SlotBusy,
    SourceRefused,
    SourceUnreachable,
    TableRefused,
)

T = TypeVar("T")

# --- connecting, and the meaning of errors --------------------------------------------------------

APPLICATION = "headrace"
"""How the application_name of all our sessions begins; `slot.release` searches for it (R31)."""

SETTINGS = {
    "client_encoding": "UTF8",
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "search_path": "pg_catalog",
    # A row security policy must cause an error, and not silently hide rows.
    "row_security": "off",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
"""Sent when the session starts, so that they override those of the database and the role."""

LATER_SETTINGS = {"idle_session_timeout": 140000, "transaction_timeout": 170000}
"""Timeouts, and since which version: an older server would refuse the connection."""

DEFAULTS = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    # Keep-alives are not sent while data of ours is unacknowledged.
    "tcp_user_timeout": "30000",
}
"""Used unless the connection string sets them."""

_LONGEST_NAME = 63

_AGAIN = ("08", "40", "53", "57", "58", "25P03", "25P04", "55P03")
"""Classes and codes of errors that may not occur again: cancelled, busy, out of a resource."""

_LOGIN = "Authentication failed: the server rejected the user or password"

_TEXTS: tuple[tuple[str, type[HeadraceError], str, str], ...] = (
    (
        "password authentication failed|no password supplied|authentication failed",
        SourceRefused,
        _LOGIN,
        "Check the user and the password, and password_ref or before_connect if you use them.",
    ),
    (
        "no pg_hba.conf entry|pg_hba.conf rejects",
        NotPermitted,
        "pg_hba.conf does not allow this user to connect to this database from here",
        "Add an entry for the user, database and address to pg_hba.conf, and reload the server."
        " Check sslmode too: the entry may require encryption.",
    ),
    (
        "permission denied to start WAL sender|must be superuser or replication role",
        NotPermitted,
        "The user does not have the REPLICATION attribute",
        "Run ALTER ROLE … REPLICATION for this user.",
    ),
    (
        "permission denied for database|is not permitted to log in",
        NotPermitted,
        "The user is not permitted to connect to the database",
        "Run GRANT CONNECT ON DATABASE … TO … and ALTER ROLE … LOGIN for this user.",
    ),
    (
        'database ".*" does not exist',
        SourceRefused,
        "The database does not exist",
        "Check dbname in the connection string.",
    ),
    (
        'role ".*" does not exist',
        SourceRefused,
        "The user does not exist",
        "Check user in the connection string.",
    ),
    (
        "max_wal_senders",
        NoRoom,
        "All WAL senders of the server are in use",
        "Raise max_wal_senders and restart the server, or stop another replication client.",
    ),
    (
        r"server does not support SSL|certificate|SSL error|sslmode value|root\.crt",
        CredentialsRefused,
        "The encrypted connection failed: sslmode or the certificates do not fit the server",
        "Check sslmode, sslrootcert and sslcert in the connection string"
        " against the server's certificate.",
    ),
    (
        "unrecognized configuration parameter|invalid value for parameter",
        ServerRefused,
        "The server rejected Headrace's session settings",
        "Connect to the server directly, not through a pooler. PostgreSQL 14 to 18 is supported.",
    ),
    (
        "unsupported startup parameter",
        ServerRefused,
        "The connection goes through a pooler, which does not support replication",
        "Connect to the server directly.",
    ),
)


ANSWER_SECONDS = 60.0
"""How long a server may take to answer a query of its catalog, or of its own state."""


class TimedConnection(psycopg.Connection[Any]):
    """A connection that is closed, with an error, if the server does not answer in time."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **more: Any) -> T:
        if self.closed:
            return _ended(gen)
        until = time.monotonic() + ANSWER_SECONDS
        return super().wait(_limited(gen, until, self.pgconn.finish), *args, **more)


def _ended(gen: Generator[Any, Any, T]) -> T:
    """Let what ends a transaction or a pipeline find that there is no connection any more."""
    try:
        next(gen)
        while True:
            gen.throw(psycopg.OperationalError("The connection is closed"))
    except StopIteration as end:
        found: T = end.value
        return found


def _limited(
    gen: Generator[Any, Any, T], until: float, give_up: Callable[[], None]
) -> Generator[Any, Any, T]:
    """Pass everything on; give up once it is `until` and the generator still waits."""
    try:
        state = next(gen)
        while True:
            ready = yield state
            if not ready and time.monotonic() >= until:
                # Or the pipeline and the transaction around the query would wait again.
                give_up()
                raise SourceUnreachable(
                    f"The server did not answer a query within {ANSWER_SECONDS:.0f} s"
                )
            state = gen.send(ready)
    except StopIteration as end:
        found: T = end.value
        return found


def connect(
    options: PostgresOptions,
    *,
    replication: bool = False,
    timed: bool = False,
    autocommit: bool = True,
    application: str = APPLICATION,
    host: str | None = None,
    port: int | None = None,
) -> psycopg.Connection[Any]:
    """
    Return a new connection with the settings that all our sessions share.

    `replication` opens it for the replication protocol, which has only simple queries: there
    the client puts parameters into the statements. `host` and `port` choose one of the
    servers that the connection string names. `timed`: statements must be answered within
    `ANSWER_SECONDS`. Raises `SourceUnreachable` if a later attempt may succeed, otherwise
    `SourceRefused` or a subclass of it.
    """
    parameters = _parameters(options, application)
    if host is not None:
        parameters.pop("hostaddr", None)
        parameters.pop("load_balance_hosts", None)
        parameters["host"] = host
    if port is not None:
        parameters["port"] = str(port)
    if replication:
        parameters["replication"] = "database"
    try:
        kind = TimedConnection if timed else psycopg.Connection
        connection: psycopg.Connection[Any] = kind.connect(
            **parameters,  # type: ignore[arg-type]  # All of them are libpq's, none psycopg's.
            autocommit=autocommit or replication,
            prepare_threshold=None if replication else 5,
            cursor_factory=psycopg.ClientCursor if replication else None,
        )
    except psycopg.Error as error:
        # Without its cause: psycopg's text may quote the connection string.
        raise _refusal(error, options, parameters) from None
    try:
        with speaking(options):
            _set_later(connection)
            if replication and (statement := as_bytes(connection)):
                _run(connection, statement)
    except HeadraceError:
        connection.close()
        raise
    return connection


def as_bytes(connection: psycopg.Connection[Any]) -> bytes:
    """
    Return the statement that a session needs to receive rows of this database; empty: none.

    A database without an encoding (SQL_ASCII) can contain any bytes, and the server refuses to
    send a value that is not UTF-8 to a session with that encoding: one such row would end every
    attempt to stream. It is used only by sessions that receive rows, because psycopg returns
    the texts of such a session as bytes.
    """
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        return b"set client_encoding = 'SQL_ASCII'"
    return b""


@contextmanager
def speaking(options: PostgresOptions) -> Iterator[None]:
    """Translate the server's errors, without their text: it can contain values of rows."""
    try:
        yield
    except psycopg.Error as error:
        raise translated(error.sqlstate, source=options.name) from None


def translated(sqlstate: str | None, **facts: str) -> HeadraceError:
    """Return our error for a SQLSTATE; without one, the connection was lost."""
    if sqlstate is None:
        return SourceUnreachable("The connection to the server was lost", **facts)
    facts["sqlstate"] = sqlstate
    match sqlstate:
        case "53400":
            return NoRoom("All replication slots or WAL senders of the server are in use", **facts)
        case code if code.startswith(_AGAIN):
            return SourceUnreachable(
                "The server cancelled the request or closed the connection", **facts
            )
        case "42P01" | "3F000":
            return TableRefused(
                "The table does not exist", **facts, remedy="Check the table's name and schema."
            )
        case "42703":
            return SchemaChanged("A column no longer exists", **facts)
        case "42501":
            return NotPermitted(
                "The user lacks a privilege",
                **facts,
                remedy="Grant this user SELECT on the captured tables, USAGE on their schemas,"
                " and the REPLICATION attribute.",
            )
        case "55006":
            return SlotBusy("The slot is in use by another process", **facts)
        case "0A000" | "55000" | "42704":
            return ServerRefused(
                "The server rejected the request: a feature, setting or object is missing", **facts
            )
        case code if code.startswith("28") or code == "3D000":
            return SourceRefused(
                "The server rejected the login",
                **facts,
                remedy="Check the user, password and database.",
            )
    return CaptureError("The server returned an error", **facts)


def _parameters(options: PostgresOptions, application: str) -> dict[str, str]:
    """Return libpq's parameters, including the password and our settings."""
    try:
        given = conninfo_to_dict(options.connection)
    except psycopg.Error:
        # libpq quotes the part that it could not parse, and that may be the password.
        raise SourceRefused(
            "The connection string is not valid",
            source=options.name,
            remedy="Write it as host=… dbname=… user=…, or as postgresql://user@host/database.",
        ) from None
    parameters = {key: str(value) for key, value in given.items() if value is not None}
    if (password := read_password(options)) is not None:
        parameters["password"] = password
    parameters = ask_hook(options, parameters)
    if not application.startswith(APPLICATION):
        application = f"{APPLICATION} {application}"
    ours = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    return {
        **DEFAULTS,
        **parameters,
        "application_name": application[:_LONGEST_NAME],
        "client_encoding": SETTINGS["client_encoding"],
        # The last setting of a name wins, so ours come after the user's.
        "options": f"{parameters.get('options', '')} {ours}".strip(),
    }


def _set_later(connection: psycopg.Connection[Any]) -> None:
    version = connection.info.server_version
    statements = [
        f"set {name} = 0".encode() for name, since in LATER_SETTINGS.items() if version >= since
    ]
    for statement in statements:
        _run(connection, statement)


def _run(connection: psycopg.Connection[Any], statement: bytes) -> None:
    # Through libpq: a cursor would begin a transaction if autocommit is off.
    result = connection.pgconn.exec_(statement)
    if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(result)


def _refusal(
    error: psycopg.Error, options: PostgresOptions, parameters: Mapping[str, str]
) -> HeadraceError:
    text = str(error)
    facts = {
        "source": options.name,
        "host": parameters.get("host", "local"),
        "port": parameters.get("port", "5432"),
        "database": parameters.get("dbname", parameters.get("user", "")),
    }
    for pattern, kind, message, remedy in _TEXTS:
        if re.search(pattern, text, re.IGNORECASE):
            if message == _LOGIN and may_change(options):
                kind = CredentialsRefused
                remedy += " A running engine reads them again at each attempt."
            return kind(message, **facts, remedy=remedy)
    if isinstance(error, psycopg.errors.ConnectionTimeout):
        return SourceUnreachable("The server did not answer in time", **facts)
    return SourceUnreachable("The server cannot be reached", **facts)


# --- statements that never block in the driver ----------------------------------------------------

PATIENCE_SECONDS = 0.1
"""How long to wait for an answer before the generator yields."""

BEGIN = "begin isolation level repeatable read read only"

Asking: TypeAlias = Generator[None, None, T]
"""Yields None until the server has answered, and then returns the answer."""

_ID = re.compile(r"[0-9A-Fa-f-]+")


@contextmanager
def talking(**facts: str) -> Iterator[None]:
    """Translate the server's errors, including those that concern a snapshot and its rows."""
    try:
        yield
    except (psycopg.Error, StreamEnded) as error:
        match error.sqlstate:
            case "42704" | "22023" | "55000":
                # There is no such snapshot, it is not from this server, or its session is ending.
                found = SourceUnreachable("The snapshot no longer exists", remedy=None, **facts)
            case "42P01" | "3F000":
                # It may be a partition. The next lookup shows whether the table still exists.
                found = SourceUnreachable(
                    "The table was dropped while it was copied", remedy=None, **facts
                )
            case sqlstate:
                raise translated(sqlstate, **facts) from None
        raise found from None


def importing(snapshot: str) -> str:
    """Return the statements that begin a transaction under an exported snapshot."""
    if _ID.fullmatch(snapshot) is None:
        raise BadMessage("Invalid snapshot id", length=len(snapshot))
    return f"{BEGIN}; set transaction snapshot '{snapshot}'"


def row(connection: psycopg.Connection[Any], query: str) -> tuple[Any, ...]:
    """Run a query and return its only row; this one blocks."""
    found = connection.execute(query.encode()).fetchone()
    if found is None:
        raise BadMessage("The server returned no row")
    return tuple(found)


def asked(connection: psycopg.Connection[Any], statements: str) -> Asking[list[pq.abc.PGresult]]:
    """Run statements without parameters, and return their results, with values as text."""
    connection.pgconn.send_query(statements.encode())
    return (yield from results(connection))


def described(connection: psycopg.Connection[Any], query: str) -> Asking[pq.abc.PGresult]:
    """
    Return the columns of a query, without running it.

    They are the current ones, whatever snapshot the transaction has, and the user needs no
    privilege to read them.
    """
    connection.pgconn.send_prepare(b"", query.encode())
    yield from results(connection)
    connection.pgconn.send_describe_prepared(b"")
    [result] = yield from results(connection)
    return result


def results(connection: psycopg.Connection[Any]) -> Asking[list[pq.abc.PGresult]]:
    """Return the results of what was sent; a COPY ends them, before its rows."""
    pgconn = connection.pgconn
    taken: list[pq.abc.PGresult] = []
    failed: pq.abc.PGresult | None = None
    while True:
        yield from _ready(pgconn)
        if (result := pgconn.get_result()) is None:
            break
        if result.status == pq.ExecStatus.FATAL_ERROR:
            failed = result
        else:
            taken.append(result)
        if result.status == pq.ExecStatus.COPY_OUT:
            break
    if failed is not None:
        raise psycopg.errors.error_from_result(failed)
    return taken


def readable(pgconn: pq.abc.PGconn, seconds: float, *, writable: bool = False) -> bool:
    """Wait until data has arrived, or can be sent; other threads run meanwhile."""
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN | (select.POLLOUT if writable else 0))
    return bool(poll.poll(seconds * 1000))


def _ready(pgconn: pq.abc.PGconn) -> Asking[None]:
    unsent = bool(pgconn.flush())
    while pgconn.is_busy():
        if readable(pgconn, PATIENCE_SECONDS, writable=unsent):
            pgconn.consume_input()
            unsent = bool(pgconn.flush())
        else:
            yield
