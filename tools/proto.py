"""
Generate `src/headrace/v1` from `proto/`, and record what clients rely on.

`proto/contract.txt` has a line for every call, field and value: its name, number and type. Lines
are only added. A change that takes one away would break clients that are in use, and is refused;
before a first release, remove the line by hand if that is meant.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
SRC = ROOT / "src"
CONTRACT = PROTO / "contract.txt"


# --- the generated files --------------------------------------------------------------------------


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


# --- what clients rely on -------------------------------------------------------------------------


def contract() -> Iterator[str]:
    """Yield a line for every call, field and value, as they are in the generated modules."""
    for name in files():
        module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        yield from _of_file(module.DESCRIPTOR)


def _of_file(file: Any) -> Iterator[str]:
    for service in file.services_by_name.values():
        for each in service.methods:
            stream = "stream " if each.server_streaming else ""
            types = f"{each.input_type.name} {stream}{each.output_type.name}"
            yield f"{service.name} {each.name} {types}"
    for enum in file.enum_types_by_name.values():
        yield from (f"{enum.name} {each.number} {each.name}" for each in enum.values)
    for message in file.message_types_by_name.values():
        yield from (f"{message.name} {field_line(each)}" for each in message.fields)


def field_line(field: Any) -> str:
    """Return number, name and type of a field; `*` is repeated, `?` is optional."""
    oneof = field.containing_oneof
    if oneof is not None and oneof.name.startswith("_"):
        return f"{field.number} {field.name} {type_name(field)}?"
    inside = f" in {oneof.name}" if oneof is not None else ""
    return f"{field.number} {field.name} {type_name(field)}{inside}"


def type_name(field: Any) -> str:
    """Return the type of a field as a .proto file has it; maps as `map<key, value>`."""
    kind = field.message_type or field.enum_type
    if kind is None:
        names = {getattr(field, f"TYPE_{each.upper()}"): each for each in _PLAIN}
        found = names[field.type]
    elif field.message_type is not None and kind.GetOptions().map_entry:
        key, value = kind.fields
        return f"map<{type_name(key)}, {type_name(value)}>"
    else:
        found = str(kind.name)
    return f"{found}*" if field.is_repeated else found


_PLAIN = ("string", "bytes", "bool", "int32", "int64", "uint32", "uint64", "double", "float")


def recorded() -> list[str]:
    """Return the lines of the contract."""
    return CONTRACT.read_text().splitlines() if CONTRACT.exists() else []


def main() -> int:
    """Write what differs, remove what has no .proto file any more, and extend the contract."""
    known = dict(generated())
    for path, text in known.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"written: {path.relative_to(ROOT)}")
    for path in (SRC / "headrace" / "v1").glob("*_pb2.py*"):
        if path not in known:
            path.unlink()
            print(f"removed: {path.relative_to(ROOT)}")
    now = set(contract())
    before = set(recorded())
    if gone := sorted(before - now):
        print("These lines are not true any more, and clients rely on them:", *gone, sep="\n  ")
        return 1
    if now != before:
        CONTRACT.write_text("".join(f"{each}\n" for each in sorted(now)))
        print(f"written: {CONTRACT.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
