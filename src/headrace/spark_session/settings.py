"""
The settings that Spark is started with, each with its reason.

Each can be overridden by name. They are data, so that the reference page is generated from them,
and a test can compare them with a running session.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import SparkFailed

PACKAGES = "spark.jars.packages"
EXCLUDES = "spark.jars.excludes"
IVY = "spark.jars.ivy"
EXTENSIONS = "spark.sql.extensions"
_LISTS = (PACKAGES, EXCLUDES, EXTENSIONS)
"""Settings that are lists: existing members stay."""

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
LOG_CONFIG = Path(__file__).with_name("log4j2.properties")
FEW_CORES = 2

_THIS_MACHINE = re.compile(r"local.*|spark://(127\.[\d.]+|localhost|\[::1\]):\d+")
"""Masters on this machine: a cluster on loopback needs no driver that others can reach."""


@dataclass(frozen=True, slots=True)
class SparkSetting:
    """One setting of Spark, and why it has this value."""

    name: str
    value: str
    why: str


APPLICATION: Sequence[SparkSetting] = (
    SparkSetting("spark.app.name", "headrace", "Names the application in Spark's own pages."),
    SparkSetting("spark.ui.enabled", "false", "Its pages show predicates to anyone who connects."),
    SparkSetting("spark.ui.killEnabled", "false", "If the pages are on, they are read-only."),
    SparkSetting(
        "spark.ui.showConsoleProgress", "false", "A progress bar would spoil the terminal."
    ),
    SparkSetting("spark.log.level", "WARN", "The log file only has what may need action."),
    SparkSetting("spark.scheduler.mode", "FAIR", "A long baseline does not delay small batches."),
    SparkSetting("spark.speculation", "false", "A second copy of a task could write twice (S4)."),
    SparkSetting(
        "spark.driver.maxResultSize", "2g", "The limit of a batch in bytes is well below it."
    ),
    SparkSetting(
        "spark.python.unix.domain.socket.enabled",
        "true",
        "Saves 40 ms on every call of a Python worker, and opens no port.",
    ),
    SparkSetting(
        "spark.python.task.killTimeout",
        "200ms",
        "By default a cancelled Python function keeps its core for two more seconds.",
    ),
    SparkSetting(
        "spark.python.sql.dataFrameDebugging.enabled",
        "false",
        "Recording Python call sites costs round trips on every column.",
    ),
    SparkSetting(
        "spark.sql.catalogImplementation", "in-memory", "No Derby files in the user's folder."
    ),
    SparkSetting(
        "spark.ui.retainedJobs", "200", "There are many jobs a second; old ones only use memory."
    ),
    SparkSetting("spark.ui.retainedStages", "200", "As for jobs."),
    SparkSetting("spark.ui.retainedTasks", "2000", "As for jobs."),
    SparkSetting("spark.sql.ui.retainedExecutions", "50", "Each keeps its whole plan in memory."),
    SparkSetting("spark.eventLog.enabled", "false", "Events are only written on request."),
)
"""Settings of the whole application, which cannot be changed while it runs."""

UI: Sequence[SparkSetting] = (
    SparkSetting("spark.ui.enabled", "true", "Turned on by request."),
    SparkSetting("spark.ui.port", "0", "Any free port: a second engine has its own pages."),
    SparkSetting("spark.ui.killEnabled", "false", "The pages are read-only."),
)
"""For Spark's own pages, which then listen on 127.0.0.1 as the rest of Spark does."""

EVENTS: Sequence[SparkSetting] = (
    SparkSetting("spark.eventLog.enabled", "true", "Turned on by request."),
    SparkSetting("spark.eventLog.rolling.enabled", "true", "A single file would grow forever."),
    SparkSetting("spark.eventLog.rolling.maxFileSize", "128m", "Old files can be removed."),
    SparkSetting(
        "spark.eventLog.compress", "true", "A job writes about 20 kB of plans, uncompressed."
    ),
)
"""For event logs, in `spark-events` in the data directory, which only its owner can read."""

SESSION: Sequence[SparkSetting] = (
    SparkSetting(
        "spark.sql.session.timeZone", "UTC", "A result must not depend on the machine's zone."
    ),
    SparkSetting("spark.sql.caseSensitive", "true", "A table may have columns `id` and `Id`."),
    SparkSetting("spark.sql.ansi.enabled", "true", "An overflow is an error, never a silent null."),
    SparkSetting("spark.sql.variable.substitute", "false", "`${…}` in text is not replaced."),
    SparkSetting("spark.sql.parser.quotedRegexColumnNames", "false", "A quoted name is a name."),
    SparkSetting("spark.sql.ansi.doubleQuotedIdentifiers", "false", 'As in Spark: "…" is text.'),
    SparkSetting(
        "spark.sql.timestampType", "TIMESTAMP_LTZ", "TIMESTAMP in an expression is an instant."
    ),
    SparkSetting(
        "spark.sql.sources.parallelPartitionDiscovery.threshold",
        "10000",
        "Above 32 paths Spark would run a job only to list them.",
    ),
    SparkSetting(
        "spark.sql.sources.ignoreDataLocality",
        "true",
        "All executors can read all segments.",
    ),
    SparkSetting("spark.sql.files.ignoreMissingFiles", "false", "A missing segment is an error."),
    SparkSetting("spark.sql.files.ignoreCorruptFiles", "false", "A damaged one, too."),
    SparkSetting(
        "spark.sql.parquet.int96RebaseModeInRead", "CORRECTED", "Segments are not rebased."
    ),
    SparkSetting(
        "spark.sql.parquet.datetimeRebaseModeInRead", "CORRECTED", "Keeps dates before 1582."
    ),
    SparkSetting(
        "spark.sql.parquet.filterPushdown", "false", "Segments have no statistics to prune by."
    ),
    SparkSetting("spark.sql.parquet.enableVectorizedReader", "true", "Twice as fast."),
    SparkSetting(
        "spark.sql.parquet.enableNestedColumnVectorizedReader", "true", "Images are structs."
    ),
    SparkSetting(
        "spark.sql.execution.arrow.maxRecordsPerBatch", "100000", "Few, large Arrow batches."
    ),
    SparkSetting(
        "spark.sql.execution.arrow.useLargeVarTypes", "false", "A batch stays below 2 GB."
    ),
    SparkSetting("spark.sql.pyspark.jvmStacktrace.enabled", "false", "Our errors are one line."),
)
"""Settings of the sessions that pipelines run in; a user's session is never changed (S7)."""

SMALL: Sequence[SparkSetting] = (
    SparkSetting("spark.sql.codegen.wholeStage", "false", "Compiling costs more than 5,000 rows."),
    SparkSetting(
        "spark.sql.codegen.factoryMode", "NO_CODEGEN", "As above, for single expressions."
    ),
    SparkSetting("spark.sql.adaptive.enabled", "false", "There is nothing to adapt in one stage."),
    SparkSetting(
        "spark.sql.shuffle.partitions", "2", "A join of few rows does not need 200 tasks."
    ),
)
"""For batches of up to a few thousand rows."""

BULK: Sequence[SparkSetting] = (
    SparkSetting("spark.sql.codegen.wholeStage", "true", "Doubles the speed of a large batch."),
    SparkSetting("spark.sql.codegen.factoryMode", "FALLBACK", "Spark's default."),
    SparkSetting("spark.sql.adaptive.enabled", "true", "Spark's default."),
    SparkSetting("spark.sql.shuffle.partitions", "200", "Spark's default; Spark may merge them."),
)
"""For everything larger."""


def application_settings(
    data: Path, cores: int, conf: Mapping[str, str], java_options: str = ""
) -> dict[str, str]:
    """
    Return all settings of an application whose files are in `data`.

    `conf` overrides every default. Java options in it are added to ours, because ours keep the
    logs off the terminal. `java_options` are more options that the JVM gets.
    """
    few = cores <= FEW_CORES
    given = f"{java_options} {conf.get(JAVA_OPTIONS, '')}"
    settings = {
        # A task is tried four times: it has no effect before it ends (S5).
        "spark.master": "local[*,4]",
        # On a small machine with a serial collector, this is enough for jobs of a million rows.
        "spark.driver.memory": "1g" if few else "2g",
        "spark.sql.warehouse.dir": str(data / "spark-warehouse"),
        "spark.eventLog.dir": str(data / "spark-events"),
    }
    settings |= {setting.name: setting.value for setting in (*APPLICATION, *SESSION)}
    settings |= conf
    # Executors of a remote master must reach the driver; with a local one, no other host may.
    if is_local(settings["spark.master"]):
        settings = {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        } | settings
    options = [
        f"-Dlog4j2.configurationFile={LOG_CONFIG.as_uri()}",
        f"-Dheadrace.logs={_quoted(data / 'logs')}",
        # Otherwise a crashed JVM would leave its report in the user's current folder.
        f"-XX:ErrorFile={_quoted(data / 'logs')}/java-crash-%p.log",
        f"-Dderby.system.home={_quoted(data / 'spark-warehouse')}",
        # A job that runs out of memory mostly fails. But if that ends the thread that serves its
        # rows, Python was seen to wait forever. A JVM that ends is detected and replaced.
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",
        # A JVM with options for two collectors does not start.
        *(["-XX:+UseSerialGC"] if few and "GC" not in given else []),
    ]
    settings[JAVA_OPTIONS] = " ".join([*options, conf.get(JAVA_OPTIONS, "")]).strip()
    return settings


def session_settings(kind: Sequence[SparkSetting]) -> dict[str, str]:
    """Return the settings of a session of ours: the common ones, then those of its `kind`."""
    return {setting.name: setting.value for setting in (*SESSION, *kind)}


def ui_settings() -> dict[str, str]:
    """Return the settings that turn on Spark's own pages."""
    return {setting.name: setting.value for setting in UI}


def event_settings() -> dict[str, str]:
    """Return the settings with which Spark writes event logs."""
    return {setting.name: setting.value for setting in EVENTS}


def is_local(master: str) -> bool:
    """Whether driver and executors share one machine."""
    return _THIS_MACHINE.fullmatch(master) is not None


def merged(conf: Mapping[str, str], wanted: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return a user's settings with those that targets need; the user's take precedence."""
    found = dict(conf)
    for needed in wanted:
        for name, value in needed.items():
            if name not in _LISTS:
                found.setdefault(name, value)
                continue
            members = [*listed(found.get(name, "")), *listed(value)]
            found[name] = ",".join(dict.fromkeys(members))
    return found


def listed(text: str) -> list[str]:
    """Return the members of a setting that is a list."""
    return [each.strip() for each in text.split(",") if each.strip()]


def ivy_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of downloaded jars; it may be removed at any time."""
    base = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME") or Path.home(), ".cache"))
    return Path(base) / "headrace" / "ivy"


def _quoted(path: Path) -> str:
    """Return the path as one word for Spark's launcher, which splits options as a shell does."""
    text = str(path)
    if '"' in text or "\\" in text:
        raise SparkFailed(
            "The path of the data directory contains a quote or a backslash",
            remedy="Use a data directory whose path contains neither.",
            path=text,
        )
    return f'"{text}"' if " " in text else text
