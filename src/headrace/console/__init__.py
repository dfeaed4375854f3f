"""
The web console: files that a browser loads, and nothing that runs in Python.

`static/` has one page, one style sheet and ES modules; there is no build step, and nothing comes
from another server. The page talks to the server that it came from: JSON by the Connect protocol
to `/headrace.v1.ControlService/`, and `POST /session` to sign in. Begin with `app.js`: it has the
routes and the frame around every view. `dom.js` draws, `rpc.js` asks, `store.js` keeps what was
answered, and each view is a module of its own.

`static_file` gives a file with the headers to send; whoever serves it needs no rule of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType

_FOLDER = Path(__file__).parent / "static"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

_POLICY = "; ".join(
    (
        "default-src 'self'",
        "base-uri 'none'",
        "object-src 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)

HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }
)
"""Of every file: only our own code runs, and a browser asks each time whether a file is new."""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file of the console."""

    content: bytes = field(repr=False)
    content_type: str
    etag: str
    """Changes with the content; in double quotes, as HTTP wants it."""


def static_file(path: str) -> StaticFile | None:
    """Return the file for the path of a URL, such as `/` or `/app.js`; None if there is none."""
    return _files().get("/index.html" if path == "/" else path)


@cache
def _files() -> Mapping[str, StaticFile]:
    """Read all files once: a path in a request never reaches the file system."""
    return {f"/{path.name}": _read(path) for path in _FOLDER.iterdir() if path.suffix in _TYPES}


def _read(path: Path) -> StaticFile:
    content = path.read_bytes()
    check = hashlib.sha256(content).hexdigest()[:16]
    return StaticFile(content, _TYPES[path.suffix], f'"{check}"')
