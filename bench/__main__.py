"""`python -m bench [--quick] [--only AREA]`: measure, show, keep."""

from __future__ import annotations

import argparse
import sys

from bench import harness


def main() -> int:
    """Run the areas asked for, one after the other."""
    parser = argparse.ArgumentParser(prog="bench")
    parser.add_argument("--quick", action="store_true", help="one round, shorter windows")
    parser.add_argument("--only", choices=["memory", "spine", "demo"], help="one area")
    asked = parser.parse_args()
    about = harness.machine()
    results: list[harness.Result] = []
    noisy = False
    if asked.only in (None, "memory"):
        from bench import memory

        results += memory.run(quick=asked.quick)
    if asked.only in (None, "spine"):
        from bench import spine

        found, noisy = spine.run(quick=asked.quick)
        results += found
    if asked.only in (None, "demo"):
        from bench import demo

        results += demo.run(quick=asked.quick)
    harness.show(results, noisy=noisy)
    if asked.only is None or asked.quick:
        harness.keep(results, about, quick=asked.quick, noisy=noisy)
    return 0


if __name__ == "__main__":
    sys.exit(main())
