"""Rule packs over the templates: AwsSolutions of cdk-nag, cfn-lint, and every IAM wildcard.

What a pack complains of and we keep is listed here with its reason; what is listed and no longer found fails too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from cfnlint.api import lint  # type: ignore[import-untyped]
from cfnlint.config import ManualArgs  # type: ignore[import-untyped]

from tests.stacks.conftest import STACKS, Finding, Templates, path_of, text

# Every wildcard in a policy, by the path of the construct whose role or policy has it (a pattern).
WILDCARDS: dict[str, dict[str, str]] = {
    "BuildRunner/Framework(OnEvent|IsComplete)Role": {
        "<BuildRunnerOnEvent.Arn>:*": "CDK's framework invokes any version of our handler",
        "<BuildRunnerIsComplete.Arn>:*": "CDK's framework invokes any version of our handler",
    },
    "BuildRunner/Provider/waiter-state-machine/Role": {
        "<BuildRunnerProviderframeworkisComplete.Arn>:*": "CDK's state machine invokes any version of its function",
        "<BuildRunnerProviderframeworkonTimeout.Arn>:*": "CDK's state machine invokes any version of its function",
    },
    "RolloutCheck/FrameworkRole": {
        "<RolloutCheckOnEvent.Arn>:*": "CDK's framework invokes any version of our handler",
    },
    "ModelBuild/Role": {
        "<bucket>/models/*": "a model's prefix is its content's hash, known only to the build",
    },
    "(Cpu|Gpu)(BaseImage|AdapterImage)/Role": {
        "*": "ecr:GetAuthorizationToken knows no resource",
    },
    r"\w+Endpoint/Role": {
        "*": "ecr:GetAuthorizationToken knows no resource; cloudwatch:PutMetricData neither, its namespace is fixed; "
        "in a VPC, EC2's rights over network interfaces that SageMaker makes",
        "<bucket>/models/*": "while an update runs, the old configuration may still start instances on the old model",
        "<bucket>/data-capture/<endpoint>/*": "SageMaker names what it captures by time and id",
        "<bucket>/asynchronous/<endpoint>/input/*": "callers name their requests",
        "<bucket>/asynchronous/<endpoint>/output/*": "SageMaker names answers by id",
        "<bucket>/asynchronous/<endpoint>/failure/*": "SageMaker names failures by id",
    },
    r"\w+Endpoint/Invoke": {
        "<bucket>/asynchronous/<endpoint>/input/*": "callers name their requests",
        "<bucket>/asynchronous/<endpoint>/output/*": "SageMaker names answers by id",
        "<bucket>/asynchronous/<endpoint>/failure/*": "SageMaker names failures by id",
    },
}

# The actions of every statement whose resource is "*".
UNBOUND_ACTIONS = {
    "ecr:GetAuthorizationToken",
    "cloudwatch:PutMetricData",
    "ec2:CreateNetworkInterface",
    "ec2:CreateNetworkInterfacePermission",
    "ec2:DeleteNetworkInterface",
    "ec2:DeleteNetworkInterfacePermission",
    "ec2:DescribeDhcpOptions",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeVpcs",
}

# Every other rule that is broken on purpose, by the construct's path (a pattern).
ACKNOWLEDGED: dict[str, dict[str, str]] = {
    "Models/Resource": {
        "AwsSolutions-S1": "the bucket holds public models; access logs would refill what destroy has emptied",
    },
    "BuildRunner/Provider/waiter-state-machine/Resource": {
        "AwsSolutions-SF1": "its functions log every poll; its own log needs rights over every log delivery",
        "AwsSolutions-SF2": "one poll in a deploy: there is nothing to trace",
    },
    "(ModelBuild|(Cpu|Gpu)(BaseImage|AdapterImage))/Project/Resource": {
        "AwsSolutions-CB4": "the project has no artifacts that a key could encrypt",
    },
}

# Rules of cfn-lint that are wrong here.
CFN_LINT_IGNORED = {"W3005": "CDK names a dependency that a reference implies already: redundant, not wrong"}


@pytest.fixture(scope="session")
def everything(all_templates: dict[str, Templates], options: Templates) -> list[Templates]:
    """Every shipped environment, and one that uses every option."""
    return [*all_templates.values(), options]


def _without_names(words: str) -> str:
    """A finding with logical ids as a reader knows them, and the same in every environment."""
    words = re.sub(r"\b(\w+?)[0-9A-F]{8}\.Arn", r"\1.Arn", words)
    words = re.sub(r"decision-endpoints-\w+-artifacts:ExportsOutputFnGetAttModels\w+Arn\w+", "<bucket>", words)
    return re.sub(r"(?<=/)decision-endpoints-[\w-]+(?=/)", "<endpoint>", words)


def _allowed(table: dict[str, dict[str, str]], path: str) -> Iterable[tuple[str, str]]:
    """The table's entries for a path: pattern and what it allows there."""
    return [(pattern, what) for pattern, allowed in table.items() if re.fullmatch(pattern, path) for what in allowed]


def test_awssolutions_finds_what_is_acknowledged_and_nothing_else(everything: list[Templates]) -> None:
    seen: set[tuple[str, str]] = set()
    for templates in everything:
        for finding in templates.findings:
            rule = _without_names(finding.rule)
            if wildcard := re.fullmatch(r"AwsSolutions-IAM5\[Resource::(.+)\]", rule):
                role = re.sub("/(DefaultPolicy/)?Resource$", "", finding.path)
                entries = [entry for entry in _allowed(WILDCARDS, role) if entry[1] == wildcard[1]]
            else:
                entries = [entry for entry in _allowed(ACKNOWLEDGED, finding.path) if entry[1] == rule]
            assert entries, Finding(finding.path, rule)
            seen.update(entries)
    assert seen == {
        (pattern, what) for t in (WILDCARDS, ACKNOWLEDGED) for pattern, whats in t.items() for what in whats
    }


def _statements(templates: Templates) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every statement of an identity's policy, with the path of the role or policy."""
    for type_ in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"):
        for policy in templates.of_type(type_).values():
            path = re.sub("/(DefaultPolicy/)?Resource$", "", path_of(policy))
            for statement in policy["Properties"]["PolicyDocument"]["Statement"]:
                yield path, statement


def test_every_wildcard_in_a_policy_has_its_reason(everything: list[Templates]) -> None:
    for templates in everything:
        for path, statement in _statements(templates):
            assert statement["Effect"] == "Allow"
            actions = _as_list(statement["Action"])
            assert [action for action in actions if "*" in action] == [], path
            for resource in map(_plain, _as_list(statement["Resource"])):
                if "*" in resource:
                    allowed = [what for _, what in _allowed(WILDCARDS, path)]
                    assert _without_names(resource) in allowed, path
                if resource == "*":
                    assert set(actions) <= UNBOUND_ACTIONS, path


def test_what_knows_no_resource_is_bound_by_a_condition(everything: list[Templates]) -> None:
    for templates in everything:
        for path, statement in _statements(templates):
            if "cloudwatch:PutMetricData" in _as_list(statement["Action"]):
                assert statement["Condition"] == {
                    "StringEquals": {"cloudwatch:namespace": "/aws/sagemaker/Endpoints"}
                }, path
            if "s3:ListBucket" in _as_list(statement["Action"]):
                assert statement["Condition"] == {"StringLike": {"s3:prefix": "models/*"}}, path
            if "kms:CreateGrant" in _as_list(statement["Action"]):
                assert statement["Condition"] == {"Bool": {"kms:GrantIsForAWSResource": "true"}}, path


def test_no_role_has_policies_that_this_list_does_not_see(everything: list[Templates]) -> None:
    for templates in everything:
        roles = templates.of_type("AWS::IAM::Role")
        assert [id_ for id_, role in roles.items() if "Policies" in role["Properties"]] == []
        managed = [id_ for id_, role in roles.items() if role["Properties"].get("ManagedPolicyArns")]
        # CDK's emptying function is the exception, and only where something is emptied.
        assert set(managed) <= {"CustomS3AutoDeleteObjectsCustomResourceProviderRole3B1BD092"}
        attached = [p for p in templates.of_type("AWS::IAM::ManagedPolicy").values() if "Roles" in p["Properties"]]
        assert attached == []


def test_no_template_holds_a_secret(everything: list[Templates]) -> None:
    """Nor anything that is spelled like one."""
    words = re.compile(r"(?i)(api[_-]?key|password|secret|access[_-]?key|token)")
    for templates in everything:
        for model in templates.of_type("AWS::SageMaker::Model").values():
            names = model["Properties"]["PrimaryContainer"]["Environment"]
            assert [name for name in names if re.search("KEY|SECRET|PASSWORD|HF_TOKEN", name)] == []
        for project in templates.of_type("AWS::CodeBuild::Project").values():
            for variable in project["Properties"]["Environment"]["EnvironmentVariables"]:
                assert variable["Type"] == "PLAINTEXT"
                assert not words.search(variable["Name"].replace("MODEL_TOKENIZER", ""))
        for stack in (templates.artifacts, templates.endpoints):
            parameters = stack.get("Parameters", {})
            assert set(parameters) == {"BootstrapVersion"}
            assert "SecretString" not in text(stack)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _plain(resource: Any) -> str:
    """A template's ARN as text, with <references>."""
    if isinstance(resource, str):
        return resource
    ((function, argument),) = resource.items()
    if function == "Fn::Join":
        return "".join(map(_plain, argument[1]))
    if function == "Fn::GetAtt":
        return f"<{'.'.join(argument)}>"
    if function in ("Fn::ImportValue", "Fn::Sub"):
        return str(argument)
    if function == "Fn::FindInMap":
        return f"<{argument[0]}>"
    assert function == "Ref", resource
    return f"<{argument}>"


@pytest.mark.parametrize("stack", STACKS)
def test_cfn_lint_finds_nothing(templates: Templates, stack: str) -> None:
    _lint(templates, stack)


@pytest.mark.parametrize("stack", STACKS)
def test_nor_with_every_option(options: Templates, stack: str) -> None:
    _lint(options, stack)


def _lint(templates: Templates, stack: str) -> None:
    template = json.dumps(getattr(templates, stack))
    config = ManualArgs(regions=["us-east-1"], ignore_checks=[*CFN_LINT_IGNORED])
    matches = lint(template, config=config)
    assert [f"{match.rule.id} {match.message} at {match.path}" for match in matches] == []
