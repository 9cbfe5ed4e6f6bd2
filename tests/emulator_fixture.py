"""A running emulator for tests, reached as AWS is: over HTTP, by boto3."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
EMULATOR_PYTHON = ROOT / ".venv-emulator" / "bin" / "python"


@dataclass(frozen=True)
class Emulator:
    """An emulator of a test's own. `variables` are of its own process; `enforce_iam` brings TLS with it."""

    port: int
    state_dir: Path
    enforce_iam: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def endpoint_url(self) -> str:
        """What AWS_ENDPOINT_URL takes."""
        return f"{'https' if self.enforce_iam else 'http'}://127.0.0.1:{self.port}"

    @property
    def certificate(self) -> Path | None:
        """What its clients must trust, where it serves TLS."""
        return self.state_dir / "certificate.pem" if self.enforce_iam else None

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which AWS's tools reach it and nothing else."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            # Python's tools read the one, Node's the other.
            **dict.fromkeys(
                ("AWS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS") if self.certificate else (), str(self.certificate)
            ),
        }

    def client(self, service: str, credentials: Mapping[str, str] | None = None, **config: Any) -> Any:
        """A boto3 client; typed as Any, since the stubs want the service's name as a literal.

        `credentials` are STS's, or the account's own.
        """
        session: Any = boto3.session.Session()
        signing = credentials or {"AccessKeyId": "test", "SecretAccessKey": "test"}
        return session.client(
            service,
            endpoint_url=self.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id=signing["AccessKeyId"],
            aws_secret_access_key=signing["SecretAccessKey"],
            aws_session_token=signing.get("SessionToken"),
            verify=str(self.certificate) if self.certificate else None,
            config=Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"}, read_timeout=120, **config),
        )

    def command(self, name: str) -> subprocess.CompletedProcess[str]:
        """Run one of the emulator's own commands."""
        return subprocess.run(
            [
                *(EMULATOR_PYTHON, "-m", "emulator", name),
                *("--port", str(self.port), "--state-dir", self.state_dir),
                *(["--enforce-iam"] if self.enforce_iam else []),
            ],
            cwd=ROOT,
            env={**os.environ, "EMULATOR_CONTAINER_PYTHON": sys.executable, **self.variables},
            capture_output=True,
            text=True,
            check=False,
        )


@contextmanager
def running_emulator(
    state_dir: Path, *, enforce_iam: bool = False, variables: Mapping[str, str] | None = None
) -> Iterator[Emulator]:
    """Start an emulator on a free port with its state in this folder; stop it, and all it started, at the end."""
    emulator = Emulator(free_port(), state_dir, enforce_iam, variables or {})
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
