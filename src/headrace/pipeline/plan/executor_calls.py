"""
A user's function, called on an executor.

This module is sent to executors, because Headrace may not be installed there. So it uses only the
standard library and Arrow, and plain functions, which are pickled by value.

A row for which a function fails must not stop its batch (S2). The function is called with all rows.
If a function of batches raises, it is called again with halves until each failing row is alone. The
exception comes back as data, next to the row. Errors that no row caused are raised, and fail the
job: a result of the wrong length or type from a function of batches, a function that cannot be
loaded, a time limit, too little memory. Such an error contains names and counts, never values.
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
"""Maximum number of characters that are kept of a function's error message."""

_BAD_FUNCTION = "[headrace:pipeline.bad_function]"
"""Identifies our error in the text, which is all that Spark passes on."""

Columns = Sequence[tuple[str, pa.DataType]]
"""The columns that a function declares."""

Errors = dict[int, str]
"""Row number → the exception of the function for that row, as JSON."""


class BadResult(Exception):
    """The function returned something that it did not declare, or cannot be loaded."""


class OverTime(BaseException):
    """The time limit is over. Not an `Exception`, so that a function does not catch it."""


def caller(
    name: str,
    load: Callable[[], Callable[..., Any]],
    columns: Columns | None,
    batch: bool,
    time_limit: float,
) -> Callable[[pa.Array], pa.Array]:
    """
    Return what Spark calls with each Arrow batch: a struct of the columns read → of results.

    The result's fields are the declared columns as `c0`, `c1`, …, then `pass` and `error`. If
    the struct is null, the function is not called, and all of them are null.
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
    except Exception as error:  # noqa: BLE001  # an import may raise anything
        raise BadResult(
            f"{_BAD_FUNCTION} The function {name} cannot be loaded on an executor,"
            f" error={type(error).__name__}"
        ) from None
    if not callable(found):
        raise BadResult(f"{_BAD_FUNCTION} {name} is not a function")
    return found


def imported(path: str) -> Callable[[], Any]:
    """Return a loader that imports `package.module:name`."""

    def load() -> Any:
        module, _, inner = path.partition(":")
        found = importlib.import_module(module)
        for part in inner.split("."):
            found = getattr(found, part)
        return found

    return load


def unpickled(data: bytes) -> Callable[[], Any]:
    """Return a loader that unpickles the function from these bytes."""

    def load() -> Any:
        return pickle.loads(data)

    return load


Found = tuple[list[pa.Array], pa.Array, Errors]
"""The declared columns, whether each row passes, and the exceptions."""


def by_rows(
    name: str, function: Callable[..., Any], columns: Columns | None, given: pa.RecordBatch
) -> Found:
    """Call a function of rows with each row."""
    values: list[Any] = []
    errors: Errors = {}
    for at, row in enumerate(rows_of(given)):
        value = None
        try:
            value = checked(result_of(function, row), columns)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  # user code may raise anything
            errors[at] = failure_json(name, error)
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
    """Return the function's result for a row; raise if the row could not be converted."""
    if isinstance(row, Exception):
        raise row
    return function(row)


def rows_of(given: pa.RecordBatch) -> list[Any]:
    """Return the rows as dicts, and an exception for each row that Python cannot represent."""
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
    """Return the result of a function of rows; raise if it is not as declared."""
    if columns is None:
        if hasattr(value, "dtype") and hasattr(value, "item"):
            value = value.item()
        if value is not None and not isinstance(value, bool):
            raise TypeError(f"a filter must return true or false, not {type(value).__name__}")
        return value
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise TypeError(
            f"a function of rows must return a dict or None, not {type(value).__name__}"
        )
    cells = []
    for column, type_ in columns:
        if column not in value:
            raise KeyError(f"the declared column {column} is missing")
        cell = value[column]
        if cell is not None and not fits(cell, type_):
            raise TypeError(f"the column {column} must be {type_}, not {type(cell).__name__}")
        cells.append(cell)
    return cells


def fits(value: Any, type_: pa.DataType) -> bool:
    """Return whether a value has this type; Arrow would silently truncate 1.5 to 1."""
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
        # With a time zone only if the type has one: nothing is guessed.
        whole = isinstance(value, datetime.datetime)
        return whole and (value.tzinfo is None) == (type_.tz is None)
    if pa.types.is_date(type_):
        return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
    return True


def array_of(
    name: str, column: str, cells: list[Any], type_: pa.DataType, errors: Errors
) -> pa.Array:
    """Return the cells as an array; a cell that does not fit becomes null and an error."""
    try:
        return pa.array(cells, type_)
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        found = []
        for at, cell in enumerate(cells):
            try:
                found.append(pa.array([cell], type_))
            except (ValueError, TypeError, OverflowError, pa.ArrowException):
                errors.setdefault(
                    at,
                    failure_json(
                        name, TypeError(f"a value does not fit the column {column} of type {type_}")
                    ),
                )
                found.append(pa.nulls(1, type_))
        return pa.concat_arrays(found)


def by_batches(
    name: str, function: Callable[..., Any], columns: Columns | None, given: pa.RecordBatch
) -> Found:
    """Call a function of batches with all rows, or with halves if it raises."""
    try:
        value = function(given)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  # user code may raise anything
        count = given.num_rows
        if count == 1:
            nothing = [pa.nulls(1, type_) for _, type_ in columns or ()]
            return nothing, pa.array([False]), {0: failure_json(name, error)}
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
    """Return the result of a function of batches; raise if it is not as declared."""
    if columns is None:
        if isinstance(value, pa.ChunkedArray):
            value = value.combine_chunks()
        if not isinstance(value, pa.Array) or not pa.types.is_boolean(value.type):
            raise bad(name, f"returned {kind_of(value)} instead of a BooleanArray")
        if len(value) != count:
            raise bad(name, f"returned {len(value)} rows for {count}")
        return [], value.fill_null(False), {}
    if not isinstance(value, pa.RecordBatch):
        raise bad(name, f"returned {kind_of(value)} instead of a RecordBatch")
    if value.num_rows != count:
        raise bad(name, f"returned {value.num_rows} rows for {count}")
    arrays = []
    for column, type_ in columns:
        at = value.schema.get_field_index(column)
        if at < 0:
            raise bad(name, f"did not return the column {column}, or returned it twice")
        array = value.column(at)
        if not same(array.type, type_):
            raise bad(name, f"returned the column {column} as {array.type}, declared as {type_}")
        arrays.append(array.cast(type_))
    return arrays, pa.array([True] * count, pa.bool_()), {}


def same(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a column has the declared type; nulls and Arrow's large types match, too."""
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
    """Return the error that fails the job."""
    return BadResult(f"{_BAD_FUNCTION} The function {name} {what}")


def failure_json(name: str, error: Exception) -> str:
    """Return the exception of a function as JSON."""
    try:
        words = str(error)
    except Exception:  # noqa: BLE001  # str() of a user's exception may fail
        words = ""
    # A lone surrogate cannot be encoded as UTF-8.
    words = words[:_LONGEST].encode("utf-8", "replace").decode()
    return json.dumps({"function": name, "error": type(error).__name__, "message": words})


def spread(found: Found | None, columns: Columns | None, there: pa.Array) -> pa.Array:
    """Return the results as a struct for every row; null if the function was not called."""
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
        indexes = pa.array([next(at) if each else None for each in there.to_pylist()], pa.int64())
        arrays = [array.take(indexes) for array in arrays]
    return pa.StructArray.from_arrays(arrays, names=names)


@contextlib.contextmanager
def limited(name: str, seconds: float) -> Iterator[None]:
    """Raise in the body after this many seconds, if the platform supports it."""
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
