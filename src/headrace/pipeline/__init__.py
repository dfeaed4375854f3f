"""
Batches on Spark: what a pipeline is, its plan, the job of a batch, and its result.

It may import `spark_session`, `capture`, `targets` and what is below them. It knows the segments of
one batch and nothing of progress: that is in `runtime`, which runs batches through the protocol in
`batch`, so that a simulation needs no JVM.

Begin with `definition`, then follow one batch through `runner`, `job` and `result`.

```
 definition     what a pipeline is: tables of a source, a target, and what happens between
 steps          filters and transforms: `where`, `derive`, `mask`, `function` and the others
 settings       the same steps in a configuration
 check_steps    checks of steps that need no Spark
 sql            names and literals as SQL
 plan/          from steps to expressions and plans of Spark
 batch          what the engine asks of the part that runs its batches: nothing of Spark
 runner         the runner of a pipeline's batches on Spark
 job            one table's batch, or a piece of its baseline, as Spark jobs
 failed_rows    the search for the rows that cannot be computed (S2)
 result         the rows of a job in position order, as a target takes them
 baseline_copy  parts of a baseline, copied by Spark's tasks
 foreach        the user's own function as a target: `foreach_batch` (S17)
```
"""
