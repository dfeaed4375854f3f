"""Snapshots for the demo's views, and the engine's status beside each: busy, starting, extreme."""

from __future__ import annotations

from typing import Any

HOPS = {"captured": (4.0, 9.5), "flushed": (7.0, 12.0), "job": (48.2, 91.0), "applied": (0.4, 0.9)}
HOPS |= {"total": (61.3, 110.0)}


def changed(op: str, key: str, text: str) -> dict[str, str]:
    return {"op": op, "key": key, "text": text, "position": "0001-…"}


def copy(rows: int, expected: int | None, per_s: float, left: float | None) -> dict[str, Any]:
    return {
        "table": "orders",
        "rows": rows,
        "expected": expected,
        "seconds": 3.0,
        "rows_per_s": per_s,
        "left_seconds": left,
        "waits": "",
    }


STARTING: dict[str, Any] = {
    "phase": "starting",
    "seconds": 3.25,
    "left": None,
    "source": "shop",
    "kind": "sqlite",
    "source_state": "streaming",
    "source_reason": "",
    "restarts": 0,
    "killable": False,
    "captured": 41,
    "captured_rate": 0.0,
    "flushes": 0,
    "log_bytes": 0,
    "table": "orders",
    "state": "waiting",
    "applied": 0,
    "applied_rate": 0.0,
    "rows": None,
    "position": "",
    "hops": [],
    "spark": None,
    "letters": [],
    "changes": [],
    "lookup": None,
    "copies": [],
}

RUNNING: dict[str, Any] = {
    **STARTING,
    "phase": "running",
    "seconds": 14.2,
    "left": 17.3,
    "captured": 2_412,
    "captured_rate": 40.6,
    "flushes": 310,
    "log_bytes": 1_234_567,
    "state": "streaming",
    "applied": 2_398,
    "applied_rate": 39.8,
    "rows": 2_801,
    "position": "0001-000000000000096c-00000000",
    "hops": [{"name": name, "p50_ms": p50, "p95_ms": p95} for name, (p50, p95) in HOPS.items()],
    "spark": {
        "version": "4.2.1",
        "direct": 290,
        "jobs": 305,
        "tasks": 311,
        "last_job_ms": 47.9,
        "plan": "Scan parquet → Filter → Project (total_cents)",
        "ui": None,
    },
    "changes": [
        changed("insert", "3022", "customer 45, 1 lamp, 29.90, new"),
        changed("update", "1934", "status paid → shipped"),
        changed("delete", "778", "customer 31, 3 rug, 192.00, shipped"),
    ],
    "lookup": {"customer": 7, "orders": 53, "paid_cents": 1_234_560, "took_us": 41.7},
}

SHOW = "headrace dead-letters show 0001-0000000000000961-00000000 --data headrace-demo"
LIST = "headrace dead-letters list orders --data headrace-demo"
LETTER: dict[str, Any] = {
    "pipeline": "orders",
    "table": "orders",
    "key": "3021",
    "code": "ARITHMETIC_OVERFLOW",
    "position": "0001-0000000000000961-00000000",
    "behind": 1,
    "commands": [SHOW, LIST],
}

EXTREME: dict[str, Any] = {
    **RUNNING,
    "seconds": 123_456.7,
    "left": 1e6,
    "source_state": "reconnecting",
    "restarts": 10**9,
    "killable": True,
    "captured": 10**12,
    "captured_rate": 1e6,
    "flushes": 10**9,
    "log_bytes": 10**13,
    "state": "catching_up",
    "applied": 10**12,
    "applied_rate": 1e6,
    "rows": 10**10,
    "position": "ffff-7fffffffffffffff-7fffffff",
    "hops": [{"name": name, "p50_ms": 1e6, "p95_ms": 1e7} for name in HOPS],
    "spark": {
        "version": "4.2.1-SNAPSHOT",
        "direct": 10**9,
        "jobs": 10**9,
        "tasks": 10**10,
        "last_job_ms": 1e6,
        "plan": "Scan → " * 60,
        "ui": None,
    },
    "letters": [{**LETTER, "key": "9" * 400, "code": "X" * 90, "behind": 10**9}] * 99,
    "changes": [changed("truncate", str(10**15 + n), "without end, " * 20) for n in range(40)],
    "lookup": {"customer": 10**9, "orders": 10**9, "paid_cents": 10**14, "took_us": 1e6},
}


def status_of(shown: dict[str, Any]) -> dict[str, Any]:
    """Return what the verb `Status` says at the moment of a snapshot."""
    source = {
        "name": "shop",
        "state": shown["source_state"],
        "reason": shown["source_reason"],
        "error": None,
        "left_out": {},
        "copies": shown["copies"],
        "lag_bytes": None,
        "current_seconds": 0.2,
        "silence_seconds": None,
        "notices": [],
    }
    pipeline = {
        "name": "orders",
        "source": "shop",
        "target": "indexed-memory",
        "state": shown["state"],
        "ready": shown["state"] == "streaming",
        "reason": "",
        "rows": shown["rows"],
        "lag_seconds": 0.038,
        "rate_per_s": shown["applied_rate"],
        "position": shown["position"],
        "dead_letters": len(shown["letters"]),
        "error": None,
        "set_aside": None,
        "left_out": {},
    }
    starting = shown["phase"] == "starting"
    return {
        "pid": 4711,
        "seconds": shown["seconds"],
        "phase": "starting" if starting else "running",
        "step": "recording shop",
        "ready": not starting and pipeline["ready"],
        "sources": [source],
        "pipelines": [] if starting else [pipeline],
    }
