"""
Build the wheels of both distributions: `headrace-core`, which has the code, and `headrace`.

Wheels of before are removed from the folder, so that `pip install dist/*.whl` means these two.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = (ROOT, ROOT / "packaging" / "headrace")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build both, and print where they are and how large."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="dist/ by default")
    asked = parser.parse_args(arguments)
    for wheel in build(asked.into.absolute()):
        print(f"{wheel}  {wheel.stat().st_size / 1000:,.0f} kB")
    return 0


def build(folder: Path) -> list[Path]:
    """Build both wheels into a folder, and return them: headrace-core first."""
    for old in folder.glob("headrace*.whl"):
        old.unlink()
    for project in PROJECTS:
        words = ("build", "--target", "wheel", "--directory", str(folder))
        done = subprocess.run(
            [sys.executable, "-m", "hatchling", *words],
            cwd=project,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(done.stdout + done.stderr)
    return [next(folder.glob(f"{name}-*.whl")) for name in ("headrace_core", "headrace")]


if __name__ == "__main__":
    sys.exit(main())
