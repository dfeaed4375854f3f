"""
Spark itself: the session, the JVM, Connect, executors, its errors.

It is below `pipeline` and may not import it. Only `session` and `jvm` use what Spark Connect does
not have, so that an engine on Connect keeps working (S7).

Begin with `session`, the Spark that pipelines run on, then read `settings` for the reasons.

```
 java            the Java that runs Spark
 settings        the settings Spark is started with, each with its reason, as data
 s3a             what Spark needs to read a log on S3
 jvm             the one Spark that a process can have: its JVM, its session, and how they end
 session         the session: ours, or one that a user passed, and two more for pipelines
 connect         pipelines on a Spark Connect session
 cluster_probe   checks the executors before the first batch (S12)
 executor_probe  what an executor reports about itself: only the standard library, sent by value
 pack            the Python environment for executors, as an archive
 errors          from Spark's errors to ours
 class_archive   Spark's classes in a file that a JVM maps, for a faster start
 training_run    the short session from which that file is made
```
"""
