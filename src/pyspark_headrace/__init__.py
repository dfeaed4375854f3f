"""
Where Spark finds `format("headrace")`: it imports every module named `pyspark_*` (S11).

Nothing else is here: sources, options and readers are in `headrace.spark_source`.
"""

from headrace.spark_source.source import HeadraceSource as DefaultSource

__all__ = ["DefaultSource"]
