"""The doctor about Node, the CDK's command line and the Python packages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ops.doctor import machine


@pytest.mark.parametrize(
    ("version", "verdict"), [("v22.11.0", "ok"), ("v24.19.0", "ok"), ("v20.20.2", "warning"), ("v23.1.0", "warning")]
)
def test_the_versions_of_node_that_jsii_supports(version: str, verdict: str) -> None:
    row = machine.node_row(version)
    assert (row.verdict, version in row.found) == (verdict, True)


def test_the_node_of_the_virtual_environment_comes_before_that_of_path(tmp_path: Path) -> None:
    own = tmp_path / ".venv" / "bin" / "node"
    own.parent.mkdir(parents=True)
    own.write_text("#!/bin/sh\necho v22.99.0\n")
    own.chmod(0o755)
    assert machine.node(tmp_path)[0].found == "v22.99.0"
    own.write_text("#!/bin/sh\nexit 3\n")
    assert machine.node(tmp_path)[0].verdict == "failed"


def test_without_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    row = machine.node(tmp_path)[0]
    assert (row.verdict, row.found) == ("failed", "there is no Node")


def test_the_command_line_is_the_one_of_package_json(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text(json.dumps({"devDependencies": {"aws-cdk": "2.1148.1"}}))
    assert machine.cdk_cli(tmp_path)[0].verdict == "failed"
    installed = tmp_path / "node_modules" / "aws-cdk" / "package.json"
    installed.parent.mkdir(parents=True)
    for version, verdict in (("2.1148.1", "ok"), ("2.1000.0", "failed")):
        installed.write_text(json.dumps({"version": version}))
        row = machine.cdk_cli(tmp_path)[0]
        assert (row.verdict, version in row.found) == (verdict, True)


def test_the_locked_packages_are_installed_here() -> None:
    row = machine.packages()[0]
    assert row.verdict == "ok", row.found


def test_packages_that_differ_from_the_locked_ones(tmp_path: Path) -> None:
    locked = tmp_path / "cdk.txt"
    locked.write_text(
        "boto3==0.0.1 \\\n    --hash=sha256:00\n    # via\n    #   x==1\n"
        "nowhere-to-be-had==1.0\n"
        "not-on-this-python==2.0 ; python_version < '3' \\\n    --hash=sha256:00\n"
    )
    row = machine.packages(locked)[0]
    assert row.verdict == "failed"
    assert "locked is 0.0.1" in row.found
    assert "nowhere-to-be-had is missing" in row.found
    assert "not-on-this-python" not in row.found
    assert "x 1" not in row.found
