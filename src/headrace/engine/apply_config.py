"""
What a changed configuration requires of a running engine, and its application.

Pipelines and sources are added, dropped and replaced while the others continue. Other changes, such
as the data directory or Spark's settings, take effect at the next start; the plan says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.config.schema import key_path
from headrace.config.text import Node
from headrace.engine.engine import Engine
from headrace.engine.from_config import EngineConfig

Kind = Literal["add", "drop", "change", "later"]


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step of a plan."""

    kind: Kind
    what: str
    """`pipelines.orders`, `sources.shop`, or the key that takes effect later."""

    why: tuple[str, ...] = ()
    """The keys within it that changed."""

    brings: str = ""
    """The effect, for the person who has to confirm it."""


@dataclass(frozen=True, slots=True)
class ConfigPlan:
    """All steps that a changed configuration requires."""

    steps: tuple[PlannedStep, ...]
    add: tuple[str, ...]
    """Pipelines to add, including those that are replaced."""

    drop: tuple[str, ...]
    sources: tuple[str, ...] = ()
    """Sources that are replaced while their pipelines continue."""

    tokens: bool = False
    """Whether the server has other tokens."""

    values: str = field(default="", repr=False)
    """All values of the new configuration, including secrets: to tell plans apart."""

    @property
    def empty(self) -> bool:
        """Whether nothing would happen, now or later."""
        return not self.steps


def planned(
    before: EngineConfig,
    after: EngineConfig,
    started: EngineConfig | None = None,
    at_work: Collection[str] | None = None,
) -> ConfigPlan:
    """
    Return the steps from one configuration to another.

    Keys that only take effect at a start are compared with the configuration the engine was
    `started` with. `at_work` names the running pipelines; one that an earlier change could not
    open is not among them.
    """
    old, new = _Sections(before), _Sections(after)
    if at_work is not None:
        old.pipelines = {n: each for n, each in old.pipelines.items() if n in at_work}
    rest = old.rest if started is None else _Sections(started).rest
    steps, add, drop = [], [], []
    for name in new.sources.keys() - old.sources.keys():
        if any(each["source"] == name for each in after.pipelines.values()):
            steps.append(PlannedStep("add", f"sources.{name}", brings="capture starts now"))
        else:
            steps.append(
                PlannedStep("later", f"sources.{name}", brings="capture starts at the next start")
            )
    for name in old.sources.keys() - new.sources.keys():
        if before.sources[name].values["record"]:
            steps.append(
                PlannedStep("later", f"sources.{name}", brings="captured until the next start")
            )
        else:
            brings = "capture stops; its log is kept"
            steps.append(PlannedStep("drop", f"sources.{name}", brings=brings))
    others = set()
    for name in new.sources.keys() & old.sources.keys():
        keys = _different(old.sources[name], new.sources[name])
        if later := [key for key in keys if key.split("[")[0] == "record"]:
            steps.append(PlannedStep("later", f"sources.{name}", tuple(later), "at the next start"))
        if now := tuple(key for key in keys if key not in later):
            others.add(name)
            brings = "its recorder restarts; its pipelines continue"
            steps.append(PlannedStep("change", f"sources.{name}", now, brings))
    for name in new.pipelines.keys() - old.pipelines.keys():
        add.append(name)
        brings = "loads its tables from the log, or from the source if the log has no baseline"
        steps.append(PlannedStep("add", f"pipelines.{name}", brings=brings))
    for name in old.pipelines.keys() - new.pipelines.keys():
        drop.append(name)
        brings = "stops; its progress is deleted, the data in its target is kept"
        steps.append(PlannedStep("drop", f"pipelines.{name}", brings=brings))
    for name in new.pipelines.keys() & old.pipelines.keys():
        keys = _different(old.pipelines[name], new.pipelines[name])
        if keys:
            add.append(name)
            drop.append(name)
            brings = "loads its tables again, with the new steps or into the new target"
            if before.pipelines[name]["mode"] == after.pipelines[name]["mode"] == "changes":
                brings = "continues at its position, with the new steps or into the new target"
            steps.append(PlannedStep("change", f"pipelines.{name}", keys, brings))
    served = before.server is not None and after.server is not None
    tokens = tuple(key for key in _different(old.rest, new.rest) if served and _is_token(key))
    if tokens:
        brings = "streams and logins of tokens that are gone or changed end"
        steps.append(PlannedStep("change", "server.tokens", tokens, brings))
    for key in _different(rest, new.rest):
        if not (served and _is_token(key)):
            steps.append(PlannedStep("later", key, brings="at the next start"))
    steps.sort(key=lambda step: (step.what.split(".")[0] != "sources", step.what))
    return ConfigPlan(
        tuple(steps),
        tuple(sorted(add)),
        tuple(sorted(drop)),
        tuple(sorted(others)),
        bool(tokens),
        repr((new.sources, new.pipelines, new.rest)),
    )


def apply(engine: Engine, plan: ConfigPlan, after: EngineConfig) -> None:
    """Apply what can be applied now; on errors, raise all of them and change nothing."""
    built = after.build()
    wanted = [each for each in built.pipelines if each.name in plan.add]
    others = [built.sources[name] for name in plan.sources]
    if wanted or plan.drop or others:
        now = {step.what for step in plan.steps if step.kind in ("add", "change")}
        again = {n: each for n, each in after.reconnects().items() if f"sources.{n}" in now}
        engine.change(wanted, plan.drop, others, again)


def _is_token(key: str) -> bool:
    return key.startswith("server.tokens")


class _Sections:
    """The values of a configuration by section, as text that can be compared."""

    def __init__(self, of: EngineConfig) -> None:
        self.sources: dict[str, dict[str, str]] = {name: {} for name in of.sources}
        self.pipelines: dict[str, dict[str, str]] = {name: {} for name in of.pipelines}
        self.rest: dict[str, str] = {}
        raw = dict(_leaves("", of.tree))
        for setting in of.settings():
            # Shown values may be masked: compare the value itself if there is one.
            text = repr(raw.get(setting.name, setting.value))
            self._section(setting.path)[self._key(setting.path)] = text

    def _section(self, path: tuple[str | int, ...]) -> dict[str, str]:
        if len(path) > 1 and path[0] in ("sources", "pipelines"):
            of: Mapping[str, dict[str, str]] = getattr(self, str(path[0]))
            return of[str(path[1])]
        return self.rest

    def _key(self, path: tuple[str | int, ...]) -> str:
        inside = path[2:] if path[0] in ("sources", "pipelines") else path
        text = ""
        for part in inside:
            text = f"{text}[{part}]" if isinstance(part, int) else key_path(text, part)
        return text


def _leaves(at: str, node: Node) -> Iterator[tuple[str, Any]]:
    if isinstance(node.value, dict):
        for key, each in node.value.items():
            yield from _leaves(key_path(at, key), each)
    elif isinstance(node.value, list):
        for number, each in enumerate(node.value):
            yield from _leaves(f"{at}[{number}]", each)
    else:
        yield at, node.value


def _different(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    keys = {**old, **new}
    return tuple(key for key in keys if old.get(key) != new.get(key))
