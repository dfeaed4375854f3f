"""Breaks of what drives a pipeline: progress, baselines, intents, pauses."""

from __future__ import annotations

from tests.mutate.mutation import FINDINGS, GUARDS, Mutation

EVENTS = "tests/control/test_events.py"
HEALTH = "tests/control/test_health.py"
METRICS = "tests/control/test_metrics.py"
INTENTS = "tests/control/test_intents.py"
SILENCE = "tests/postgres/test_silence.py"
CHANGES = "tests/postgres/test_silent_changes.py"
SQLITE_CHANGES = "tests/capture/test_sqlite_silent_changes.py"
SOURCE_STATE = "tests/control/test_source_state.py"
STREAMING = "test_a_source_connects_streams_is_lost_and_comes_back_each_with_reason_and_time"
IN_TURN = "tests/control/test_columns_in_turn.py"

OF_CONTROL = (
    Mutation(
        "acknowledge at once what the log has, whatever targets have",
        "runtime/model.py",
        "    return Watermark(durable, settled, min(firsts, default=None))\n",
        "    return Watermark(durable, log.end, None)\n",
    ),
    Mutation(
        "progress before apply",
        "runtime/delivery.py",
        "            upto = self._offer(taking, batch, computed, self._target.write)\n",
        "            tables, lineage = list(batch.tables), context.log.lineage or ''\n"
        "            context.store.advance(self.name, tables, lineage, batch.last)\n"
        "            upto = self._offer(taking, batch, computed, self._target.write)\n",
        seeds=100,
    ),
    Mutation(
        "a table shown before it is exact",
        "runtime/target_load.py",
        "all(load and load.last <= end for load in loads)",
        "all(load and load.first <= end for load in loads)",
        also=(("runtime/model.py", " and goal >= self.last and (", " and ("),),
    ),
    Mutation(
        "late progress named after a history that the table has not followed",
        "runtime/pipeline_run.py",
        '        return member.lineage or self.context.log.lineage or ""\n',
        '        return self.context.log.lineage or ""\n',
        test="tests/control/test_gaps.py"
        "::test_progress_that_is_stored_late_keeps_the_history_that_it_belongs_to",
    ),
    Mutation(
        "a reloaded table shown before it is exact",
        "runtime/model.py",
        " and goal >= self.last and (",
        " and (",
        test=(
            f"{GUARDS}::test_a_reloaded_table_is_not_shown_before_the_log_has_all_that_its_copy_saw"
        ),
    ),
    Mutation(
        "the engine reads beyond what was reported",
        "runtime/source_run.py",
        "            self.log.refresh(self._reported)\n",
        "            self.log.refresh()\n",
        seeds=50,
    ),
    Mutation(
        "ready before it was seen that all is applied",
        "engine/status.py",
        "        return end is not None and run.applied(end)\n",
        "        return True\n",
        test=f"{SILENCE}::test_what_was_committed_before_a_start_is_there_once_it_is_ready",
    ),
    Mutation(
        "all counts as read that the server has",
        "capture/postgres/server/wal_usage.py",
        "        while self._samples and self._samples[0][0] <= read:\n",
        "        while self._samples:\n",
        test=f"{SILENCE}::test_a_row_that_did_not_arrive_on_a_silent_connection_is_not_green",
    ),
    Mutation(
        "lag from the stream alone",
        "capture/postgres/server/wal_usage.py",
        "        before, self.end, since = self.end, int(found[0]), now\n",
        "        before, self.end, since = self.end, 0, now\n",
        test=f"{SILENCE}::test_a_row_that_did_not_arrive_on_a_silent_connection_is_not_green",
    ),
    Mutation(
        "a table's identity by its name",
        "capture/postgres/server/ddl_watch.py",
        "        if self.oid != now.oid:\n            return REPLACED\n",
        "",
        # Most such tables are also told apart by their columns, files and publication.
        test=(
            "tests/postgres/test_identity_of_tables.py"
            "::test_tables_that_nothing_but_their_oids_tells_apart_are_not_taken_for_each_other"
        ),
    ),
    Mutation(
        "a publication read once",
        "capture/postgres/server/ddl_watch.py",
        "        if self._published_otherwise(now, ours):\n            return PUBLISHED\n",
        "",
        test=(
            f"{CHANGES}"
            "::test_a_publication_that_was_altered_for_a_moment_has_its_tables_copied_again"
        ),
    ),
    Mutation(
        "versions of types ignored",
        "capture/postgres/server/ddl_watch.py",
        "            if type in items and items[type].altered(text, before.get(type)):\n",
        "            if False:\n",
        test=f"{CHANGES}::test_a_type_that_prints_old_values_differently_has_its_table_copied_again",
    ),
    Mutation(
        "a SQLite file is current before it is looked at",
        "capture/sqlite/source.py",
        "                    sound = now.verify.current and now.log.goes_on()\n",
        "                    sound = True\n",
        test=(
            f"{SQLITE_CHANGES}::test_a_source_is_not_said_to_be_current_before_a_change_is_noticed"
        ),
    ),
    Mutation(
        "a missing seal counts as none",
        "capture/sqlite/triggers.py",
        "    broken = not _sealed(database, names) and _noted_sealed(database, names)\n",
        "    broken = False\n",
        test=(
            f"{SQLITE_CHANGES}::test_triggers_that_were_away_and_are_back_as_they_were_are_noticed"
        ),
    ),
    Mutation(
        "an error of reading ends the listening thread",
        "runtime/source_run.py",
        "            self._unread = error\n",
        "            raise\n",
        test=f"{FINDINGS}::test_a_log_that_cannot_be_read_is_told_and_read_with_the_next_report",
    ),
    Mutation(
        "a gap passed over",
        "runtime/pipeline_run.py",
        "            if not member.cut_off_by_gap(log):\n",
        "            if True:\n",
    ),
    Mutation(
        "a baseline that is owed passed over",
        "runtime/pipeline_run.py",
        "            if (required := member.rebaseline_required(log)) is not None:\n",
        "            if (required := member.rebaseline_required(log)) and log is None:\n",
        also=(
            ("runtime/pipeline_run.py", "or member.rebaseline_required(self.context.log)\n", "\n"),
        ),
    ),
    Mutation(
        "a gap passed over while every table is live and quiet",
        "runtime/pipeline_run.py",
        "        if looked_at == self._quiet_at:\n",
        "        if self._quiet_at is not None:\n",
    ),
    Mutation(
        "live before it is shown",
        "runtime/target_load.py",
        "                loading.switch(at)\n",
        "",
        also=(
            (
                "runtime/target_load.py",
                "            self._settle(member, at, load.baseline)\n            self.switched",
                "            self._settle(member, at, load.baseline)\n"
                "            load.loading.switch(at)\n            self.switched",
            ),
        ),
        test=f"{GUARDS}::test_a_table_is_noted_as_live_only_once_its_target_shows_it",
    ),
    Mutation(
        "what is shown is noted for one table of two",
        "runtime/pipeline_run.py",
        "            self._loads.note_switched()\n",
        "            pass\n",
        test=(
            "tests/control/test_several_tables.py"
            "::test_no_table_goes_on_before_it_is_noted_that_all_are_shown"
        ),
    ),
    Mutation(
        "columns that come during a step are left out of its batch",
        "runtime/pipeline_run.py",
        "        if not (batch.corrects or all(known)):\n",
        "        if False:\n",
        test=(
            "tests/control/test_altered_meanwhile.py"
            "::test_a_batch_that_has_columns_nobody_has_followed_waits_for_them"
        ),
    ),
    Mutation(
        "a column that is dropped is missing from the changes before",
        "runtime/schema_changes.py",
        "            turn = log.columns_in_turn(table, since, after)\n",
        "            turn = log.columns(table, since)\n",
        test=f"{IN_TURN}::test_changes_have_the_values_of_a_column_that_was_dropped_since",
    ),
    Mutation(
        "columns come before their turn",
        "changelog/history.py",
        "            return Turn(schema, history.lasts[history.step_of(piece.flush) - 1])\n",
        "            return Turn(latest)\n",
        test=f"{IN_TURN}::test_each_of_many_columns_has_its_turn",
    ),
    Mutation(
        "a flush has changes in the columns of before and of after",
        "capture/recorder.py",
        "            if log.alters(changes) or not changes.ends:",
        "            if not changes.ends:",
        test=f"{IN_TURN}::test_commits_that_were_read_together_are_told_in_their_own_columns",
    ),
    Mutation(
        "a reload waits for columns whose turn it keeps from coming",
        "runtime/target_load.py",
        "            elif not member.following or member.knows(log, baseline.files):\n",
        "            else:\n",
        test=f"{IN_TURN}::test_a_reload_waits_until_the_columns_of_its_rows_have_their_turn",
    ),
    Mutation(
        "flushes are merged over a change of columns",
        "changelog/compaction.py",
        "                if run and any(schemas.get(f.table, f.schema) ",
        "                if not run and any(schemas.get(f.table, f.schema) ",
        test=(
            "tests/changelog/test_columns.py::test_flushes_in_other_columns_are_not_merged_into_one"
        ),
    ),
    Mutation(
        "an epoch the log never had is passed over",
        "runtime/model.py",
        " or self.reached.epoch > log.epoch\n",
        "\n",
        test=f"{FINDINGS}::test_a_log_made_anew_is_noticed_by_an_epoch_it_never_had",
    ),
    Mutation(
        "an older engine puts a target back",
        "runtime/target_load.py",
        "        self._context.check()\n",
        "",
        test=f"{GUARDS}::test_an_engine_that_was_taken_over_shows_no_table_that_it_had_loaded",
    ),
    Mutation(
        "an older engine writes progress",
        "runtime/store.py",
        "        if term != self.term:\n",
        "        if term < self.term:\n",
        test="tests/control/test_store.py::test_an_engine_that_was_replaced_can_write_nothing",
    ),
    Mutation(
        "effect before intent",
        "runtime/delivery.py",
        "        if self.intends:\n            self._intend(start, batch)\n",
        "",
        also=(
            (
                "runtime/delivery.py",
                "        if self.intends:\n            reach(EFFECT_DONE)\n",
                "        if self.intends:\n            self._intend(start, batch)\n"
                "            reach(EFFECT_DONE)\n",
            ),
        ),
        test=f"{INTENTS}::test_a_write_whose_answer_got_lost_is_repeated_as_it_was",
    ),
    Mutation(
        "a refused row is written again",
        "runtime/delivery.py",
        "                computed[member.table] = rest\n",
        "",
        test="tests/control/test_refused_rows.py"
        "::test_a_batch_that_a_service_refuses_in_part_comes_again_without_these_rows",
    ),
    Mutation(
        "a function is called without a row whose dead letter is not stored",
        "runtime/table_jobs.py",
        "            self._keep(parked.dead_letters)\n            # Changes before",
        "            # Changes before",
        test="tests/control/test_frames.py::test_a_refused_row_is_not_lost_with_a_batch_that_the"
        "_function_passes_over_the_next_time",
    ),
    Mutation(
        "what follows a refused row is applied",
        "runtime/table_jobs.py",
        "rows = without(computed.rows, parked.references)",
        "rows = without(computed.rows, [each.reference for each in failures])",
        test="tests/control/test_refused_rows.py"
        "::test_a_batch_that_a_service_refuses_in_part_comes_again_without_these_rows",
    ),
    Mutation(
        "an intended batch cut anew",
        "runtime/delivery.py",
        "        if intent is not None and intent.after == str(start):\n            again",
        "        if intent is not None and False:\n            again",
        test=(
            f"{INTENTS}::test_a_batch_whose_progress_was_lost_comes_again_with_its_id_and_content"
        ),
    ),
    Mutation(
        "a function is not told that a table is empty",
        "runtime/delivery.py",
        " or [SegmentGroup(member.input, ())]\n",
        "\n",
        test=(
            "tests/control/test_frames.py"
            "::test_a_reload_of_a_table_that_was_emptied_is_told_by_a_piece_without_rows"
        ),
    ),
    Mutation(
        "rows of a load that could not be shown are kept for good",
        "runtime/target_load.py",
        "                    self._discard(loading)\n            raise\n",
        "                    pass\n            raise\n",
        test=(
            "tests/control/test_reload.py"
            "::test_rows_of_a_load_that_could_not_be_shown_are_let_go_of"
        ),
    ),
    Mutation(
        "a lake's table gone on with by another mode",
        "lake/table.py",
        "        if other and not self._adopt:\n            raise other_mode(mode, self.where)\n",
        "        other = False\n",
        test=(
            "tests/pipeline/lake/test_kept_by_mode.py"
            "::test_a_table_that_was_kept_by_another_mode_is_refused_unless_it_is_to_be_replaced"
        ),
    ),
    Mutation(
        "pause not stored",
        "runtime/pipeline_run.py",
        "        self.context.store.set_paused(self.name, True)\n",
        "",
        test="tests/control/test_pause.py::test_a_pause_outlives_the_engine",
    ),
    Mutation(
        "a reload that is owed is forgotten at a restart",
        "runtime/pipeline_run.py",
        "            member.newer_than = baseline\n        if state == TableState.RELOADING",
        "            pass\n        if state == TableState.RELOADING",
        test=f"{GUARDS}::test_a_reload_that_is_owed_is_not_done_with_the_baseline_there_was",
    ),
    Mutation(
        "the pause after a failure ended by every entry of the log",
        "runtime/threads.py",
        "            log.wait(_NO_ENTRY, left, called)\n",
        "            if log.wait(log.last_entry, left, called):\n                return\n",
        test=(
            "tests/control/test_backing_off.py"
            "::test_new_entries_of_the_log_do_not_shorten_the_pause_after_a_failure"
        ),
    ),
    Mutation(
        "a row let go of while its table is reloaded and its baseline has left the log",
        "runtime/delivery.py",
        "held(member.table, newest=newest))",
        "held(member.table, newest=0))",
        test=(
            "tests/simulation/test_findings.py"
            "::test_a_row_stays_held_while_its_table_is_reloaded_though_its_baseline_left_the_log"
        ),
    ),
    Mutation(
        "a pipeline tried again without an end",
        "runtime/model.py",
        "    if not temporary or retries.exhausted(attempts):\n",
        "    if not temporary:\n",
        test="tests/control/test_retries.py::test_pauses_grow_from_the_first_to_the_longest",
    ),
    Mutation(
        "a source tried again without an end",
        "capture/recorder.py",
        "                if self._reconnect.exhausted(self._lost) and not self.done:\n",
        "                if False:\n",
        test=(
            "tests/capture/test_recorder.py"
            "::test_opening_a_source_again_because_something_changed_counts_as_no_failure"
        ),
    ),
    Mutation(
        "a failure that stops all stops its source alone",
        "engine/state.py",
        '(policy == "stop_all" or run.source == failed.source)',
        "run.source == failed.source",
        test=(
            "tests/control/test_policies.py"
            "::test_a_policy_stops_its_pipelines_at_once_not_with_their_next_batch"
        ),
    ),
    Mutation(
        "a failure stops one pipeline alone, whatever its policy",
        "engine/state.py",
        '(policy := failed.pipeline.on_failure) == "isolate":',
        '(policy := failed.pipeline.on_failure) != "":',
        test=(
            "tests/control/test_policies.py"
            "::test_a_policy_stops_its_pipelines_at_once_not_with_their_next_batch"
        ),
    ),
    Mutation(
        "streaming while it reconnects",
        "runtime/source_run.py",
        "                return SourceState.RECONNECTING\n        # It is being opened",
        "                return SourceState.STREAMING\n        # It is being opened",
        test=f"{SOURCE_STATE}::{STREAMING}",
    ),
    Mutation(
        "streaming before anything was read",
        "runtime/source_run.py",
        "SourceState.STREAMING if self._has_read else SourceState.CONNECTED",
        "SourceState.STREAMING",
        test=f"{SOURCE_STATE}::{STREAMING}",
    ),
    Mutation(
        "streaming although nothing is heard of it",
        "runtime/source_run.py",
        "        if silent:\n            return SourceState.RECONNECTING, silent\n",
        "",
        test=f"{SOURCE_STATE}::test_a_source_of_which_nothing_is_heard_is_not_streaming",
    ),
    Mutation(
        "a pipeline released for its lag loaded from the baseline that it had",
        "runtime/pipeline_run.py",
        "[self._newest(each) if lagged else _newer_than(each) for each in following]",
        "[_newer_than(each) for each in following]",
        test=(
            "tests/control/test_policies.py"
            "::test_a_pipeline_that_is_released_for_its_lag_gets_a_new_baseline"
        ),
    ),
    Mutation(
        "what a pipeline lags behind at its start counts at once",
        "runtime/wal_pressure.py",
        "            left = min(before.get(measure, 0), lag)\n",
        "            left = 0.0\n",
        test=(
            "tests/control/test_policies.py"
            "::test_what_a_pipeline_lags_behind_when_it_begins_may_be_caught_up_first"
        ),
    ),
    Mutation(
        "changes reported as applied before their progress is stored",
        "observe/counters.py",
        "            self._applied.append(\n",
        "            self._emit(\n",
        test=(
            f"{EVENTS}::test_changes_are_applied_once_the_target_has_them_and_progress_is_stored"
        ),
    ),
    Mutation(
        "dead letters reported before they are stored",
        "runtime/delivery.py",
        "            count = keep(self.dead_letters, new, self._pipeline, self.name)\n"
        "            self.report.dead_letters([each.table for each in new], count)\n",
        "            self.report.dead_letters([each.table for each in new], len(new))\n"
        "            keep(self.dead_letters, new, self._pipeline, self.name)\n",
        test=(
            f"{EVENTS}"
            "::test_dead_letters_are_written_once_they_are_on_disk"
            "_and_before_their_batch_is_applied"
        ),
    ),
    Mutation(
        "a baseline reported as complete before its state is stored",
        "runtime/target_load.py",
        '        state = TableState.COMPLETE if self._pipeline.mode == "baseline"'
        " else TableState.LIVE\n",
        "        member.baseline = baseline\n"
        "        self._report_completed(member)\n"
        '        state = TableState.COMPLETE if self._pipeline.mode == "baseline"'
        " else TableState.LIVE\n",
        test=(
            f"{EVENTS}"
            "::test_a_baseline_is_completed_once_the_target_shows_it_and_its_state_is_stored"
        ),
    ),
    Mutation(
        "a pause reported before it is stored",
        "runtime/pipeline_run.py",
        "        self.context.store.set_paused(self.name, True)\n"
        "        self.paused = True\n"
        "        self._report_state()\n",
        "        self.paused = True\n"
        "        self._report_state()\n"
        "        self.context.store.set_paused(self.name, True)\n",
        test=f"{EVENTS}::test_a_pause_is_reported_once_it_is_stored_and_each_move_once",
    ),
    Mutation(
        "events wait for a slow observer without end",
        "observe/dispatch.py",
        "        if queue.qsize() >= self._most:\n",
        "        if queue.qsize() < 0:\n",
        test=(
            "tests/observe/test_dispatch.py"
            "::test_a_slow_observer_loses_events_and_learns_how_many_where_they_are_missing"
        ),
    ),
    Mutation(
        "counts not stored with the progress",
        "runtime/store.py",
        "        with self._guarded(), self._counted(pipeline, tables):\n",
        "        with self._guarded(), self._transaction():\n",
        test=(
            "tests/control/test_counters.py"
            "::test_a_durable_target_continues_its_counts_exactly[dies]"
        ),
    ),
    Mutation(
        "an engine that hangs is live",
        "engine/health.py",
        "live=red if hung >= HUNG_SECONDS else HealthCheck(True)",
        "live=HealthCheck(True)",
        test=f"{HEALTH}::test_an_engine_that_hangs_is_red_at_once_and_not_live_when_it_lasts",
    ),
    Mutation(
        "started although a target is not open",
        "engine/health.py",
        "            if not (run.was_tried or run.stopped):\n",
        "            if run.failed:\n",
        test=f"{HEALTH}::test_a_target_that_is_not_open_yet_is_not_started_and_not_ready",
    ),
    Mutation(
        "a recorder that hangs is live",
        "engine/health.py",
        "(age := recording.unreported_seconds) > SILENT_RECORDER_SECONDS",
        "(age := recording.unreported_seconds) > 1e9",
        test=f"{HEALTH}::test_a_recorder_that_hangs_is_not_ready_and_later_not_live",
    ),
    Mutation(
        "a lag that is not known is exported as 0",
        "engine/metrics.py",
        "_each_pipeline(lambda p: visible_lag(p.info, p.source))",
        "_each_pipeline(lambda p: visible_lag(p.info, p.source) or 0.0)",
        test=f"{METRICS}::test_a_lag_that_is_not_known_is_absent_and_not_zero",
    ),
    Mutation(
        "counters that go back by a little after a crash",
        "engine/metrics.py",
        "getattr(table.run_counts, counted)",
        "getattr(table.counts, counted)",
        test=f"{METRICS}::"
        "test_counters_begin_at_0_with_each_start_and_what_was_counted_before_is_kept",
    ),
)
