"""The doctor's checks of this machine: Node, the CDK's command line and the Python packages that a deploy runs on."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from ops.doctor.row import Row

ROOT = Path(__file__).resolve().parent.parent.parent

# jsii, through which Python speaks to the CDK, calls Node 20 unsupported since 2026-10-30 and asks for one of these.
_NODE_SUPPORTED = (22, 24)
_NODE_TIMEOUT_SECONDS = 20
# Twice the same name: one version per version of Python.
_PINNED = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;\\]+)\s*(?P<marker>;)?", re.MULTILINE)
_SETUP = "make setup"


def node(root: Path = ROOT) -> Sequence[Row]:
    """The Node that `make deploy` runs, else that of PATH."""
    own = root / ".venv" / "bin" / "node"
    program = str(own) if own.exists() else shutil.which("node")
    if program is None:
        return [Row("Node", "there is no Node", "failed", f"{_SETUP}, which brings Node 24")]
    try:
        result = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=True, timeout=_NODE_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        return [Row("Node", f"{program} does not run: {error}", "failed", _SETUP)]
    return [node_row(result.stdout.strip())]


def node_row(version: str) -> Row:
    """The row of a Node of that version, written as `node --version` prints it, such as v24.1.0."""
    major = re.match(r"v(\d+)\.", version)
    if major is not None and int(major[1]) in _NODE_SUPPORTED:
        return Row("Node", version, "ok")
    wanted = " or ".join(map(str, _NODE_SUPPORTED))
    return Row("Node", f"{version or 'no version'}; jsii supports {wanted}", "warning", f"use Node {wanted}: {_SETUP}")


def cdk_cli(root: Path = ROOT) -> Sequence[Row]:
    """The installed command line against the one that package.json names."""
    wanted = json.loads((root / "package.json").read_text(encoding="utf-8"))["devDependencies"]["aws-cdk"]
    try:
        installed = json.loads((root / "node_modules" / "aws-cdk" / "package.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return [Row("CDK command line", f"not installed; package.json names {wanted}", "failed", _SETUP)]
    version = str(installed["version"])
    if version == wanted:
        return [Row("CDK command line", version, "ok")]
    return [Row("CDK command line", f"{version}; package.json names {wanted}", "failed", _SETUP)]


def packages(requirements: Path = ROOT / "requirements" / "cdk.txt") -> Sequence[Row]:
    """The Python packages of this environment against the locked ones that a deploy needs."""
    pinned: dict[str, set[str]] = {}
    optional: set[str] = set()
    for match in _PINNED.finditer(requirements.read_text(encoding="utf-8")):
        pinned.setdefault(match["name"], set()).add(match["version"])
        if match["marker"]:
            optional.add(match["name"])
    wrong = []
    for name, versions in pinned.items():
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name not in optional:
                wrong.append(f"{name} is missing")
            continue
        if installed not in versions:
            wrong.append(f"{name} {installed}, locked is {' or '.join(sorted(versions))}")
    if not wrong:
        return [Row("Python packages", f"{len(pinned)} as in {requirements.name}", "ok")]
    fix = f"pip install --require-hashes -r requirements/{requirements.name} (or {_SETUP})"
    return [Row("Python packages", "; ".join(wrong), "failed", fix)]
