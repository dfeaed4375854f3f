"""Generate `src/headrace/v1` from `proto/`: the messages of the services, with their types."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
SRC = ROOT / "src"


def files() -> list[str]:
    """Return every .proto file of ours, as protoc names them."""
    return sorted(path.relative_to(PROTO).as_posix() for path in PROTO.rglob("*.proto"))


def compiled(*options: str) -> None:
    """Run protoc on every file; raises `RuntimeError` if it fails."""
    from grpc_tools import protoc

    included = resources.files("grpc_tools") / "_proto"
    if protoc.main(["protoc", f"-I{PROTO}", f"-I{included}", *options, *files()]):
        raise RuntimeError("protoc failed; its message is above")


def generated() -> Iterator[tuple[Path, str]]:
    """Yield each generated file in `src`, and its text."""
    with tempfile.TemporaryDirectory() as folder:
        compiled(f"--python_out={folder}", f"--pyi_out={folder}")
        for path in sorted(Path(folder).rglob("*.py*")):
            yield SRC / path.relative_to(folder), path.read_text()


def main() -> int:
    """Write every file that differs, and remove those without a .proto file."""
    known = dict(generated())
    for path, text in known.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"written: {path.relative_to(ROOT)}")
    for path in (SRC / "headrace" / "v1").glob("*_pb2.py*"):
        if path not in known:
            path.unlink()
            print(f"removed: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
