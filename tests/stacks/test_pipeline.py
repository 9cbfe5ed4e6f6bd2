"""The pipeline: the way of a commit, and what each step may do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import App, Validations
from cdk_nag import AwsSolutionsChecks
from cfnlint.api import lint  # type: ignore[import-untyped]
from cfnlint.config import ManualArgs  # type: ignore[import-untyped]
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension

from stacks.checks import ConfigError
from stacks.config import PROD, STAGING, Asynchronous, Environment
from stacks.delivery import Pipeline
from stacks.pipeline import PipelineStack
from stacks.stage import build_pipeline
from tests.stacks.conftest import CONTEXT, ROOT

ACCOUNT = "123456789012"
CONNECTION = f"arn:aws:codeconnections:eu-central-1:{ACCOUNT}:connection/0a1b2c3d-0a1b-2c3d-4e5f-0a1b2c3d4e5f"
PIPELINE = Pipeline(connection_arn=CONNECTION, repository="group/team/decisions", branch="release")
NAME = "decision-endpoints-pipeline"
STEPS = ("Test", "Synth", "DeployStaging", "VerifyStaging", "DeployProd", "VerifyProd")

# What AwsSolutions complains of and we keep, by construct.
ACKNOWLEDGED = {
    "Test/Project/Resource": {
        "AwsSolutions-CB4": "what it hands on lies encrypted in the pipeline's bucket",
        "AwsSolutions-CB5": "the repository's checks run on Debian, as elsewhere",
    },
    "Artifacts/Resource": {"AwsSolutions-S1": "it holds copies of the repository, for a month"},
    "Role/DefaultPolicy/Resource": {
        "AwsSolutions-IAM5[Resource::<Artifacts.Arn>/*]": "CodePipeline chooses the keys of its artifacts"
    },
    **{
        f"{step}/{part}": rules
        for step in STEPS
        for part, rules in {
            "Role/DefaultPolicy/Resource": {
                "AwsSolutions-IAM5[Resource::<Artifacts.Arn>/*]": "CodePipeline chooses the keys of its artifacts"
            },
            "Project/Resource": {"AwsSolutions-CB4": "what it hands on lies encrypted in the pipeline's bucket"},
        }.items()
        if (step, part) != ("Test", "Project/Resource")
    },
}


def build(outdir: Path, pipeline: Pipeline = PIPELINE, staging: Environment = STAGING) -> App:
    app = App(context=CONTEXT, outdir=str(outdir))
    PipelineStack(app, NAME, pipeline=pipeline, staging=staging, production=PROD)
    return app


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    app = build(tmp_path_factory.mktemp("pipeline"))
    found: dict[str, Any] = app.synth().get_stack_by_name(NAME).template
    return found


@pytest.fixture(scope="module")
def stages(template: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _one(template, "AWS::CodePipeline::Pipeline")["Stages"]
    return found


def _one(template: dict[str, Any], type_: str) -> dict[str, Any]:
    (resource,) = [r for r in template["Resources"].values() if r["Type"] == type_]
    properties: dict[str, Any] = resource["Properties"]
    return properties


def _of_step(template: dict[str, Any], step: str, type_: str) -> dict[str, Any]:
    found = {i: r for i, r in template["Resources"].items() if r["Type"] == type_ and i.startswith(step)}
    (resource,) = found.values()
    properties: dict[str, Any] = resource["Properties"]
    return properties


def _statements(template: dict[str, Any], step: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _of_step(template, step, "AWS::IAM::Policy")["PolicyDocument"]["Statement"]
    return found


def _commands(template: dict[str, Any], step: str) -> list[str]:
    source = _of_step(template, step, "AWS::CodeBuild::Project")["Source"]
    assert source["Type"] == "CODEPIPELINE"
    commands: list[str] = json.loads(source["BuildSpec"])["phases"]["build"]["commands"]
    return commands


def _variables(template: dict[str, Any], step: str) -> dict[str, str]:
    environment = _of_step(template, step, "AWS::CodeBuild::Project")["Environment"]
    return {variable["Name"]: variable["Value"] for variable in environment.get("EnvironmentVariables", [])}


def _plain(value: Any) -> str:
    """An ARN of the template as text, with <references>."""
    if isinstance(value, str):
        return value
    ((function, argument),) = value.items()
    if function == "Fn::Join":
        return "".join(map(_plain, argument[1]))
    return f"<{argument if isinstance(argument, str) else '.'.join(argument)}>"


def test_the_template_is_as_it_was_read_last(template: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    words = re.sub(r"\b[0-9a-f]{64}(?=\.(zip|json))", "<asset>", json.dumps(template))
    assert json.loads(words) == snapshot.use_extension(JSONSnapshotExtension)


def test_the_way_of_a_commit(stages: list[dict[str, Any]]) -> None:
    way = [
        (
            stage["Name"],
            [action["Name"] for action in sorted(stage["Actions"], key=lambda action: action["RunOrder"])],
            [artifact["Name"] for action in stage["Actions"] for artifact in action.get("InputArtifacts", [])],
        )
        for stage in stages
    ]
    assert way == [
        ("Source", ["Source"], []),
        ("Test", ["Test"], ["Source"]),
        ("Synth", ["Synth"], ["Source"]),
        ("Staging", ["Deploy", "Verify"], ["Assembly", "Assembly"]),
        ("Approve", ["Approve"], []),
        # What was deployed to staging, not synthesised anew.
        ("Prod", ["Deploy", "Verify"], ["Assembly", "Assembly"]),
    ]
    for stage in (stages[3], stages[5]):
        assert [action["RunOrder"] for action in stage["Actions"]] == [1, 2]


def test_a_commit_comes_through_the_connection(template: dict[str, Any], stages: list[dict[str, Any]]) -> None:
    (source,) = stages[0]["Actions"]
    assert source["ActionTypeId"]["Provider"] == "CodeStarSourceConnection"
    assert source["Configuration"] == {
        "ConnectionArn": CONNECTION,
        "FullRepositoryId": "group/team/decisions",
        "BranchName": "release",
    }
    (allowed,) = [s for s in _statements(template, "RoleDefaultPolicy") if s["Resource"] == CONNECTION]
    assert allowed["Action"] == "codeconnections:UseConnection"


def test_a_newer_commit_does_not_push_aside_what_waits_for_approval(template: dict[str, Any]) -> None:
    pipeline = _one(template, "AWS::CodePipeline::Pipeline")
    assert (pipeline["PipelineType"], pipeline["ExecutionMode"]) == ("V2", "QUEUED")


def test_the_steps_use_the_command_line_that_the_repository_locks(template: dict[str, Any]) -> None:
    locked = json.loads((ROOT / "package-lock.json").read_text())["packages"]["node_modules/aws-cdk"]
    install = f"npm install --global --silent aws-cdk@{locked['version']}"
    assert "dependencies" not in locked
    assert _commands(template, "Synth") == [
        "python3 -m pip install --quiet --require-hashes -r requirements/cdk.txt",
        install,
        "cdk synth --quiet -c env=staging --output assembly/staging",
        "cdk synth --quiet -c env=prod --output assembly/prod",
        "cp -R stacks/verification assembly/",
    ]
    for name in ("staging", "prod"):
        deploy = f"cdk deploy --app {name} --all --require-approval never --ci"
        assert _commands(template, f"Deploy{name.capitalize()}") == [install, deploy]
    assert _commands(template, "Test") == ["bash .ci/run", "make audit"]
    assert (ROOT / ".ci" / "run").exists()
    assert "\naudit: " in (ROOT / "Makefile").read_text()
    assert (ROOT / "requirements" / "cdk.txt").exists()


@pytest.mark.parametrize(("step", "environment"), [("DeployStaging", STAGING), ("DeployProd", PROD)])
def test_who_deploys_can_only_become_what_cdk_bootstrapped(
    template: dict[str, Any], step: str, environment: Environment
) -> None:
    (assume,) = [s for s in _statements(template, step) if "sts:AssumeRole" in s["Action"]]
    account, region = "<AWS::AccountId>", "<AWS::Region>"
    assert (environment.account, environment.region) == (None, None)
    assert [_plain(resource) for resource in assume["Resource"]] == [
        f"arn:<AWS::Partition>:iam::{account}:role/cdk-hnb659fds-{kind}-role-{account}-{region}"
        for kind in ("deploy", "file-publishing")
    ]
    assert _rest(template, step, assume) == {"logs", "s3"}


@pytest.mark.parametrize(("step", "environment"), [("VerifyStaging", STAGING), ("VerifyProd", PROD)])
def test_who_verifies_can_only_invoke_the_environments_endpoints(
    template: dict[str, Any], step: str, environment: Environment
) -> None:
    (invoke,) = [s for s in _statements(template, step) if "sagemaker:InvokeEndpoint" in s["Action"]]
    assert invoke["Action"] == "sagemaker:InvokeEndpoint"
    names = [environment.endpoint_name(endpoint) for endpoint in environment.endpoints]
    resources = invoke["Resource"] if isinstance(invoke["Resource"], list) else [invoke["Resource"]]
    assert sorted(map(_plain, resources)) == sorted(
        f"arn:<AWS::Partition>:sagemaker:<AWS::Region>:<AWS::AccountId>:endpoint/{name}" for name in names
    )
    assert _rest(template, step, invoke) == {"logs", "s3"}
    asked = json.loads(_variables(template, step)["ENDPOINTS"])
    assert [endpoint["name"] for endpoint in asked] == names
    assert {endpoint["model_sha256"] for endpoint in asked} == {environment.model.sha256}
    kinds = ["decision" if type(e).__name__ == "DecisionEndpoint" else "text" for e in environment.endpoints]
    assert [endpoint["kind"] for endpoint in asked] == kinds
    assert _commands(template, step) == ["python3 verification/verify.py"]


def _rest(template: dict[str, Any], step: str, known: dict[str, Any]) -> set[str]:
    """The services to which a step has other rights."""
    rest = [statement for statement in _statements(template, step) if statement != known]
    return {
        action.split(":")[0]
        for statement in rest
        for action in (statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]])
    }


def test_only_the_step_that_makes_something_hands_it_on(template: dict[str, Any]) -> None:
    writers = {step for step in STEPS if "s3:PutObject" in json.dumps(_statements(template, step))}
    assert writers == {"Synth"}


def test_no_right_is_wider_than_the_pipelines_own_objects(template: dict[str, Any]) -> None:
    for id_, resource in template["Resources"].items():
        if resource["Type"] != "AWS::IAM::Policy":
            continue
        for statement in resource["Properties"]["PolicyDocument"]["Statement"]:
            actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
            resources = statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
            wide = [text for text in map(_plain, resources) if "*" in text]
            assert not any("*" in action for action in actions), id_
            assert all(text.endswith(".Arn>/*") and text.startswith("<Artifacts") for text in wide), (id_, wide)


def test_every_step_logs_into_a_group_of_the_stack(template: dict[str, Any]) -> None:
    for step in STEPS:
        logs = _of_step(template, step, "AWS::CodeBuild::Project")["LogsConfig"]["CloudWatchLogs"]
        group = template["Resources"][logs["GroupName"]["Ref"]]
        assert group["Properties"]["RetentionInDays"] == 90
        assert group["DeletionPolicy"] == "Delete"


def test_no_step_is_cut_off_by_the_default_hour(template: dict[str, Any]) -> None:
    minutes = {step: _of_step(template, step, "AWS::CodeBuild::Project").get("TimeoutInMinutes", 60) for step in STEPS}
    assert minutes == {
        "Test": 120,
        "Synth": 60,
        "DeployStaging": 240,
        "VerifyStaging": 60,
        "DeployProd": 240,
        "VerifyProd": 60,
    }


def test_artifacts_are_private_and_do_not_pile_up(template: dict[str, Any]) -> None:
    bucket = _one(template, "AWS::S3::Bucket")
    assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
    (rule,) = bucket["LifecycleConfiguration"]["Rules"]
    assert (rule["ExpirationInDays"], rule["Status"]) == (30, "Enabled")
    assert {"Key": "aws-cdk:auto-delete-objects", "Value": "true"} in bucket["Tags"]
    denied = json.dumps(_one(template, "AWS::S3::BucketPolicy"))
    assert '{"Bool": {"aws:SecureTransport": "false"}}' in denied


def test_awssolutions_finds_what_is_acknowledged_and_nothing_else(tmp_path: Path) -> None:
    app = build(tmp_path)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    with pytest.raises(RuntimeError, match="ValidationFailed"):
        app.synth()
    reports = json.loads((tmp_path / "validation-report.json").read_text())["pluginReports"]
    found = {
        (construct["constructPath"].split("/", 1)[1], _without_hash(violation["ruleName"]))
        for report in reports
        if report["pluginName"] == "AwsSolutions"
        for violation in report["violations"]
        for construct in violation["violatingConstructs"]
    }
    assert found == {(path, rule) for path, rules in ACKNOWLEDGED.items() for rule in rules}


def _without_hash(rule: str) -> str:
    head, artifacts, tail = rule.partition("<Artifacts")
    return f"{head}{artifacts}{tail[8:]}" if artifacts else rule


def test_cfn_lint_finds_nothing(template: dict[str, Any]) -> None:
    options = ManualArgs(
        regions=["us-east-1", "eu-central-1"],
        # A dependency that a reference implies already: redundant, not wrong.
        ignore_checks=["W3005"],
    )
    matches = lint(json.dumps(template), config=options)
    assert [f"{match.rule.id} {match.message} at {match.path}" for match in matches] == []


def test_an_endpoint_that_may_sleep_is_not_asked(tmp_path: Path) -> None:
    awake = STAGING.endpoints[0]
    asleep = replace(awake, name="offline", scaling=None, asynchronous=Asynchronous(max_instances=1))
    app = build(tmp_path, staging=replace(STAGING, endpoints=(awake, asleep)))
    found = app.synth().get_stack_by_name(NAME).template
    asked = json.loads(_variables(found, "VerifyStaging")["ENDPOINTS"])
    assert [endpoint["name"] for endpoint in asked] == [STAGING.endpoint_name(awake)]
    assert "offline" not in json.dumps(_statements(found, "VerifyStaging"))


def test_an_environment_of_fixed_place_is_reached_there(tmp_path: Path) -> None:
    app = build(tmp_path, staging=replace(STAGING, account=ACCOUNT, region="eu-west-1"))
    found = app.synth().get_stack_by_name(NAME).template
    (assume,) = [s for s in _statements(found, "DeployStaging") if "sts:AssumeRole" in s["Action"]]
    assert _plain(assume["Resource"][0]).endswith(f":iam::{ACCOUNT}:role/cdk-hnb659fds-deploy-role-{ACCOUNT}-eu-west-1")
    assert _variables(found, "VerifyStaging")["AWS_DEFAULT_REGION"] == "eu-west-1"


def test_an_environment_of_another_account_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Environment 'staging': account is '210987654321'; allowed .* 123456789012"):
        build(tmp_path, staging=replace(STAGING, account="210987654321"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"connection_arn": "connection/1"},
            r"Pipeline\.connection_arn is 'connection/1'; allowed: a connection's ARN",
        ),
        ({"repository": "decisions"}, r"Pipeline\.repository is 'decisions'; allowed: owner/name"),
        ({"branch": ""}, r"Pipeline\.branch is ''; allowed: a branch's name"),
        ({"production": "staging"}, r"Pipeline\.production is 'staging'; allowed: another environment than staging"),
    ],
)
def test_a_refusal_names_field_value_and_what_is_allowed(change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(PIPELINE, **change)


def test_the_old_name_of_connections_has_its_own_action() -> None:
    old = replace(PIPELINE, connection_arn=CONNECTION.replace("codeconnections", "codestar-connections"))
    assert old.use_connection == "codestar-connections:UseConnection"


def test_without_a_configured_pipeline_the_app_says_what_to_write() -> None:
    result = subprocess.run(
        [sys.executable, "app.py"],
        cwd=ROOT,
        # How the command line hands -c over.
        env={**os.environ, "CDK_CONTEXT_JSON": json.dumps({"pipeline": "yes"})},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    said = "error: there is no pipeline: set PIPELINE in stacks/config.py to a Pipeline(connection_arn=..., ...)\n"
    assert (result.returncode, result.stdout, result.stderr) == (1, "", said)


def test_a_configured_pipeline_is_the_only_stack_and_tagged(tmp_path: Path) -> None:
    app = App(context=CONTEXT, outdir=str(tmp_path))
    stack = build_pipeline(app, PIPELINE)
    (made,) = app.synth().stacks
    assert made.stack_name == stack.stack_name == NAME
    assert made.tags == {"project": "decision-endpoints"}
    with pytest.raises(ConfigError, match="there is no environment 'production'"):
        build_pipeline(App(), replace(PIPELINE, production="production"))
