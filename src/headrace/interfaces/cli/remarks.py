"""What a running engine's status says beyond its numbers: whatever is wrong, or waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_WELL = ("streaming", "watching")


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing that whoever looks at the engine should read."""

    what: str
    why: str = ""
    remedy: str = ""
    code: str = ""
    """That of the error; empty where nothing is broken, and a person decides."""

    @property
    def wrong(self) -> bool:
        """Whether an error is the reason."""
        return bool(self.code)


def remarks(told: Mapping[str, Any]) -> Iterator[Remark]:
    """Yield what there is to say of the fields of the verb `Status`; sources first."""
    for source in told["sources"]:
        name = f"source {source['name']}"
        if source["state"] not in _WELL or source["error"]:
            why = source["reason"] or (source["error"] or {}).get("message", "")
            yield _remark(f"{name} is {source['state']}", why, source["error"])
        yield from _left_out(name, source["left_out"])
    for each in told["pipelines"]:
        yield from _of_pipeline(each)


def state_text(pipeline: Mapping[str, Any]) -> str:
    """Return a pipeline's state in plain words."""
    return str(pipeline["state"]).replace("_", " ")


def _of_pipeline(each: Mapping[str, Any]) -> Iterator[Remark]:
    name = f"pipeline {each['name']}"
    if each["error"]:
        yield _remark(f"{name} is {state_text(each)}", each["error"]["message"], each["error"])
    elif each["reason"] and not each["reason"].startswith("source "):
        yield _remark(f"{name} is {state_text(each)}", each["reason"], None)
    if each["state"] == "paused":
        yield Remark(f"{name} is paused", remedy=f"headrace resume {each['name']}")
    if each["set_aside"] and not each["error"]:
        yield _remark(name, each["set_aside"]["message"], each["set_aside"])
    if count := each["dead_letters"]:
        yield Remark(
            f"{name} has {count:,} dead letter{'' if count == 1 else 's'}",
            remedy=f"headrace dead-letters list {each['name']}",
        )
    yield from _left_out(name, each["left_out"])


def _left_out(of: str, errors: Mapping[str, Mapping[str, Any]]) -> Iterator[Remark]:
    for table, error in errors.items():
        yield _remark(f"{of} leaves out {table}", error["message"], error)


def _remark(what: str, why: str, error: Mapping[str, Any] | None) -> Remark:
    if error is None:
        return Remark(what, why)
    return Remark(what, why, error["remedy"], error["code"])
