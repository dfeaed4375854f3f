"""
`headrace demo`: a shop, its changes, and where they go, to look at.

`shop` is the database and the process that keeps changing it; `session` runs an engine
over it and gathers `Snapshot`s; `lines` and `screen` are pure functions from those to
text; `compare` reads both ends at the end and says whether they are equal.
"""
