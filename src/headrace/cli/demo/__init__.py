"""
`headrace demo`: a shop, its changes, and where they go, to look at.

`shops` chooses the database, of one kind or the other (`sqlite_shop`, `postgres_shop`), and is the
process that keeps changing it; `goods` is what is in it. `session` runs an engine over it, makes
`Snapshot`s of it, places the one order that goes wrong on purpose, and at the end reads both
ends and says whether they are equal. `model` has the shop and the snapshots, as all others see
them; `lines` and `screen` are pure functions from snapshots to text; `command` is the verb.
"""
