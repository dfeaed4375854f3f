"""Breaks of what makes a recorded change durable, and of what is acknowledged for it."""

from __future__ import annotations

from tests.mutate.mutation import FINDINGS, Mutation

OF_LOG = (
    Mutation(
        "acknowledge before sync",
        "capture/recorder.py",
        "            self._moved, self._markers = None, ()\n            if self._first",
        "            self._moved, self._markers = None, ()\n"
        "            self._source.acknowledge(str(changes.upto))\n            if self._first",
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
        '            self.segments.settle("")\n            reach(SEGMENT_WRITTEN)\n'
        "            flush = self._flushed(pending, pending.upto)\n"
        "            self.enter(flush)\n",
        "            reach(SEGMENT_WRITTEN)\n"
        "            flush = self._flushed(pending, pending.upto)\n"
        "            self.enter(flush)\n"
        '            self.segments.settle("")\n',
    ),
    Mutation(
        "baseline's entry before its files",
        "changelog/writer.py",
        '            self.segments.settle("")\n            self.enter(entry)\n',
        '            self.enter(entry)\n            self.segments.settle("")\n',
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
        "        if names:\n",
        "        if False:\n",
    ),
    Mutation(
        "no lineage check in the recorder",
        "capture/continuity.py",
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
        "files of a baseline removed although its entry may exist",
        "changelog/writer.py",
        "        if self._broken is not None:\n            # An entry that names them",
        "        if False:\n            # An entry that names them",
        test="tests/changelog/test_log_baseline.py",
    ),
    Mutation(
        "the broom before the claim",
        "changelog/writer.py",
        "        # R31: first the number, then the broom. See the top of this module.\n",
        "        sweep(self.segments, history)\n",
        seeds=4_000,
    ),
    Mutation(
        "a heartbeat while changes wait",
        "changelog/writer.py",
        "        if self._pending.rows or not self._pending.complete:\n            return None\n",
        "",
        test="tests/changelog/test_log_writer.py",
    ),
    Mutation(
        "a claim that was lost is the end",
        "changelog/writer.py",
        "            return False\n",
        "            raise\n",
        test=FINDINGS,
    ),
    Mutation(
        "who reads below what is kept gets fewer rows",
        "changelog/reader.py",
        "            if str(after) < history.floor:\n",
        "            if False:\n",
        test="tests/changelog/test_log_pruning.py",
    ),
    Mutation(
        "files that were dropped go without a lease",
        "changelog/opening.py",
        " - history.names() - leased)",
        " - history.names())",
        test="tests/changelog/test_log_pruning.py",
    ),
    Mutation(
        "a number that was freed is taken again",
        "changelog/index.py",
        "            if self.last:\n                self._files.size",
        "            if False:\n                self._files.size",
        test="tests/changelog/test_log_pruning.py",
    ),
    Mutation(
        "a flush reaches over where somebody begins",
        "changelog/compaction.py",
        "            if run and history.lasts[at] > fence:\n",
        "            if False:\n",
        test="tests/changelog/test_log_compaction.py",
    ),
    Mutation(
        "a fold forgets the old key of a row",
        "changelog/folding.py",
        "            if op == Op.DELETE or (old is not None and old != new):\n",
        "            if op == Op.DELETE:\n",
        test="tests/changelog/test_log_folding.py",
    ),
    Mutation(
        "a folded baseline answers a reload",
        "control/loading.py",
        "    return not (baseline.copy or baseline.baseline) <= than <= baseline.baseline\n",
        "    return baseline.baseline != than\n",
        test="tests/control/test_log_care.py",
    ),
    Mutation(
        "our own object behind a lost answer is another's",
        "storage/objects.py",
        "            if tries == 1 or not self._holds(name, data):\n",
        "            if True:\n",
        test="tests/storage/test_objects.py",
    ),
    Mutation(
        "another's object behind a lost answer is ours",
        "storage/objects.py",
        "            if tries == 1 or not self._holds(name, data):\n",
        "            if tries == 1:\n",
        test="tests/storage/test_objects.py",
    ),
    Mutation(
        "a storage without conditions is trusted",
        "storage/opening.py",
        "    files.prove()\n",
        "",
        test="tests/storage/test_opening.py",
    ),
    Mutation(
        "a lost store begins at the first term",
        "control/engine.py",
        "        home.store.outrank(log.term)\n",
        "",
        test="tests/control/test_log_elsewhere.py",
    ),
)
