"""`python -m headrace`: the same as the command `headrace`."""

from __future__ import annotations

from headrace.cli.main import run

if __name__ == "__main__":
    run()
