"""
What can be seen from outside: the log file, events, counts, and metrics as values.

It may import `errors`, `config`, `storage` and `changelog`, and may be imported by `capture`,
`targets` and the packages above them. Status, health and the metrics of an engine are not here:
they are computed by `engine/status.py`, `engine/health.py` and `engine/metrics.py`.

Begin with `logs`. Nothing in it writes to the terminal, which belongs to the command that runs
there, and until a folder is named nothing is written at all.

```
 logs      the log file that engine and recorders share: one JSON object a line
 events    what an engine reports while it works, as typed values, and who takes it
 dispatch  passes events to observers, on a thread of their own
 counters  counts of what a pipeline delivers, over restarts, and the times of its hops
 metrics   metrics and histograms, as text for Prometheus and as instruments of OpenTelemetry
```
"""
