"""
Where Spark finds `format("headrace")`: it imports every module named `pyspark_*` (S11).

Nothing else is here: sources, options and readers are in `headrace.pipeline.reading`.
"""

from headrace.pipeline.reading.source import HeadraceSource as DefaultSource

__all__ = ["DefaultSource"]
