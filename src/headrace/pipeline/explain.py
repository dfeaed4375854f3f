"""What Spark did for a pipeline's last batch, for people."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Explanation:
    """The last batch of a pipeline: what went in and came out, what it took, and its plan."""

    pipeline: str
    plan: str
    """Spark's physical plan, formatted; names and literals of the pipeline, no rows."""

    jobs: int
    """Spark jobs of this pipeline, among the last 200 that Spark remembers."""

    tasks: int
    last_job_ms: float
    """How long the last batch took, from its first job to its rows."""

    rows_in: int
    rows_out: int | None
    """None where a function took the frame: what it did with it is not known."""

    bytes_in: int

    def __str__(self) -> str:
        out = "" if self.rows_out is None else f" → {self.rows_out:,} out"
        return "\n".join(
            [
                f"Pipeline {self.pipeline}",
                f"  last batch   {self.rows_in:,} rows in{out}, {_sized(self.bytes_in)} read,"
                f" {self.last_job_ms:,.0f} ms",
                f"  remembered   {self.jobs:,} jobs, {self.tasks:,} tasks",
                "",
                self.plan.strip() or "No batch has been computed yet.",
            ]
        )


def _sized(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KB", "MB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"
