"""IAM enforced: every service acts with the role that it was given, and a right that is missing shows."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from tests.emulator.conftest import BUCKET, REGISTRY, Docker, Hosting, push_image, wait_for
from tests.emulator_fixture import Emulator, running_emulator

if TYPE_CHECKING:
    from collections.abc import Iterator

ARN = "arn:aws:{service}:us-east-1:000000000000:{resource}"
LOGS = ("logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents")
PULL = ("ecr:GetAuthorizationToken", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")
MODEL = ("s3:ListBucket", "s3:GetObject")
EXECUTION = (*LOGS, *PULL, *MODEL)


@dataclass
class Account:
    """An account of an emulator that enforces IAM, and the access log."""

    emulator: Emulator
    hosting: Hosting
    docker: Docker

    def role(self, *actions: str, service: str = "sagemaker.amazonaws.com", resource: str = "*") -> str:
        """A new role that a service may assume, with these rights; its ARN."""
        iam, name = self.emulator.client("iam"), f"role-{self.hosting.name()}"
        trusted = {"AWS": "000000000000"} if service == "caller" else {"Service": service}
        trust = {"Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": trusted}]}
        made = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", **trust}))
        policy = {"Effect": "Allow", "Action": list(actions), "Resource": resource}
        document = json.dumps({"Version": "2012-10-17", "Statement": [policy]})
        iam.put_role_policy(RoleName=name, PolicyName="rights", PolicyDocument=document)
        return str(made["Role"]["Arn"])

    def endpoint(self, role: str) -> dict[str, Any]:
        """A new endpoint with this execution role, settled."""
        name, api = self.hosting.name(), self.hosting.api
        source = {"S3Uri": f"s3://{BUCKET}/one/", "S3DataType": "S3Prefix", "CompressionType": "None"}
        container = {"Image": self.hosting.image, "ModelDataSource": {"S3DataSource": source}}
        api.create_model(ModelName=name, PrimaryContainer=container, ExecutionRoleArn=role)
        return self.hosting.settled(self.hosting.endpoint(self.hosting.config(self.hosting.variant(name))))

    def build(self, role: str, command: str) -> dict[str, Any]:
        """A build of one command with this service role, complete."""
        api, name = self.emulator.client("codebuild"), self.hosting.name()
        spec = {"version": 0.2, "env": {"exported-variables": ["OUT"]}, "phases": {"build": {"commands": [command]}}}
        api.create_project(
            name=name,
            serviceRole=role,
            artifacts={"type": "NO_ARTIFACTS"},
            source={"type": "NO_SOURCE", "buildspec": json.dumps(spec)},
            environment={"type": "LINUX_CONTAINER", "image": "x", "computeType": "BUILD_GENERAL1_SMALL"},
        )
        build: dict[str, Any] = api.start_build(projectName=name)["build"]

        def complete() -> bool:
            build.update(api.batch_get_builds(ids=[build["id"]])["builds"][0])
            return bool(build["buildComplete"])

        wait_for(complete)
        return build

    def decisions(self, role: str) -> set[tuple[str, bool]]:
        """What the role has asked for, and whether it was let."""
        lines = (self.emulator.state_dir / "access.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        return {(d["action"], d["allowed"]) for d in found if d["role"] == role.rpartition("/")[2]}


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    with running_emulator(tmp_path_factory.mktemp("enforcing"), enforce_iam=True) as emulator:
        docker = Docker(emulator, tmp_path_factory.mktemp("docker-home"))
        token = emulator.client("ecr").get_authorization_token()["authorizationData"][0]["authorizationToken"]
        docker("login", "--username", "AWS", "--password-stdin", REGISTRY, stdin=password(token))
        s3 = emulator.client("s3")
        s3.create_bucket(Bucket=BUCKET)
        s3.put_object(Bucket=BUCKET, Key="one/weights.txt", Body=b"weights")
        yield Account(emulator, Hosting(emulator, push_image(docker, "server")), docker)


def password(token: str) -> str:
    return base64.b64decode(token).decode().partition(":")[2]


def test_endpoint_acts_with_its_execution_role(account: Account) -> None:
    role = account.role(*EXECUTION)
    assert account.endpoint(role)["EndpointStatus"] == "InService"
    wait_for(lambda: ("logs:PutLogEvents", True) in account.decisions(role))
    asked = account.decisions(role)
    assert {action for action, _ in asked} == {*EXECUTION}
    assert all(allowed for _, allowed in asked)


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("s3:GetObject", "Failed to download model data"),
        ("ecr:GetDownloadUrlForLayer", "is not authorized to perform: ecr:GetDownloadUrlForLayer on resource"),
        ("ecr:GetAuthorizationToken", "is not authorized to perform: ecr:GetAuthorizationToken"),
    ],
)
def test_right_that_an_execution_role_lacks_fails_the_endpoint(account: Account, missing: str, words: str) -> None:
    role = account.role(*(action for action in EXECUTION if action != missing))
    description = account.endpoint(role)
    assert description["EndpointStatus"] == "Failed"
    assert words in description["FailureReason"]
    assert (missing, False) in account.decisions(role)


def test_role_that_does_not_trust_the_service_is_not_assumed(account: Account) -> None:
    role = account.role(*EXECUTION, *LOGS, service="codebuild.amazonaws.com")
    refusal = f"sagemaker.amazonaws.com is not authorized to perform: sts:AssumeRole on {role}"
    assert refusal in account.endpoint(role)["FailureReason"]
    with pytest.raises(ClientError, match=r"codebuild\.amazonaws\.com is not authorized to perform: sts:AssumeRole on"):
        account.build(account.role(*LOGS), "date")


def test_endpoint_without_the_right_to_its_log_serves_without_one(account: Account) -> None:
    description = account.endpoint(account.role(*PULL, *MODEL))
    name = description["EndpointName"]
    account.hosting.invoke(name)
    groups = account.emulator.client("logs").describe_log_groups(logGroupNamePrefix=f"/aws/sagemaker/Endpoints/{name}")
    assert groups["logGroups"] == []


def test_caller_may_do_what_its_policy_says_on_the_endpoint_that_it_names(account: Account) -> None:
    allowed, other = (account.endpoint(account.role(*EXECUTION))["EndpointName"] for _ in range(2))
    arn = ARN.format(service="sagemaker", resource=f"endpoint/{allowed}")
    role = account.role("sagemaker:InvokeEndpoint", service="caller", resource=arn)
    session = account.emulator.client("sts").assume_role(RoleArn=role, RoleSessionName="caller")["Credentials"]
    runtime = account.emulator.client("sagemaker-runtime", session)
    assert runtime.invoke_endpoint(EndpointName=allowed, Body=b"{}")["ResponseMetadata"]["HTTPStatusCode"] == 200
    with pytest.raises(ClientError, match="not authorized to perform: sagemaker:InvokeEndpoint because"):
        runtime.invoke_endpoint(EndpointName=other, Body=b"{}")
    with pytest.raises(ClientError, match="not authorized to perform: sagemaker:InvokeEndpointWithResponseStream"):
        runtime.invoke_endpoint_with_response_stream(EndpointName=allowed, Body=b"{}")
    with pytest.raises(ClientError, match="not authorized to perform: sagemaker:DescribeEndpoint"):
        account.emulator.client("sagemaker", session).describe_endpoint(EndpointName=allowed)


def test_build_acts_with_its_service_role(account: Account) -> None:
    role = account.role(*LOGS, service="codebuild.amazonaws.com")
    build = account.build(role, "export OUT=$(aws sts get-caller-identity --query Arn --output text)")
    (out,) = build["exportedEnvironmentVariables"]
    assert out["value"].startswith(f"arn:aws:sts::000000000000:assumed-role/{role.rpartition('/')[2]}/")
    denied = account.build(role, "aws s3 ls")
    assert denied["buildStatus"] == "FAILED"
    assert ("s3:ListAllMyBuckets", False) in account.decisions(role)


def test_build_without_the_right_to_its_log_fails_and_says_so(account: Account) -> None:
    role = account.role("s3:ListAllMyBuckets", service="codebuild.amazonaws.com")
    build = account.build(role, "date")
    (context,) = next(phase for phase in build["phases"] if phase["phaseType"] == "SUBMITTED")["contexts"]
    assert (build["buildStatus"], context["statusCode"]) == ("FAILED", "ACCESS_DENIED")
    assert f"{role} does not allow AWS CodeBuild to create Amazon CloudWatch Logs log streams" in context["message"]


def test_registry_wants_a_login(account: Account) -> None:
    stranger = Docker(account.emulator, account.docker.home / "stranger")
    pulled = stranger("pull", account.hosting.image)
    assert pulled.stderr.endswith("no basic auth credentials\n")
    foreign = f"763104351884.dkr.ecr.us-east-1.amazonaws.com/llama-cpp@sha256:{'3' * 64}"
    assert stranger("pull", foreign).stderr.endswith("no basic auth credentials\n")
