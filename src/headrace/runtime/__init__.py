"""
What runs: one source, one pipeline, their threads and their progress.

It may import `pipeline`, `deadletters`, `spark_source` and what is below them. It knows nothing of
the engine that starts it: clock, log, runner, store and target come in by argument where simulation
needs them. A target it knows by the protocols of `targets.target` alone.

Begin with `model`, where progress and acknowledgement are computed from values alone, then follow a
batch through `pipeline_run` and `delivery`.

```
 info            what an engine reports, as frozen values, and the times of a change's hops
 model           progress, states, acknowledgement, and what an error leads to (R8)
 lease           the lock on a data directory, and the fence of an engine that was replaced
 store           the control store: term, progress, states and intents, in one SQLite file
 source_run      one source at work: its recorder, and its log as the engine reads it
 spark           the engine's Spark: started again where its JVM dies, or a brought one
 copy_on_spark   baselines copied on Spark, a wave of tasks at a time
 target_load     baselines on their way into a target, until they are shown in one switch
 pipeline_run    one pipeline at work, as a machine of small steps
 delivery        a batch on its way to the target: computed, parked, intended, written
 schema_changes  what a pipeline does when a table of it gets other columns (R23b)
 new_tables      tables that a pipeline has because a pattern matches them
 threads         the threads that drive pipelines, one each
 retention       what may be removed from a log: decided here, removed by the recorder
 wal_pressure    which pipeline gives way when a source runs out of room (R28)
```
"""
