"""
Filters and transforms in a configuration, and user functions as parts of it.

The types have the names that users of other engines know. They do the same as the constructors of
the steps.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.config.plugins import Part
from headrace.config.schema import (
    Anything,
    Boolean,
    Choice,
    Duration,
    Entries,
    Integer,
    Key,
    ListOf,
    Text,
    Values,
)
from headrace.errors import BadPart
from headrace.pipeline import steps

if TYPE_CHECKING:
    from headrace.targets.target import Target


MODES = ("baseline_then_changes", "baseline", "changes")
ON_SCHEMA_CHANGE = ("continue", "rebaseline", "stop")
ON_FAILURE = ("isolate", "stop_source", "stop_all")
LAG_POLICIES = ("block", "error", "release")
MAX_PER_BATCH = 20
MAX_KEYS = 1_000
"""The same as in `definition`, which is not imported here because it loads Arrow."""


def imported(call: str) -> Any:
    """
    Return the function that `module:function` names; raise `BadPart` if there is none.

    Modules in the current folder are found, too; the search path of a command lacks it.
    """
    module, colon, name = call.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        # At the end, so that a file in this folder does not shadow an installed module.
        sys.path.append(here)
    try:
        found: Any = import_module(module) if colon and module and name else None
        for part in name.split(".") if found is not None else ():
            found = getattr(found, part)
    except Exception as error:  # an import may raise anything
        raise BadPart(
            "The function cannot be imported",
            call=call,
            error=type(error).__name__,
            remedy="Write it as module:function. The engine must be able to import the module.",
        ) from error
    if not callable(found):
        raise BadPart("This is not a function", call=call, remedy="Write it as module:function.")
    return found


def _frame(name: str, values: Values) -> steps.Transform:
    return steps.frame(imported(values["call"]))


def _foreach_batch(name: str, values: Values) -> Target:
    call = imported(values["call"])
    from headrace.pipeline.foreach import foreach_batch

    return foreach_batch(call)


def _function(name: str, values: Values) -> steps.Function:
    return steps.function(
        values["call"],
        columns=values.get("columns"),
        reads=values["reads"],
        batch=values["batch"],
        time_limit=values["time_limit"],
    )


def _mask(name: str, values: Values) -> steps.Transform:
    return steps.mask(*values["fields"], keep=values["keep"], with_=values["with"])


_FIELD = Key("field", Text("status"), "The column.", required=True)
_FIELDS = Key("fields", ListOf(Text(), 1, "[card_number]"), "The columns.", required=True)
_CALL = Key(
    "call",
    Text('"module:function"'),
    "The function, as `package.module:name`; may be a file in the engine's current folder.",
    required=True,
)
_CALLED = (
    _CALL,
    Key("reads", ListOf(Text()), "The columns that it gets (default all)."),
    Key(
        "batch",
        Boolean(),
        "Whether the function takes `pyarrow.RecordBatch`es instead of rows.",
        default=False,
    ),
    Key("time_limit", Duration(), "Maximum time for one Arrow batch.", default="60s"),
)

FILTERS = {
    "field-equals": Part(
        "Keeps rows whose field has exactly this value.",
        (
            _FIELD,
            Key(
                "value",
                Anything(),
                "The value, in the column's type, or null.",
                required=True,
            ),
        ),
        lambda _, values: steps.equals(values["field"], values["value"]),
    ),
    "field-prefix": Part(
        "Keeps rows whose field begins with a text.",
        (
            _FIELD,
            Key("prefix", Text("EU-"), "The text that the field must begin with.", required=True),
        ),
        lambda _, values: steps.prefix(values["field"], values["prefix"]),
    ),
    "field-regex": Part(
        "Keeps rows whose field contains a match of a pattern.",
        (
            _FIELD,
            Key("pattern", Text('"^EU-[0-9]+"'), "The pattern, in Java's syntax.", required=True),
        ),
        lambda _, values: steps.regex(values["field"], values["pattern"]),
    ),
    "where": Part(
        "Keeps rows for which a condition is true.",
        (
            Key(
                "condition",
                Text('"total > 10"'),
                "A Spark SQL condition over the columns.",
                required=True,
            ),
        ),
        lambda _, values: steps.where(values["condition"]),
    ),
    "function": Part("Keeps rows for which a function returns true.", _CALLED, _function),
}

TRANSFORMS = {
    "drop-fields": Part(
        "Drops columns.", (_FIELDS,), lambda _, values: steps.drop(*values["fields"])
    ),
    "rename-fields": Part(
        "Renames columns, all at once.",
        (
            Key(
                "mapping",
                Entries(Text(), "OLD", least=1),
                "The new names by the old ones: `{ cust = customer_id }`.",
                required=True,
            ),
        ),
        lambda _, values: steps.Rename(tuple(values["mapping"].items())),
    ),
    "derive": Part(
        "Computes columns from the row.",
        (
            Key(
                "columns",
                Entries(Text('"qty * price"'), "COLUMN", least=1),
                'Spark SQL by column: `{ total = "qty * price" }`.',
                required=True,
            ),
        ),
        lambda _, values: steps.Derive(tuple(values["columns"].items())),
    ),
    "add-timestamp": Part(
        "Adds a column with a time of the change, never the current time; rows of a baseline have"
        " the time at which their copy began.",
        (
            _FIELD,
            Key(
                "of",
                Choice(("commit", "capture")),
                "The time of the commit, or the time at which the change was written to the log.",
                default="commit",
            ),
        ),
        lambda _, values: steps.timestamp(values["field"], values["of"]),
    ),
    "mask": Part(
        "Replaces the characters of a text, except the last few.",
        (
            _FIELDS,
            Key("keep", Integer(0), "Number of characters at the end to keep.", default=0),
            Key("with", Text('"*"'), "The character to use instead.", default="*"),
        ),
        _mask,
    ),
    "function": Part(
        "Computes columns with a function.",
        (
            *_CALLED,
            Key(
                "columns",
                Entries(Text("double"), "COLUMN", least=1),
                "The columns that it returns, with their SQL types: `{ total = double }`.",
                required=True,
            ),
        ),
        _function,
    ),
    "frame": Part(
        "Applies a function to the DataFrame of each batch; it must keep one row a change.",
        (_CALL,),
        _frame,
    ),
}

TARGETS = {
    "foreach-batch": Part(
        "Calls a function `f(df, batch)` with each batch as a DataFrame.", (_CALL,), _foreach_batch
    ),
}
