"""Breaks of what becomes of rows: their order, and the letters of those that fail."""

from __future__ import annotations

from tests.mutate.mutation import FINDINGS, GUARDS, Mutation

CORRECTIONS = "tests/control/test_corrections.py"
TTL = "tests/control/test_ttl.py"

OF_ROWS = (
    Mutation(
        "rows that have expired come back when a table is rebuilt",
        "runtime/delivery.py",
        "            self.expiry.recall(store.expired_upto(self.name))\n",
        "            pass\n",
        test=(
            f"{TTL}::test_expired_rows_do_not_come_back_when_the_table_is_rebuilt"
            "_with_a_clock_set_back"
        ),
    ),
    Mutation(
        "rows that have expired come back by a reload",
        "runtime/target_load.py",
        "                self._delivery.expire_loaded(member, load, at)\n",
        "",
        test=f"{TTL}::test_expired_rows_do_not_come_back_by_a_reload",
    ),
    Mutation(
        "rows expire by a watermark that is not stored",
        "corrections/expiry.py",
        "        self._store(upto)\n",
        "",
        test=f"{TTL}::test_what_has_expired_is_stored_before_a_row_is_deleted",
    ),
    Mutation(
        "a row is deleted that was refreshed before its old time had passed",
        "corrections/expiry.py",
        "    return Position(position.epoch, position.commit, max(",
        "    return Position(position.epoch, position.commit + 1, max(",
        test=f"{TTL}::test_a_row_that_gets_a_later_time_stays",
    ),
    Mutation(
        "a scan takes the place of a correction that comes next",
        "runtime/delivery.py",
        "            and self.journal.next(lineage, (member.table,), reached, end, None) is None\n",
        "",
        test=f"{TTL}::test_a_scan_waits_for_a_correction_that_stands_where_it_would",
    ),
    Mutation(
        "a row that has expired before it arrives is shown",
        "corrections/expiry.py",
        "        if not gone.any():\n            return rows\n        mask",
        "        if gone is not None:\n            return rows\n        mask",
        test=f"{TTL}::test_a_row_that_has_expired_is_not_shown_when_it_arrives",
    ),
    Mutation(
        "a direct batch computes the rows that wait for a dead letter",
        "pipeline/job.py",
        "            rows = rows_in(piece.paths, without)\n",
        "            rows = rows_in(piece.paths)\n",
        test=(
            "tests/pipeline/test_direct_on_spark.py"
            "::test_a_row_that_raises_comes_back_beside_the_good_ones_without_a_job"
        ),
        spark=True,
    ),
    Mutation(
        "a direct batch reads the image before for that after",
        "pipeline/job.py",
        "    columns = [_column(rows.column(field.name), field.dataType) for field in schema]\n",
        "    columns = [\n"
        '        _column(rows.column(field.name.replace("after", "before")), field.dataType)\n'
        "        for field in schema\n"
        "    ]\n",
        test=(
            "tests/pipeline/test_direct_on_spark.py"
            "::test_random_batches_give_the_same_rows_and_failures_both_ways"
        ),
        spark=True,
    ),
    Mutation(
        "a result that differs from a job's is not noticed",
        "pipeline/runner.py",
        "        if same_results(result, again):\n",
        "        if True:\n",
        test="tests/pipeline/test_direct.py::test_results_that_differ_are_both_kept",
    ),
    Mutation(
        "the check by a job is not run",
        "runtime/pipeline_run.py",
        "        self.delivery.check()\n",
        "",
        test=(
            "tests/control/test_direct_batches.py"
            "::test_a_check_runs_once_readers_see_the_rows_and_a_difference_stops_the_pipeline"
        ),
    ),
    Mutation(
        "no sort",
        "pipeline/result.py",
        "    return rows.take(pa.array(np.lexsort((ordinals, commits))))\n",
        "    return rows\n",
        test=(
            "tests/pipeline/test_result.py"
            "::test_rows_come_in_position_order_however_spark_gave_them"
        ),
    ),
    Mutation(
        "a target that takes what it has",
        "tables/table.py",
        "        if upto <= self.position:\n",
        "        if False:\n",
        test="tests/targets/test_memory_target.py::test_a_batch_that_comes_again_is_not_heard_again",
    ),
    Mutation(
        "dead letter not synced",
        "storage/records.py",
        "        self._files.create(self._file(number), data)\n",
        "        self._files.create(self._file(number), data, settle=False)\n",
        test="tests/pipeline/test_letters_power_cut.py::test_a_letter_is_there_after_a_power_cut_right_after_it_was_added",
    ),
    Mutation(
        "letter after the target's write",
        "runtime/delivery.py",
        "            self._keep([found for each in computed.values()"
        " for found in each.dead_letters])\n",
        "",
        also=(
            (
                "runtime/delivery.py",
                "            reach(TARGET_WRITTEN)\n",
                "            reach(TARGET_WRITTEN)\n"
                "            for each in computed.values():\n"
                "                self._keep(each.dead_letters)\n",
            ),
        ),
        test=f"{GUARDS}::test_a_letter_is_on_disk_before_the_target_has_anything_of_its_batch",
    ),
    Mutation(
        "letters of an earlier run hold nothing",
        "deadletters/store.py",
        "        self.written = last > 0\n",
        "        self.written = False\n",
        test=f"{GUARDS}::test_a_row_with_a_letter_stays_as_it_was_whatever_comes_later",
    ),
    Mutation(
        "a merge of dead letters leaves one out",
        "deadletters/store.py",
        "                    [each.located for each in kept],\n",
        "                    [each.located for each in kept[1:]],\n",
        test="tests/pipeline/test_ended_letters.py::test_many_files_become_one_that_says_the_same",
    ),
    Mutation(
        "files of dead letters removed before the merged one is durable",
        "deadletters/store.py",
        "            self._doubtful = True\n            try:\n"
        "                self._records.create(",
        "            self._remove_before(record.number)\n            self._doubtful = True\n"
        "            try:\n                self._records.create(",
        test=(
            "tests/pipeline/test_ended_letters.py"
            "::test_no_power_cut_or_kill_at_any_step_of_a_merge_loses_a_letter"
        ),
    ),
    Mutation(
        "a gap after a merge not noticed",
        "deadletters/letter.py",
        "    for number in range(last, 0, -1):\n",
        "    for number in sorted(records.numbers(), reverse=True):\n",
        test="tests/pipeline/test_ended_letters.py::test_a_missing_file_after_a_merge_is_named",
    ),
    Mutation(
        "what a purge gave up is forgotten by a merge",
        "deadletters/store.py",
        "                    self._ledger.purged,\n",
        "                    (),\n",
        test="tests/pipeline/test_ended_letters.py::test_what_ended_long_ago_is_removed_and_nothing_else",
    ),
    Mutation(
        "a replay of a dead letter releases what waits behind it",
        "deadletters/ledger.py",
        '                if resolved.reason == "purged":\n',
        "                for other in self._of(known.table):\n"
        "                    if not set(other.keys).isdisjoint(known.keys):\n"
        "                        other.ended = known.ended\n"
        '                if resolved.reason == "purged":\n',
        test=(
            "tests/pipeline/test_ended_letters.py"
            "::test_a_key_stays_held_by_what_waited_behind_until_that_is_resolved_too"
        ),
    ),
    Mutation(
        "a correction is lost where the log is folded",
        "runtime/delivery.py",
        "        self.journal.move(member.table, loaded, lineage, known)\n",
        "",
        test=f"{FINDINGS}"
        "::test_an_edit_stays_although_the_log_is_folded_past_it_and_the_target_is_rebuilt",
    ),
    Mutation(
        "the log is folded past where it is known which corrections count",
        "runtime/retention.py",
        '            yield Pin("correction", f"{run.name}/{member.table}", before_commit(at))\n',
        "            yield from ()\n",
        test=f"{CORRECTIONS}"
        "::test_the_log_of_a_table_with_corrections_is_kept_from_where_progress_was_stored",
    ),
    Mutation(
        "a correction is moved over a change that came after it",
        "corrections/journal.py",
        "            if in_log(known) < in_log(first):\n",
        "            if False:\n",
        test=f"{CORRECTIONS}::test_what_a_correction_did_to_some_of_its_rows_is_moved_alone",
    ),
    Mutation(
        "a correction is applied twice",
        "corrections/journal.py",
        "                and each.first > after\n",
        "                and each.last >= after\n",
        test=f"{CORRECTIONS}::test_a_correction_comes_once_and_only_while_it_counts",
    ),
    Mutation(
        "a correction that a table may still need is removed",
        "corrections/journal.py",
        "    if correction.counts and len(correction.changed) < len(correction.record.keys):\n",
        "    if False:\n",
        test=f"{CORRECTIONS}::test_files_of_corrections_are_removed_once_nothing_needs_them",
    ),
    Mutation(
        "records of a journal are removed that no checkpoint has replaced",
        "corrections/journal.py",
        "if n < self._cut and n not in self._known}",
        "if n not in self._known}",
        test=f"{CORRECTIONS}::test_files_of_corrections_are_removed_once_nothing_needs_them",
    ),
    Mutation(
        "a table is shown before the corrections of its last commit",
        "runtime/model.py",
        "        return at and goal >= self.last and (goal.ordinal <= CHANGES_END or"
        " self.reached >= goal)\n",
        "        return at and goal >= self.last\n",
        seeds=25,
    ),
    Mutation(
        "an edit is delivered again after a reload",
        "corrections/journal.py",
        "        return copy > self.record.copy and first.commit >= self.first.commit\n",
        "        return False\n",
        test=f"{CORRECTIONS}::test_a_reload_covers_an_edit_and_the_row_fails_again",
    ),
    Mutation(
        "the dead letters of a correction stay after a kill",
        "runtime/delivery.py",
        "                self._resolve(correction, waiting)\n",
        "                pass\n",
        test=(
            f"{CORRECTIONS}::test_a_correction_whose_dead_letters_were_not_resolved_is_completed"
        ),
    ),
    Mutation(
        "a change that was edited fails again in a rebuilt target",
        "runtime/delivery.py",
        "        new = [each for each in new if not self._corrected(each, loaded)]\n",
        "",
        test=(
            f"{CORRECTIONS}"
            "::test_an_edit_gives_the_row_other_values_and_stays_when_the_target_is_rebuilt"
        ),
    ),
    Mutation(
        "held key not parked behind",
        "runtime/table_jobs.py",
        "        if not held:\n            return known, ()\n",
        "        return known, ()\n",
        test=f"{GUARDS}::test_a_row_with_a_letter_stays_as_it_was_whatever_comes_later",
    ),
    Mutation(
        "what follows a failed change by key is not parked with it",
        "deadletters/hold.py",
        "        if row in failed or held_now:\n",
        "        if row in failed:\n",
        test="tests/pipeline/test_parking.py::test_a_failed_change_takes_along_what_follows_it_by_key",
    ),
    Mutation(
        "letters cleared at a reload although its baseline fails still",
        "runtime/delivery.py",
        '"reload", keep_baseline=baseline)\n',
        '"reload")\n',
        test=(
            f"{GUARDS}"
            "::test_a_row_that_fails_in_the_new_baseline_too_has_its_letter_after_the_reload"
        ),
    ),
    Mutation(
        "lost executor blamed on rows",
        "spark_session/errors.py",
        "    if not named or any(_MACHINE.fullmatch(cause.kind) for cause in causes):\n",
        "    if not named:\n",
        test="tests/pipeline/test_failures.py::test_no_row_is_to_blame",
    ),
)
