"""A running emulator for tests, reached as AWS is: over HTTP, by boto3."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
EMULATOR_PYTHON = ROOT / ".venv-emulator" / "bin" / "python"


@dataclass(frozen=True)
class Emulator:
    """An emulator of a test's own."""

    port: int
    state_dir: Path

    @property
    def endpoint_url(self) -> str:
        """What AWS_ENDPOINT_URL takes."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which AWS's tools reach it and nothing else."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def client(self, service: str, **config: Any) -> Any:
        """A boto3 client; typed as Any, since the stubs want the service's name as a literal."""
        session: Any = boto3.session.Session()
        return session.client(
            service,
            endpoint_url=self.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",  # noqa: S106 - the emulator's public one
            config=Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"}, read_timeout=120, **config),
        )

    def command(self, name: str) -> subprocess.CompletedProcess[str]:
        """Run one of the emulator's own commands."""
        return subprocess.run(
            [
                *(EMULATOR_PYTHON, "-m", "emulator", name),
                *("--port", str(self.port), "--state-dir", self.state_dir),
            ],
            cwd=ROOT,
            env={**os.environ, "EMULATOR_CONTAINER_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )


@contextmanager
def running_emulator(state_dir: Path) -> Iterator[Emulator]:
    """Start an emulator on a free port with its state in this folder; stop it, and all it started, at the end."""
    emulator = Emulator(free_port(), state_dir)
    started = emulator.command("start")
    assert started.returncode == 0, started.stderr
    try:
        yield emulator
    finally:
        stopped = emulator.command("stop")
        assert stopped.returncode == 0, stopped.stderr


def free_port() -> int:
    """A port on loopback that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
