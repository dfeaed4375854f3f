"""
Batches on Spark: the definition of a pipeline, its plan, the job of a batch, and its result.

It may import `spark_session`, `capture`, `targets` and what is below them. It knows the segments of
one batch, but not the progress of a pipeline. `runtime` keeps progress, and runs batches through
the protocol in `batch`, so that a simulation needs no JVM.

Begin with `definition`, then follow one batch through `runner`, `job` and `result`.

```
 definition     a pipeline: tables of a source, a target, and the steps in between
 steps          filters and transforms: `where`, `derive`, `mask`, `function` and the others
 settings       the same steps in a configuration
 check_steps    checks of steps that need no Spark
 sql            names and literals as SQL
 plan/          from steps to Spark expressions and plans
 batch          the protocol between the engine and a runner of batches, without Spark
 runner         the runner of a pipeline's batches on Spark
 job            one table's batch, or a piece of its baseline, as Spark jobs
 failed_rows    the search for rows that cannot be computed (S2)
 result         the rows of a job in position order, ready for a target
 baseline_copy  parts of a baseline, copied by Spark's tasks
 foreach        the user's own function as a target: `foreach_batch` (S17)
```
"""
