"""The engine's process of a round, as seen from outside: a line to ask it, and its end."""

from __future__ import annotations

from tests.crash.place import Place
from tests.rounds.line import Line
from tests.support.patience import patience

ANSWER_SECONDS = patience(240)
ANSWER_SECONDS_SPARK = patience(480)
"""More than the engine itself waits for before it says what is wrong."""


class Child(Line):
    """The engine's process, with a line to it."""

    def __init__(self, place: Place, armed: str | None) -> None:
        plan = place.plan
        self.owed: dict[str, int] = {}
        """Tables that are owed a baseline newer than this number, as the engine told."""
        self._ready = False
        arguments = ["--spark"] * plan.spark + ["--fails"] * plan.fails
        arguments += ["--target", plan.target, "--tables", *plan.tables]
        super().__init__(
            "tests.crash.child",
            place.folder,
            arguments,
            armed=armed,
            patience=ANSWER_SECONDS_SPARK if plan.spark else ANSWER_SECONDS,
        )
        if plan.reload:
            # It will be read when the engine is ready; nobody waits for that here.
            self.tell(f"reload {plan.tables[0]}")

    def _take(self, line: str) -> None:
        match line.split():
            case ["reloading", table, number]:
                self.owed[table] = int(number)
            case _:
                super()._take(line)

    def await_ready(self) -> None:
        if not self._ready:
            self.expect("ready")
            self._ready = True
