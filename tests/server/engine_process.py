"""An engine with a server, as a process that a test may kill: `python -m … FOLDER`."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from tests.server.serving import served

if __name__ == "__main__":
    with served(Path(sys.argv[1])) as found:
        info = found.server.info
        print(json.dumps({"http": info.http, "grpc": info.grpc, "pid": info.pid}), flush=True)
        threading.Event().wait()
