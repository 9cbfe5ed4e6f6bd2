"""`make deploy ENV=NAME` and `make destroy ENV=NAME`: the CDK command line against an AWS account, on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from ops.aws import region_of
from stacks.checks import ConfigError
from stacks.config import PREFIX, Environment, environment_named
from tools.cdk import cdk_on_terminal

_NO_CREDENTIALS = (
    "there are no AWS credentials: log in (aws sso login) and set AWS_PROFILE, or set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY; to try it without an account: make demo"
)
_NO_REGION = "there is no AWS region: set AWS_REGION, or a region in the profile"

Cdk = Callable[[Sequence[str]], int]


class DeployError(Exception):
    """There is nothing to deploy to; the message is one line."""


def say_where(session: boto3.Session, environment: Environment) -> None:
    """Print the account and region that the credentials lead to. Raises DeployError where they lead nowhere."""
    if session.get_credentials() is None:
        raise DeployError(_NO_CREDENTIALS)
    region = region_of(environment, session)
    if region is None:
        raise DeployError(_NO_REGION)
    try:
        account = session.client("sts", region_name=region).get_caller_identity()["Account"]
    except (BotoCoreError, ClientError) as error:
        raise DeployError(f"AWS does not take the credentials: {error}") from error
    print(
        f"environment {environment.name!r}, account {environment.account or account}, region {region}",
        flush=True,
    )


def deploy(environment: Environment, cdk: Cdk) -> int:
    """Deploy both stacks; the command line asks before it widens permissions. Returns its exit status."""
    return cdk(["deploy", "--all", "-c", f"env={environment.name}"])


def destroy(environment: Environment, cloudformation: Any, cdk: Cdk) -> int:
    """Destroy what is not protected, and say what stays. Returns the command line's exit status."""
    artifacts = _artifacts_stack(environment, cloudformation)
    protected = artifacts.get("EnableTerminationProtection", False)
    stacks = [f"{PREFIX}-{environment.name}-endpoints"] if protected else ["--all"]
    status = cdk(["destroy", *stacks, "-c", f"env={environment.name}"])
    kept = [o["OutputValue"] for o in artifacts.get("Outputs", []) if o["OutputKey"] == "KeptOnDestroy"]
    if status == 0 and kept:
        print("kept: " + kept[0].replace(" ", ", "))
        if protected:
            print(f"kept: the stack {artifacts['StackName']}, whose termination protection is on")
    return status


def _artifacts_stack(environment: Environment, cloudformation: Any) -> dict[str, Any]:
    """The stack of what holds data; nothing where there is none."""
    try:
        found = cloudformation.describe_stacks(StackName=f"{PREFIX}-{environment.name}-artifacts")["Stacks"]
    except ClientError as error:
        if "does not exist" in str(error):
            return {}
        raise
    stack: dict[str, Any] = found[0]
    return stack


def main() -> int:
    """Run `up NAME` or `down NAME`. Returns the exit status."""
    command, name = sys.argv[1:]
    try:
        environment = environment_named(name)
        session = boto3.Session()
        say_where(session, environment)
        if command == "up":
            return deploy(environment, cdk_on_terminal)
        cloudformation = session.client("cloudformation", region_name=region_of(environment, session))
        return destroy(environment, cloudformation, cdk_on_terminal)
    except (ConfigError, DeployError, BotoCoreError, ClientError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
