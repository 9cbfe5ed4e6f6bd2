"""What every shipped environment is made of, resource by resource: a changed template shows in its snapshot's diff.

After a change that is meant, `pytest tests/stacks/test_snapshots.py --snapshot-update`, and read the diff.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension

from tests.stacks.conftest import Templates

# What holds data: another logical id is another bucket, and the old one is deleted or left behind.
STATEFUL = {
    "AWS::S3::Bucket": "ModelsC55D3500",
    "AWS::ECR::Repository": "Images2D38C313",
    "AWS::KMS::Key": "Key961B73FD",
}


@pytest.fixture
def snapshot_json(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(JSONSnapshotExtension)


def _normalised(template: dict[str, Any]) -> Any:
    """Without the hashes of assets and contents, which change with all code, and with references as text."""
    words = json.dumps(template)
    words = re.sub(r"\b[0-9a-f]{64}(?=\.(zip|json))", "<asset>", words)
    words = re.sub(r'(?<="ContentHash": ")[0-9a-f]{32}|(?<="adapter-)[0-9a-f]{32}', "<content>", words)
    return _readable(json.loads(words))


def _readable(value: Any) -> Any:
    if isinstance(value, list):
        return [_readable(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((function, argument),) = value.items()
        if function == "Fn::Join" and argument[0] == "":
            return "".join(p if isinstance(p, str) else json.dumps(p) for p in map(_readable, argument[1]))
        if function == "Ref":
            return f"${{{argument}}}"
        if function in ("Fn::GetAtt", "Fn::FindInMap", "Fn::ImportValue"):
            return f"${{{argument if isinstance(argument, str) else '.'.join(map(str, _readable(argument)))}}}"
    # A construct's path is in its logical id, an asset's place in its build.
    return {key: _readable(item) for key, item in value.items() if key != "Metadata"}


def test_the_templates_are_as_they_were_read_last(templates: Templates, snapshot_json: SnapshotAssertion) -> None:
    stacks = {"artifacts": _normalised(templates.artifacts), "endpoints": _normalised(templates.endpoints)}
    assert stacks == snapshot_json


def test_what_holds_data_keeps_its_logical_id(templates: Templates) -> None:
    found = {
        resource["Type"]: id_
        for id_, resource in templates.artifacts["Resources"].items()
        if resource["Type"] in STATEFUL
    }
    kept = dict(STATEFUL)
    if not templates.environment.customer_managed_key:
        del kept["AWS::KMS::Key"]
    assert found == kept


def test_the_endpoint_that_callers_know_keeps_its_logical_id(local: Templates) -> None:
    """Another id would be another endpoint, of a name that is still taken."""
    assert list(local.of_type("AWS::SageMaker::Endpoint")) == ["DecisionEndpoint9C5CA6DB"]
