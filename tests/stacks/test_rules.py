"""Rule packs over the templates: AwsSolutions of cdk-nag, cfn-lint, and every IAM wildcard.

What a pack complains of and we keep is listed here with its reason; what is listed and no longer found fails too.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest
from aws_cdk import App, Validations
from cdk_nag import AwsSolutionsChecks
from cfnlint.api import lint  # type: ignore[import-untyped]
from cfnlint.config import ManualArgs  # type: ignore[import-untyped]

from stacks.config import ENVIRONMENTS
from stacks.stage import build
from tests.stacks.conftest import CONTEXT, Templates

# Every wildcard in a policy, by the construct whose role has it.
WILDCARDS: dict[str, dict[str, str]] = {
    "BuildRunner/FrameworkOnEventRole": {
        "<BuildRunnerOnEvent.Arn>:*": "CDK's framework invokes any version of our handler",
        "<BuildRunnerIsComplete.Arn>:*": "CDK's framework invokes any version of our handler",
    },
    "BuildRunner/FrameworkIsCompleteRole": {
        "<BuildRunnerOnEvent.Arn>:*": "CDK's framework invokes any version of our handler",
        "<BuildRunnerIsComplete.Arn>:*": "CDK's framework invokes any version of our handler",
    },
    "BuildRunner/Provider/waiter-state-machine/Role": {
        "<BuildRunnerProviderframeworkisComplete.Arn>:*": "CDK's state machine invokes any version of its function",
        "<BuildRunnerProviderframeworkonTimeout.Arn>:*": "CDK's state machine invokes any version of its function",
    },
    "ModelBuild/Role": {
        "<bucket>/models/*": "a model's prefix is its content's hash, known only to the build",
    },
    "ImageBuild/Role": {
        "*": "ecr:GetAuthorizationToken knows no resource",
    },
    "DecisionEndpoint/Role": {
        "*": "ecr:GetAuthorizationToken knows no resource; cloudwatch:PutMetricData neither, its namespace is fixed",
        "<bucket>/models/*": "while an update runs, the old configuration may still start instances on the old model",
    },
}

# Every other rule that is broken on purpose, by construct.
ACKNOWLEDGED: dict[str, dict[str, str]] = {
    "Models/Resource": {
        "AwsSolutions-S1": "the bucket holds public models; access logs would refill what destroy has emptied",
    },
    "BuildRunner/Provider/waiter-state-machine/Resource": {
        "AwsSolutions-SF1": "its functions log every poll; its own log needs rights over every log delivery",
        "AwsSolutions-SF2": "one poll in a deploy: there is nothing to trace",
    },
    "ModelBuild/Project/Resource": {
        "AwsSolutions-CB4": "the project has no artifacts that a key could encrypt",
    },
    "ImageBuild/Project/Resource": {
        "AwsSolutions-CB4": "the project has no artifacts that a key could encrypt",
    },
}

# Rules of cfn-lint that are wrong here.
CFN_LINT_IGNORED = {"W3005": "CDK names a dependency that a reference implies already: redundant, not wrong"}


def _without_hashes(text: str) -> str:
    """A finding with logical ids as a reader knows them, and the same in every environment."""
    text = re.sub(r"\b(\w+?)[0-9A-F]{8}\.Arn", r"\1.Arn", text)
    return re.sub(r"decision-endpoints-\w+-artifacts:ExportsOutputFnGetAttModels\w+Arn\w+", "<bucket>", text)


@dataclass(frozen=True)
class Finding:
    """One complaint of a rule pack: the rule with its detail, and the construct's path below its stack."""

    path: str
    rule: str


@pytest.fixture(scope="module", params=sorted(ENVIRONMENTS))
def nag_findings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> set[Finding]:
    """What AwsSolutions complains of in one environment when nothing is acknowledged."""
    outdir = tmp_path_factory.mktemp("nag")
    app = App(context=CONTEXT, outdir=str(outdir))
    build(app, ENVIRONMENTS[request.param])
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    with pytest.raises(RuntimeError, match="ValidationFailed"):
        app.synth()
    reports = json.loads((outdir / "validation-report.json").read_text())["pluginReports"]
    return {
        Finding(construct["constructPath"].split("/", 1)[1], _without_hashes(violation["ruleName"]))
        for report in reports
        if report["pluginName"] == "AwsSolutions"
        for violation in report["violations"]
        for construct in violation["violatingConstructs"]
    }


def test_awssolutions_finds_what_is_acknowledged_and_nothing_else(nag_findings: set[Finding]) -> None:
    broken = {Finding(path, rule) for path, rules in ACKNOWLEDGED.items() for rule in rules}
    wildcards = {
        Finding(f"{role}/DefaultPolicy/Resource", f"AwsSolutions-IAM5[Resource::{resource}]")
        for role, resources in WILDCARDS.items()
        for resource in resources
    }
    assert nag_findings == broken | wildcards


def test_every_wildcard_in_a_policy_has_its_reason(templates: Templates) -> None:
    paths = {
        id_: resource["Metadata"]["aws:cdk:path"].split("/", 1)[1].removesuffix("/DefaultPolicy/Resource")
        for id_, resource in templates.of_type("AWS::IAM::Policy").items()
    }
    found: dict[str, set[str]] = {}
    for id_, policy in templates.of_type("AWS::IAM::Policy").items():
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]:
            assert statement["Effect"] == "Allow"
            actions = _as_list(statement["Action"])
            assert [action for action in actions if "*" in action] == [], paths[id_]
            for resource in map(_plain, _as_list(statement["Resource"])):
                if "*" in resource:
                    found.setdefault(paths[id_], set()).add(_without_hashes(resource))
    assert found == {role: set(resources) for role, resources in WILDCARDS.items()}


def test_no_role_has_policies_that_this_list_does_not_see(templates: Templates) -> None:
    inline = [id_ for id_, role in templates.of_type("AWS::IAM::Role").items() if "Policies" in role["Properties"]]
    assert inline == []
    assert templates.of_type("AWS::IAM::ManagedPolicy") == {}


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
    assert function == "Ref", resource
    return f"<{argument}>"


@pytest.mark.parametrize("stack", ["artifacts", "endpoints"])
def test_cfn_lint_finds_nothing(templates: Templates, stack: str) -> None:
    template = json.dumps(getattr(templates, stack))
    options = ManualArgs(regions=["us-east-1", "eu-central-1"], ignore_checks=[*CFN_LINT_IGNORED])
    matches = lint(template, config=options)
    assert [f"{match.rule.id} {match.message} at {match.path}" for match in matches] == []
