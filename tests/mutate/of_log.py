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
        "changelog/change.py",
        "    return rows.take(np.lexsort((ordinals, commits)))\n",
        "    return rows\n",
        test=(
            "tests/changelog/test_log_writer.py"
            "::test_a_flush_has_one_file_for_each_table_in_position_order"
        ),
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
        seeds=50,
    ),
    Mutation(
        "baseline's entry before its files",
        "changelog/writer.py",
        '            self.segments.settle("")\n            self.enter(entry)\n',
        '            self.enter(entry)\n            self.segments.settle("")\n',
        seeds=250,
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
        seeds=150,
    ),
    Mutation(
        "names that were seen are not made durable",
        "changelog/index.py",
        "        if names:\n",
        "        if False:\n",
    ),
    Mutation(
        "news are written before what is pending",
        "capture/recorder.py",
        "            return\n        self._flush(log)\n        for each in _once(self._notices):\n",
        "            return\n        for each in _once(self._notices):\n",
        test=(
            "tests/postgres/test_partitions.py"
            "::test_what_is_written_to_a_partition_after_it_was_detached_is_not_the_tables"
        ),
    ),
    Mutation(
        "a source is read before it is maintained",
        "capture/recorder.py",
        "            if self._clock() >= self._maintain_at:\n",
        "            if self._clock() > self._maintain_at:\n",
        test=(
            "tests/capture/test_housekeeping.py"
            "::test_a_source_is_maintained_before_its_first_read_and_then_when_it_says"
        ),
    ),
    Mutation(
        "a change passes the housekeeping",
        "capture/recorder.py",
        "        if heartbeat or self._busy or self._clock() >= self._housekeeping_at:\n",
        "        if True:\n",
        test=(
            "tests/capture/test_housekeeping.py"
            "::test_changes_pass_no_housekeeping_while_nothing_in_it_is_due"
        ),
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
        "files of a baseline removed although its entry may exist",
        "changelog/writer.py",
        "        if self._broken is not None:\n            # An entry that names them",
        "        if False:\n            # An entry that names them",
        test=(
            "tests/changelog/test_log_baseline.py"
            "::test_segments_stay_while_the_entry_that_names_them_may_exist"
        ),
    ),
    Mutation(
        "the broom before the claim",
        "changelog/writer.py",
        "        # R31: first claim the number, then sweep. See the top of this module.\n",
        "        sweep(self.segments, history)\n",
        seeds=250,
    ),
    Mutation(
        "a heartbeat while changes wait",
        "changelog/writer.py",
        "        if self._pending.rows or not self._pending.complete:\n            return None\n",
        "",
        test=(
            "tests/changelog/test_log_writer.py::test_a_heartbeat_moves_the_end_and_is_written_once"
        ),
    ),
    Mutation(
        "a claim that was lost is the end",
        "changelog/writer.py",
        "            return False\n",
        "            raise\n",
        test=(
            f"{FINDINGS}"
            "::test_a_later_writer_that_was_overtaken_while_it_opened_claims_the_next_number"
        ),
    ),
    Mutation(
        "who reads below what is kept gets fewer rows",
        "changelog/reader.py",
        "            if str(after) < history.floor:\n",
        "            if False:\n",
        test=(
            "tests/changelog/test_log_pruning.py"
            "::test_what_is_pruned_is_not_read_and_what_is_kept_is"
        ),
    ),
    Mutation(
        "files that were dropped go without a lease",
        "changelog/writer.py",
        " - history.names() - leased)",
        " - history.names())",
        test=(
            "tests/changelog/test_log_pruning.py"
            "::test_files_go_a_lease_after_the_index_dropped_them"
        ),
    ),
    Mutation(
        "a number that was freed is taken again",
        "changelog/index.py",
        "            if self.last:\n                self._files.size",
        "            if False:\n                self._files.size",
        test=(
            "tests/changelog/test_log_pruning.py"
            "::test_a_writer_from_long_ago_does_not_take_a_number_that_was_freed"
        ),
    ),
    Mutation(
        "a flush reaches over where somebody begins",
        "changelog/compaction.py",
        "            if run and history.lasts[at] > fence:\n",
        "            if False:\n",
        test=(
            "tests/changelog/test_log_compaction.py"
            "::test_nothing_reaches_over_a_place_where_somebody_may_begin"
        ),
    ),
    Mutation(
        "a fold forgets the old key of a row",
        "changelog/compaction.py",
        "            if op == Op.DELETE or (old is not None and old != new):\n",
        "            if op == Op.DELETE:\n",
        test=(
            "tests/changelog/test_log_folding.py"
            "::test_a_folded_baseline_holds_what_its_changes_lead_to"
        ),
    ),
    Mutation(
        "a folded baseline answers a reload",
        "runtime/target_load.py",
        "    return not (baseline.copy or baseline.baseline) <= than <= baseline.baseline\n",
        "    return baseline.baseline != than\n",
        test="tests/control/test_log_care.py::test_a_folded_baseline_is_as_old_as_its_copy",
    ),
    Mutation(
        "our own object behind a lost answer is another's",
        "storage/objects.py",
        "            if tries == 1 or not self._holds(name, data):\n",
        "            if True:\n",
        test="tests/storage/test_objects.py::test_our_own_object_behind_a_lost_answer_is_ours",
    ),
    Mutation(
        "another's object behind a lost answer is ours",
        "storage/objects.py",
        "            if tries == 1 or not self._holds(name, data):\n",
        "            if tries == 1:\n",
        test=(
            "tests/storage/test_objects.py"
            "::test_anothers_object_behind_an_answer_that_stayed_out_is_not_ours"
        ),
    ),
    Mutation(
        "a storage without conditions is trusted",
        "storage/s3.py",
        "    files.prove()\n",
        "",
        test="tests/storage/test_opening.py::test_a_storage_that_is_refused_is_remembered_nowhere",
    ),
    Mutation(
        "a lost store begins at the first term",
        "engine/assembly.py",
        "    directory.store.outrank(log.term)\n",
        "",
        test=(
            "tests/control/test_log_elsewhere.py"
            "::test_an_engine_that_lost_its_store_outranks_whoever_wrote_the_log"
        ),
    ),
)
