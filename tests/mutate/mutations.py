"""
The breaks.

Each is an exact piece of text and what takes its place. When the code changes so that the
text is no longer there, that is an error and not a mutation that nobody noticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parent.parent.parent / "src"

SIMULATION = "simulation"
"""The test of a mutation that seeds are to find."""


FINDINGS = "tests/simulation/test_findings.py"
"""What seeds seldom find, told in a few lines."""


class TextMissing(LookupError):
    """The text to be replaced is not in the module exactly once."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One way to be wrong."""

    name: str
    module: str
    """Under `src/headrace`."""

    old: str
    new: str
    test: str = SIMULATION
    """What must turn red: the simulation, or a test of pytest's by its address."""

    seeds: int = 2_000

    def applied(self, text: str) -> str:
        """Return the module's text with the mutation in it."""
        if (count := text.count(self.old)) != 1:
            raise TextMissing(f"{self.name}: found {count} times in {self.module}: {self.old!r}")
        return text.replace(self.old, self.new)


MUTATIONS = (
    Mutation(
        "acknowledge before sync",
        "capture/recorder.py",
        "            log.append(changes)\n",
        "            log.append(changes)\n"
        "            self._source.acknowledge(str(changes.upto))\n",
    ),
    Mutation(
        "acknowledge at once what the log has, whatever targets have",
        "control/run.py",
        "        return Watermark(self.target.traits.durable, settled, loading_from)\n",
        "        return Watermark(self.target.traits.durable, log.end, None)\n",
    ),
    Mutation(
        "progress before apply",
        "control/run.py",
        "        upto = self.target.write(\n",
        "        around.store.advance(self.name, self.table, self._lineage or '', batch.last)\n"
        "        upto = self.target.write(\n",
    ),
    Mutation(
        "no sort",
        "pipeline/result.py",
        "    return rows.take(pa.array(np.lexsort((ordinals, commits))))\n",
        "    return rows\n",
        test="tests/pipeline/test_result.py",
    ),
    Mutation(
        "no sort in the log",
        "changelog/pending.py",
        "    return rows.take(np.lexsort((ordinals, commits)))\n",
        "    return rows\n",
        test="tests/changelog/test_log_writer.py",
    ),
    Mutation(
        "index before segment sync",
        "changelog/writer.py",
        '            self._segments.settle("")\n            reach(SEGMENT_WRITTEN)\n'
        "            flush = self._flushed(pending, pending.upto)\n"
        "            self._append(flush)\n",
        "            reach(SEGMENT_WRITTEN)\n"
        "            flush = self._flushed(pending, pending.upto)\n"
        "            self._append(flush)\n"
        '            self._segments.settle("")\n',
    ),
    Mutation(
        "baseline's entry before its files",
        "changelog/writer.py",
        '            self._segments.settle("")\n            self._append(entry)\n',
        '            self._append(entry)\n            self._segments.settle("")\n',
    ),
    Mutation(
        "no fsync of files",
        "storage/files.py",
        "                self._disk.sync(temporary)\n",
        "",
    ),
    Mutation(
        "no fsync of folders",
        "storage/files.py",
        "            if settle:\n                self._disk.sync_folder(_folder(path))\n",
        "",
    ),
    Mutation(
        "a failed fsync tried again",
        "storage/files.py",
        "                self._disk.sync(temporary)\n",
        "                try:\n"
        "                    self._disk.sync(temporary)\n"
        "                except OSError:\n"
        "                    self._disk.sync(temporary)\n",
    ),
    Mutation(
        "names that were seen are not made durable",
        "changelog/index.py",
        "        if end:\n",
        "        if end < 0:\n",
    ),
    Mutation(
        "no lineage check in the recorder",
        "capture/recorder.py",
        '    if at.lineage != log.lineage:\n        return "lineage"\n',
        "    if at.lineage != log.lineage:\n        return None\n",
    ),
    Mutation(
        "no lineage check in the log",
        "changelog/writer.py",
        'elif at.lineage != self.lineage or reason == "lineage" or at.commit < end.commit:',
        "elif at.commit < end.commit:",
    ),
    Mutation(
        "a table shown before it is exact",
        "control/run.py",
        "        if self.reached >= self._window[1]:\n",
        "        if self.reached >= self._window[0]:\n",
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
    ),
    Mutation(
        "files of a baseline removed although its entry may exist",
        "changelog/writer.py",
        "        if self._broken is not None:\n            # An entry that names them",
        "        if False:\n            # An entry that names them",
    ),
    Mutation(
        "the broom before the claim",
        "changelog/writer.py",
        "        # R31: first the number, then the broom. See the top of this module.\n",
        '        for name in sorted(set(self._segments.list("")) - named):\n'
        "            with suppress(FileNotFoundError):\n"
        "                self._segments.remove(name)\n",
        seeds=4_000,
    ),
    Mutation(
        "a gap passed over",
        "control/run.py",
        "        if self.state != TableState.WAITING and self._behind_a_gap():\n",
        "        if False:\n",
    ),
    Mutation(
        "a heartbeat while changes wait",
        "changelog/writer.py",
        "        if self._pending.rows or not self._pending.complete:\n            return None\n",
        "",
        test="tests/changelog/test_log_writer.py",
    ),
    Mutation(
        "a target that takes what it has",
        "tables/table.py",
        "        if upto <= position:\n",
        "        if False:\n",
        test="tests/tables",
    ),
    Mutation(
        "live before it is shown",
        "control/run.py",
        "            self.target.show(self.table)\n            self._move(TableState.LIVE)\n",
        "            self._move(TableState.LIVE)\n            self.target.show(self.table)\n",
    ),
    Mutation(
        "a claim that was lost is the end",
        "changelog/writer.py",
        "            return False\n",
        "            raise\n",
        test=FINDINGS,
    ),
    Mutation(
        "an epoch the log never had is passed over",
        "control/run.py",
        " or self.reached.epoch > log.epoch\n",
        "\n",
        test=FINDINGS,
    ),
    Mutation(
        "an older engine puts a target back",
        "control/run.py",
        "        around.store.check()\n",
        "",
        test=FINDINGS,
    ),
    Mutation(
        "an older engine writes progress",
        "control/store.py",
        "        if term != self.term:\n",
        "        if term < self.term:\n",
        test="tests/control/test_store.py",
    ),
)
