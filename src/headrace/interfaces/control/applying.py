"""
A changed configuration, applied to an engine at work.

The engine's own process reads its files again: whoever asks sees what would happen, and what
then happens is that, or nothing. The two are tied together by the plan's fingerprint.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import InvalidConfiguration, Outdated
from headrace.interfaces.control.handlers import Request, Verb

if TYPE_CHECKING:
    from headrace.control.applying import Plan
    from headrace.control.configured import Configured
    from headrace.control.engine import Engine


class Apply(Request, frozen=True):
    """Nothing: what would happen; the fingerprint of a plan that was shown: do it."""

    plan: str | None = None


class Applying:
    """The verb `Apply` of one engine. Safe to call from several threads."""

    def __init__(
        self, engine: Engine, started: Configured, read: Callable[[], Configured], file: Path
    ) -> None:
        """`read` returns the configuration as its files are now, of which `file` is the first."""
        self._engine = engine
        self._started = self._applied = started
        self._read = read
        self._file = str(file)
        self._turn = threading.Lock()

    @property
    def verb(self) -> Verb:
        """What a service mounts as `Apply`."""
        return Verb(Apply, self._apply)

    def _apply(self, asked: Apply) -> dict[str, Any]:
        # Here and not above: a client needs none of it.
        from headrace.control.applying import apply, planned

        with self._turn:
            after = self._read()
            at_work = [each.name for each in self._engine.pipelines()]
            plan = planned(self._applied, after, self._started, at_work)
            if asked.plan is None:
                after.check()
                return self._told(plan, done=False)
            if asked.plan != _fingerprint(plan):
                raise Outdated("The configuration is another one than the one that was shown")
            try:
                apply(self._engine, plan, after)
            except InvalidConfiguration:
                raise  # and nothing has changed
            except BaseException:
                # What could not be opened is not at work, and asked for again by the next plan.
                self._applied = after
                raise
            self._applied = after
            return self._told(plan, done=True)

    def _told(self, plan: Plan, *, done: bool) -> dict[str, Any]:
        steps = [
            {"kind": step.kind, "what": step.what, "keys": list(step.why), "brings": step.brings}
            for step in plan.steps
        ]
        return {
            "plan": _fingerprint(plan),
            "config": self._file,
            "steps": steps,
            "now": bool(plan.add or plan.drop or plan.sources),
            "done": done,
        }


def _fingerprint(plan: Plan) -> str:
    # Of the values too, which may be secrets and are not told: a plan that asks for the same
    # keys with others is another plan.
    return hashlib.sha256(f"{plan.steps}{plan.values}".encode()).hexdigest()[:16]
