"""What `decide status` shows, by recorded shapes of AWS; tests/deploy/test_local.py shows a deployed environment."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from botocore.response import StreamingBody
from botocore.stub import Stubber

from ops import status as module
from ops.cli import main
from ops.deployed import Placement
from ops.status import look
from stacks.config import PROD, Environment, TextEndpoint
from tests.ops.stubbed import Account, account, client

NOW = datetime(2026, 12, 7, 10, 30, tzinfo=timezone.utc)
PREFIX = "decision-endpoints-prod"
STACK, ARTIFACTS = f"{PREFIX}-endpoints", f"{PREFIX}-artifacts"
DIGEST = "sha256:" + "a" * 64
SERVICES = ("cloudformation", "sagemaker", "application-autoscaling", "codebuild", "cloudwatch", "s3")
ENDPOINT = PROD.endpoints[3]
NAME = PROD.endpoint_name(ENDPOINT)


class Answers:
    """An account and what it answers, service by service, in order."""

    def __init__(self, stack: ExitStack) -> None:
        self._clients = {service: client(service) for service in SERVICES}
        self._stubs = {service: stack.enter_context(Stubber(made)) for service, made in self._clients.items()}
        self.account: Account = account(**{service.replace("-", "_"): made for service, made in self._clients.items()})

    def add(self, service: str, operation: str, answer: dict[str, Any], asked: dict[str, Any] | None = None) -> None:
        """The next answer of a service."""
        self._stubs[service].add_response(operation, answer, asked)

    def fail(self, service: str, operation: str, code: str, message: str) -> None:
        """The next answer of a service, an error."""
        self._stubs[service].add_client_error(operation, code, message)

    def assert_all_asked(self) -> None:
        """Nothing is left unasked."""
        for stub in self._stubs.values():
            stub.assert_no_pending_responses()


@pytest.fixture
def answers() -> Iterator[Answers]:
    with ExitStack() as stack:
        yield Answers(stack)


@pytest.fixture
def prod() -> Environment:
    """Production with one of its endpoints."""
    return dataclasses.replace(PROD, endpoints=(ENDPOINT,))


def test_a_pool_on_its_second_choice_while_it_scales(answers: Answers, prod: Environment) -> None:
    made = {"CreationTime": NOW, "StackStatus": "UPDATE_COMPLETE", "LastUpdatedTime": NOW + timedelta(hours=1)}
    for name in (ARTIFACTS, STACK):
        answers.add("cloudformation", "describe_stacks", {"Stacks": [{"StackName": name, **made}]}, {"StackName": name})
    resources = [
        ("Alarm", "AWS::CloudWatch::Alarm", "alarm-1"),
        ("Other", "AWS::CloudWatch::Alarm", "alarm-2"),
        ("ModelBuildProject3F5C31AE", "AWS::CodeBuild::Project", "project-1"),
    ]
    summaries = [
        {
            "LogicalResourceId": logical,
            "ResourceType": kind,
            "PhysicalResourceId": physical,
            "ResourceStatus": "CREATE_COMPLETE",
            "LastUpdatedTimestamp": NOW,
        }
        for logical, kind, physical in resources
    ]
    for _ in range(2):
        answers.add("cloudformation", "list_stack_resources", {"StackResourceSummaries": summaries})
    ringing = {"AlarmName": "alarm-2", "StateUpdatedTimestamp": NOW, "AlarmDescription": "too slow"}
    asked = {"AlarmNames": ["alarm-1", "alarm-2"], "StateValue": "ALARM"}
    answers.add("cloudwatch", "describe_alarms", {"MetricAlarms": [ringing]}, asked)
    answers.add("codebuild", "batch_get_projects", {"projects": [{"name": "project-1"}]}, {"names": ["project-1"]})
    asked = {"projectName": "project-1", "sortOrder": "DESCENDING"}
    answers.add("codebuild", "list_builds_for_project", {"ids": ["new", "old"]}, asked)
    build = {"buildStatus": "FAILED", "startTime": NOW, "endTime": NOW + timedelta(seconds=90)}
    answers.add("codebuild", "batch_get_builds", {"builds": [build]}, {"ids": ["new"]})
    image = f"1.dkr.ecr.us-east-1.amazonaws.com/images@{DIGEST}"
    variant = {
        "VariantName": "main",
        "DeployedImages": [{"ResolvedImage": image}],
        "CurrentInstanceCount": 2,
        "DesiredInstanceCount": 3,
        "InstancePools": [
            {"InstanceType": instance_type, "CurrentInstanceCount": 2 if place == 1 else 0}
            for place, instance_type in enumerate(ENDPOINT.instance_types)
        ],
    }
    described = {
        "EndpointName": NAME,
        "EndpointArn": f"arn:aws:sagemaker:us-east-1:123456789012:endpoint/{NAME}",
        "EndpointConfigName": "config",
        "EndpointStatus": "Updating",
        "CreationTime": NOW,
        "LastModifiedTime": NOW,
        "ProductionVariants": [variant],
    }
    answers.add("sagemaker", "describe_endpoint", described, {"EndpointName": NAME})
    configuration = {
        "EndpointConfigName": "config",
        "EndpointConfigArn": "arn:aws:sagemaker:us-east-1:123456789012:endpoint-config/config",
        "ProductionVariants": [{"VariantName": "main", "ModelName": "model"}],
        "CreationTime": NOW,
    }
    answers.add("sagemaker", "describe_endpoint_config", configuration)
    data = {"S3DataSource": {"S3Uri": "s3://b/models/1/", "S3DataType": "S3Prefix", "CompressionType": "None"}}
    model = {"ModelName": "model", "ModelArn": "arn:aws:sagemaker:us-east-1:123456789012:model/model"}
    container = {"PrimaryContainer": {"ModelDataSource": data}, "CreationTime": NOW}
    answers.add("sagemaker", "describe_model", {**model, **container}, {"ModelName": "model"})
    manifest = json.dumps({"name": "Qwen3.5-4B"}).encode()
    body = {"Body": StreamingBody(io.BytesIO(manifest), len(manifest))}
    answers.add("s3", "get_object", body, {"Bucket": "b", "Key": "models/1/model-manifest.json"})
    target = {
        "ServiceNamespace": "sagemaker",
        "ResourceId": f"endpoint/{NAME}/variant/main",
        "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
        "MinCapacity": 2,
        "MaxCapacity": 4,
        "RoleARN": "role",
        "CreationTime": NOW,
    }
    asked = {"ServiceNamespace": "sagemaker", "ResourceIds": [f"endpoint/{NAME}/variant/main"]}
    answers.add("application-autoscaling", "describe_scalable_targets", {"ScalableTargets": [target]}, asked)

    found = look(prod, answers.account)
    answers.assert_all_asked()
    (endpoint,) = found.endpoints
    assert isinstance(ENDPOINT, TextEndpoint)
    assert endpoint.placement == (Placement(ENDPOINT.instance_types[1], 2),)
    assert (endpoint.status, endpoint.instances, endpoint.desired_instances) == ("Updating", 2, 3)
    assert (endpoint.scaling, endpoint.images) == ((2, 4), (DIGEST,))
    assert (endpoint.model, endpoint.model_uri) == ("Qwen3.5-4B", "s3://b/models/1/")
    (build_status,) = found.builds
    assert (build_status.name, build_status.status) == ("ModelBuild", "FAILED")
    assert (found.alarms, [alarm.name for alarm in found.ringing]) == (2, ["alarm-2"])


def no_stack(answers: Answers) -> None:
    answers.fail("cloudformation", "describe_stacks", "ValidationError", "Stack with id x does not exist")


def status(answers: Answers, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    """The command's exit status against these answers."""
    monkeypatch.setattr(module, "connect", lambda *_: answers.account)
    return main(["status", "prod", *options])


def test_what_is_not_deployed_is_one_sentence_and_status_1(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_stack(answers)
    no_stack(answers)
    assert status(answers, monkeypatch) == 1
    output = capsys.readouterr()
    assert output.out == ""
    said = (
        f"Environment 'prod' is not deployed in us-east-1: there is no stack {STACK}; deploy it: make deploy ENV=prod"
    )
    assert output.err == f"{said}.\n"


def test_a_protected_stack_that_stayed_is_shown_beside_what_is_gone(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {"StackName": ARTIFACTS, "CreationTime": NOW, "StackStatus": "CREATE_COMPLETE"}
    answers.add("cloudformation", "describe_stacks", {"Stacks": [{**made, "EnableTerminationProtection": True}]})
    no_stack(answers)
    assert status(answers, monkeypatch, "--json") == 1
    shown = json.loads(capsys.readouterr().out)
    assert (shown["deployed"], shown["endpoints"], shown["stacks"][STACK]) == (False, [], None)
    artifacts = shown["stacks"][ARTIFACTS]
    assert (artifacts["created"], artifacts["protected"]) == ("2026-12-07T10:30:00+00:00", True)


def test_a_refusal_of_aws_is_a_sentence_with_its_code(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers.fail("cloudformation", "describe_stacks", "AccessDenied", "User x may not")
    assert status(answers, monkeypatch) == 3
    said = capsys.readouterr().err
    assert said == (
        "decide: DescribeStacks answered AccessDenied: User x may not; the credentials may not do this: "
        "ask for the permission\n"
    )
