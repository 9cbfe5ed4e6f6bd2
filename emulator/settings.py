"""What the emulator is told when it starts: where it listens, where it keeps things, what stands in for a container."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

ACCOUNT = "000000000000"
REGION = "us-east-1"
HOST = "127.0.0.1"
DEFAULT_PORT = 4566
REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Settings:
    """One emulator: a port on loopback and a folder for its state and logs.

    `container_python` is the interpreter that stands in for `python3` inside images (images run as processes, so the
    packages that a Dockerfile's RUN steps would install must already be in that interpreter's environment).
    `enforce_iam` decides requests by IAM policies, over TLS. `no_capacity` are instance types of which there are none.
    """

    port: int
    state_dir: Path
    container_python: Path
    node_path: Path
    enforce_iam: bool = False
    no_capacity: frozenset[str] = frozenset()

    @classmethod
    def from_environment(cls, port: int, state_dir: Path, *, enforce_iam: bool = False) -> Settings:
        """Settings of the command line, completed by environment variables.

        EMULATOR_CONTAINER_PYTHON, NODE_PATH, and EMULATOR_NO_CAPACITY with instance types separated by commas.
        """
        product_python = REPOSITORY / ".venv" / "bin" / "python"
        default_python = product_python if product_python.exists() else Path(sys.executable)
        return cls(
            port=port,
            state_dir=state_dir.resolve(),
            # Not resolved: the link inside a virtual environment is what makes its packages importable.
            container_python=Path(os.environ.get("EMULATOR_CONTAINER_PYTHON") or default_python).absolute(),
            node_path=Path(os.environ.get("NODE_PATH") or REPOSITORY / "node_modules").absolute(),
            enforce_iam=enforce_iam,
            no_capacity=frozenset(filter(None, os.environ.get("EMULATOR_NO_CAPACITY", "").split(","))),
        )

    @property
    def url(self) -> str:
        """The address that AWS_ENDPOINT_URL takes."""
        return f"{'https' if self.enforce_iam else 'http'}://{HOST}:{self.port}"

    @property
    def certificate(self) -> Path | None:
        """What a client must trust, as a PEM file; None where there is no TLS."""
        return self.state_dir / "certificate.pem" if self.enforce_iam else None

    @property
    def certificate_key(self) -> Path:
        """The certificate's private key, as a PEM file."""
        return self.state_dir / "certificate-key.pem"

    @property
    def access_log(self) -> Path:
        """One JSON line per decision on what a role may do; written where IAM is enforced."""
        return self.state_dir / "access.jsonl"

    @property
    def log_file(self) -> Path:
        """The emulator's own log, with MiniStack's."""
        return self.state_dir / "emulator.log"

    @property
    def pid_file(self) -> Path:
        """Process id and address of the running emulator; locked by it while it lives."""
        return self.state_dir / "emulator.pid"
