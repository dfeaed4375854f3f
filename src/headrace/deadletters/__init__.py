"""
Dead letters: rows that could not be computed, and what waits behind them.

It may import `pipeline` and everything below it, and is used by `runtime` while a batch is
delivered. It does not compute rows: it is given the failures of a batch and decides which changes
are parked because of them.

Begin with `letter`, which says what a dead letter holds, then read `hold`.

```
 keys    the key of a change as bytes: a format on disk, added to and never changed
 hold    which changes of a batch are parked: the failed ones, and what follows by key (R30)
 letter  a dead letter with both images of its change and the reason; its file
 store   a pipeline's letters, kept until a truncate or a reload supersedes them
```
"""
