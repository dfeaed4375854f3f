"""
Durable storage: disk operations, files that are absent or whole, and a disk for simulations.

Imports only `errors`, and knows nothing of the log that is built on it. Every durable file of the
log goes through `files` or `objects`, which have the same interface; only `s3` imports boto3.

Begin with `disk` and `files`: the first has the operations, the second builds the guarantee.

```
 disk         the operations of a file system, one method each, as a protocol
 files        files that are absent or whole, on a disk (invariant 5)
 objects      the same with the objects of a bucket, also when responses are lost
 records      numbered records, created exclusively: in files, in memory, or by other packages
 s3           S3 buckets through boto3, and which storage a location means
 locations    the syntax of a location in a bucket: `s3://bucket/prefix`
 permissions  files outside the log, and output files, readable only by their owner
 killpoints   named points where a test may kill the process (P2)
 simulation   a disk and a bucket in memory, with faults that a seed reproduces
```
"""
