"""Breaks of what drives a pipeline: progress, baselines, intents, pauses."""

from __future__ import annotations

from tests.mutate.mutation import FINDINGS, GUARDS, Mutation

INTENTS = "tests/control/test_intents.py"
IN_TURN = "tests/control/test_columns_in_turn.py"

OF_CONTROL = (
    Mutation(
        "acknowledge at once what the log has, whatever targets have",
        "control/member.py",
        "    return Watermark(durable, settled, min(firsts, default=None))\n",
        "    return Watermark(durable, log.end, None)\n",
    ),
    Mutation(
        "progress before apply",
        "control/delivery.py",
        "            upto = self._target.write(self._as_batch(batch, computed))\n",
        "            tables, lineage = list(batch.tables), around.log.lineage or ''\n"
        "            around.store.advance(self.name, tables, lineage, batch.last)\n"
        "            upto = self._target.write(self._as_batch(batch, computed))\n",
    ),
    Mutation(
        "a table shown before it is exact",
        "control/loading.py",
        "all(load and load.last <= end for load in loads)",
        "all(load and load.first <= end for load in loads)",
        also=(("control/member.py", " and goal >= self.last\n", "\n"),),
    ),
    Mutation(
        "a reloaded table shown before it is exact",
        "control/member.py",
        " and goal >= self.last\n",
        "\n",
        test=GUARDS,
    ),
    Mutation(
        "the engine reads beyond what was reported",
        "control/recording.py",
        "            self.log.refresh(self._reported)\n",
        "            self.log.refresh()\n",
    ),
    Mutation(
        "an error of reading ends the listening thread",
        "control/recording.py",
        "            self._unread = error\n",
        "            raise\n",
        test=FINDINGS,
    ),
    Mutation(
        "a gap passed over",
        "control/run.py",
        "            if not member.behind_a_gap(log):\n",
        "            if True:\n",
    ),
    Mutation(
        "a baseline that is owed passed over",
        "control/run.py",
        "            if (owed := member.owes(log)) is not None:\n",
        "            if (owed := member.owes(log)) is not None and log is None:\n",
        also=(("control/run.py", "or member.owes(self._around.log)\n", "\n"),),
    ),
    Mutation(
        "live before it is shown",
        "control/loading.py",
        "                waiting[0].switch(at)\n",
        "",
        also=(
            (
                "control/loading.py",
                "            self._settle(member, at, load.baseline)\n            self._switched",
                "            self._settle(member, at, load.baseline)\n"
                "            load.loading.switch(at)\n            self._switched",
            ),
        ),
        test=GUARDS,
    ),
    Mutation(
        "what is shown is noted for one table of two",
        "control/run.py",
        "        self._loads.note_switched()\n",
        "",
        test="tests/control/test_several_tables.py",
    ),
    Mutation(
        "columns that come during a step are left out of its batch",
        "control/run.py",
        "        if not all(member.knows(log, ",
        "        if False and not all(member.knows(log, ",
        test="tests/control/test_altered_meanwhile.py",
    ),
    Mutation(
        "a column that is dropped is missing from the changes before",
        "control/evolving.py",
        "            turn = log.columns_in_turn(table, since, after)\n",
        "            turn = log.columns(table, since)\n",
        test=IN_TURN,
    ),
    Mutation(
        "columns come before their turn",
        "changelog/columns.py",
        "            return Turn(schema, history.lasts[history.step_of(piece.flush) - 1])\n",
        "            return Turn(latest)\n",
        test=IN_TURN,
    ),
    Mutation(
        "a flush has changes in the columns of before and of after",
        "capture/recorder.py",
        "            if log.alters(changes) or not changes.ends:",
        "            if not changes.ends:",
        test=IN_TURN,
    ),
    Mutation(
        "a reload waits for columns whose turn it keeps from coming",
        "control/loading.py",
        "            elif not member.following or member.knows(log, baseline.files):\n",
        "            else:\n",
        test=IN_TURN,
    ),
    Mutation(
        "flushes are merged over a change of columns",
        "changelog/compaction.py",
        "                if run and any(schemas.get(f.table, f.schema) ",
        "                if not run and any(schemas.get(f.table, f.schema) ",
        test="tests/changelog/test_columns.py",
    ),
    Mutation(
        "an epoch the log never had is passed over",
        "control/member.py",
        " or self.reached.epoch > log.epoch\n",
        "\n",
        test=FINDINGS,
    ),
    Mutation(
        "an older engine puts a target back",
        "control/loading.py",
        "        self._around.check()\n",
        "",
        test=GUARDS,
    ),
    Mutation(
        "an older engine writes progress",
        "control/store.py",
        "        if term != self.term:\n",
        "        if term < self.term:\n",
        test="tests/control/test_store.py",
    ),
    Mutation(
        "effect before intent",
        "control/delivery.py",
        "        if self.intends:\n            self._intend(start, batch)\n",
        "",
        also=(
            (
                "control/delivery.py",
                "        if self.intends:\n            reach(EFFECT_DONE)\n",
                "        if self.intends:\n            self._intend(start, batch)\n"
                "            reach(EFFECT_DONE)\n",
            ),
        ),
        test=INTENTS,
    ),
    Mutation(
        "an intended batch cut anew",
        "control/delivery.py",
        "        if intent is not None and intent.after == str(start):\n            again",
        "        if intent is not None and False:\n            again",
        test=INTENTS,
    ),
    Mutation(
        "a function is not told that a table is empty",
        "control/delivery.py",
        " or [Part(member.input, ())]\n",
        "\n",
        test="tests/control/test_frames.py",
    ),
    Mutation(
        "rows of a load that could not be shown are kept for good",
        "control/loading.py",
        "                    loading.discard()\n            raise\n",
        "                    pass\n            raise\n",
        test="tests/control/test_reload.py",
    ),
    Mutation(
        "a lake's table gone on with by another mode",
        "pipeline/lake/table.py",
        "        if other and not self._adopt:\n            raise other_mode(mode, self.where)\n",
        "        other = False\n",
        test="tests/pipeline/lake/test_kept_by_mode.py",
    ),
    Mutation(
        "pause not stored",
        "control/run.py",
        "        self._around.store.set_paused(self.name, True)\n",
        "",
        test="tests/control/test_pause.py::test_a_pause_outlives_the_engine",
    ),
    Mutation(
        "a reload that is owed is forgotten at a restart",
        "control/run.py",
        "            member.newer_than = baseline\n        # A durable target",
        "            pass\n        # A durable target",
        test=GUARDS,
    ),
    Mutation(
        "the pause after a failure ended by every entry of the log",
        "control/driving.py",
        "            log.wait(_NO_ENTRY, left, called)\n",
        "            if log.wait(log.last_entry, left, called):\n                return\n",
        test="tests/control/test_backing_off.py",
    ),
)
