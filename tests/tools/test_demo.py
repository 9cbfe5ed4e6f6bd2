"""The demo's commands as a person types them, where they go wrong."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_port_in_use_is_named_in_one_line_and_nothing_is_left_running() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = _run("tools.demo", "up", "--port", str(port))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert str(port) in line
    assert "in use" in line
    assert _run("tools.demo", "down", "--port", str(port)).stdout.startswith("The emulator is not running")


def test_an_environment_that_does_not_exist_is_named_with_those_that_do() -> None:
    done = _run("tools.synth", "nope")
    assert done.returncode == 1
    assert done.stderr == "synth: there is no environment 'nope'; known environments: dev, local, prod, staging\n"
