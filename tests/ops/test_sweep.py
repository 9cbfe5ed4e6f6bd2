"""What `decide sweep` takes for an environment's, and what it deletes: on the emulator, beside others' things."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.stub import Stubber

from ops.cli import main
from ops.errors import FailedError
from ops.sweep import command
from ops.sweep.kinds import KINDS
from ops.sweep.ownership import belongs, is_of_another_region, is_of_endpoint
from stacks.config import DEV, PROD, STAGING, Environment
from tests.emulator_fixture import Emulator, running_emulator
from tests.ops.stubbed import account, client

POLICY = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:Get*", "Resource": "*"}]}
_numbers = itertools.count(1)


def tags(environment: str, key: str = "Key", value: str = "Value") -> list[dict[str, str]]:
    """The tags that stacks/stage.py gives, in the shape of a service."""
    return [{key: "project", value: "decision-endpoints"}, {key: "environment", value: environment}]


def named(name: str) -> Environment:
    return dataclasses.replace(DEV, name=name)


@pytest.mark.parametrize(
    ("environment", "name", "given", "is_its"),
    [
        ("dev", "decision-endpoints-dev-endpoints-BuildRunnerRole77A2782A-1ABC", {}, True),
        ("dev", "decision-endpoints-dev-artifacts-modelsc55d3500-1abc", {}, True),
        ("dev", "/aws/lambda/decision-endpoints-dev-artifacts-CustomS3AutoDelete-1", {}, True),
        ("dev", "decision-endpoints-dev2-endpoints-BuildRunnerRole77A2782A-1ABC", {}, False),
        ("dev2", "decision-endpoints-dev-endpoints-BuildRunnerRole77A2782A-1ABC", {}, False),
        ("dev", "decision-endpoints-dev-endpoints2-Role-1", {}, False),
        ("dev", "my-decision-endpoints-dev-endpoints-Role-1", {}, False),
        # CloudFormation cuts the stack's name to fit a role's 64 characters: only the tags tell whose it is.
        ("staging", "decision-endpoints-stagi-BuildRunnerRole-1", {}, False),
        ("staging", "decision-endpoints-stagi-BuildRunnerRole-1", {"environment": "staging"}, True),
        ("staging", "decision-endpoints-stagi-BuildRunnerRole-1", {"environment": "stagi"}, False),
        ("dev", "decision-endpoints-dev-endpoints-Role-1", {"environment": "dev2"}, False),
        # The pipeline's stack has a name that an environment's could be, and tags without an environment.
        ("pipeline", "decision-endpoints-pipeline-artifacts-1abc", {"no": "environment"}, False),
    ],
)
def test_whose_a_thing_is(environment: str, name: str, given: dict[str, str], is_its: bool) -> None:
    project = {"project": "decision-endpoints"} if given else {}
    assert belongs(named(environment), name, {**project, **given}) is is_its


@pytest.mark.parametrize(
    ("name", "is_its"),
    [
        ("decision-endpoints-dev-decision", True),
        ("/aws/sagemaker/Endpoints/decision-endpoints-dev-decision", True),
        ("endpoint/decision-endpoints-dev-decision/variant/main", True),
        ("TargetTracking-endpoint/decision-endpoints-dev-decision/variant/main-AlarmHigh-1", True),
        ("decision-endpoints-dev2-decision", False),
        ("endpoint/decision-endpoints-dev2-decision/variant/main", False),
        ("endpoint/decision-endpoints-dev/variant/main", False),
    ],
)
def test_which_names_are_of_an_endpoint(name: str, is_its: bool) -> None:
    assert is_of_endpoint(DEV, name) is is_its


def test_a_role_of_the_same_environment_in_another_region_is_not_swept() -> None:
    policy = json.dumps([{"Resource": "arn:aws:logs:eu-west-1:123456789012:log-group:x"}])
    assert is_of_another_region(policy, "us-east-1")
    assert not is_of_another_region(policy, "eu-west-1")
    assert is_of_another_region('{"region": "us-gov-east-1"}', "us-east-1")
    assert not is_of_another_region('{"Resource": "*"}', "us-east-1")


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with running_emulator(tmp_path_factory.mktemp("emulator")) as running:
        yield running


class Things:
    """Things of environments, made without any stack."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator

    def make(self, environment: str) -> set[str]:
        """One thing of each kind that needs no other; their names."""
        number = next(_numbers)
        stem = f"decision-endpoints-{environment}-endpoints-Thing{number}"
        role = f"{stem}-Role"
        iam = self.emulator.client("iam")
        iam.create_role(RoleName=role, AssumeRolePolicyDocument="{}", Tags=tags(environment))
        iam.put_role_policy(RoleName=role, PolicyName="inline", PolicyDocument=json.dumps(POLICY))
        policy = iam.create_policy(PolicyName=f"{stem}-Policy", PolicyDocument=json.dumps(POLICY))["Policy"]["Arn"]
        iam.attach_role_policy(RoleName=role, PolicyArn=policy)
        group = f"/aws/sagemaker/Endpoints/decision-endpoints-{environment}-text{number}"
        self.emulator.client("logs").create_log_group(logGroupName=group)
        topic = self.emulator.client("sns").create_topic(Name=f"{stem}-Topic", Tags=tags(environment))["TopicArn"]
        self.emulator.client("cloudwatch").put_metric_alarm(
            AlarmName=f"{stem}-Alarm",
            Namespace="x",
            MetricName="x",
            Period=60,
            EvaluationPeriods=1,
            Threshold=1,
            ComparisonOperator="GreaterThanThreshold",
            Statistic="Sum",
        )
        self.emulator.client("codebuild").create_project(
            name=f"{stem}-Project",
            serviceRole="arn:aws:iam::000000000000:role/build",
            artifacts={"type": "NO_ARTIFACTS"},
            source={"type": "NO_SOURCE", "buildspec": "{}"},
            environment={"type": "LINUX_CONTAINER", "image": "x", "computeType": "BUILD_GENERAL1_SMALL"},
            tags=tags(environment, "key", "value"),
        )
        machine = self.emulator.client("stepfunctions").create_state_machine(
            name=f"{stem}-Machine",
            roleArn="arn:aws:iam::000000000000:role/states",
            definition=json.dumps({"StartAt": "a", "States": {"a": {"Type": "Succeed"}}}),
            tags=tags(environment, "key", "value"),
        )["stateMachineArn"]
        return {
            *(role, policy, group, topic, f"{stem}-Alarm", f"{stem}-Project", machine),
            *self._sagemaker(environment, number),
        }

    def _sagemaker(self, environment: str, number: int) -> set[str]:
        """An endpoint that has failed, and what it was to run: the image does not exist."""
        sagemaker = self.emulator.client("sagemaker")
        model, config = f"DecisionEndpointModelDB31000F-{number}", f"DecisionEndpointConfigB762CB3A-{number}"
        endpoint = f"decision-endpoints-{environment}-decision{number}"
        sagemaker.create_model(
            ModelName=model,
            ExecutionRoleArn="arn:aws:iam::000000000000:role/sagemaker",
            PrimaryContainer={"Image": "000000000000.dkr.ecr.us-east-1.amazonaws.com/no-such:image"},
            Tags=tags(environment),
        )
        variant = {
            "VariantName": "main",
            "ModelName": model,
            "InstanceType": "ml.c6i.large",
            "InitialInstanceCount": 1,
        }
        sagemaker.create_endpoint_config(
            EndpointConfigName=config, ProductionVariants=[variant], Tags=tags(environment)
        )
        sagemaker.create_endpoint(EndpointName=endpoint, EndpointConfigName=config, Tags=tags(environment))
        while sagemaker.describe_endpoint(EndpointName=endpoint)["EndpointStatus"] == "Creating":
            pass
        return {endpoint, config, model}

    def make_data(self, environment: str) -> dict[str, str]:
        """Bucket with two versions and a deletion of an object, repository and key, by their kinds."""
        number = next(_numbers)
        s3, bucket = self.emulator.client("s3"), f"decision-endpoints-{environment}-artifacts-models-{number}"
        s3.create_bucket(Bucket=bucket)
        s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": tags(environment)})
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        for body in (b"one", b"two"):
            s3.put_object(Bucket=bucket, Key="models/a", Body=body)
        s3.delete_object(Bucket=bucket, Key="models/a")
        repository = f"decision-endpoints-{environment}-artifacts-images-{number}"
        self.emulator.client("ecr").create_repository(repositoryName=repository, tags=tags(environment))
        kms = self.emulator.client("kms")
        key = kms.create_key(Tags=tags(environment, "TagKey", "TagValue"))["KeyMetadata"]["Arn"]
        return {"bucket": bucket, "repository": repository, "key": key}

    def sweep(self, capsys: pytest.CaptureFixture[str], environment: str, *options: str) -> tuple[int, dict[str, Any]]:
        """The exit status of the command, and its JSON."""
        capsys.readouterr()
        status = main(["sweep", environment, "--json", "--endpoint-url", self.emulator.endpoint_url, *options])
        return status, json.loads(capsys.readouterr().out)

    def names(self, capsys: pytest.CaptureFixture[str], environment: str) -> set[str]:
        """What sweep finds left of the environment."""
        return {thing["name"] for thing in self.sweep(capsys, environment)[1]["leftovers"]}


@pytest.fixture
def things(emulator: Emulator) -> Things:
    return Things(emulator)


def test_it_deletes_the_environments_things_and_nobody_elses(
    things: Things, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops.options.environment_named", named)
    mine, others = things.make("dev"), things.make("dev2")
    data, others_data = things.make_data("dev"), things.make_data("dev2")
    status, found = things.sweep(capsys, "dev")
    assert status == 1
    assert {thing["name"] for thing in found["leftovers"]} == {*mine, *data.values()}
    assert (found["kept"], found["not_looked_at"], found["deleted"]) == ([], [], [])
    lost = {thing["name"]: thing["lost"] for thing in found["leftovers"]}
    assert lost[data["bucket"]] == "3 object versions, 0.00 GiB"
    assert lost[data["repository"]] == "0 images"

    status, swept = things.sweep(capsys, "dev", "--delete", "--yes")
    assert (status, swept["failed"]) == (0, [])
    assert swept["deleted"] == found["leftovers"]
    assert things.names(capsys, "dev") == set()
    assert things.names(capsys, "dev2") == {*others, *others_data.values()}
    assert things.emulator.client("kms").describe_key(KeyId=data["key"])["KeyMetadata"]["KeyState"] == "PendingDeletion"
    (key,) = things.sweep(capsys, "dev")[1]["kept"]
    assert key["kept"].startswith("scheduled for deletion on 20")
    things.sweep(capsys, "dev2", "--delete", "--yes")


Confirmed = Callable[[io.StringIO, int, str], Any]


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Confirmed:
    """Sweeps `dev` with --delete, with this to type from; checks the status, and returns what was printed."""

    def run(keyboard: io.StringIO, status: int, url: str) -> Any:
        monkeypatch.setattr("sys.stdin", keyboard)
        assert main(["sweep", "dev", "--delete", "--endpoint-url", url]) == status
        return capsys.readouterr()

    return run


@pytest.fixture
def log_group(things: Things) -> Iterator[tuple[Things, str]]:
    """All that `dev` has left."""
    group = "/aws/sagemaker/Endpoints/decision-endpoints-dev-confirmed"
    logs = things.emulator.client("logs")
    logs.create_log_group(logGroupName=group)
    yield things, group
    with contextlib.suppress(logs.exceptions.ResourceNotFoundException):
        logs.delete_log_group(logGroupName=group)


class Keyboard(io.StringIO):
    """A terminal at which this is typed."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("keyboard", "status", "said"),
    [
        (io.StringIO(), 2, "nothing was deleted: there is no terminal to confirm it at; add --yes to confirm it"),
        (Keyboard("yes\n"), 2, "nothing was deleted: 'yes' was typed, not 'dev'"),
        (Keyboard("\n"), 2, "nothing was deleted: '' was typed, not 'dev'"),
        (Keyboard("dev\n"), 0, "Type the environment's name to go on:"),
    ],
)
def test_it_deletes_only_what_is_confirmed_by_the_environments_name(
    log_group: tuple[Things, str], at_terminal: Confirmed, keyboard: io.StringIO, status: int, said: str
) -> None:
    things, group = log_group
    output = at_terminal(keyboard, status, things.emulator.endpoint_url)
    # Whoever confirms has read the name of what goes.
    assert f"log group | {group}" in output.out
    assert said in output.err
    is_left = bool(things.emulator.client("logs").describe_log_groups(logGroupNamePrefix=group)["logGroups"])
    assert is_left == (status != 0)
    assert (f"deleted  log group {group}" in output.out) == (status == 0)


def test_what_prod_keeps_is_deleted_only_where_it_is_named(things: Things, capsys: pytest.CaptureFixture[str]) -> None:
    data = things.make_data("prod")
    status, found = things.sweep(capsys, "prod")
    assert (status, found["leftovers"]) == (0, [])
    assert {(t["kind"], t["name"]) for t in found["kept"]} == set(data.items())
    status, swept = things.sweep(capsys, "prod", "--delete", "--yes")
    assert (status, swept["deleted"]) == (0, [])
    status, swept = things.sweep(capsys, "prod", "--delete", "--yes", "--also", data["bucket"])
    assert (status, [thing["name"] for thing in swept["deleted"]]) == (0, [data["bucket"]])
    assert {t["kind"] for t in things.sweep(capsys, "prod")[1]["kept"]} == {"repository", "key"}
    url = things.emulator.endpoint_url
    assert main(["sweep", "prod", "--delete", "--yes", "--also", "other", "--endpoint-url", url]) == 2
    assert "--also names 'other', which is not kept on purpose; what is: " in capsys.readouterr().err
    assert main(["sweep", "prod", "--also", data["key"], "--endpoint-url", url]) == 2


def stack(emulator: Emulator, name: str) -> Any:
    """A stack of that name with a bucket; its client."""
    cloudformation = emulator.client("cloudformation")
    resources = {"Models": {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": f"{name}-models-1"}}}
    cloudformation.create_stack(StackName=name, TemplateBody=json.dumps({"Resources": resources}))
    cloudformation.get_waiter("stack_create_complete").wait(StackName=name, WaiterConfig={"Delay": 1})
    return cloudformation


@pytest.mark.parametrize("part", ["endpoints", "artifacts"])
def test_of_a_deployed_environment_nothing_is_a_leftover(
    things: Things, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    name = f"decision-endpoints-staging-{part}"
    cloudformation = stack(things.emulator, name)
    assert main(["sweep", "staging", "--delete", "--yes", "--endpoint-url", things.emulator.endpoint_url]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert f"still deployed in us-east-1 (stack {name} is CREATE_COMPLETE)" in said.err
    assert "make destroy ENV=staging" in said.err
    things.emulator.client("s3").head_bucket(Bucket=f"{name}-models-1")
    cloudformation.delete_stack(StackName=name)
    cloudformation.get_waiter("stack_delete_complete").wait(StackName=name, WaiterConfig={"Delay": 1})
    assert things.sweep(capsys, "staging") == (
        0,
        {
            "environment": "staging",
            "region": "us-east-1",
            **{key: [] for key in ("leftovers", "kept", "not_looked_at", "deleted", "failed")},
        },
    )


def test_prods_protected_stack_keeps_what_it_has(things: Things, capsys: pytest.CaptureFixture[str]) -> None:
    name = "decision-endpoints-prod-artifacts"
    bucket = f"{name}-models-1"
    cloudformation = stack(things.emulator, name)
    group = "/aws/sagemaker/Endpoints/decision-endpoints-prod-text-cpu"
    things.emulator.client("logs").create_log_group(logGroupName=group)
    status, found = things.sweep(capsys, "prod")
    assert (status, [thing["name"] for thing in found["leftovers"]]) == (1, [group])
    assert {t["name"]: t["kept"] for t in found["kept"]}[bucket] == f"its stack {name} still exists"
    url = things.emulator.endpoint_url
    assert main(["sweep", "prod", "--delete", "--yes", "--also", bucket, "--endpoint-url", url]) == 2
    assert f"not to be deleted here: its stack {name} still exists" in capsys.readouterr().err
    status, swept = things.sweep(capsys, "prod", "--delete", "--yes")
    assert (status, [thing["name"] for thing in swept["deleted"]]) == (0, [group])
    things.emulator.client("s3").head_bucket(Bucket=bucket)
    cloudformation.delete_stack(StackName=name)
    cloudformation.get_waiter("stack_delete_complete").wait(StackName=name, WaiterConfig={"Delay": 1})


def test_what_cannot_be_deleted_is_said_and_the_rest_goes(things: Things, capsys: pytest.CaptureFixture[str]) -> None:
    iam = things.emulator.client("iam")
    arn = iam.create_policy(
        PolicyName="decision-endpoints-dev-endpoints-Invoke-1",
        PolicyDocument=json.dumps(POLICY),
    )["Policy"]["Arn"]
    iam.create_role(RoleName="caller", AssumeRolePolicyDocument="{}")
    iam.attach_role_policy(RoleName="caller", PolicyArn=arn)
    group = "/aws/sagemaker/Endpoints/decision-endpoints-dev-after"
    things.emulator.client("logs").create_log_group(logGroupName=group)
    status, swept = things.sweep(capsys, "dev", "--delete", "--yes")
    assert status == 1
    assert [(thing["kind"], thing["name"]) for thing in swept["failed"]] == [("policy", arn)]
    assert swept["failed"][0]["error"].startswith("DeletePolicy answered DeleteConflict")
    assert [thing["name"] for thing in swept["deleted"]] == [group]
    iam.detach_role_policy(RoleName="caller", PolicyArn=arn)
    assert things.sweep(capsys, "dev", "--delete", "--yes")[0] == 0


def stubbed(service: str) -> tuple[Any, Stubber]:
    made = client(service)
    stubber = Stubber(made)
    stubber.activate()
    return made, stubber


def test_what_may_not_be_listed_is_not_taken_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "KINDS", [kind for kind in KINDS if kind.name == "alarm"])
    cloudformation, stacks = stubbed("cloudformation")
    for _ in range(2):
        stacks.add_client_error("describe_stacks", "ValidationError", "Stack with id x does not exist")
    cloudwatch, alarms = stubbed("cloudwatch")
    alarms.add_client_error("describe_alarms", "AccessDenied", "User x is not authorized")
    left = command.look(STAGING, account(cloudformation=cloudformation, cloudwatch=cloudwatch))
    assert left.things == ()
    ((kind, sentence),) = left.unseen
    assert kind == "alarm"
    assert sentence.startswith("DescribeAlarms answered AccessDenied: User x is not authorized;")


def test_a_stack_that_appears_meanwhile_stops_it() -> None:
    cloudformation, stacks = stubbed("cloudformation")
    made = {"StackName": "s", "CreationTime": 0, "StackStatus": "CREATE_IN_PROGRESS"}
    stacks.add_response("describe_stacks", {"Stacks": [made]})
    with pytest.raises(FailedError, match="CREATE_IN_PROGRESS"):
        command.refuse_if_deployed(PROD, account(cloudformation=cloudformation))


def test_a_bucket_of_another_region_is_not_swept() -> None:
    (kind,) = [kind for kind in KINDS if kind.name == "bucket"]
    s3, answers = stubbed("s3")
    name = "decision-endpoints-dev-artifacts-models-1"
    answers.add_response("list_buckets", {"Buckets": [{"Name": name}]})
    answers.add_response("get_bucket_tagging", {"TagSet": tags("dev")}, {"Bucket": name})
    answers.add_response("get_bucket_location", {"LocationConstraint": "eu-west-1"}, {"Bucket": name})
    assert list(kind.things(DEV, account("us-east-1", s3=s3))) == []
    answers.assert_no_pending_responses()


def test_a_scaling_target_is_found_and_deregistered() -> None:
    (kind,) = [kind for kind in KINDS if kind.name == "scaling target"]
    autoscaling, answers = stubbed("application-autoscaling")
    target = {"ServiceNamespace": "sagemaker", "ScalableDimension": "sagemaker:variant:DesiredInstanceCount"}
    bounds = {"MinCapacity": 1, "MaxCapacity": 2, "RoleARN": "r", "CreationTime": 0}
    ids = [f"endpoint/decision-endpoints-{name}-decision/variant/main" for name in ("dev", "dev2")]
    answers.add_response(
        "describe_scalable_targets",
        {"ScalableTargets": [{**target, **bounds, "ResourceId": id_} for id_ in ids]},
        {"ServiceNamespace": "sagemaker"},
    )
    found = [thing.name for thing in kind.things(DEV, account(application_autoscaling=autoscaling))]
    assert found == ids[:1]
    answers.add_response("deregister_scalable_target", {}, {**target, "ResourceId": ids[0]})
    kind.delete(autoscaling, ids[0])
    answers.assert_no_pending_responses()


def test_every_type_that_the_stacks_make_is_swept_or_goes_with_another() -> None:
    swept = {
        *("ApplicationAutoScaling::ScalableTarget", "SageMaker::Endpoint", "SageMaker::EndpointConfig"),
        *("SageMaker::Model", "CloudWatch::Alarm", "CloudWatch::Dashboard", "SNS::Topic"),
        *("StepFunctions::StateMachine", "Lambda::Function", "CodeBuild::Project", "IAM::Role", "IAM::ManagedPolicy"),
        *("Logs::LogGroup", "ECR::Repository", "S3::Bucket", "KMS::Key"),
    }
    assert len(swept) == len(KINDS)
    with_another = {"ApplicationAutoScaling::ScalingPolicy", "IAM::Policy", "SNS::TopicPolicy", "S3::BucketPolicy"}
    snapshots = Path(__file__).parent.parent / "stacks" / "__snapshots__" / "test_snapshots"
    made = {
        resource["Type"].removeprefix("AWS::")
        for file in snapshots.glob("*.json")
        for template in json.loads(file.read_text()).values()
        for resource in template["Resources"].values()
    }
    assert {kind for kind in made if not kind.startswith("Custom::")} == swept | with_another
