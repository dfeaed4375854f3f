"""The page of the services, made from the comments in `proto/` and the list of calls."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from headrace.api.methods import CONTROL, LAREDO_PATHS, METHODS, Method
from tools import proto

_INTRODUCTION = """\
# Services

<!-- Made from proto/headrace/v1 and src/headrace/api/methods.py by `make reference`. -->

What a running engine answers on the network. The files are in `proto/headrace/v1`; the Python
classes are in `headrace.v1`, and are generated from them.

A call is `POST /headrace.v1.OAMService/GetStatus` with a message, as the
[Connect protocol](https://connectrpc.com/docs/protocol) defines: protobuf with
`Content-Type: application/proto`, or JSON with `application/json`; a stream with
`application/connect+proto` or `application/connect+json`. With gRPC, the same calls have the same
names. In JSON, names are in camelCase and 64-bit integers are text. A request with a field that the
engine does not know is refused.

A call needs a role: `read`, `operate` or `admin`; each has the rights of those before it. Calls
that change something are recorded in the audit log. An error has the code of Connect or gRPC, and a
detail `headrace.v1.Error` with our [code](errors.md), the facts and what to do.

In messages that Laredo has, too, numbers below 100 are its own. If `server.compat = laredo` is
configured, `/laredo.v1.LaredoOAMService/…` and `/laredo.v1.LaredoQueryService/…` lead to the same
calls.
"""

_CONTROL = """\
## ControlService

The verbs of the [command line](cli.md), in JSON only: `POST /headrace.v1.ControlService/Status`.
The commands print their answers with `--json`.
"""


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield _INTRODUCTION
    files = described()
    for file in files:
        for number, service in enumerate(file.service):
            yield from _service(file, number, service)
    yield _CONTROL
    yield "| call | answer | role | changes |"
    yield "|---|---|---|---|"
    for method in METHODS.values():
        if method.service == CONTROL:
            answer = "stream" if method.streams else "one message"
            yield f"| `{method.name}` | {answer} | {method.role} | {_yes(method.changes)} |"
    yield ""
    yield "## Messages"
    for file in files:
        comments = _comments(file)
        for kind, number, each in _parts(file):
            yield ""
            yield f"### {each.name}"
            if about := comments.get((kind, number), ""):
                yield ""
                yield _cell(about)
            yield from (_fields if kind == _MESSAGE else _values)(each, comments, (kind, number))


_MESSAGE, _ENUM, _SERVICE = 4, 5, 6
"""The numbers of these in a file's descriptor."""


@cache
def described() -> tuple[Any, ...]:
    """Return the descriptors of all files of ours, with their comments."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "set")
        proto.compiled("--include_source_info", f"--descriptor_set_out={path}")
        found = FileDescriptorSet.FromString(path.read_bytes()).file
        return tuple(sorted(found, key=lambda each: str(each.name)))


def _comments(file: Any) -> Mapping[tuple[int, ...], str]:
    return {
        tuple(each.path): " ".join(each.leading_comments.split())
        for each in file.source_code_info.location
        if each.leading_comments
    }


def _parts(file: Any) -> Iterator[tuple[int, int, Any]]:
    """Yield messages and enums, in the order of the file."""
    starts = {tuple(each.path): each.span[0] for each in file.source_code_info.location}
    found = [
        *((_MESSAGE, number, each) for number, each in enumerate(file.message_type)),
        *((_ENUM, number, each) for number, each in enumerate(file.enum_type)),
    ]
    yield from sorted(found, key=lambda each: starts[each[:2]])


def _service(file: Any, number: int, service: Any) -> Iterator[str]:
    comments = _comments(file)
    yield f"## {service.name}"
    yield ""
    yield _cell(comments.get((_SERVICE, number), ""))
    yield ""
    yield "| call | | request, answer | role | changes |"
    yield "|---|---|---|---|---|"
    theirs = set(LAREDO_PATHS.values())
    for index, each in enumerate(service.method):
        method = METHODS[f"/{file.package}.{service.name}/{each.name}"]
        about = _cell(comments.get((_SERVICE, number, 2, index), ""))
        yield (
            f"| `{each.name}` | {about}{_missing(method)}"
            f"{' Not in Laredo.' if method.path not in theirs else ''} "
            f"| {_link(each.input_type)}, {'stream of ' if method.streams else ''}"
            f"{_link(each.output_type)} | {method.role} | {_yes(method.changes)} |"
        )
    yield ""


def _missing(method: Method) -> str:
    return f" **Not available yet:** this version has no {method.part}." if method.part else ""


def _yes(changes: bool) -> str:
    return "yes" if changes else ""


def _fields(
    message: Any, comments: Mapping[tuple[int, ...], str], path: tuple[int, ...]
) -> Iterator[str]:
    yield ""
    if not message.field:
        yield "It has no fields."
        return
    maps = {each.name: each for each in message.nested_type if each.options.map_entry}
    yield "| number | field | type | |"
    yield "|---:|---|---|---|"
    for index, field in enumerate(message.field):
        about = _cell(comments.get((*path, 2, index), ""))
        if field.HasField("oneof_index") and not field.proto3_optional:
            about = f"One of `{message.oneof_decl[field.oneof_index].name}`. {about}".strip()
        yield f"| {field.number} | `{field.name}` | {_type(field, maps)} | {about} |"


def _values(
    enum: Any, comments: Mapping[tuple[int, ...], str], path: tuple[int, ...]
) -> Iterator[str]:
    yield ""
    yield "| number | value | |"
    yield "|---:|---|---|"
    for index, each in enumerate(enum.value):
        about = _cell(comments.get((*path, 2, index), ""))
        yield f"| {each.number} | `{each.name}` | {about} |"


def _type(field: Any, maps: Mapping[str, Any]) -> str:
    last = field.type_name.rpartition(".")[2]
    if last in maps:
        key, value = maps[last].field
        return f"map of {_type(key, {})} to {_type(value, {})}"
    name = _link(field.type_name) if field.type_name else _plain(field)
    if field.label == field.LABEL_REPEATED:
        return f"repeated {name}"
    return f"optional {name}" if field.proto3_optional else name


def _plain(field: Any) -> str:
    name: str = field.Type.Name(field.type)
    return name.removeprefix("TYPE_").lower()


def _link(full: str) -> str:
    package, _, name = full.strip(".").rpartition(".")
    return f"[{name}](#{name.lower()})" if package == "headrace.v1" else f"`{name}`"


def _cell(text: str) -> str:
    # Markdown would take these for the table's own, for emphasis and for tags.
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")
