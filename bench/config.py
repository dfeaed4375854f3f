"""
What it takes to read a configuration: 100 KB of what people write, with all its syntax.

The floor is what `json.loads` takes for the same values written as JSON: it keeps no places,
knows no comments and is written in C, so it is only a measure of the machine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from bench.harness import Result, Rounds, at_most
from headrace.config.hocon import parse

SIZE = 100 * 1024

_PIPELINE = """
pipelines.p{number} {{
  source = shop
  tables = [orders, "public.*", "!public.audit_*"]   # patterns
  filters    = [{{ type = field-equals, field = status, value = paid }}]
  transforms = [{{ type = drop-fields, fields = [card_number, ${{defaults.hidden}}] }}]
  target {{ type = indexed-memory, lookup_fields = [id], indexes.by_name {{ fields = [name] }} }}
  error_handling = ${{defaults.error_handling}} {{ max_retries = {number} }}
  linger = 250 ms   // a duration
}}
"""
_DEFAULTS = """
defaults { hidden = iban, error_handling { on_persistent_failure = isolate, max_retries = 5 } }
"""


def text() -> str:
    """Return a configuration of some 100 KB."""
    written = _DEFAULTS
    number = 0
    while len(written) < SIZE:
        written += _PIPELINE.format(number=number)
        number += 1
    return written


def run(*, quick: bool) -> list[Result]:
    """Read it several times, in turns with JSON."""
    written = text()
    same = json.dumps(parse(written, "bench.conf").plain())
    rounds = Rounds()
    for _ in range(3 if quick else 9):
        rounds.floor.append(_milliseconds(lambda: json.loads(same)))
        rounds.ours.append(_milliseconds(lambda: parse(written, "bench.conf")))
    floor_is = "json.loads of the same values"
    return [rounds.result("config.parse_100kb_ms", "ms", at_most(500), floor_is)]


def _milliseconds(work: Callable[[], object]) -> float:
    # The process's own time: who else is busy is not what is measured.
    begin = time.process_time()
    work()
    return 1000 * (time.process_time() - begin)
