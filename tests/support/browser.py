"""
A real Chromium for the tests of the console.

It is what `HEADRACE_CHROMIUM` names, or one on the path, or else Debian's package, unpacked into
the cache without being installed: that needs no rights. Playwright drives it; its own download of
a browser is not used.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_REMEDY = (
    "The tests of the console need a Chromium. Install one (apt-get install chromium), or name one:"
    " HEADRACE_CHROMIUM=/path/to/chromium."
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A Chromium without a window; fails with what to do if there is none."""
    from playwright.sync_api import sync_playwright

    executable, environment = _executable()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable,
            env=environment,
            # Containers do not allow its sandbox; it only loads our own pages here.
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        yield browser
        browser.close()


def _executable() -> tuple[str, dict[str, str | float | bool]]:
    """Return a Chromium, and the environment that it needs."""
    environment: dict[str, str | float | bool] = dict(os.environ)
    if named := os.environ.get("HEADRACE_CHROMIUM"):
        return named, environment
    if found := next(filter(None, map(shutil.which, _NAMES)), None):
        return found, environment
    root = _unpacked()
    libraries = root / "usr" / "lib" / f"{platform.machine()}-linux-gnu"
    environment["LD_LIBRARY_PATH"] = f"{libraries}:{root / 'usr/lib/chromium'}"
    return str(root / "usr" / "lib" / "chromium" / "chromium"), environment


def _unpacked() -> Path:
    """Return the folder with Debian's Chromium and the libraries that are not installed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "headrace" / "chromium"
    root = cache / "root"
    if (root / "usr" / "lib" / "chromium" / "chromium").exists():
        return root
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise RuntimeError(_REMEDY)
    for folder in (cache / "lists" / "partial", cache / "archives" / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    apt = ["apt-get", "--quiet", "--yes", "-o", "Debug::NoLocking=1"]
    for option, value in (
        ("Dir::State::Lists", cache / "lists"),
        ("Dir::Cache", cache),
        ("Dir::Cache::Archives", cache / "archives"),
    ):
        apt += ["-o", f"{option}={value}"]
    try:
        _run(*apt, "update")
        _run(*apt, "install", "--download-only", "--no-install-recommends", "chromium")
        # Under another name until it is whole: a process that was killed leaves no half of it.
        half = cache / f"root.{os.getpid()}"
        for package in sorted((cache / "archives").glob("*.deb")):
            _run("dpkg", "-x", str(package), str(half))
        half.rename(root)
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"{_REMEDY}\n{error.output}") from None
    shutil.rmtree(cache / "archives")
    return root


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
