"""Breaks of what becomes of rows: their order, and the letters of those that fail."""

from __future__ import annotations

from tests.mutate.mutation import GUARDS, Mutation

OF_ROWS = (
    Mutation(
        "no sort",
        "pipeline/result.py",
        "    return rows.take(pa.array(np.lexsort((ordinals, commits))))\n",
        "    return rows\n",
        test="tests/pipeline/test_result.py",
    ),
    Mutation(
        "a target that takes what it has",
        "tables/table.py",
        "        if upto <= self.position:\n",
        "        if False:\n",
        test="tests/tables",
    ),
    Mutation(
        "dead letter not synced",
        "pipeline/letters.py",
        "            self._files.create(file_name(record.number), data)\n",
        "            self._files.create(file_name(record.number), data, settle=False)\n",
        test="tests/pipeline/test_letters_power_cut.py",
    ),
    Mutation(
        "letter after the target's write",
        "control/delivery.py",
        "            self._keep([letter for each in computed.values()"
        " for letter in each.letters])\n",
        "",
        also=(
            (
                "control/delivery.py",
                "            reach(TARGET_WRITTEN)\n",
                "            reach(TARGET_WRITTEN)\n"
                "            for each in computed.values():\n"
                "                self._keep(each.letters)\n",
            ),
        ),
        test=GUARDS,
    ),
    Mutation(
        "held key not parked behind",
        "control/delivery.py",
        "if held else Aside()\n        left",
        "if False else Aside()\n        left",
        test=GUARDS,
    ),
    Mutation(
        "what follows a failed change by key is not parked with it",
        "pipeline/parking.py",
        "        if row in failed or held_now:\n",
        "        if row in failed:\n",
        test="tests/pipeline/test_parking.py",
    ),
    Mutation(
        "letters cleared at a reload although its baseline fails still",
        "control/delivery.py",
        '"reload", keep_baseline=baseline)\n',
        '"reload")\n',
        test=GUARDS,
    ),
    Mutation(
        "lost executor blamed on rows",
        "pipeline/failures.py",
        "    if not named or any(_MACHINE.fullmatch(cause.kind) for cause in causes):\n",
        "    if not named:\n",
        test="tests/pipeline/test_failures.py",
    ),
)
