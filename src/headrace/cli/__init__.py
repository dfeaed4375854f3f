"""
The command line, `headrace`.

Modules import click and the standard library at the top, and everything else where it is used:
printing help must not wait for Spark, Arrow or rich. No package imports `cli`. It may import every
package except `testing`; only `cli` uses click and rich.

Begin with `main`, which adds every verb. Then read `common` and any one verb.

```
 main           the root command, and the exit code of each error
 common         shared by the verbs: options, formats of values, names, the data directory
 connection     which running engine a verb talks to: of this machine, or on the network
 profiles       engines on the network by name, and `profiles`, which lists them
 errors         how errors are printed, and the files that a verb writes
 signals        keys, Ctrl-C and signals, which all wake one wait
 init           `init`: a configuration file, made from the tables of a database
 import_laredo  another engine's configuration, converted to ours
 config         `config` and `validate`: the effective configuration, and its errors
 try_           `try`: a pipeline's filters and transforms on a few real rows
 doctor         `doctor`: checks of everything, each with a remedy
 run            `run`: an engine from a configuration, in the foreground
 status         `status` and `top`: the status of every pipeline of a running engine
 control        `apply`, `explain`, `pause`, `resume`, `reload`, `reset`: commands
 query          `query`, `schema` and `watch`: rows in an engine's memory, and their changes
 log            `log`: the contents of the log of each source
 log_read       `log read`: the changes of a table between two positions of the log
 log_formats    changes of the log as lines of JSON, and as one Parquet file
 debezium       changes in the envelope of Debezium's events
 dead_letters   `dead-letters`: the changes that pipelines parked
 replay         `replay`: part of the log through a pipeline, into another target
 cluster        `cluster`: packages for the executors of a Spark cluster
 sqlite         `sqlite`: capture from a SQLite file without an engine
 demo/          `demo`: a shop whose changes are captured and shown
```
"""
