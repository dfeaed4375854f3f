"""
A user's function, called on an executor.

What is here is sent to executors as it stands, because they may have no Headrace: it uses
the standard library and Arrow alone, and plain functions, which pickle by value.

A row that a function fails on must not stop its batch (S2). The function is called on all
rows there are; where it raises, a function of batches is called again on halves until the
failing rows stand alone. What it raised comes back as data beside the row. What no row is
to blame for is raised, and fails the job: a result of the wrong length or type from a
function of batches, a function that cannot be loaded, too little time or memory. Such an
error tells names and counts, never values.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import importlib
import json
import numbers
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

_LONGEST = 300
"""Of a function's own words this many characters are kept."""

_BAD_FUNCTION = "[headrace:pipeline.bad_function]"
"""How an error of ours is known again after Spark has carried nothing but its text."""

Columns = Sequence[tuple[str, pa.DataType]]
"""The columns a function declares."""

Errors = dict[int, str]
"""Row → what the function raised for it, as JSON."""


class BadResult(Exception):
    """The function gave what it did not declare, or cannot be had."""


class OverTime(BaseException):
    """The time is up; no `Exception`, so that no function takes it for one of its own."""


def caller(
    name: str,
    load: Callable[[], Callable[..., Any]],
    columns: Columns | None,
    batch: bool,
    time_limit: float,
) -> Callable[[pa.Array], pa.Array]:
    """
    Return what Spark calls on each Arrow batch: a struct of what is read → one of results.

    The result's fields are the declared columns as `c0`, `c1`, …, then `pass` and `error`.
    Where the struct is null the function is not called, and all of them are null.
    """
    loaded: list[Callable[..., Any]] = []

    def call(rows: pa.Array) -> pa.Array:
        if not loaded:
            loaded.append(function_of(name, load))
        if isinstance(rows, pa.ChunkedArray):
            rows = rows.combine_chunks()
        there = rows.is_valid()
        given = pa.RecordBatch.from_struct_array(rows.filter(there))
        one = by_batches if batch else by_rows
        with limited(name, time_limit):
            found = one(name, loaded[0], columns, given) if given.num_rows else None
        return spread(found, columns, there)

    return call


def function_of(name: str, load: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """Return the function, or raise `BadResult`."""
    try:
        found = load()
    except Exception as error:  # noqa: BLE001  # Whatever an import may raise.
        raise BadResult(
            f"{_BAD_FUNCTION} The function {name} cannot be had on an executor,"
            f" error={type(error).__name__}"
        ) from None
    if not callable(found):
        raise BadResult(f"{_BAD_FUNCTION} What {name} names is no function")
    return found


def imported(path: str) -> Callable[[], Any]:
    """Return what imports `package.module:name`."""

    def load() -> Any:
        module, _, inner = path.partition(":")
        found = importlib.import_module(module)
        for part in inner.split("."):
            found = getattr(found, part)
        return found

    return load


def unpickled(data: bytes) -> Callable[[], Any]:
    """Return what makes the function that was sent as these bytes."""

    def load() -> Any:
        return pickle.loads(data)

    return load


Found = tuple[list[pa.Array], pa.Array, Errors]
"""The declared columns, whether each row passes, and what was raised."""


def by_rows(
    name: str, function: Callable[..., Any], columns: Columns | None, given: pa.RecordBatch
) -> Found:
    """Call a function of rows on each of them."""
    values: list[Any] = []
    errors: Errors = {}
    for at, row in enumerate(rows_of(given)):
        value = None
        try:
            value = checked(result_of(function, row), columns)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  # The user's function may raise anything.
            errors[at] = told(name, error)
        values.append(value)
    if columns is None:
        return [], pa.array([value is True for value in values], pa.bool_()), errors
    arrays = []
    for at, (column, type_) in enumerate(columns):
        cells = [None if value is None else value[at] for value in values]
        arrays.append(array_of(name, column, cells, type_, errors))
    passed = [value is not None and at not in errors for at, value in enumerate(values)]
    return arrays, pa.array(passed, pa.bool_()), errors


def result_of(function: Callable[..., Any], row: Any) -> Any:
    """Return what the function gives for a row, if there is one."""
    if isinstance(row, Exception):
        raise row
    return function(row)


def rows_of(given: pa.RecordBatch) -> list[Any]:
    """Return the rows as dicts; an exception for one that Python's types cannot hold."""
    try:
        return given.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError, pa.ArrowException):
        found: list[Any] = []
        for at in range(given.num_rows):
            try:
                found += given.slice(at, 1).to_pylist()
            except (ValueError, OverflowError, pa.ArrowException) as error:
                found.append(error)
        return found


def checked(value: Any, columns: Columns | None) -> Any:
    """Return what a function of rows gave, if it is what it declared."""
    if columns is None:
        if hasattr(value, "dtype") and hasattr(value, "item"):
            value = value.item()
        if value is not None and not isinstance(value, bool):
            raise TypeError(f"a filter gives true or false, not {type(value).__name__}")
        return value
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise TypeError(f"a function of rows gives a dict or None, not {type(value).__name__}")
    cells = []
    for column, type_ in columns:
        if column not in value:
            raise KeyError(f"the declared column {column} is missing")
        cell = value[column]
        if cell is not None and not fits(cell, type_):
            raise TypeError(f"the column {column} is {type_}, not {type(cell).__name__}")
        cells.append(cell)
    return cells


def fits(value: Any, type_: pa.DataType) -> bool:
    """Whether a value is of this type; Arrow alone would cut 1.5 to 1 without a word."""
    if pa.types.is_boolean(type_):
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if pa.types.is_integer(type_):
        return isinstance(value, numbers.Integral)
    if pa.types.is_floating(type_):
        return isinstance(value, numbers.Real)
    if pa.types.is_decimal(type_):
        return isinstance(value, decimal.Decimal | numbers.Integral)
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return isinstance(value, str)
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return isinstance(value, bytes | bytearray)
    if pa.types.is_timestamp(type_):
        # One of a zone wants a zone, and one without wants none: nothing is guessed.
        whole = isinstance(value, datetime.datetime)
        return whole and (value.tzinfo is None) == (type_.tz is None)
    if pa.types.is_date(type_):
        return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
    return True


def array_of(
    name: str, column: str, cells: list[Any], type_: pa.DataType, errors: Errors
) -> pa.Array:
    """Return the cells as an array; one that does not fit is null there, and an error."""
    try:
        return pa.array(cells, type_)
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        found = []
        for at, cell in enumerate(cells):
            try:
                found.append(pa.array([cell], type_))
            except (ValueError, TypeError, OverflowError, pa.ArrowException):
                errors.setdefault(
                    at, told(name, TypeError(f"the column {column} is {type_}, and does not fit"))
                )
                found.append(pa.nulls(1, type_))
        return pa.concat_arrays(found)


def by_batches(
    name: str, function: Callable[..., Any], columns: Columns | None, given: pa.RecordBatch
) -> Found:
    """Call a function of batches on all rows, or on halves where it raises."""
    try:
        value = function(given)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  # The user's function may raise anything.
        count = given.num_rows
        if count == 1:
            nothing = [pa.nulls(1, type_) for _, type_ in columns or ()]
            return nothing, pa.array([False]), {0: told(name, error)}
        half = count // 2
    else:
        return declared(name, value, columns, given.num_rows)
    first = by_batches(name, function, columns, given.slice(0, half))
    second = by_batches(name, function, columns, given.slice(half))
    return (
        [pa.concat_arrays(pair) for pair in zip(first[0], second[0], strict=True)],
        pa.concat_arrays([first[1], second[1]]),
        first[2] | {half + at: error for at, error in second[2].items()},
    )


def declared(name: str, value: Any, columns: Columns | None, count: int) -> Found:
    """Return what a function of batches gave, if it is what it declared; else raise."""
    if columns is None:
        if isinstance(value, pa.ChunkedArray):
            value = value.combine_chunks()
        if not isinstance(value, pa.Array) or not pa.types.is_boolean(value.type):
            raise bad(name, f"gave {kind_of(value)} and not a BooleanArray")
        if len(value) != count:
            raise bad(name, f"gave {len(value)} rows for {count}")
        return [], value.fill_null(False), {}
    if not isinstance(value, pa.RecordBatch):
        raise bad(name, f"gave {kind_of(value)} and not a RecordBatch")
    if value.num_rows != count:
        raise bad(name, f"gave {value.num_rows} rows for {count}")
    arrays = []
    for column, type_ in columns:
        at = value.schema.get_field_index(column)
        if at < 0:
            raise bad(name, f"did not give the column {column}, or twice")
        array = value.column(at)
        if not same(array.type, type_):
            raise bad(name, f"gave the column {column} as {array.type}, declared as {type_}")
        arrays.append(array.cast(type_))
    return arrays, pa.array([True] * count, pa.bool_()), {}


def same(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column is of the declared type; nulls and Arrow's long forms are of it, too."""
    if pa.types.is_null(found):
        return True
    long = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return bool(long.get(found, found) == long.get(wanted, wanted))


def kind_of(value: Any) -> str:
    """Return the type of a value, for a message."""
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return f"an array of {value.type}"
    return type(value).__name__


def bad(name: str, what: str) -> BadResult:
    """Return the error that ends the job."""
    return BadResult(f"{_BAD_FUNCTION} The function {name} {what}")


def told(name: str, error: Exception) -> str:
    """Return what a function raised, as data."""
    try:
        words = str(error)
    except Exception:  # noqa: BLE001  # An exception of the user's need not be able to tell.
        words = ""
    # A surrogate would not pass as UTF-8.
    words = words[:_LONGEST].encode("utf-8", "replace").decode()
    return json.dumps({"function": name, "error": type(error).__name__, "message": words})


def spread(found: Found | None, columns: Columns | None, there: pa.Array) -> pa.Array:
    """Return the results as a struct for every row, null where the function was not called."""
    types = [type_ for _, type_ in columns or ()]
    names = [*(f"c{at}" for at in range(len(types))), "pass", "error"]
    if found is None:
        arrays = [pa.nulls(len(there), type_) for type_ in [*types, pa.bool_(), pa.string()]]
        return pa.StructArray.from_arrays(arrays, names=names)
    cells, passed, errors = found
    noted = pa.array([errors.get(at) for at in range(len(passed))], pa.string())
    arrays = [*cells, passed, noted]
    if len(passed) < len(there):
        at = iter(range(len(passed)))
        places = pa.array([next(at) if each else None for each in there.to_pylist()], pa.int64())
        arrays = [array.take(places) for array in arrays]
    return pa.StructArray.from_arrays(arrays, names=names)


@contextlib.contextmanager
def limited(name: str, seconds: float) -> Iterator[None]:
    """End what runs within after so many seconds, where the process can be told to."""
    able = hasattr(signal, "setitimer")
    if not able or threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(*_: object) -> None:
        raise OverTime

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except OverTime:
        raise TimeoutError(f"The function {name} took longer than {seconds:g} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
