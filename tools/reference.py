"""
Write the reference pages that are made from the code.

What a page repeats from the code goes stale the day after; what is made from it does not.
A test compares, so a page that was not written anew fails the build.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import HeadraceError, all_errors
from headrace.spark_session.settings import APPLICATION, BULK, EVENTS, SESSION, SMALL, UI
from tools import cli_reference, configuration, monitoring, obligations, services_reference

DOCS = Path(__file__).resolve().parent.parent / "docs"
EXAMPLES = DOCS.parent / "examples"

EXIT_CODES = {
    0: "done",
    1: "failed",
    2: "wrong usage or configuration",
    3: "not ready, busy or locked",
    4: "not reachable",
    5: "refused",
}

_PARTS = {
    "storage": "Files on disk and in buckets.",
    "changelog": "The change log: positions, values, segments, the index.",
    "capture": "Sources and their recorders.",
    "tables": "Tables in memory.",
    "pipeline": "Filters, transforms and Spark.",
    "targets": "Targets of a pipeline.",
    "config": "Configuration files and options.",
    "control": "The engine and its data directory.",
    "serving": "The server on the network.",
}

_INTRODUCTION = """\
# Errors

<!-- Made from src/headrace/errors.py by `make reference`; edit it there. -->

Everything that Headrace raises on purpose is a `headrace.errors.HeadraceError` with a `code` that
never changes its meaning, a `message`, `facts` (names, counts and positions, never row values) and
a `remedy`. Its text begins with the code, as in `[headrace:control.locked] …`, because Spark passes
only text out of a job. Errors can be pickled. A command that fails exits with the exit code of its
error:
"""

_ABOUT_SPARK = """\
# Spark settings

<!-- Made from src/headrace/spark_session/settings.py by `make reference`; edit it there. -->

The settings that Headrace uses when it starts Spark, and in its own two sessions when you pass your
own session. Override any of them with `Engine(…, spark_conf={"name": "value"})`. The master is
`local[*,4]`, the driver's memory is 1 GB on up to two cores and 2 GB on more, Spark listens on
127.0.0.1 only, and its log goes to `logs/` in the data directory.
"""


def pages() -> Iterator[tuple[Path, str]]:
    """Yield each generated page and its text."""
    yield DOCS / "reference" / "configuration.md", "\n".join(configuration.page()) + "\n"
    yield DOCS / "reference" / "errors.md", "\n".join(_errors()) + "\n"
    yield DOCS / "reference" / "spark.md", "\n".join(_spark()) + "\n"
    yield DOCS / "reference" / "cli.md", "\n".join(cli_reference.page()) + "\n"
    yield DOCS / "reference" / "services.md", "\n".join(services_reference.page()) + "\n"
    monitor = DOCS / "monitor.md"
    yield monitor, monitoring.with_table(monitor.read_text())
    yield EXAMPLES / "operate" / "grafana" / "headrace.json", monitoring.dashboard()
    yield DOCS / "internals" / "obligations.md", "\n".join(obligations.page()) + "\n"


def _errors() -> Iterator[str]:
    yield _INTRODUCTION
    yield "| exit code | meaning |"
    yield "|---:|---|"
    yield from (f"| {number} | {meaning} |" for number, meaning in EXIT_CODES.items())
    yield ""
    yield "A wrong command line has the code `cli.usage`. An error that is not on this page is"
    yield f"a bug in Headrace: code `{HeadraceError.code}`, exit code 1."
    for part, about in _PARTS.items():
        yield ""
        yield f"## {part}"
        yield ""
        yield about
        yield ""
        yield "| code | class | when | what to do | exit |"
        yield "|---|---|---|---|---:|"
        for error in sorted(all_errors(), key=lambda error: error.code):
            if error.code.startswith(f"{part}."):
                when = inspect.cleandoc(error.__doc__ or "").split("\n\n")[0].replace("\n", " ")
                yield (
                    f"| `{error.code}` | `{error.__name__}` | {_cell(when)} "
                    f"| {_cell(error.remedy)} | {error.exit_code} |"
                )


def _spark() -> Iterator[str]:
    yield _ABOUT_SPARK
    for title, about, settings in (
        ("The application", "Fixed when Spark starts.", APPLICATION),
        ("Spark's web UI", "If turned on; on 127.0.0.1 and never on a cluster.", UI),
        ("Event logs", "If turned on; in `spark-events` in the data directory.", EVENTS),
        ("Headrace's own sessions", "Pipelines run here; your session is not changed.", SESSION),
        ("Small batches", "Up to 5,000 rows.", SMALL),
        ("Large batches", "All others, and baselines.", BULK),
    ):
        yield ""
        yield f"## {title}"
        yield ""
        yield about
        yield ""
        yield "| setting | value | why |"
        yield "|---|---|---|"
        for setting in settings:
            yield f"| `{setting.name}` | `{setting.value}` | {_cell(setting.why)} |"


def _cell(text: str) -> str:
    # Markdown would take these for the table's own, and for emphasis.
    return text.replace("|", "\\|").replace("*", "\\*")


def main() -> None:
    """Write every page that differs."""
    for path, text in pages():
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"written: {path.relative_to(DOCS.parent)}")


if __name__ == "__main__":
    main()
