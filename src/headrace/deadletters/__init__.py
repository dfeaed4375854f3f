"""
Dead letters: rows that could not be computed, and the later changes that wait for them.

It may import `pipeline` and everything below it. `runtime` uses it while it delivers a batch. It
does not compute rows: it gets the failures of a batch and decides which changes are parked because
of them.

Begin with `letter`, which describes a dead letter, then read `hold`.

```
 keys    the key of a change as bytes: a format on disk that is extended but never changed
 hold    which changes of a batch are parked: failed ones, and later ones of the same key (R30)
 letter  a dead letter, with both images of its change and the reason; its files
 ledger  which dead letters there are, which keys they hold, and what ended
 store   a pipeline's dead letters: added, superseded, resolved, purged, merged; where they are
```
"""
