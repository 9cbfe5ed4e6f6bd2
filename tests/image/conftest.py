"""Containers of the built image, started as SageMaker starts them; `make image` has built it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.container.conftest import EMBEDDED
from tools.image.build import IMAGE
from tools.image.podman import environment, podman

START_SECONDS = 120.0  # stacks/config.py gives `local` as much
# A client inside the container, which has no network: method, address, body; prints the status and the answer.
_CLIENT = """
import sys, urllib.error, urllib.request
method, url, body = sys.argv[1:]
request = urllib.request.Request(url, body.encode() or None, {"Content-Type": "application/json"}, method=method)
try:
    answer = urllib.request.urlopen(request, timeout=120)
except urllib.error.HTTPError as error:
    answer = error
except OSError:
    print(0)
    sys.exit()
print(answer.status, answer.read().decode())
"""


@dataclass(frozen=True)
class Container:
    """A container that runs, or has run."""

    id: str

    def request(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        """Ask from inside; status 0 where nothing listens."""
        text = "" if body is None else json.dumps(body)
        said = podman("exec", self.id, "python3", "-c", _CLIENT, method, f"http://127.0.0.1:8080{path}", text)
        status, _, answer = said.partition(" ")
        return int(status), answer

    def invoke(self, body: object) -> dict[str, Any]:
        """POST to /invocations, which must answer."""
        status, answer = self.request("POST", "/invocations", body)
        assert status == 200, answer
        parsed: dict[str, Any] = json.loads(answer)
        return parsed

    def wait_until_ready(self) -> None:
        """Ping until 200."""
        deadline = time.monotonic() + START_SECONDS
        while self.request("GET", "/ping")[0] != 200:
            assert self.is_running, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.5)

    def wait(self) -> int:
        """The exit status, once it has one."""
        return int(podman("wait", self.id))

    @property
    def is_running(self) -> bool:
        """Whether its process has not ended."""
        return podman("inspect", "--format", "{{.State.Running}}", self.id) == "true"

    @property
    def log(self) -> str:
        """What it printed on both streams."""
        command = ["podman", "logs", self.id]
        done = subprocess.run(
            command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return done.stdout


@contextmanager
def running(image: str, *options: str, model: Path | None = EMBEDDED, memory: str = "2g") -> Iterator[Container]:
    """`docker run IMAGE serve` as SageMaker does it: the model read-only in its place, a memory limit, no network."""
    mounts = () if model is None else ("--volume", f"{model}:/opt/ml/model/{model.name}:ro")
    container = Container(
        podman("run", "--detach", "--network", "none", "--memory", memory, *mounts, *options, image, "serve")
    )
    try:
        yield container
    finally:
        podman("rm", "--force", "--time", "0", container.id)


@pytest.fixture(scope="session")
def base() -> str:
    """The stand-in on which the image was built."""
    return podman("inspect", "--format", '{{index .Labels "org.opencontainers.image.base.name"}}', IMAGE)
