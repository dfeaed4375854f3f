"""
What can be seen from outside: for now, the log file.

It may import `errors`, `config`, `storage` and `changelog`, and may be imported by `capture`,
`targets` and the packages above them. Status and counts are not here: they are computed where they
are shown, by `engine/status.py` and `api/messages.py`.

Begin with `logs`. Nothing in it writes to the terminal, which belongs to the command that runs
there, and until a folder is named nothing is written at all.

```
 logs  the log file that engine and recorders share: one JSON object a line
```
"""
