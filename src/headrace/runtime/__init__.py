"""
What runs: one source, one pipeline, their threads and their progress.

It may import `pipeline`, `deadletters`, `spark_source` and the packages below them. It does not
depend on the engine that starts it: clock, log, runner, store and target are arguments, so that it
runs in the simulation. It uses targets only by the protocols of `targets.target`.

Begin with `model`, where progress and acknowledgement are computed from values alone, then follow a
batch through `pipeline_run` and `delivery`.

```
 info            what an engine reports, as frozen values
 model           progress, states, acknowledgement, and what an error leads to (R8)
 lease           the lock on a data directory, and the fence of an engine that was replaced
 store           the control store: term, progress, states and intents, in one SQLite file
 run_context     what the run of a pipeline works with: log, runner, store, files, clocks
 source_run      one running source: its recorder, and its log as the engine reads it
 spark           the engine's Spark session: ours, restarted if its JVM dies, or the user's
 copy_on_spark   baselines copied on Spark, several parts at a time
 target_load     baselines loaded into a target, and shown in one switch
 pipeline_run    one running pipeline, as a machine of small steps
 delivery        delivery of a batch to the target: intent, job, dead letters, write
 schema_changes  what a pipeline does when the columns of a table change (R23b)
 new_tables      tables of a pipeline that match a pattern
 threads         the threads that drive pipelines, one each
 retention       decides what may be removed from a log; the recorder removes it
 wal_pressure    which pipeline is released when a source runs out of space (R28)
```
"""
