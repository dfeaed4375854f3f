"""The check of dead letters: exactly those that the model has, whole, and each once (R30)."""

from __future__ import annotations

from collections import Counter

from headrace.changelog.schema import TableName
from headrace.deadletters.letter import DeadLetter
from headrace.runtime.pipeline_run import PipelineRun
from tests.simulation.database import Violation
from tests.simulation.lives import Seat
from tests.simulation.model import Letter, image
from tests.simulation.world import World


def check_letters(world: World, seat: Seat, run: PipelineRun, table: TableName) -> None:
    """Compare a pipeline's letters of a table with what the source's history says."""
    target, began = seat.target, seat.target.began[table]
    upto = world.database.position.commit
    if seat.flow.mode == "baseline":
        upto = target.at(table).commit
    replay = world.watch.replays.at(seat.number, seat.flow, table, began, upto)
    if replay.left:
        raise Violation(f"{run.name} {table}: {replay.left}")
    found = run.delivery.dead_letters.all(table, superseded=True)
    world.counts["letters"] += len(found)
    name = f"{run.name} {table}"
    if doubled := [each for each, times in Counter(map(_identity, found)).items() if times > 1]:
        raise Violation(f"{name} has letters twice: {doubled}")
    active = [letter for letter in found if letter.superseded is None]
    world.counts["letters that hold"] += len(active)
    if sorted(map(_model, active), key=repr) != sorted(replay.letters, key=repr):
        raise Violation(f"{name} has {[*map(_model, active)]} and should {replay.letters}")
    if [letter.position for letter in active] != sorted(letter.position for letter in active):
        raise Violation(f"{name} has letters out of order")
    for letter in active:
        _check_origin(letter, began.life, name)
        if letter.kind == "failed" and _model(letter) not in replay.failed:
            raise Violation(f"{name} has {letter}, which does not fail")
    _check_history(world, seat, table, [each for each in found if each.superseded is not None])


def _check_history(world: World, seat: Seat, table: TableName, found: list[DeadLetter]) -> None:
    """What was superseded was a letter once, and is so for a reason."""
    if not found:
        return
    world.counts["letters superseded"] += len(found)
    database = world.database
    ever: dict[int, set[Letter]] = {}
    truncates = {
        life: [
            commit
            for commit, told in enumerate(history)
            for name, change in told
            if name == table and change.op.name == "TRUNCATE"
        ]
        for life, history in database.truth.items()
    }
    for (_, name, _), began in world.watch.baselines.items():
        if name == table:
            replay = world.watch.replays.new(seat.number, seat.flow, table, began)
            replay.go(len(database.truth[began.life]) - 1)
            ever.setdefault(began.life, set()).update(replay.ever)
    began = seat.target.began[table]
    if not began.baseline:
        replay = world.watch.replays.new(seat.number, seat.flow, table, began)
        ever.setdefault(began.life, set()).update(
            replay.go(len(database.truth[began.life]) - 1).ever
        )
    for letter in found:
        life = int(letter.lineage.rpartition("/")[2])
        if _model(letter) not in ever.get(life, ()):
            raise Violation(f"p{seat.number} set aside what never failed: {letter}")
        match letter.superseded:
            case "truncate":
                good = any(commit >= letter.position.commit for commit in truncates[life])
                # One of a later life as well: it comes after all that was before.
                good |= any(commits for later, commits in truncates.items() if later > life)
            case "reload":
                good = bool(began.baseline)
            case "replayed" | "edited":
                good = _was_corrected(world, seat, letter)
            case _:
                good = False
        if not good:
            raise Violation(f"p{seat.number} superseded {letter} for no reason")


def _was_corrected(world: World, seat: Seat, letter: DeadLetter) -> bool:
    """Whether a correction applied a dead letter."""
    key = letter.key[0] if letter.baseline is not None else None
    return any(
        (letter.position, letter.baseline, key) in made.settles
        for made in world.watch.corrections.all()
        if (made.pipeline, made.table) == (seat.number, letter.table)
    )


def _check_origin(letter: DeadLetter, life: int, name: str) -> None:
    if letter.lineage != f"test/{life}":
        raise Violation(f"{name} has {letter} of another lineage")


def _identity(letter: DeadLetter) -> object:
    return letter.lineage, letter.position, letter.baseline, letter.key if letter.baseline else ()


def _model(letter: DeadLetter) -> Letter:
    (key,) = letter.key
    return Letter(
        letter.position.commit,
        letter.position.ordinal,
        letter.baseline,
        letter.op,
        key,
        image(letter.before),
        image(letter.after),
    )
