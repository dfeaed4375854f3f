"""
Random batches, each computed directly and by a job: rows and failures must be the same.

    python -m tests.pipeline.both_ways --batches 5000 --seed 1

A round is a pipeline over a table with a column of each kind (S6), and a few dozen batches of it.
A seed decides everything.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.changelog.change import Change, Op
from headrace.changelog.schema import TableSchema
from headrace.changelog.values import (
    MAX_INT32,
    MAX_INT64,
    MIN_INT32,
    MIN_INT64,
    BeyondDate,
    BeyondTime,
    BeyondTimestamp,
    Interval,
    OffsetTime,
)
from headrace.observe.logs import log_into
from headrace.pipeline.definition import DeadLetters, Pipeline
from headrace.pipeline.failed_rows import Workspace
from headrace.pipeline.result import JobResult, same_results
from headrace.pipeline.runner import SparkRunner
from headrace.pipeline.steps import (
    derive,
    drop,
    equals,
    mask,
    prefix,
    regex,
    rename,
    timestamp,
    where,
)
from tests.pipeline.making import REPLACING, TRAITS, batch, pipeline, table

if TYPE_CHECKING:
    from headrace.spark_session.session import Spark

# --- a table with a column of each kind -----------------------------------------------------------

COLUMNS = (
    ("id", "int64"),
    ("small", "int16"),
    ("qty", "int32"),
    ("big", "int64"),
    ("f4", "float32"),
    ("f8", "float64"),
    ("flag", "boolean"),
    ("price", "decimal(12,2)"),
    ("d4", "decimal(4,0)"),
    ("d38", "decimal(38,10)"),
    ("num", "numeric"),
    ("status", "text"),
    ("note.x", "text"),
    ("doc", "json"),
    ("raw", "bytes"),
    ("odd", "text_bytes"),
    ("uid", "uuid"),
    ("day", "date"),
    ("at", "timestamp"),
    ("atz", "timestamptz"),
    ("tod", "time"),
    ("todz", "timetz"),
    ("span", "interval"),
    ("any", "variant"),
)
EVERYTHING = table(*COLUMNS, name="everything")
TWO_KEYS = table(*COLUMNS, key=("id", "uid"), name="everything")
HALF_BEFORE = replace(EVERYTHING, whole_before=False)

_TEXTS = (
    "", "paid", "open", "void", "42", "-1", "1.5", "x", "2026-02-30", "2026-02-28", "ä日本🦊",
    "a'b\"c\\d", " 7 ", "NaN", "true", "1e400", "nul\0", "12:30", "P1D", "9" * 40,
)  # fmt: skip
_DOCS = ('{"a": 1, "b": [1, 2, {"c": null}]}', "[]", "null", '"x"', '{"a": "q"}', "{", "")
_NUMERICS = ("0", "1.50", "NaN", "Infinity", "-Infinity", "1" * 60, "-0.001")
_DAYS = (
    date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 10), date(2026, 2, 28),
    BeyondDate(MIN_INT32), BeyondDate(MAX_INT32), BeyondDate(-1_000_000),
)  # fmt: skip
_BEYOND_INSTANTS = (BeyondTimestamp(MAX_INT64, utc=True), BeyondTimestamp(-(10**18), utc=True))
_EPOCH = datetime(1970, 1, 1)


def _instants(chance: random.Random) -> datetime:
    return _EPOCH + timedelta(microseconds=chance.randrange(-60_000_000_000_000_000, 10**17))


VALUES: dict[str, Callable[[random.Random], Any]] = {
    "int16": lambda r: r.choice([0, 1, -1, 7, 32767, -32768, r.randrange(-300, 300)]),
    "int32": lambda r: r.choice([0, 0, 1, 2, -1, MAX_INT32, MIN_INT32, r.randrange(-99, 99)]),
    "int64": lambda r: r.choice([0, 1, 3, MAX_INT64, MIN_INT64, r.randrange(-(10**12), 10**12)]),
    "float32": lambda r: r.choice([0.0, -0.0, 1.5, float("nan"), float("inf"), -(2.0**100)]),
    "float64": lambda r: r.choice(
        [0.0, -0.0, 1e308, 5e-324, float("nan"), float("-inf"), r.uniform(-1e6, 1e6)]
    ),
    "boolean": lambda r: r.random() < 0.5,
    "decimal(12,2)": lambda r: Decimal(r.choice([0, 1, 10**12 - 1, -5, r.randrange(10**6)])) / 100,
    "decimal(4,0)": lambda r: Decimal(r.choice([0, 9999, -9999, r.randrange(100)])),
    "decimal(38,10)": lambda r: Decimal(r.choice([0, 10**38 - 1, -(10**38) + 1, 10**20])).scaleb(
        -10
    ),
    "numeric": lambda r: Decimal(r.choice(_NUMERICS)),
    "text": lambda r: r.choice(_TEXTS),
    "json": lambda r: r.choice(_DOCS),
    "bytes": lambda r: r.choice([b"", b"\0\xff", b"paid", r.randbytes(20)]),
    "text_bytes": lambda r: r.choice([b"\xff\xfe", b"abc", b""]),
    "uuid": lambda r: UUID(int=r.choice([0, 2**128 - 1, r.getrandbits(128)])),
    "date": lambda r: r.choice(_DAYS),
    "timestamp": lambda r: r.choice(
        [_instants(r), _instants(r), BeyondTimestamp(MAX_INT64), BeyondTimestamp(MIN_INT64)]
    ),
    "timestamptz": lambda r: r.choice(
        [*[_instants(r).replace(tzinfo=UTC)] * 2, *_BEYOND_INSTANTS],
    ),
    "time": lambda r: r.choice([clock_time(0), clock_time(23, 59, 59, 999_999), BeyondTime()]),
    "timetz": lambda r: OffsetTime(r.choice([0, 86_400_000_000, 1]), r.choice([0, -43_200, 3600])),
    "interval": lambda r: Interval(
        r.choice([0, -1, MAX_INT32]), r.randrange(-9, 9), r.choice([0, 7])
    ),
    "variant": lambda r: r.choice([1, -(2**63), 2.5, float("inf"), "x", "", b"\0", b""]),
}

TAME: dict[str, Any] = {
    "small": 3, "qty": 2, "big": 40, "f4": 1.5, "f8": 2.5, "price": Decimal("9.99"),
    "d4": Decimal(12), "d38": Decimal("1.5"), "num": Decimal("1.5"), "status": "42",
    "note.x": "7", "doc": '{"a": 1}', "day": date(2026, 2, 28), "at": datetime(2026, 1, 2, 3, 4, 5),
    "atz": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), "raw": b"paid", "tod": clock_time(1),
}  # fmt: skip
"""Values for which no expression raises."""


def any_row(chance: random.Random, id: int, wild: float) -> dict[str, Any]:
    """Return a row; a share of its values is anything."""
    row: dict[str, Any] = {}
    for name, kind in COLUMNS:
        if name in TAME and chance.random() >= wild:
            row[name] = TAME[name]
        elif name == "id":
            row[name] = id
        else:
            row[name] = None if chance.random() < 0.2 else VALUES[kind](chance)
    row["uid"] = row["uid"] or UUID(int=id)
    return row


def any_changes(chance: random.Random, schema: TableSchema) -> list[Change]:
    """Return the changes of a batch, or of a part of one."""
    # A job takes long to find each row that fails.
    wild = chance.choice([0.0, 0.0, 0.0, 0.0, 0.01, 0.01, 0.2])
    ops = chance.choice(["i", "iu", "iud", "iudm", "iudmt", "d"])
    found = []
    for at in range(chance.choice([1, 1, 2, 5, 12] if wild else [1, 2, 12, 40])):
        op, id = chance.choice(ops), chance.randrange(1, 50)
        before, after = (any_row(chance, id, wild) for _ in range(2))
        after["uid"] = before["uid"]
        if op == "m":
            after["id"] = id + 100
        commit, ordinal, moment = 1 + at // 3, at % 3, 1_700_000_000_000_000 + at
        if op == "i":
            found.append(Change(Op.INSERT, commit, ordinal, moment, None, after))
        elif op in "um":
            lost = chance.random() < 0.1
            found.append(
                Change(Op.UPDATE, commit, ordinal, moment, None if lost else before, after)
            )
        elif op == "d":
            found.append(Change(Op.DELETE, commit, ordinal, moment, before, None))
        else:
            found.append(Change(Op.TRUNCATE, commit, ordinal, moment))
    return found


# --- pipelines ------------------------------------------------------------------------------------

CONDITIONS = (
    "price > 5", "qty > 0", "status in ('paid', 'shipped', '42')", "status <> 'void'", "flag",
    "100 / qty > 1", "cast(status as int) > 3", "big + 1 > big", "f8 > 1 or isnan(f8)",
    "day > date '2000-01-01'", "atz < timestamp '2030-01-01 00:00:00'", 
    "try_cast(num as double) > 1",
    "status rlike '^[0-9a-z]+$'", "get_json_object(doc, '$.a') = '1'", "length(raw) < 10",
    "`note.x` like '%7%'", "qty is distinct from small", "uid is not null", "any.kind >= 0",
    "span.days between -5 and 5", "exists(array(qty, small), x -> x > 1)",
)  # fmt: skip

EXPRESSIONS = (
    # of the guides and examples
    "qty * price", "price div qty", "qty * 100", "price / qty", "concat(status, '/', qty)",
    # arithmetic, by type
    "small + 30000S", "qty + qty", "big * big", "-small", "abs(qty)", "f4 * f8", "f8 / 0.0D",
    "f4 + f4", "price * d38", "d38 + d38", "d4 / price", "pmod(qty, small)", "round(price, 1)",
    "bround(f8, 2)", "sqrt(f8)", "ln(f8)", "try_divide(qty, small)", "greatest(qty, small, d4)",
    "cast(f8 as int)", "cast(big as int)", "cast(d38 as decimal(10,2))", "cast(price as int)",
    "shiftleft(qty, 3)", "qty & small", "conv(status, 10, 16)", "hash(qty, status, price, day)",
    # text
    "cast(status as int)", "cast(`note.x` as date)", "cast(`note.x` as double)", "upper(status)",
    "substring(status, 2, 3)", "regexp_replace(status, '([0-9]+)', '<$1>')", "initcap(`note.x`)",
    "split(status, '')", "lpad(status, 8, '*')", "translate(status, 'abc', 'xyz')",
    "element_at(split(status, 'a'), 2)", "format_string('%s-%d', status, qty)", "sha2(raw, 256)",
    "decode(raw, 'UTF-8')", "hex(uid)", "base64(raw)", "cast(raw as string)", "soundex(status)",
    "levenshtein(status, `note.x`)", "cast(status as boolean)", "to_number(status, '999')",
    # times
    "date_add(day, qty)", "year(day)", "date_format(atz, 'yyyy-MM-dd HH:mm:ss.SSSSSS')",
    "cast(at as date)", "atz + interval 1 month", "day + make_interval(0, 0, 0, qty)",
    "datediff(day, date '2000-01-01')", "to_timestamp(status)", "make_date(qty, 2, 29)",
    "unix_micros(atz)", "trunc(day, 'MM')", "cast(atz as string)", "cast(day as string)",
    "date_trunc('hour', atz)", "timestampadd(MINUTE, qty, atz)", "cast(big as timestamp)",
    # nested
    "array(qty, small)", "map(coalesce(status, 'x'), qty, 'k', small)",
    "named_struct('a', qty, 'b', status)",
    "transform(array(qty, 1), x -> 100 div x)", "from_json(doc, 'a int, b array<string>')",
    "get_json_object(doc, '$.b[0]')", "to_json(named_struct('q', qty, 'd', day, 's', status))",
    "array(qty)[small]", "element_at(array(1, 2), qty)", "map(status, qty)", "span.us + 1",
    "aggregate(array(qty, small), 0, (a, x) -> a + x)", "any", "todz.`offset` / qty",
    "sequence(1, qty % 5)",
    "struct(f4, f8)", "json_array_length(doc)", "sort_array(array(f8, 1.0D))",
    # errors on purpose
    "if(qty = 0, raise_error('zero'), qty)", "assert_true(qty <> 0)",
    "case when flag then 1 / qty else 0 end",
)  # fmt: skip


def any_pipeline(chance: random.Random) -> Pipeline:
    """Return a pipeline of some of these, as text and as `Column`s."""
    from pyspark.sql import functions as F

    columns = chance.random() < 0.4

    def given(text: str) -> Any:
        return F.expr(text) if columns and chance.random() < 0.7 else text

    filters = [where(given(chance.choice(CONDITIONS))) for _ in range(chance.choice([0, 0, 1, 2]))]
    if chance.random() < 0.2:
        filters.append(
            chance.choice([equals("status", "42"), prefix("status", "4"), regex("status", "[0-9]")])
        )
    transforms: list[Any] = []
    for number in range(chance.choice([0, 1, 1, 2])):
        chosen = chance.sample(EXPRESSIONS, chance.randrange(1, 5))
        # The result has no type of its own: `assert_true` is always null.
        made = {f"x{number}_{at}": given(_typed(text)) for at, text in enumerate(chosen)}
        transforms.append(derive(**made))
        if chance.random() < 0.2:
            # Over a column that was computed.
            transforms.append(derive(y=given(f"struct(x{number}_0)")))
    if chance.random() < 0.2:
        transforms.append(mask("status", keep=1))
    if chance.random() < 0.2:
        transforms.append(timestamp("seen"))
    if chance.random() < 0.2:
        transforms.append(rename(status="state", **{"note.x": "qty2"}))
    if chance.random() < 0.3:
        transforms.append(drop("f4", "any", "todz"))
    on_error: Any = DeadLetters(max_per_batch=100_000, max_keys=100_000)
    return pipeline("everything", filters=filters, transforms=transforms, on_error=on_error)


def _typed(text: str) -> str:
    return f"cast({text} as int)" if text.startswith("assert_true") else text


# --- rounds ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Outcome:
    """What some rounds compared."""

    batches: int = 0
    rows: int = 0
    by_job: int = 0
    """Batches that also the direct way computed by a job."""

    failures: Counter[str] = field(default_factory=Counter)


def play(spark: Spark, seed: int, batches: int, folder: Path, outcome: Outcome) -> None:
    """Compute the batches of one pipeline both ways; raise `AssertionError` if they differ."""
    chance = random.Random(seed)
    what = any_pipeline(chance)
    schema = chance.choice([EVERYTHING, EVERYTHING, TWO_KEYS, HALF_BEFORE])
    traits = chance.choice([TRAITS, REPLACING])
    runners = [
        SparkRunner(spark, scratch=Workspace(str(folder / way)), small_batches=way)
        for way in ("direct", "job")
    ]
    prepared = [runner.prepare(what, traits) for runner in runners]
    for each in prepared:
        each.output(schema)
    for number in range(batches):
        log = folder / f"{seed}-{number}"
        log.mkdir()
        segments = [any_changes(chance, schema) for _ in range(chance.choice([1, 1, 2]))]
        for commit, changes in enumerate(segments):
            segments[commit] = [
                replace(each, commit=each.commit + 100 * commit) for each in changes
            ]
        parts, facts = batch(log, schema, *segments)
        facts = replace(facts, every_change=chance.random() < 0.2)
        if chance.random() < 0.2:
            first = segments[0][0]
            facts = replace(facts, without=frozenset({(first.commit, first.ordinal)}))
        direct, job = (each.rows(parts, facts) for each in prepared)
        note = f"seed {seed}, batch {number}: {what.filters} {what.transforms}"
        assert same_results(direct, job), f"{note}\n{_difference(direct, job)}"
        assert direct.failures == job.failures, f"{note}\n{_difference(direct, job)}"
        outcome.batches += 1
        outcome.rows += direct.rows.num_rows
        outcome.by_job += not direct.direct
        outcome.failures.update(each.code for each in direct.failures)
    for each in prepared:
        each.close()


def _difference(direct: JobResult, job: JobResult) -> str:
    lines = [f"rows {direct.rows.num_rows} {job.rows.num_rows}"]
    lines += [f"direct {each}" for each in direct.failures if each not in job.failures][:5]
    lines += [f"job    {each}" for each in job.failures if each not in direct.failures][:5]
    for name, one, other in zip(
        direct.rows.schema.names, direct.rows.columns, job.rows.columns, strict=False
    ):
        if len(one) == len(other) and not one.equals(other):
            lines.append(f"{name}: {one.to_string(window=5)} {other.to_string(window=5)}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run so many batches; 1 if two results differ."""
    from headrace.spark_session.session import start_session

    parser = argparse.ArgumentParser(prog="python -m tests.pipeline.both_ways")
    parser.add_argument("--batches", type=int, default=5_000)
    parser.add_argument("--each", type=int, default=25, help="batches of one pipeline")
    parser.add_argument("--seed", type=int, default=1, help="of the first pipeline")
    asked = parser.parse_args(arguments)
    outcome, seed, wrong, failed = Outcome(), asked.seed, 0, 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-both-ways-") as folder:
        spark = start_session(Path(folder) / "spark")
        end_log = log_into(Path(folder) / "logs")
        while outcome.batches < asked.batches and wrong < 5:
            try:
                play(spark, seed, asked.each, Path(folder), outcome)
            except Exception as error:  # noqa: BLE001 - the rounds that follow may tell more
                wrong += 1
                print(f"WRONG seed {seed} {type(error).__name__} {error}"[:3000], flush=True)
            seed += 1
            failed = sum(outcome.failures.values())
            took = time.monotonic() - began
            print(f"{outcome.batches} batches, {failed} rows failed, {took:.0f} s", flush=True)
        spark.stop()
        end_log()
        for path in (Path(folder) / "logs").iterdir():
            print(path.read_text()[-3000:])
    print(
        f"{outcome.batches} batches with {outcome.rows} rows equal, {outcome.by_job} of them by a"
        f" job both ways; {failed} rows failed with the same condition:"
        f" {dict(outcome.failures.most_common())}; {wrong} pipelines differ; seeds {asked.seed} to"
        f" {seed - 1}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
