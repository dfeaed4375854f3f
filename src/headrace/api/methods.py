"""
Every call that an engine answers on the network: its messages, the role that it needs, its path.

The server checks a caller's role by this list before it reads the request, and records the calls
that change something. A call of a part that this version does not have is in the list, too, with
the name of the part: it is answered as unimplemented, in these words.

`ControlService` has the verbs of the command line. Their messages are JSON only, so that they have
no classes here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias

from google.protobuf.message_factory import GetMessageClass

from headrace.errors import Forbidden, NotAvailable
from headrace.v1 import oam_pb2, query_pb2

if TYPE_CHECKING:
    from google.protobuf.descriptor import ServiceDescriptor
    from google.protobuf.message import Message

Role: TypeAlias = Literal["read", "operate", "admin"]

ROLES: tuple[Role, ...] = ("read", "operate", "admin")
"""Each has the rights of those before it."""

CONTROL = "headrace.v1.ControlService"
OAM = "headrace.v1.OAMService"
QUERY = "headrace.v1.QueryService"


@dataclass(frozen=True, slots=True)
class Method:
    """One call."""

    path: str
    """`/headrace.v1.OAMService/GetStatus`"""

    service: str
    name: str
    request: type[Message] | None
    """The class of the request; None if it is JSON only."""

    response: type[Message] | None
    streams: bool
    """Whether it answers with a stream of messages."""

    role: Role
    """The role that it needs at least."""

    changes: bool
    """Whether it changes something, and is recorded."""

    part: str = ""
    """The part that this version does not have; empty if the call is answered."""

    def check(self, role: str) -> None:
        """Raise `Forbidden` if the role of a caller does not suffice."""
        if role not in ROLES or ROLES.index(role) < ROLES.index(self.role):
            raise Forbidden(f"{self.name} needs the role {self.role}", role=role, needs=self.role)

    def missing(self) -> NotAvailable:
        """Return the error for a call whose part this version does not have."""
        return NotAvailable(
            f"{self.name} is not available: this version has no {self.part}", part=self.part
        )


@dataclass(frozen=True, slots=True)
class _Right:
    role: Role
    changes: bool = False
    part: str = ""


_READ = _Right("read")
_OPERATE = _Right("operate", changes=True)
_ADMIN = _Right("admin", changes=True)

_OAM = {
    "GetStatus": _READ,
    "GetTableStatus": _READ,
    "GetPipelineStatus": _READ,
    "WatchStatus": _READ,
    "CheckReady": _READ,
    "GetSourceInfo": _READ,
    "ReloadTable": _OPERATE,
    "ReloadAll": _OPERATE,
    "PauseSync": _OPERATE,
    "ResumeSync": _OPERATE,
    "ResetSource": _ADMIN,
    "DrainReplication": _Right("operate", changes=True, part="fan-out"),
    "ListTables": _READ,
    "GetTableSchema": _READ,
    "CreateSnapshot": _Right("operate", changes=True, part="snapshots"),
    "ListSnapshots": _Right("read", part="snapshots"),
    "InspectSnapshot": _Right("read", part="snapshots"),
    "RestoreSnapshot": _Right("admin", changes=True, part="snapshots"),
    "DeleteSnapshot": _Right("admin", changes=True, part="snapshots"),
    "PruneSnapshots": _Right("admin", changes=True, part="snapshots"),
    "ListDeadLetters": _READ,
    "ReplayDeadLetters": _OPERATE,
    "PurgeDeadLetters": _ADMIN,
    "StartReplay": _OPERATE,
    "GetReplayStatus": _READ,
    "StopReplay": _OPERATE,
    "ShowDeadLetter": _READ,
    "EditDeadLetter": _OPERATE,
    "ExplainPipeline": _READ,
    "GetLog": _READ,
    "GetConfiguration": _READ,
    "ListEvents": _READ,
    "WatchEvents": _READ,
}

_QUERY = _READ
"""Queries only read."""

_CONTROL_UNARY = {
    "Status": _READ,
    "Health": _READ,
    "Metrics": _READ,
    "Query": _READ,
    "Pause": _OPERATE,
    "Resume": _OPERATE,
    "Reload": _OPERATE,
    "Reset": _ADMIN,
    "Explain": _READ,
    "Log": _READ,
    "PurgeDeadLetters": _ADMIN,
    "ReplayDeadLetters": _OPERATE,
    "Apply": _ADMIN,
    "Me": _READ,
    "Tables": _READ,
    "Batches": _READ,
    "DeadLetters": _READ,
    "Configuration": _READ,
}
_CONTROL_STREAMS = {
    "Rows": _READ,
    "Watch": _READ,
    "DeadLetterRecords": _READ,
    "Events": _READ,
}


def _of_proto(service: ServiceDescriptor, rights: Mapping[str, _Right] | None) -> Iterator[Method]:
    for each in service.methods:
        # An index, not `get`: a call without a line here must not be served to everyone.
        right = _QUERY if rights is None else rights[each.name]
        yield Method(
            path=f"/{service.full_name}/{each.name}",
            service=service.full_name,
            name=each.name,
            request=GetMessageClass(each.input_type),
            response=GetMessageClass(each.output_type),
            streams=each.server_streaming,
            role=right.role,
            changes=right.changes,
            part=right.part,
        )


def _of_control() -> Iterator[Method]:
    for streams, verbs in ((False, _CONTROL_UNARY), (True, _CONTROL_STREAMS)):
        for name, right in verbs.items():
            path = f"/{CONTROL}/{name}"
            yield Method(
                path, CONTROL, name, None, None, streams, right.role, right.changes, right.part
            )


_SERVICES = {
    OAM: (oam_pb2.DESCRIPTOR.services_by_name["OAMService"], _OAM),
    QUERY: (query_pb2.DESCRIPTOR.services_by_name["QueryService"], None),
}

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.path: method
        for found in (*(_of_proto(*each) for each in _SERVICES.values()), _of_control())
        for method in found
    }
)
"""Every call, by its path."""

_OF_LAREDO = {
    "laredo.v1.LaredoOAMService": (
        OAM,
        (
            *("GetStatus", "GetTableStatus", "GetPipelineStatus", "WatchStatus", "CheckReady"),
            *("GetSourceInfo", "ReloadTable", "ReloadAll", "PauseSync", "ResumeSync"),
            *("ResetSource", "DrainReplication", "ListTables", "GetTableSchema"),
            *("CreateSnapshot", "ListSnapshots", "InspectSnapshot", "RestoreSnapshot"),
            *("DeleteSnapshot", "PruneSnapshots", "ListDeadLetters", "ReplayDeadLetters"),
            *("PurgeDeadLetters", "StartReplay", "GetReplayStatus", "StopReplay"),
        ),
    ),
    "laredo.v1.LaredoQueryService": (
        QUERY,
        ("Lookup", "LookupAll", "GetRow", "ListRows", "CountRows", "Subscribe"),
    ),
}

LAREDO_PATHS: Mapping[str, str] = MappingProxyType(
    {
        f"/{theirs}/{name}": f"/{ours}/{name}"
        for theirs, (ours, names) in _OF_LAREDO.items()
        for name in names
    }
)
"""The calls of Laredo's clients, each with the path of ours; the messages are the same bytes."""
