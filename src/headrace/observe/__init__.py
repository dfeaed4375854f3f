"""
What can be seen from outside: the log file, and metrics as values.

It may import `errors`, `config`, `storage` and `changelog`, and may be imported by `capture`,
`targets` and the packages above them. Status and counts are not here: they are computed by
`engine/status.py`, `engine/health.py` and `engine/metrics.py`.

Begin with `logs`. Nothing in it writes to the terminal, which belongs to the command that runs
there, and until a folder is named nothing is written at all.

```
 logs     the log file that engine and recorders share: one JSON object a line
 metrics  metrics and histograms, as text for Prometheus and as instruments of OpenTelemetry
```
"""
