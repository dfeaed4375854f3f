"""
Whether a batch whose outcome was lost came again as it was (R25).

After a kill between intent and progress the engine's own file names the batch; the next one
that the target has must be that one, and where it had it already, under the same id.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from headrace.runtime.store import Intent
from headrace.storage.killpoints import EFFECT_DONE, INTENT_STORED
from tests.crash.frames import read_frames
from tests.crash.place import Place
from tests.crash.queue_target import read_lines


@dataclass(frozen=True, slots=True)
class Came:
    """A batch that came to the target: a baseline's has no end."""

    id: str
    last: str | None


class Again:
    """Remembers what must come next."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._seen = 0
        self._ids: tuple[str, ...] = ()
        self._last: str | None = None

    def killed(self, strike: str) -> list[str]:
        """Look at what a kill left; return what is wrong already."""
        plan = self._place.plan
        if strike not in (INTENT_STORED, EFFECT_DONE) or (plan.reload and plan.target == "frames"):
            # A kill at any moment may be on either side of an effect; and a function that is
            # given a new baseline goes on from where that begins, whatever it was given.
            self._last, self._ids = None, ()
            return []
        came = self._came()
        intent = self._intent()
        self._seen = len(came)
        if strike == INTENT_STORED:
            if intent is None:
                return ["no intent is stored"]
            self._last, self._ids = intent.last, ()
            return []
        newest = came[-1]
        if newest.last is None:
            # A piece of a baseline: it is given again, from its first piece on.
            self._last = None
            self._ids = (newest.id,)
            return []
        self._last, self._ids = newest.last, (newest.id,)
        if intent is None or intent.last != newest.last:
            return [f"batch {newest.id} had its effect, and the intent is {intent}"]
        return []

    def settled(self) -> list[str]:
        """Return what is wrong with what came since, once all has come to rest."""
        since = self._came()[self._seen :]
        last, ids = self._last, self._ids
        self._last, self._ids = None, ()
        if ids and ids[0] not in [each.id for each in since]:
            return [f"batch {ids[0]} did not come again"]
        changes = [each for each in since if each.last is not None]
        if last is not None and (not changes or changes[0].last != last):
            return [f"the batch that was to end at {last} is now {changes[:1]}"]
        return []

    def _came(self) -> list[Came]:
        folder = self._place.folder
        match self._place.plan.target:
            case "queue":
                lines = read_lines(folder / "queue.jsonl")
                return [Came(line["id"], line["last"]) for line in lines if "id" in line]
            case "frames":
                return [
                    Came(each.id, None if each.about["baseline"] else each.about["last"])
                    for each in read_frames(folder / "frames")
                ]
            case _:
                return []

    def _intent(self) -> Intent | None:
        found = self._place.stored("select intent from intents where pipeline = ?")
        return msgspec.json.decode(str(found[0][0]), type=Intent) if found else None
