"""What the pipeline's deploying step may do is enough for `cdk deploy`, and none of it is too much."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import App, assertions

from stacks.config import LOCAL, STAGING
from stacks.delivery import Pipeline
from stacks.pipeline import PipelineStack
from stacks.stage import build
from tests.deploy.conftest import Cdk
from tests.emulator_fixture import Emulator, running_emulator
from tools.cdk import CdkError, cdk
from tools.leftovers import leftovers

ACCOUNT = "000000000000"
CONNECTION = f"arn:aws:codeconnections:us-east-1:{ACCOUNT}:connection/0a1b2c3d-0a1b-2c3d-4e5f-0a1b2c3d4e5f"
# The stack without endpoints: it has an asset to publish and is deployed in seconds.
STACK = "decision-endpoints-local-artifacts"


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator that decides by IAM policies, bootstrapped."""
    with running_emulator(tmp_path_factory.mktemp("enforcing"), enforce_iam=True) as running:
        Cdk(running, tmp_path_factory.mktemp("bootstrap")).bootstrap()
        yield running


@dataclass(frozen=True)
class Step:
    """The step that deploys: the assembly it is handed, and the roles that it may assume."""

    assembly: Path
    assumes: list[str]


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Step:
    assembly, place = tmp_path_factory.mktemp("assembly"), tmp_path_factory.mktemp("pipeline")
    app = App(outdir=str(assembly))
    build(app, LOCAL)
    app.synth()
    pipeline = Pipeline(connection_arn=CONNECTION, repository="owner/name", staging="local", production="staging")
    stack = PipelineStack(App(outdir=str(place)), "Pipeline", pipeline=pipeline, staging=LOCAL, production=STAGING)
    resources = assertions.Template.from_stack(stack).to_json()["Resources"]
    (policy,) = [r for id_, r in resources.items() if id_.startswith("DeployLocalRoleDefaultPolicy")]
    statements = policy["Properties"]["PolicyDocument"]["Statement"]
    (assume,) = [statement for statement in statements if statement["Action"] == "sts:AssumeRole"]
    return Step(assembly, [_resolve(resource) for resource in assume["Resource"]])


def _resolve(arn: dict[str, Any]) -> str:
    """The ARN as CloudFormation would make it in the emulator."""
    pseudo = {"AWS::Partition": "aws", "AWS::AccountId": ACCOUNT, "AWS::Region": "us-east-1"}
    return "".join(part if isinstance(part, str) else pseudo[part["Ref"]] for part in arn["Fn::Join"][1])


def deploy(emulator: Emulator, step: Step, log: Path, *, assumes: list[str]) -> None:
    """What the step runs, with credentials that may assume these roles and do nothing else. Raises CdkError."""
    cdk(
        ["deploy", "--app", str(step.assembly), STACK, "--require-approval", "never"],
        environment={**emulator.environment, **_credentials(emulator, assumes)},
        log=log,
    )


def _credentials(emulator: Emulator, assumes: list[str]) -> Mapping[str, str]:
    iam, name = emulator.client("iam"), f"deploys-{len(assumes)}"
    trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": ACCOUNT}}
    allow = {"Effect": "Allow", "Action": "sts:AssumeRole", "Resource": assumes}
    document, policy = (json.dumps({"Version": "2012-10-17", "Statement": [s]}) for s in (trust, allow))
    role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=document)["Role"]
    iam.put_role_policy(RoleName=name, PolicyName="assume", PolicyDocument=policy)
    session = emulator.client("sts").assume_role(RoleArn=role["Arn"], RoleSessionName="step")["Credentials"]
    return {
        "AWS_ACCESS_KEY_ID": session["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": session["SecretAccessKey"],
        "AWS_SESSION_TOKEN": session["SessionToken"],
    }


def test_without_the_right_to_publish_assets_it_cannot_deploy(emulator: Emulator, step: Step, tmp_path: Path) -> None:
    (to_deploy,) = [role for role in step.assumes if "deploy-role" in role]
    with pytest.raises(CdkError):
        deploy(emulator, step, tmp_path / "cdk.log", assumes=[to_deploy])
    assert "file-publishing" in (tmp_path / "cdk.log").read_text()


def test_with_both_it_can(emulator: Emulator, step: Step, tmp_path: Path) -> None:
    assert len(step.assumes) == 2
    deploy(emulator, step, tmp_path / "cdk.log", assumes=step.assumes)
    (stack,) = emulator.client("cloudformation").describe_stacks(StackName=STACK)["Stacks"]
    assert stack["StackStatus"] in ("CREATE_COMPLETE", "UPDATE_COMPLETE")
    cdk(
        ["destroy", "--app", str(step.assembly), STACK, "--force"],
        environment=emulator.environment,
        log=tmp_path / "destroy.log",
    )
    assert [line for line in leftovers(emulator.endpoint_url, emulator.certificate) if "deploys-" not in line] == []
