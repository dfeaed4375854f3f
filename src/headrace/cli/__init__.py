"""
The command line, `headrace`.

Modules here import click and the standard library at their top, everything else where it is used:
printing help must not wait for Spark, Arrow or rich. No package imports `cli`, and it may import
all but `testing`; click and rich are used nowhere else.

Begin with `main`, to which every verb is added, then read `common` and any one verb.

```
 main           the root command, and the exit code of whatever a verb raises
 common         what verbs share: options, forms of values, how an engine is found
 errors         errors as they are printed, and files that a verb is asked to write
 signals        keys, Ctrl-C and signals, which all wake one wait
 init           `init`: a configuration to begin with, from what a database has
 import_laredo  another engine's configuration, written as one of ours
 config         `config` and `validate`: what is in effect, and what is wrong with it
 try_           `try`: a pipeline's filters and transforms on a few real rows
 doctor         `doctor`: everything that can be examined, and what to do about it
 run            `run`: an engine from a configuration, in the foreground
 status         `status` and `top`: how every pipeline of a running engine stands
 control        `apply`, `explain`, `pause`, `resume`, `reload`: commands to an engine
 query          `query` and `watch`: rows in an engine's memory, and their changes
 log            `log`: what the log of each source holds
 log_read       `log read`: the changes of a table between two places of the log
 log_formats    changes of the log as lines of JSON, and as one Parquet file
 debezium       changes in the envelope of Debezium's events
 dead_letters   `dead-letters`: the changes that pipelines parked
 replay         `replay`: a part of the log through a pipeline, to another target
 cluster        `cluster`: what a Spark cluster is given to work for us
 sqlite         `sqlite`: capture from a SQLite file without an engine
 demo/          `demo`: a shop, its changes, and where they go
```
"""
