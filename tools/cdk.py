"""Runs the CDK command line of node_modules with the environment's Node and Python, against AWS or the emulator."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tools.setup import ROOT, VENV

_CLI = ROOT / "node_modules" / "aws-cdk" / "bin" / "cdk"
_REASON = re.compile(
    r"(?:CREATE|UPDATE|DELETE)_FAILED\s*\|\s*(?P<type>\S+)\s*\|\s*(?P<id>\S+ \(\w+\))\s+(?P<reason>\S.*)$"
)


class CdkError(Exception):
    """The CDK command line failed; the message is its own reason."""


def cdk(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    on_line: Callable[[str], None] = lambda _: None,
) -> None:
    """Run `cdk ARGUMENTS` in the repository; every line it prints goes to `log` and to `on_line`.

    `environment` is added to the process's own. Raises `CdkError`.
    """
    command = _command(arguments, "--ci")
    complete = _environment({"NO_COLOR": "1", **environment})
    lines: list[str] = []
    with (
        log.open("w") as file,
        subprocess.Popen(
            command, cwd=ROOT, env=complete, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        assert process.stdout is not None  # noqa: S101 - it was asked for
        for line in process.stdout:
            file.write(line)
            file.flush()
            lines.append(line.rstrip())
            on_line(lines[-1])
    if process.returncode != 0:
        raise CdkError(_reason(lines) or f"cdk {arguments[0]} failed with status {process.returncode}")


def cdk_on_terminal(arguments: Sequence[str]) -> int:
    """Run `cdk ARGUMENTS` as if it had been typed: it may ask, and is answered. Returns its exit status."""
    return subprocess.run(_command(arguments), cwd=ROOT, env=_environment({}), check=False).returncode


def _command(arguments: Sequence[str], *more: str) -> list[str]:
    return [str(VENV / "bin" / "node"), str(_CLI), *arguments, "--no-notices", *more]


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "JSII_NODE": str(VENV / "bin" / "node"),
        "CDK_DISABLE_CLI_TELEMETRY": "true",
        **more,
    }


def _reason(lines: Sequence[str]) -> str | None:
    """What our app complains of, or the first resource that failed and why, or the CLI's last complaint."""
    for line in lines:
        if line.startswith("error: "):
            return line[len("error: ") :]
        if match := _REASON.search(line):
            return f"{match['type']} {match['id']}: {match['reason']}"
    complaints = [line for line in lines if line.strip()]
    return complaints[-1] if complaints else None
