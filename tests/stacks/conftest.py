"""Synthesises every shipped environment once for all tests: starting CDK's Node process is what takes the time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NODE = ROOT / ".venv" / "bin" / "node"
if NODE.exists():
    os.environ.setdefault("JSII_NODE", str(NODE))

from aws_cdk import App, Validations  # noqa: E402  jsii reads JSII_NODE when it is imported
from cdk_nag import AwsSolutionsChecks  # noqa: E402

from stacks.config import (  # noqa: E402
    ENVIRONMENTS,
    LOCAL,
    Asynchronous,
    BlueGreen,
    DataCapture,
    DecisionEndpoint,
    Environment,
    Rolling,
    Scaling,
    ScheduledCapacity,
    TextEndpoint,
    Vpc,
)
from stacks.models import HubModel  # noqa: E402
from stacks.stage import build  # noqa: E402
from stacks.thresholds import Thresholds  # noqa: E402

Resource = dict[str, Any]
# What `cdk synth` takes from cdk.json, and the constructs' paths in the templates, which it adds.
CONTEXT: dict[str, Any] = {
    **json.loads((ROOT / "cdk.json").read_text())["context"],
    "aws:cdk:enable-path-metadata": True,
}
STACKS = ("artifacts", "endpoints")


@dataclass(frozen=True)
class Finding:
    """One complaint of a rule pack: the rule with its detail, and the construct's path below its stack."""

    path: str
    rule: str


@dataclass(frozen=True)
class Templates:
    """The two templates of one environment, as CloudFormation gets them, and what AwsSolutions says of them."""

    environment: Environment
    artifacts: dict[str, Any]
    endpoints: dict[str, Any]
    is_protected: bool
    findings: frozenset[Finding]

    def of_type(self, type_: str) -> dict[str, Resource]:
        """The resources of a type in both stacks, by logical id."""
        resources = {**self.artifacts["Resources"], **self.endpoints["Resources"]}
        return {id_: resource for id_, resource in resources.items() if resource["Type"] == type_}

    def one(self, type_: str, path: str = "") -> Resource:
        """The properties of the one resource of that type below the path."""
        (resource,) = (r for r in self.of_type(type_).values() if path_of(r).startswith(path))
        properties: Resource = resource["Properties"]
        return properties

    def variant(self, title: str) -> Resource:
        """The production variant of the endpoint with that title, such as `Decision`."""
        (variant,) = self.one("AWS::SageMaker::EndpointConfig", f"{title}Endpoint/")["ProductionVariants"]
        found: Resource = variant
        return found

    def container(self, title: str) -> Resource:
        """The container of the endpoint with that title."""
        found: Resource = self.one("AWS::SageMaker::Model", f"{title}Endpoint/")["PrimaryContainer"]
        return found

    def statements(self, path: str) -> list[Resource]:
        """What the role, or the managed policy, at that path is allowed."""
        return [
            statement
            for type_ in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy")
            for policy in self.of_type(type_).values()
            if path_of(policy).startswith(path)
            for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        ]


def path_of(resource: Resource) -> str:
    """The construct's path below its stack."""
    path: str = resource["Metadata"]["aws:cdk:path"]
    return path.split("/", 1)[1]


def text(value: Any) -> str:
    """A part of a template, to look for words in."""
    return json.dumps(value, sort_keys=True)


def _synthesise(environment: Environment, outdir: Path) -> Templates:
    app = App(context=CONTEXT, outdir=str(outdir))
    artifacts, endpoints = build(app, environment)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    # There are findings, since nothing is acknowledged in the app: test_rules.py knows each with its reason.
    with pytest.raises(RuntimeError, match="ValidationFailed"):
        app.synth()
    reports = json.loads((outdir / "validation-report.json").read_text())["pluginReports"]
    # CDK's own rules complain of templates that CloudFormation would refuse.
    assert [report["pluginName"] for report in reports if report["violations"]] == ["AwsSolutions"]
    documents = [
        json.loads((outdir / f"{stack.stack_name}.template.json").read_text()) for stack in (artifacts, endpoints)
    ]
    return Templates(
        environment=environment,
        artifacts=documents[0],
        endpoints=documents[1],
        is_protected=bool(artifacts.termination_protection),
        findings=frozenset(
            Finding(construct["constructPath"].split("/", 1)[1], violation["ruleName"])
            for report in reports
            for violation in report["violations"]
            for construct in violation["violatingConstructs"]
        ),
    )


Synthesise = Callable[[Environment], Templates]


@pytest.fixture(scope="session")
def synthesise(tmp_path_factory: pytest.TempPathFactory) -> Synthesise:
    """Makes an environment's templates."""
    return lambda environment: _synthesise(environment, tmp_path_factory.mktemp("cdk.out"))


@pytest.fixture(scope="session")
def all_templates(synthesise: Synthesise) -> dict[str, Templates]:
    """Every shipped environment's templates, by name."""
    return {name: synthesise(environment) for name, environment in ENVIRONMENTS.items()}


@pytest.fixture(params=sorted(ENVIRONMENTS))
def templates(request: pytest.FixtureRequest, all_templates: dict[str, Templates]) -> Templates:
    """One shipped environment's templates: a test with it runs once for each."""
    return all_templates[request.param]


@pytest.fixture
def local(all_templates: dict[str, Templates]) -> Templates:
    """The `local` environment's templates."""
    return all_templates["local"]


@pytest.fixture
def prod(all_templates: dict[str, Templates]) -> Templates:
    """The `prod` environment's templates."""
    return all_templates["prod"]


# An environment with every option that no shipped one uses.
OPTIONS = Environment(
    name="options",
    model=LOCAL.model,
    model_archive=True,
    calibrations="tests/stacks/calibrations/options.json",
    customer_managed_key=True,
    removable=True,
    log_retention_days=7,
    alarm_email="team@example.com",
    endpoints=(
        DecisionEndpoint(
            name="offline",
            instance_type="ml.m5d.xlarge",
            asynchronous=Asynchronous(max_instances=3, retention_days=5, concurrent_requests=2, backlog_per_instance=9),
            alarms=Thresholds(),
        ),
        DecisionEndpoint(
            name="captured",
            instance_pool=("ml.c7i.xlarge", "ml.c6i.2xlarge"),
            instances=4,
            provision_timeout_seconds=900,
            scaling=Scaling(
                max_instances=9,
                concurrent_requests=3,
                scale_out_cooldown_seconds=30,
                scale_in_cooldown_seconds=300,
                schedule=(
                    ScheduledCapacity(
                        schedule="cron(0 7 ? * MON-FRI *)", min_instances=6, max_instances=9, timezone="Europe/Berlin"
                    ),
                    ScheduledCapacity(schedule="cron(0 19 ? * MON-FRI *)", min_instances=4, max_instances=9),
                ),
            ),
            data_capture=DataCapture(percent=20, retention_days=14),
            rollout=Rolling(step_percent=25, wait_seconds=60),
            threads=3,
            context_tokens=4096,
            environment={"SEMIF_CACHE_BYTES": "0", "SEMIF_CALIBRATION": "support"},
        ),
        TextEndpoint(
            name="hub-text",
            # A pool of one is that one type.
            instance_pool=("ml.g5.xlarge",),
            hub_model=HubModel(repository="owner/model-GGUF", file="model-Q4_K_M.gguf"),
            network_isolation=False,
            vpc=Vpc(
                subnet_ids=("subnet-0123456789abcdef0", "subnet-0123456789abcdef1"), security_group_ids=("sg-01234567",)
            ),
            rollout=BlueGreen(wait_seconds=0),
            parallel=2,
            environment={"SM_LLAMA_CPP_BATCH_SIZE": "512"},
        ),
        TextEndpoint(name="text", instance_type="ml.c6i.4xlarge"),
    ),
)


@pytest.fixture(scope="session")
def options(synthesise: Synthesise) -> Templates:
    """The templates of OPTIONS."""
    return synthesise(OPTIONS)
