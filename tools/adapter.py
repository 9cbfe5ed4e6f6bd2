"""The adapter as a process on loopback, for the commands that measure it or ask it something."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.setup import ROOT

_START_SECONDS = 300  # a large model on a slow disk


@contextmanager
def running_adapter(gguf: Path, log: Path, **settings: str) -> Iterator[str]:
    """The address of an adapter that serves `gguf` with these SEMIF_ settings; it writes to `log`, and ends here.

    Ends the program with one line where the adapter does not start.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SEMIF_")}
    environment |= {
        "PYTHONPATH": str(ROOT / "container"),
        "SEMIF_HOST": "127.0.0.1",
        "SEMIF_PORT": str(port),
        "SEMIF_GGUF_PATH": str(gguf),
        **settings,
    }
    url = f"http://127.0.0.1:{port}"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [sys.executable, "-m", "adapter", "serve"], env=environment, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            _wait_until_ready(url, process, log)
            yield url
        finally:
            process.terminate()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{url}/ping", timeout=5).close()  # noqa: S310 - our own address
        except OSError:
            time.sleep(0.2)
        else:
            return
    sys.exit(f"the adapter did not start:\n{log.read_text(errors='replace')}")
