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
    """

    port: int
    state_dir: Path
    container_python: Path
    node_path: Path

    @classmethod
    def from_environment(cls, port: int, state_dir: Path) -> Settings:
        """Settings of the command line, completed by EMULATOR_CONTAINER_PYTHON and NODE_PATH."""
        product_python = REPOSITORY / ".venv" / "bin" / "python"
        default_python = product_python if product_python.exists() else Path(sys.executable)
        return cls(
            port=port,
            state_dir=state_dir.resolve(),
            # Not resolved: the link inside a virtual environment is what makes its packages importable.
            container_python=Path(os.environ.get("EMULATOR_CONTAINER_PYTHON") or default_python).absolute(),
            node_path=Path(os.environ.get("NODE_PATH") or REPOSITORY / "node_modules").absolute(),
        )

    @property
    def url(self) -> str:
        """The address that AWS_ENDPOINT_URL takes."""
        return f"http://{HOST}:{self.port}"

    @property
    def log_file(self) -> Path:
        """The emulator's own log, with MiniStack's."""
        return self.state_dir / "emulator.log"

    @property
    def pid_file(self) -> Path:
        """Process id and port of the running emulator; locked by it while it lives."""
        return self.state_dir / "emulator.pid"
