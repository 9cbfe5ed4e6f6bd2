"""The app as the CDK command line runs it: one clear line for an environment that does not exist."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.stacks.conftest import ROOT


@pytest.mark.parametrize(
    ("context", "message"),
    [
        ({"env": "nope"}, "error: there is no environment 'nope'; known environments: dev, local, prod, staging\n"),
        ({}, "error: no environment named: add -c env=NAME; known environments: dev, local, prod, staging\n"),
    ],
)
def test_an_unknown_environment_ends_the_synthesis_with_one_line(context: dict[str, str], message: str) -> None:
    result = subprocess.run(
        [sys.executable, "app.py"],
        cwd=ROOT,
        # How the command line hands -c over.
        env={**os.environ, "CDK_CONTEXT_JSON": json.dumps(context)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (result.returncode, result.stdout, result.stderr) == (1, "", message)
