"""
From a pipeline's steps to Spark expressions and plans.

It uses Spark's analysis of expressions, the two images of a change and the columns of a segment. It
runs no job: a plan is made once for a pipeline and a version of its table, and `job` runs it over
the segments of each batch.

Begin with `plan`, then read `projection`, which explains how the two images decide whether a change
passes the filters.

```
 types           a segment's columns as Spark reads them, and Arrow types for Spark's types
 expressions     a user's expressions: analysed by Spark, checked, and bound to an image
 functions       a user's function of rows, as a column of a plan
 executor_calls  the call of that function on an executor; uses the standard library and Arrow
 frames          a user's function of a DataFrame, and the check of its result
 stages          a scan in stages: one image after the other, under the columns' own names
 projection      the projections that turn changes into rows for a target
 plan            DataFrames over segments, from a pipeline's definition
```
"""
