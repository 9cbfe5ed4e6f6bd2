"""A CDK app for tests: a shipped environment with the changes that the variable VARIANT holds as JSON.

Keys: `of`, the environment's name (`local` where it is left out); `environment`, `model` and `endpoint`, each the
fields to replace (`endpoint` in every endpoint); `text`, the fields of a text endpoint to add; `embedded_model`, true
where the embedded model stands for one that no test can fetch; `without`, an action that the policies of one construct
lose: {"path": ..., "action": ...}.
"""

import json
import os
from dataclasses import replace
from typing import Any

import jsii
from aws_cdk import App, Aspects, IAspect, Stack
from aws_cdk import aws_iam as iam
from constructs import IConstruct

from stacks.config import TextEndpoint, environment_named
from stacks.models import SMOLLM2_135M
from stacks.stage import build


@jsii.implements(IAspect)
class Without:
    """Takes an action out of the policies below a path."""

    def __init__(self, path: str, action: str) -> None:
        self._path = path
        self._action = action

    def visit(self, node: IConstruct) -> None:
        """CDK's own name of what it does with every construct."""
        if isinstance(node, iam.CfnPolicy) and self._path in node.node.path:
            document: dict[str, Any] = Stack.of(node).resolve(node.policy_document)
            for index, statement in enumerate(document["Statement"]):
                actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
                if self._action in actions:
                    # A statement needs an action: in the place of its only one comes one that nobody asks for. Nothing
                    # but this is overridden, since what refers to another stack is not resolved yet.
                    left = [action for action in actions if action != self._action] or ["sts:GetCallerIdentity"]
                    node.add_property_override(f"PolicyDocument.Statement.{index}.Action", left)


def _fields(changes: dict[str, Any]) -> dict[str, Any]:
    """JSON has no tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in changes.items()}


changes = json.loads(os.environ["VARIANT"])
shipped = environment_named(changes.get("of", "local"))
model = SMOLLM2_135M if changes.get("embedded_model") else shipped.model
endpoints = tuple(replace(endpoint, **_fields(changes.get("endpoint", {}))) for endpoint in shipped.endpoints)
if "text" in changes:
    endpoints += (TextEndpoint(**_fields(changes["text"])),)
app = App()
build(
    app,
    replace(
        shipped,
        model=replace(model, **changes.get("model", {})),
        endpoints=endpoints,
        **changes.get("environment", {}),
    ),
)
if "without" in changes:
    Aspects.of(app).add(Without(**changes["without"]))
app.synth()
