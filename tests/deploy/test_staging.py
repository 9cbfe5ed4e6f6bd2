"""The life of `staging` and a text endpoint where IAM is enforced: nothing but the templates' roles lets it happen.

The embedded model stands for the environment's own, which cannot be fetched here; endpoints on GPU instances run on
the CPU; there are no instances of the first type of their pool. The tests run in this order on one deployment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from stacks.config import STAGING
from tests.deploy.conftest import Cdk
from tests.emulator_fixture import Emulator, running_emulator
from tools.cdk import CdkError
from tools.demo import EXAMPLE
from tools.leftovers import leftovers

PREFIX = "decision-endpoints-staging"
CHAT = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
VARIANT: dict[str, Any] = {
    "of": "staging",
    "embedded_model": True,
    "endpoint": {"threads": 1, "context_tokens": 2048},
    "text": {"name": "text", "instance_type": "ml.c6i.large", "threads": 1, "context_tokens": 1024},
}
UPDATED = {
    **VARIANT,
    "endpoint": {**VARIANT["endpoint"], "context_tokens": 2304},
    "text": {**VARIANT["text"], "context_tokens": 2048},
}
# The text endpoint starts anew, and its role may not read the model any more.
POORER = {**UPDATED, "text": VARIANT["text"], "without": {"path": "TextEndpoint/Role", "action": "s3:GetObject"}}
# What roles may do and do not do here, by the beginning of the role's name and the action.
UNUSED = {
    # SageMaker publishes its instances' metrics with it, the emulator none.
    ("DecisionCpuEnd", "cloudwatch:PutMetricData"),
    ("DecisionGpuEnd", "cloudwatch:PutMetricData"),
    ("TextEndpointRo", "cloudwatch:PutMetricData"),
    # AWS's documentation of pulling has it, and so has CDK's `grant_pull`; neither Docker nor the emulator asks for it.
    ("DecisionCpuEnd", "ecr:BatchCheckLayerAvailability"),
    ("DecisionGpuEnd", "ecr:BatchCheckLayerAvailability"),
    ("TextEndpointRo", "ecr:BatchCheckLayerAvailability"),
    # No build fails, is stopped or gives an upload up in a deploy that goes well.
    ("BuildRunnerRol", "codebuild:StopBuild"),
    ("BuildRunnerRol", "logs:GetLogEvents"),
    ("ModelBuildRole", "s3:AbortMultipartUpload"),
    # CDK's framework waits for a function that is not active yet; its state machine calls inside the emulator.
    ("BuildRunnerFra", "lambda:GetFunction"),
    ("RolloutCheckFr", "lambda:GetFunction"),
    ("BuildRunnerPro", "lambda:InvokeFunction"),
}


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator that decides by IAM policies, without instances of the pools' first type."""
    (_, gpu) = STAGING.endpoints
    scarce = {"EMULATOR_NO_CAPACITY": gpu.instance_pool[0]}
    with running_emulator(tmp_path_factory.mktemp("enforcing"), enforce_iam=True, variables=scarce) as running:
        yield running


@pytest.fixture(scope="module")
def cdk_cli(emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Cdk:
    command_line = Cdk(emulator, tmp_path_factory.mktemp("enforcing-cdk"))
    command_line.bootstrap()
    return command_line


@pytest.fixture(scope="module")
def outputs(cdk_cli: Cdk) -> dict[str, str]:
    return cdk_cli.deploy(VARIANT)


def caller(emulator: Emulator, policy_arn: str) -> Any:
    """Somebody who may do what one managed policy says, and asks endpoints."""
    iam, name = emulator.client("iam"), f"caller-{policy_arn.rpartition('/')[2][-20:]}"
    trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "000000000000"}}
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=document)["Role"]
    iam.attach_role_policy(RoleName=name, PolicyArn=policy_arn)
    session = emulator.client("sts").assume_role(RoleArn=role["Arn"], RoleSessionName="caller")["Credentials"]
    return emulator.client("sagemaker-runtime", session)


def forget_callers(emulator: Emulator) -> None:
    iam = emulator.client("iam")
    for role in iam.list_roles()["Roles"]:
        if role["RoleName"].startswith("caller-"):
            for policy in iam.list_attached_role_policies(RoleName=role["RoleName"])["AttachedPolicies"]:
                iam.detach_role_policy(RoleName=role["RoleName"], PolicyArn=policy["PolicyArn"])
            iam.delete_role(RoleName=role["RoleName"])


def ask(runtime: Any, name: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = runtime.invoke_endpoint(EndpointName=name, ContentType="application/json", Body=json.dumps(body))
    decoded: dict[str, Any] = json.loads(answer["Body"].read())
    return decoded


def granted(emulator: Emulator) -> dict[str, set[str]]:
    """What the policies of each of the stacks' roles allow."""
    iam, found = emulator.client("iam"), {}
    for page in iam.get_paginator("list_roles").paginate():
        for role in (role["RoleName"] for role in page["Roles"] if role["RoleName"].startswith(PREFIX)):
            statements = [
                statement
                for policy in iam.list_role_policies(RoleName=role)["PolicyNames"]
                for statement in iam.get_role_policy(RoleName=role, PolicyName=policy)["PolicyDocument"]["Statement"]
            ]
            actions = [s["Action"] if isinstance(s["Action"], list) else [s["Action"]] for s in statements]
            found[role] = {action for some in actions for action in some}
    return found


def test_both_decision_endpoints_answer_the_same_and_one_is_on_the_pools_second_type(
    emulator: Emulator, outputs: dict[str, str]
) -> None:
    names = [outputs["DecisionCpuEndpointName"], outputs["DecisionGpuEndpointName"]]
    assert names == [f"{PREFIX}-decision-cpu", f"{PREFIX}-decision-gpu"]
    runtime, sagemaker = emulator.client("sagemaker-runtime"), emulator.client("sagemaker")
    on_cpu, on_gpu = (ask(runtime, name, EXAMPLE)["result"] for name in names)
    assert on_cpu["probabilities"] == on_gpu["probabilities"]
    (variant,) = sagemaker.describe_endpoint(EndpointName=names[1])["ProductionVariants"]
    counts = {place["InstanceType"]: place["CurrentInstanceCount"] for place in variant["InstancePools"]}
    assert list(counts.values()) == [0, 1, 0, 0]
    assert tuple(counts) == STAGING.endpoints[1].instance_pool


def test_text_endpoint_runs_the_copied_base_and_chats(emulator: Emulator, outputs: dict[str, str]) -> None:
    name = outputs["TextEndpointName"]
    (variant,) = emulator.client("sagemaker").describe_endpoint(EndpointName=name)["ProductionVariants"]
    assert variant["DeployedImages"][0]["ResolvedImage"].endswith(f"@{outputs['CpuBaseImageDigest']}")
    answer = ask(emulator.client("sagemaker-runtime"), name, CHAT)
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["usage"]["completion_tokens"] == 4


def test_invoke_policy_lets_its_holder_ask_that_endpoint_and_no_other(
    emulator: Emulator, outputs: dict[str, str]
) -> None:
    runtime = caller(emulator, outputs["DecisionCpuEndpointInvokePolicy"])
    try:
        assert ask(runtime, outputs["DecisionCpuEndpointName"], EXAMPLE)["result"]["id"] == "support-route"
        with pytest.raises(ClientError, match="not authorized to perform: sagemaker:InvokeEndpoint because"):
            ask(runtime, outputs["DecisionGpuEndpointName"], EXAMPLE)
    finally:
        forget_callers(emulator)


def test_an_update_passes(emulator: Emulator, cdk_cli: Cdk, outputs: dict[str, str]) -> None:
    assert cdk_cli.deploy(UPDATED) == outputs
    name = outputs["TextEndpointName"]
    served = emulator.client("sagemaker").describe_endpoint(EndpointName=name)
    assert served["EndpointStatus"] == "InService"
    assert ask(emulator.client("sagemaker-runtime"), name, CHAT)["usage"]["completion_tokens"] == 4


def test_a_role_without_one_needed_right_fails_the_update_for_that_reason(
    emulator: Emulator, cdk_cli: Cdk, outputs: dict[str, str]
) -> None:
    with pytest.raises(
        CdkError, match=r"AWS::SageMaker::Endpoint TextEndpoint/.*Failed to download model data"
    ) as told:
        cdk_cli.deploy(POORER)
    assert "Forbidden" in str(told.value) or "AccessDenied" in str(told.value)
    (stack,) = emulator.client("cloudformation").describe_stacks(StackName=f"{PREFIX}-endpoints")["Stacks"]
    assert stack["StackStatus"] == "UPDATE_ROLLBACK_COMPLETE"
    assert (
        ask(emulator.client("sagemaker-runtime"), outputs["TextEndpointName"], CHAT)["usage"]["completion_tokens"] == 4
    )


def test_destroy_leaves_nothing_and_no_right_was_granted_in_vain(
    emulator: Emulator, cdk_cli: Cdk, outputs: dict[str, str]
) -> None:
    rights = granted(emulator)
    cdk_cli.destroy(VARIANT)
    assert leftovers(emulator.endpoint_url, emulator.certificate) == []
    decisions = [json.loads(line) for line in (emulator.state_dir / "access.jsonl").read_text().splitlines()]
    used = {(decision["role"], decision["action"]) for decision in decisions if decision["allowed"]}
    idle = {(role, action) for role, actions in rights.items() for action in actions} - used
    start = len(f"{PREFIX}-endpoints-")
    assert {(role[start : start + len("BuildRunnerRol")], action) for role, action in idle} == UNUSED
