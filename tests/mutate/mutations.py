"""
All breaks.

Each is an exact piece of text and what takes its place. When the code changes so that the
text is no longer there, that is an error and not a mutation that nobody noticed.
"""

from __future__ import annotations

from tests.mutate.of_control import OF_CONTROL
from tests.mutate.of_log import OF_LOG
from tests.mutate.of_rows import OF_ROWS

MUTATIONS = (*OF_LOG, *OF_CONTROL, *OF_ROWS)
