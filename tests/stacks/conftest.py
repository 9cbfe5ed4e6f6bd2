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

from aws_cdk import App  # noqa: E402  jsii reads JSII_NODE when it is imported

from stacks.config import ENVIRONMENTS, Environment  # noqa: E402
from stacks.stage import build  # noqa: E402

Resource = dict[str, Any]
# What `cdk synth` takes from cdk.json, and the constructs' paths in the templates, which it adds.
CONTEXT: dict[str, Any] = {
    **json.loads((ROOT / "cdk.json").read_text())["context"],
    "aws:cdk:enable-path-metadata": True,
}


@dataclass(frozen=True)
class Templates:
    """The two templates of one environment, as CloudFormation gets them."""

    environment: Environment
    artifacts: dict[str, Any]
    endpoints: dict[str, Any]

    def of_type(self, type_: str) -> dict[str, Resource]:
        """The resources of a type in both stacks, by logical id."""
        resources = {**self.artifacts["Resources"], **self.endpoints["Resources"]}
        return {id_: resource for id_, resource in resources.items() if resource["Type"] == type_}

    def one(self, type_: str) -> Resource:
        """The properties of the one resource of that type."""
        (resource,) = self.of_type(type_).values()
        properties: Resource = resource["Properties"]
        return properties


Synthesise = Callable[[Environment], Templates]


@pytest.fixture(scope="session")
def synthesise(tmp_path_factory: pytest.TempPathFactory) -> Synthesise:
    """Makes an environment's templates."""

    def make(environment: Environment) -> Templates:
        app = App(context=CONTEXT, outdir=str(tmp_path_factory.mktemp("cdk.out")))
        stacks = build(app, environment)
        assembly = app.synth()
        artifacts, endpoints = (assembly.get_stack_by_name(stack.stack_name).template for stack in stacks)
        return Templates(environment, artifacts, endpoints)

    return make


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
