"""
Connections to a PostgreSQL server, statements on them, and what the server's errors mean.

What PostgreSQL writes as text depends on settings of the session, so each of our sessions has the
same ones from its first moment, whatever the server, the database or the role says: rows that were
copied and rows that were streamed must not differ (R18). None of our sessions may be ended for
being long or idle (R14).

Errors are distinguished by SQLSTATE, because a server may write its messages in another language.
Their text is left out, since it can hold values of rows. Only a failed attempt to connect has no
SQLSTATE, because libpq does not pass it on; there the text decides, and after an error that is not
recognised the attempt is repeated.

Statements never keep a thread waiting inside the driver. Rows of a baseline are read between
changes, by the thread that must also report to the server that it is alive (R7). A statement can
wait long, for a lock or for a busy server; so each function that runs one is a generator, which
gives None each time there is no answer yet.
"""

from __future__ import annotations

import re
import select
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from headrace.capture.postgres.options import PostgresOptions, ask_hook, read_password
from headrace.capture.postgres.stream.wire import StreamEnded
from headrace.errors import (
    BadMessage,
    CaptureError,
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

# --- connecting, and the meaning of errors --------------------------------------------------------

APPLICATION = "headrace"
"""How the application_name of every session of ours begins: it is looked for (R31)."""

SETTINGS = {
    "client_encoding": "UTF8",
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "search_path": "pg_catalog",
    # A policy on rows shall be an error and not silently fewer rows.
    "row_security": "off",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
"""Given at start-up, where they win over what a database or a role sets."""

LATER_SETTINGS = {"idle_session_timeout": 140000, "transaction_timeout": 170000}
"""Time-outs that older servers do not know, and would refuse the connection for: since when."""

DEFAULTS = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    # Keep-alives say nothing while something of ours is under way unanswered.
    "tcp_user_timeout": "30000",
}
"""Used where the connection string says nothing else."""

_LONGEST_NAME = 63

_AGAIN = ("08", "40", "53", "57", "58", "25P03", "25P04", "55P03")
"""Ended from outside, too busy or out of something: another time it may work."""

_TEXTS: tuple[tuple[str, type[HeadraceError], str, str], ...] = (
    (
        "password authentication failed|no password supplied|authentication failed",
        SourceRefused,
        "Authentication failed: the server rejected the user or password",
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
        SourceRefused,
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


def connect(
    options: PostgresOptions,
    *,
    replication: bool = False,
    autocommit: bool = True,
    application: str = APPLICATION,
    host: str | None = None,
    port: int | None = None,
) -> psycopg.Connection[Any]:
    """
    Return a new connection with the settings all our sessions share.

    `replication` makes it one for the replication protocol; this knows only simple
    queries, so parameters are put into statements by the client. `host` and `port` lead
    to one server among those the connection string names. Raises `SourceUnreachable`
    where a later attempt may succeed, otherwise `SourceRefused` or one of its kind.
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
        connection = psycopg.Connection.connect(
            **parameters,  # type: ignore[arg-type]  # All of them are libpq's, none psycopg's.
            autocommit=autocommit or replication,
            prepare_threshold=None if replication else 5,
            cursor_factory=psycopg.ClientCursor if replication else None,
        )
    except psycopg.Error as error:
        # Without its cause: psycopg's text may show what stood in the connection string.
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
    Return the statement without which rows of this database might not come; empty: none.

    A database without an encoding (SQL_ASCII) holds bytes of any kind, and the server refuses
    to send what is not UTF-8 to whoever asked for that: one such row would end the stream, for
    ever. Only where rows come: psycopg takes texts of such a session for bytes.
    """
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        return b"set client_encoding = 'SQL_ASCII'"
    return b""


@contextmanager
def speaking(options: PostgresOptions) -> Iterator[None]:
    """Translate the server's errors; their text is left out, because it can hold values."""
    try:
        yield
    except psycopg.Error as error:
        raise translated(error.sqlstate, source=options.name) from None


def translated(sqlstate: str | None, **facts: str) -> HeadraceError:
    """Return what an error of the server means; without a SQLSTATE the connection is lost."""
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
    """Return libpq's parameters, complete with password and settings."""
    try:
        given = conninfo_to_dict(options.connection)
    except psycopg.Error:
        # libpq names the piece that it stumbled over, and that may be the password.
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
        # The last word counts, so ours are behind the user's.
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
    # By libpq itself: a cursor would begin a transaction where autocommit is off.
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
            return kind(message, **facts, remedy=remedy)
    if isinstance(error, psycopg.errors.ConnectionTimeout):
        return SourceUnreachable("The server did not answer in time", **facts)
    return SourceUnreachable("The server cannot be reached", **facts)


# --- statements that never block in the driver ----------------------------------------------------

PATIENCE_SECONDS = 0.1
"""How long an answer is waited for before others have their turn."""

BEGIN = "begin isolation level repeatable read read only"

T = TypeVar("T")
Asking: TypeAlias = Generator[None, None, T]
"""Gives None while the server has not answered, and at the end returns what it answered."""

_ID = re.compile(r"[0-9A-Fa-f-]+")


@contextmanager
def talking(**facts: str) -> Iterator[None]:
    """Translate the server's errors, with what is particular to a snapshot and its rows."""
    try:
        yield
    except (psycopg.Error, StreamEnded) as error:
        match error.sqlstate:
            case "42704" | "22023":
                # No such snapshot, or not one of this server's.
                found = SourceUnreachable("The snapshot no longer exists", remedy=None, **facts)
            case "42P01" | "3F000":
                # A partition may be dropped on any day; looked up again, the table tells.
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
    """Return the only row of a query, waiting for it."""
    found = connection.execute(query.encode()).fetchone()
    if found is None:
        raise BadMessage("The server returned no row")
    return tuple(found)


def asked(connection: psycopg.Connection[Any], statements: str) -> Asking[list[pq.abc.PGresult]]:
    """Run statements without parameters, and return their results; values are texts."""
    connection.pgconn.send_query(statements.encode())
    return (yield from results(connection))


def described(connection: psycopg.Connection[Any], query: str) -> Asking[pq.abc.PGresult]:
    """
    Return the columns that a query has, without running it.

    They are those of this moment, whatever snapshot the transaction has, and no right to
    read them is needed.
    """
    connection.pgconn.send_prepare(b"", query.encode())
    yield from results(connection)
    connection.pgconn.send_describe_prepared(b"")
    [result] = yield from results(connection)
    return result


def results(connection: psycopg.Connection[Any]) -> Asking[list[pq.abc.PGresult]]:
    """Take what the server answers to what was sent, or the beginning of a COPY."""
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
    """Wait until something has come, or can be sent; other threads run meanwhile."""
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
