"""
Spark itself: the session, the JVM, Connect, executors, its errors.

It stands below `pipeline` and may not import it. What Spark Connect does not have is used in
`session` and `jvm` alone, so that an engine on Connect keeps working (S7).

Begin with `session`, the Spark that pipelines run on, then read `settings` for the reasons.

```
 java            which Java runs Spark
 settings        the settings Spark is started with, each with its reason, as data
 s3a             what Spark needs to read a log on S3
 jvm             the one Spark a process can have: its JVM, its session, and their end
 session         the session: ours, or one that a user passed, with two of our own beside it
 connect         pipelines on a session of Spark Connect
 cluster_probe   whether executors can work, asked before the first batch (S12)
 executor_probe  what an executor reports of itself: standard library alone, sent by value
 pack            the environment that executors are given, as an archive
 errors          from Spark's errors to ours
 class_archive   Spark's classes in a file that the next JVM maps, for a faster start
 training_run    the short session from which that file is made
```
"""
