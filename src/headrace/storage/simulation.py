"""
A disk and a bucket in memory for simulations, with faults that a seed reproduces.

The disk forgets what was not synced. It keeps apart what a program sees and what would be left
after a power cut: of a file, the bytes as of the last `sync` and those written since; of a
folder, the names as of the last `sync_folder` and every create, rename, link and remove since. A
cut keeps or drops each unsynced item by the given dice, so a seed reproduces a history (P2). A
killed process, by contrast, leaves everything it wrote.

Faults of the disk are scripted: the n-th call of a step fails, before or after its effect; a
capacity makes writes stop short. A `sync` that fails drops the unsynced bytes for good and lets
the next `sync` of that file succeed without effect, as kernels do: a program that retries it
loses data here as well (R36).

The bucket loses responses. Each step may fail in one of three ways, by the given dice: it was
deferred and had no effect (503, 409), it took effect and the response is lost, or it takes effect
later, after the caller gave up on it. So a seed reproduces a history (P2).
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from threading import RLock
from typing import TypeAlias, TypeVar

from headrace.storage.disk import Buffer
from headrace.storage.objects import Unanswered

# --- a disk that forgets what was not synced ------------------------------------------------------


class PowerCut(BaseException):
    """The machine has lost power: raised by the simulation into the program."""


@dataclass(slots=True, eq=False)
class _File:
    """Bytes, whatever names they have."""

    content: bytes = b""
    durable: bytes = b""
    poisoned: bool = False
    """A sync has failed since the last write: the next ones succeed without effect."""


Names: TypeAlias = dict[str, _File]


@dataclass(slots=True)
class _Fault:
    step: str
    left: int
    number: int
    part: str
    done: bool


@dataclass(slots=True)
class _Folder:
    durable: Names = field(default_factory=dict)
    unsynced: list[Callable[[Names], None]] = field(default_factory=list)
    """Changes of its names since the last sync, each to be applied or dropped."""


class SimulatedDisk:
    """
    A `Disk` for simulations.

    `on_step` is called with step and path before each step takes effect, and may raise
    `PowerCut`; `power_cut` then decides what is left, and the disk can be used again.
    """

    def __init__(
        self,
        on_step: Callable[[str, str], None] | None = None,
        *,
        capacity: int | None = None,
    ) -> None:
        self.on_step = on_step
        self.capacity = capacity
        """Bytes that fit, names not counted; None for no limit. May be changed at any time."""
        self._lock = RLock()
        self._names: Names = {}
        self._folders: dict[str, _Folder] = {"/": _Folder()}
        self._faults: list[_Fault] = []
        self._numbers = itertools.count(1)

    # --- the steps ---------------------------------------------------------------------------

    def write(self, path: str, data: Buffer) -> None:
        """Create or replace; where room ends, a part is written and ENOSPC raised."""
        fault = self._step("write", path)
        with self._lock:
            content = bytes(memoryview(data).cast("B"))
            file = self._names.get(path)
            if file is None:
                file = _File()
                self._name(path, file)
            file.poisoned = False
            if fault is not None and not fault.done:
                file.content = content[: len(content) // 2]
                raise _error(fault.number, path)
            file.content = b""
            if self.capacity is not None and self.used + len(content) > self.capacity:
                file.content = content[: max(0, self.capacity - self.used)]
                raise _error(errno.ENOSPC, path)
            file.content = content
            _after(fault, path)

    def sync(self, path: str) -> None:
        """Keep the file's bytes, unless an earlier sync of them has failed."""
        fault = self._step("sync", path)
        with self._lock:
            file = self._file(path)
            if fault is not None and not fault.done:
                file.poisoned = True
                raise _error(fault.number, path)
            if not file.poisoned:
                file.durable = file.content
            _after(fault, path)

    def rename(self, old: str, new: str) -> None:
        """Move the name, in place of a file that has it."""
        fault = self._begin("rename", new)
        with self._lock:
            file = self._file(old)

            def act(names: Names) -> None:
                names.pop(old, None)
                names[new] = file

            self._change(new, act)
            _after(fault, new)

    def link(self, old: str, new: str) -> None:
        """Add a name; `FileExistsError` where it is taken."""
        fault = self._begin("link", new)
        with self._lock:
            file = self._file(old)
            if new in self._names:
                raise _error(errno.EEXIST, new)
            self._name(new, file)
            _after(fault, new)

    def sync_folder(self, path: str) -> None:
        """Keep the names in this folder as they are."""
        fault = self._begin("sync_folder", path)
        with self._lock:
            folder = self._folder(path)
            for act in folder.unsynced:
                act(folder.durable)
            folder.unsynced.clear()
            _after(fault, path)

    def read(self, path: str) -> bytes:
        """Return the bytes as written, synced or not."""
        self._begin("read", path)
        with self._lock:
            return self._file(path).content

    def list(self, path: str) -> list[str]:
        """Return the names in this folder, sorted, those of folders too."""
        self._begin("list", path)
        with self._lock:
            inside = path.rstrip("/") + "/"
            found = (name for name in (*self._names, *self._folders) if name.startswith(inside))
            return sorted({name[len(inside) :].partition("/")[0] for name in found} - {""})

    def remove(self, path: str) -> None:
        """Remove the name."""
        fault = self._begin("remove", path)
        with self._lock:
            self._file(path)
            self._change(path, lambda names: names.pop(path, None))
            _after(fault, path)

    def make_folder(self, path: str) -> None:
        """Create the folder and its parents, durably."""
        fault = self._begin("make_folder", path)
        with self._lock:
            at = path.rstrip("/")
            while at and at not in self._folders:
                self._folders[at] = _Folder()
                at = at.rpartition("/")[0]
            _after(fault, path)

    def size(self, path: str) -> int:
        """Return the size as written."""
        self._begin("size", path)
        with self._lock:
            return len(self._file(path).content)

    def unique(self) -> str:
        """Return a number that was not used before, also not before a power cut."""
        return str(next(self._numbers))

    # --- what goes wrong -----------------------------------------------------------------------

    def fail(
        self, step: str, number: int, *, nth: int = 1, part: str = "", done: bool = False
    ) -> None:
        """
        Let the `nth` call of `step` from now fail with errno `number`.

        Only calls with `part` in their path count. With `done` the step takes effect
        before it fails: the response is lost.
        """
        with self._lock:
            self._faults.append(_Fault(step, nth, number, part, done))

    def heal(self) -> None:
        """Drop the faults that have not occurred yet."""
        with self._lock:
            self._faults.clear()

    def power_cut(self, dice: Random) -> None:
        """Drop what was not synced: each name and each file's bytes by the dice, in order."""
        with self._lock:
            for folder in self._folders.values():
                for act in folder.unsynced:
                    if dice.random() < 0.5:
                        act(folder.durable)
                folder.unsynced.clear()
            self._names = {
                name: file
                for folder in self._folders.values()
                for name, file in folder.durable.items()
            }
            for file in dict.fromkeys(self._names.values()):
                file.content = file.durable = _left(file, dice)
                file.poisoned = False
            self._faults.clear()

    @property
    def used(self) -> int:
        """Bytes of all files that have a name."""
        return sum(len(file.content) for file in set(self._names.values()))

    # --- inside ----------------------------------------------------------------------------------

    def _step(self, step: str, path: str) -> _Fault | None:
        """Announce a step, and return the fault that is due in it."""
        if self.on_step is not None:
            self.on_step(step, path)
        with self._lock:
            due = None
            for fault in self._faults:
                if fault.step == step and fault.part in path:
                    fault.left -= 1
                    if fault.left == 0:
                        due = fault
            if due is not None:
                self._faults.remove(due)
            return due

    def _begin(self, step: str, path: str) -> _Fault | None:
        """Do the same for a step that fails without any effect."""
        fault = self._step(step, path)
        if fault is not None and not fault.done:
            raise _error(fault.number, path)
        return fault

    def _file(self, path: str) -> _File:
        if path not in self._names:
            raise _error(errno.ENOENT, path)
        return self._names[path]

    def _folder(self, path: str) -> _Folder:
        folder = self._folders.get(path.rstrip("/") or "/")
        if folder is None:
            raise _error(errno.ENOENT, path)
        return folder

    def _name(self, path: str, file: _File) -> None:
        def act(names: Names) -> None:
            names[path] = file

        self._change(path, act)

    def _change(self, path: str, act: Callable[[Names], object]) -> None:
        folder = self._folder(path.rpartition("/")[0] or "/")

        def repeat(names: Names) -> None:
            act(names)

        act(self._names)
        folder.unsynced.append(repeat)


def _left(file: _File, dice: Random) -> bytes:
    """Return what a power cut leaves of a file's bytes: all, none or a part of the new ones."""
    if file.content == file.durable:
        return file.durable
    fate = "none" if file.poisoned else dice.choice(("all", "part", "none"))
    if fate == "all":
        return file.content
    if fate == "none":
        return file.durable
    return file.content[: dice.randrange(len(file.content) + 1)]


def _after(fault: _Fault | None, path: str) -> None:
    if fault is not None:
        raise _error(fault.number, path)


def _error(number: int, path: str) -> OSError:
    return OSError(number, errno.errorcode.get(number, "fault"), path)


# --- a bucket that loses responses ----------------------------------------------------------------

T = TypeVar("T")


class SimulatedBucket:
    """
    A `Bucket` for simulations; `trouble` is the share of steps that fail.

    With `late`, an object may be created after the caller gave up on the response, and so after
    the object was removed again. Without `conditions` the bucket ignores conditional puts.
    """

    def __init__(
        self,
        dice: Random | None = None,
        trouble: float = 0.0,
        *,
        late: bool = False,
        conditions: bool = True,
    ) -> None:
        self.trouble = trouble
        self.objects: dict[str, bytes] = {}
        self.steps: list[tuple[str, str]] = []
        """Every requested step, with its key."""
        self.rested = 0.0
        self._dice = dice or Random(0)
        self._creates_late = late
        self._conditions = conditions
        self._late: list[Callable[[], object]] = []
        self._numbers = itertools.count(1)
        self._lock = RLock()

    def store(self, key: str, data: Buffer, *, new: bool) -> None:
        """Store; `new` has an effect only if the bucket honours conditions."""
        content = bytes(memoryview(data).cast("B"))

        def effect() -> None:
            if new and self._conditions and key in self.objects:
                raise FileExistsError(key)
            self.objects[key] = content

        # Only what is created may come late: a late replacement would undo a newer one, and a
        # storage orders those by when they came.
        self._step("store", key, effect, late=new and self._creates_late)

    def read(self, key: str) -> bytes:
        """Return what is there now."""
        return self._step("read", key, lambda: self._there(key))

    def size(self, key: str) -> int:
        """Return its length."""
        return self._step("size", key, lambda: len(self._there(key)))

    def list(self, prefix: str) -> list[str]:
        """Return names in random order."""

        def names() -> list[str]:
            rest = (key[len(prefix) :] for key in self.objects if key.startswith(prefix))
            found = sorted({name.partition("/")[0] for name in rest})
            self._dice.shuffle(found)
            return found

        return self._step("list", prefix, names)

    def remove(self, key: str) -> None:
        """Remove an object, if there is one."""
        self._step("remove", key, lambda: self.objects.pop(key, None))

    def unique(self) -> str:
        """Return a number that was not used before."""
        return str(next(self._numbers))

    def rest(self, seconds: float) -> None:
        """Let time pass, so that delayed steps may take effect."""
        with self._lock:
            self.rested += seconds
            self._arrive()

    def _step(self, step: str, key: str, effect: Callable[[], T], *, late: bool = False) -> T:
        with self._lock:
            self.steps.append((step, key))
            if self._dice.random() >= self.trouble:
                return effect()
            fate = self._dice.choice(("put off", "lost", "late") if late else ("put off", "lost"))
            if fate == "lost":
                with suppress(FileExistsError, FileNotFoundError):
                    effect()
            elif fate == "late":
                self._late.append(effect)
            raise Unanswered(fate)

    def _arrive(self) -> None:
        waiting, self._late = self._late, []
        for effect in waiting:
            if self._dice.random() < 0.5:
                self._late.append(effect)
                continue
            with suppress(FileExistsError):
                effect()

    def _there(self, key: str) -> bytes:
        if key not in self.objects:
            raise FileNotFoundError(key)
        return self.objects[key]
