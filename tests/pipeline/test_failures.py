"""Whether an error of Spark is caused by a row, without a JVM."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from headrace.errors import HeadraceError, JobCancelled, JobFailed, RowFailed, SparkGone
from headrace.spark_session.errors import Cause, causes_of, is_row_level, running, stage_failure

SPARK = "org.apache.spark.SparkException"
DIVIDE = Cause("org.apache.spark.SparkArithmeticException", "DIVIDE_BY_ZERO", "22012")
LOST = (
    "Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure:"
    " Lost task 0.3 in stage 3.0 (TID 7) (10.0.0.1 executor 3): "
)

OF_A_ROW = {
    "alone": [DIVIDE],
    "awaited": [Cause(SPARK), DIVIDE],
    "of a stage": [Cause(SPARK), Cause(DIVIDE.kind), DIVIDE],
    "while writing": [Cause(SPARK, "TASK_WRITE_FAILED", "58030"), DIVIDE],
    "caused by a parser": [
        Cause("org.apache.spark.SparkDateTimeException", "CANNOT_PARSE_TIMESTAMP", "22007"),
        Cause("java.time.format.DateTimeParseException"),
    ],
    "raised": [Cause("org.apache.spark.SparkRuntimeException", "USER_RAISED_EXCEPTION", "P0001")],
    "a map's key": [Cause(SPARK, "DUPLICATED_MAP_KEY", "23505")],
    "a number's format": [Cause(SPARK, "INVALID_FORMAT.MISMATCH_INPUT", "42601")],
    "an array too long": [Cause(SPARK, "COLLECTION_SIZE_LIMIT_EXCEEDED.PARAMETER", "54000")],
    "only told": [Cause(SPARK), *stage_failure(
        f"{LOST}{DIVIDE.kind}: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012", caused=False
    )],
    "a value that says otherwise": [Cause(SPARK), *stage_failure(
        f"{LOST}org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value"
        " 'java.lang.OutOfMemoryError' of ExecutorLostFailure … SQLSTATE: 22018", caused=False
    )],
}  # fmt: skip

NOT_OF_A_ROW = {
    "nothing known": [],
    "no condition": [Cause(SPARK), Cause(SPARK)],
    "missing file": [
        Cause(SPARK, "FAILED_READ_FILE.FILE_NOT_EXIST", "KD001"),
        Cause("java.io.FileNotFoundException"),
    ],
    "damaged file": [Cause(SPARK, "FAILED_READ_FILE.NO_HINT", "KD001"), DIVIDE],
    "another type in the file": [
        Cause(SPARK, "FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH", "KD001"),
        Cause("org.apache.spark.sql.execution.datasources.SchemaColumnConvertNotSupportedException"),
    ],
    "lost executor": [Cause(SPARK), Cause("ExecutorLostFailure")],
    "lost executor, and a row besides": [Cause(SPARK), Cause("ExecutorLostFailure"), DIVIDE],
    "lost executor, as told": [Cause(SPARK), *stage_failure(
        f"{LOST}ExecutorLostFailure (executor 3 exited caused by one of the running tasks)"
        " Reason: [DIVIDE_BY_ZERO] SQLSTATE: 22012", caused=False
    )],
    "lost shuffle": [Cause(SPARK), Cause("FetchFailed")],
    "out of memory": [Cause(SPARK), Cause("java.lang.OutOfMemoryError")],
    "out of memory within a row's error": [DIVIDE, Cause("java.lang.OutOfMemoryError")],
    "out of Spark's memory": [
        Cause("org.apache.spark.memory.SparkOutOfMemoryError", "UNABLE_TO_ACQUIRE_MEMORY", "53200")
    ],
    "stack": [Cause(SPARK), Cause("java.lang.StackOverflowError")],
    "full disk": [Cause(SPARK, "TASK_WRITE_FAILED", "58030"), Cause("java.io.IOException")],
    "no connection": [Cause(SPARK), Cause("java.net.ConnectException"), DIVIDE],
    "worker died": [Cause(SPARK), Cause(SPARK), Cause("java.io.EOFException")],
    "a user's Python": [
        Cause("org.apache.spark.api.python.PythonException", "PYTHON_EXCEPTION", "38000")
    ],
    "analysis": [Cause("org.apache.spark.sql.AnalysisException", "PATH_NOT_FOUND", "42K03")],
    "Spark's own bug": [Cause(SPARK, "INTERNAL_ERROR", "XX000"), DIVIDE],
    "killed": [Cause(SPARK), Cause("TaskKilled")],
}  # fmt: skip


@pytest.mark.meets("S2")
@pytest.mark.parametrize("causes", OF_A_ROW.values(), ids=list(OF_A_ROW))
def test_a_row_is_to_blame(causes: list[Cause]) -> None:
    assert is_row_level(causes)


@pytest.mark.meets("S2")
@pytest.mark.parametrize("causes", NOT_OF_A_ROW.values(), ids=list(NOT_OF_A_ROW))
def test_no_row_is_to_blame(causes: list[Cause]) -> None:
    assert not is_row_level(causes)


class Thrown:
    """An error of Java, as py4j shows it."""

    def __init__(self, cause: Cause, text: str = "", inner: Thrown | None = None) -> None:
        self._cause, self._text, self._inner = cause, text, inner

    def getClass(self) -> Thrown:
        return self

    def getName(self) -> str:
        return self._cause.kind

    def getMessage(self) -> str:
        return self._text

    def getCause(self) -> Thrown | None:
        return self._inner

    def getCondition(self) -> str | None:
        return self._spark_says(self._cause.condition)

    def getSqlState(self) -> str | None:
        return self._spark_says(self._cause.state)

    def _spark_says(self, what: str | None) -> str | None:
        if not self._cause.kind.startswith("org.apache.spark"):
            raise Py4JError("Method getCondition([]) does not exist")
        return what


def java_error(thrown: Any) -> Py4JJavaError:
    # Its own constructor asks a JVM.
    error = Py4JJavaError.__new__(Py4JJavaError)
    error.java_exception = thrown
    return error


def chain(*causes: Cause, text: str = "") -> Thrown:
    inner: Thrown | None = None
    for cause in reversed(causes):
        inner = Thrown(cause, text, inner)
    assert inner is not None
    return inner


def raised(error: BaseException) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught, running(pipeline="orders"):
        raise error
    assert caught.value.facts["pipeline"] == "orders"
    assert caught.value.__cause__ is None
    return caught.value


def test_the_chain_of_a_java_error_is_walked() -> None:
    thrown = chain(Cause(SPARK), DIVIDE, Cause("java.lang.ArithmeticException"))
    assert causes_of(java_error(thrown)) == [
        Cause(SPARK),
        DIVIDE,
        Cause("java.lang.ArithmeticException"),
    ]
    circle = Thrown(Cause(SPARK))
    circle._inner = circle
    assert len(causes_of(java_error(circle))) == 20


@pytest.mark.meets("S2")
def test_errors_become_ours() -> None:
    error = raised(java_error(chain(Cause(SPARK), DIVIDE, text="the value secret")))
    assert isinstance(error, RowFailed)
    assert error.facts["condition"] == "DIVIDE_BY_ZERO"
    assert "secret" not in str(error)

    lost = chain(Cause(SPARK), text=f"{LOST}ExecutorLostFailure (executor 3 exited)")
    error = raised(java_error(lost))
    assert isinstance(error, JobFailed)
    assert (error.facts["condition"], error.facts["error"]) == ("unknown", "ExecutorLostFailure")

    missing = chain(*NOT_OF_A_ROW["missing file"])
    error = raised(java_error(missing))
    assert isinstance(error, JobFailed)
    assert error.facts["condition"] == "FAILED_READ_FILE.FILE_NOT_EXIST"

    cancelled = chain(Cause(SPARK), Cause(SPARK, "SPARK_JOB_CANCELLED", "XXKDA"))
    assert isinstance(raised(java_error(cancelled)), JobCancelled)

    plain = raised(PySparkException("no JVM in it"))
    assert type(plain) is JobFailed
    assert type(raised(Py4JError("Method x([]) does not exist\nTrace:"))) is JobFailed


@pytest.mark.meets("S2")
def test_a_dead_jvm_is_told_from_a_failed_job() -> None:
    cut_off = Py4JError("An error occurred while calling o1.x")
    for error in (Py4JNetworkError("x"), cut_off, ConnectionRefusedError()):
        assert isinstance(raised(error), SparkGone)

    class Dies(Thrown):
        def getClass(self) -> Thrown:
            raise Py4JNetworkError("gone meanwhile")

    assert isinstance(raised(java_error(Dies(DIVIDE))), SparkGone)


def test_what_is_not_sparks_passes() -> None:
    with pytest.raises(ZeroDivisionError), running():
        raise ZeroDivisionError
    with pytest.raises(RowFailed, match="ours"), running():
        raise RowFailed("ours")
