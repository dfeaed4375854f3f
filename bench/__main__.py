"""`python -m bench [--quick] [--only AREA]`: measure, show, keep."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable

from bench import (
    cli,
    cluster,
    config,
    dead_letters,
    demo,
    direct,
    freshness,
    harness,
    log,
    memory,
    metrics,
    observer,
    postgres,
    query,
    restart,
    serving,
    spark_source,
    spine,
    sqlite,
    table,
)
from bench.results import keep, notes


def _quiet(run: Callable[..., list[harness.Result]]) -> Area:
    return lambda *, quick: (run(quick=quick), False)


Area = Callable[..., tuple[list[harness.Result], bool]]
AREAS: dict[str, Area] = {
    "config": _quiet(config.run),
    "cli": _quiet(cli.run),
    "log": _quiet(log.run),
    "memory": _quiet(memory.run),
    "metrics": _quiet(metrics.run),
    "serving": _quiet(serving.run),
    "observer": _quiet(observer.run),
    "deadletters": _quiet(dead_letters.run),
    "spine": spine.run,
    "direct": _quiet(direct.run),
    "pg": postgres.run,
    "query": _quiet(query.run),
    "sqlite": _quiet(sqlite.run),
    "spark_source": _quiet(spark_source.run),
    "table": _quiet(table.run),
    "freshness": _quiet(freshness.run),
    "demo": _quiet(demo.run),
    "cluster": _quiet(cluster.run),
    "restart": _quiet(restart.alone),
}
PARTS = ("restart",)
"""Areas that another one has in it: measured by themselves where they are asked for."""


def main() -> int:
    """Run the areas asked for, one after the other."""
    parser = argparse.ArgumentParser(prog="bench")
    parser.add_argument("--quick", action="store_true", help="one round, shorter windows")
    parser.add_argument("--only", choices=list(AREAS), help="one area")
    asked = parser.parse_args()
    about = harness.machine()
    results: list[harness.Result] = []
    noisy = False
    failed = []
    for name, area in AREAS.items():
        if asked.only == name or (asked.only is None and name not in PARTS):
            try:
                found, area_noisy = area(quick=asked.quick)
            except AssertionError as error:
                # What the other areas found is worth keeping; this one is told at the end.
                failed.append(f"{name}: {error or 'a check failed'}")
                traceback.print_exc()
                continue
            results += found
            noisy = noisy or area_noisy
    harness.show(results, noisy=noisy)
    keep(results, about, quick=asked.quick, noisy=noisy)
    known = notes()
    for each in results:
        # A goal that is known to be missed has its reason; a noisy machine proves nothing.
        if each.met is False and not noisy and each.name not in known:
            failed.append(f"{each.name} misses its goal, and notes.toml does not say why")
    for text in failed:
        print(f"failed: {text}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
