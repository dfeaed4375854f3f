"""
Bytes that stay: steps of a disk, files that are absent or whole, a disk for simulations.

It may import `errors` alone and knows nothing of the log that is built on it. Every durable file of
the log goes through `files` or `objects`, which are the same to their callers; boto3 is used in
`s3` and in no other module.

Begin with `disk` and `files`: the first offers the steps, the second makes them a guarantee.

```
 disk         the steps an operating system offers, one method each, as a protocol
 files        files that are absent or whole, on a disk (invariant 5)
 objects      the same as objects of a bucket, also where an answer gets lost
 s3           buckets of S3 through boto3, and which storage a location means
 locations    how a place in a bucket is written: `s3://bucket/prefix`
 permissions  files beside the log, and files a user asked for: for their owner alone
 killpoints   named places where a test may kill the process (P2)
 simulation   a disk and a bucket in memory, with faults that a seed decides and replays
```
"""
