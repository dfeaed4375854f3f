"""
From a pipeline's steps to expressions and plans of Spark.

It knows Spark's analysis of expressions, the two images of a change and the columns of a segment.
It runs no job: a plan is made once for a pipeline and a version of its table, and `job` runs it
over the segments of each batch.

Begin with `plan`, then read `projection`, which says by which of its images a change passes.

```
 types           a segment's columns as Spark reads them, and Arrow types of Spark's types
 expressions     a user's expressions: analysed by Spark, checked, and bound to an image
 functions       a user's function of rows, as a column of a plan
 executor_calls  the call of that function on an executor: standard library and Arrow alone
 frames          a user's function of a DataFrame, and the check of what it did to a batch
 stages          a scan in stages: one image after the other under the columns' own names
 projection      the projections that turn changes into rows for a target
 plan            DataFrames over segments, from a pipeline's definition
```
"""
