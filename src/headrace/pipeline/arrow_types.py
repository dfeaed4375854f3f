"""The Arrow type that holds values of a Spark type, on every version of PySpark."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import to_arrow_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

# In 4.1 an instant is in UTC unless one says otherwise; from 4.2 on its zone has to be named.
_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}
)


def arrow_type(type: DataType) -> pa.DataType:
    """Return the type, with instants in UTC; raise PySpark's error where there is none."""
    return to_arrow_type(type, **_IN_UTC)
