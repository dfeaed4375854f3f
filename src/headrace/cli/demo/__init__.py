"""
`headrace demo`: a shop, its changes, and where they go, to look at.

`shop` is the database, of one kind or the other (`sqlite_shop`, `postgres_shop`), `goods` what
is in it, `writing` the process that keeps changing it, `spoilt` the one order that goes wrong
on purpose; `session` runs an engine over it, `gathering` makes `Snapshot`s of it;
`lines` and `screen` are pure functions from those to text; `compare` reads both ends at the
end and says whether they are equal.
"""
