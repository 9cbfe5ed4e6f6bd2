"""`make deploy` and `make destroy`: what they say without an account, and what they leave of which environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from stacks.config import DEV, PROD, Environment
from tools.deploy import deploy, destroy
from tools.setup import ROOT

KEPT = "s3://bucket 123456789012.dkr.ecr.eu-west-1.amazonaws.com/images arn:aws:kms:eu-west-1:123456789012:key/1"


def run(tmp_path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    return subprocess.run(
        [sys.executable, "-m", "tools.deploy", *arguments],
        cwd=ROOT,
        env={**environment, "HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


KEYS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
NOBODY = {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}


@pytest.mark.parametrize(
    ("name", "variables", "complaint"),
    [
        ("nope", {}, "error: there is no environment 'nope'; known environments: dev, local, prod, staging"),
        ("dev", {}, "error: there are no AWS credentials: log in (aws sso login) and set AWS_PROFILE"),
        ("dev", KEYS, "error: there is no AWS region: set AWS_REGION"),
        ("dev", {**NOBODY, "AWS_DEFAULT_REGION": "eu-west-1"}, "error: AWS does not take the credentials: Could not"),
        ("dev", {**NOBODY, "AWS_REGION": "eu-west-1"}, "error: AWS does not take the credentials: Could not"),
    ],
)
def test_without_an_account_it_says_what_it_needs(
    tmp_path: Path, name: str, variables: dict[str, str], complaint: str
) -> None:
    result = run(tmp_path, "up", name, **variables)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(complaint)


class Cdk:
    """In place of the command line: takes down what it was asked."""

    def __init__(self, status: int = 0) -> None:
        self.asked: list[Sequence[str]] = []
        self._status = status

    def __call__(self, arguments: Sequence[str]) -> int:
        self.asked.append(arguments)
        return self._status


def cloudformation(environment: Environment, stack: dict[str, Any] | None) -> Any:
    client = boto3.client("cloudformation", region_name="eu-west-1", aws_access_key_id="x", aws_secret_access_key="x")  # noqa: S106
    name = f"decision-endpoints-{environment.name}-artifacts"
    stubber = Stubber(client)
    if stack is None:
        stubber.add_client_error("describe_stacks", "ValidationError", f"Stack with id {name} does not exist")
    else:
        described = {"StackName": name, "CreationTime": 0, "StackStatus": "CREATE_COMPLETE", **stack}
        stubber.add_response("describe_stacks", {"Stacks": [described]}, {"StackName": name})
    stubber.activate()
    return client


def test_a_deploy_is_of_both_stacks() -> None:
    cdk = Cdk()
    assert deploy(PROD, cdk) == 0
    assert cdk.asked == [["deploy", "--all", "-c", "env=prod"]]


def test_a_removable_environment_goes_as_a_whole(capsys: pytest.CaptureFixture[str]) -> None:
    cdk = Cdk()
    assert destroy(DEV, cloudformation(DEV, {"EnableTerminationProtection": False}), cdk) == 0
    assert cdk.asked == [["destroy", "--all", "-c", "env=dev"]]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("protected", [True, False])
def test_what_prod_keeps_is_printed(capsys: pytest.CaptureFixture[str], protected: bool) -> None:
    cdk = Cdk()
    outputs = [{"OutputKey": "KeptOnDestroy", "OutputValue": KEPT}, {"OutputKey": "Other", "OutputValue": "x"}]
    stack = {"EnableTerminationProtection": protected, "Outputs": outputs}
    assert destroy(PROD, cloudformation(PROD, stack), cdk) == 0
    stacks = ["decision-endpoints-prod-endpoints"] if protected else ["--all"]
    assert cdk.asked == [["destroy", *stacks, "-c", "env=prod"]]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"kept: {KEPT.replace(' ', ', ')}"
    protection = ["kept: the stack decision-endpoints-prod-artifacts, whose termination protection is on"]
    assert lines[1:] == (protection if protected else [])


def test_a_failed_destroy_says_nothing_of_what_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    stack = {"Outputs": [{"OutputKey": "KeptOnDestroy", "OutputValue": KEPT}]}
    assert destroy(PROD, cloudformation(PROD, stack), Cdk(status=1)) == 1
    assert capsys.readouterr().out == ""


def test_what_was_never_deployed_is_the_command_lines_to_say() -> None:
    cdk = Cdk()
    assert destroy(PROD, cloudformation(PROD, None), cdk) == 0
    assert cdk.asked == [["destroy", "--all", "-c", "env=prod"]]
