"""The adapter as a process on loopback, for the commands that measure it or ask it something."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tools.setup import ROOT

_START_SECONDS = 600  # a large model on a slow disk, a machine that others load, too


@dataclass(frozen=True)
class Adapter:
    """An adapter that answers on loopback."""

    url: str
    process_id: int


@contextmanager
def running_adapter(gguf: Path, **settings: str) -> Iterator[Adapter]:
    """An adapter that serves `gguf` with these SEMIF_ settings; it ends here.

    Ends the program, with what the adapter printed, where it does not start.
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
        tempfile.TemporaryFile() as output,
        subprocess.Popen(
            [sys.executable, "-m", "adapter", "serve"], env=environment, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            _wait_until_ready(url, process, output)
            yield Adapter(url, process.pid)
        finally:
            process.terminate()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{url}/ping", timeout=5).close()  # noqa: S310 - our own address
        except OSError:
            time.sleep(0.2)
        else:
            return
    output.seek(0)
    sys.exit(f"the adapter did not start:\n{output.read().decode(errors='replace')}")
