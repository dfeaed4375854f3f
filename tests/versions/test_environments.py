"""What the environments of other releases are made of, and what makes a run red."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tools import runs
from tools import test_spark as releases

LOCK = """\
# by a tool
click==8.5.1 \\
    --hash=sha256:01
py4j==0.10.9.9 \\
    --hash=sha256:02
    # via pyspark
pyspark==4.2.1 \\
    --hash=sha256:03
rich==15.0.0 ; sys_platform == 'linux' \\
    --hash=sha256:04
"""


def test_the_lock_is_taken_with_its_hashes_but_for_its_own_spark() -> None:
    kept = "".join(releases.without_spark(LOCK))
    assert re.findall(r"^[\w.-]+==", kept, re.M) == ["click==", "rich=="]
    assert re.findall(r"sha256:\d+", kept) == ["sha256:01", "sha256:04"]


def test_nothing_of_another_python_or_spark_is_seen() -> None:
    theirs = {"SPARK_HOME": "/opt/spark", "PYTHONPATH": "/x", "HOME": "/h", "PATH": "/bin"}
    seen = releases.clean(theirs, Path("/e/bin/python"))
    assert seen == {"HOME": "/h", "PATH": "/e/bin:/bin", "VIRTUAL_ENV": "/e"}


def test_a_release_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        releases.main(["--versions", "3.5"])
    assert "not known: 3.5; there are 4.1, 4.2, 4.3" in capsys.readouterr().err


def test_a_release_that_cannot_be_had_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def not_made(release: str) -> Path:
        raise releases.NotMade("no network")

    monkeypatch.setattr(releases, "environment", not_made)
    assert releases.main(["--versions", "4.3"]) == 1
    said = capsys.readouterr().out
    assert "no network" in said
    assert said.rstrip().endswith("4.3.0              0       0        0      0.0  no environment")


def test_no_release_at_all_is_no_success() -> None:
    assert releases.main(["--versions", ""]) == 1


def test_the_lock_holds_the_release_of_its_minor() -> None:
    pinned = re.search(r"^pyspark==(\S+)", (runs.ROOT / "requirements.lock").read_text(), re.M)
    assert pinned is not None
    assert pinned[1] in releases.RELEASES.values()


@pytest.mark.process
@pytest.mark.parametrize(
    ("counts", "code", "good", "problem"),
    [
        ('{"passed": 2, "failed": 0, "skipped": 0}', 0, True, ""),
        ('{"passed": 2, "failed": 1, "skipped": 0}', 1, False, ""),
        ('{"passed": 2, "failed": 0, "skipped": 0}', 2, False, "the tests ended with 2"),
        ("", 0, False, "the tests ended with 0"),
    ],
)
def test_only_a_run_that_came_to_its_end_is_a_success(
    counts: str, code: int, good: bool, problem: str, tmp_path: Path
) -> None:
    """Whatever is written must agree with how the run ended."""
    runner = tmp_path / "runner"
    runner.write_text(
        "#!/bin/sh\n"
        'while [ "$1" != --report ]; do shift; done\n'
        f"[ -z '{counts}' ] || echo '{counts}' > \"$2\"\n"
        f"exit {code}\n"
    )
    runner.chmod(0o755)
    run = runs.tested("4.3.0", str(runner), "spark", [], os.environ)
    assert (run.good, run.problem) == (good, problem)
