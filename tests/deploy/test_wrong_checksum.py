"""A model that is not the pinned one never reaches the bucket, and the deploy says why it failed."""

from __future__ import annotations

import pytest

from stacks.config import LOCAL
from tests.deploy.conftest import Cdk
from tests.emulator_fixture import Emulator
from tools.cdk import CdkError
from tools.leftovers import leftovers

WRONG = "0" * 64
VARIANT = {"environment": {"name": "wrong"}, "model": {"sha256": WRONG}}


def test_a_wrong_checksum_fails_the_deploy_with_its_reason_and_leaves_nothing_half_made(
    emulator: Emulator, cdk_cli: Cdk
) -> None:
    with pytest.raises(CdkError) as raised:
        cdk_cli.deploy(VARIANT)
    wrong = f"error: {LOCAL.model.file} has sha256 {LOCAL.model.sha256}, expected {WRONG}"
    assert wrong in str(raised.value)
    assert "Custom::Build ModelBuild/" in str(raised.value)
    # The next click of whoever reads the failed deploy.
    assert "Log: https://" in cdk_cli.log_of("deploy").read_text()

    stack_name = "decision-endpoints-wrong-endpoints"
    (stack,) = emulator.client("cloudformation").describe_stacks(StackName=stack_name)["Stacks"]
    assert stack["StackStatus"] == "ROLLBACK_COMPLETE"
    sagemaker = emulator.client("sagemaker")
    assert sagemaker.list_models()["Models"] == []
    assert sagemaker.list_endpoint_configs()["EndpointConfigs"] == []
    assert sagemaker.list_endpoints()["Endpoints"] == []
    assert emulator.client("codebuild").list_projects()["projects"] == []
    s3 = emulator.client("s3")
    (bucket,) = [b["Name"] for b in s3.list_buckets()["Buckets"] if b["Name"].startswith("decision-endpoints-wrong")]
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0

    cdk_cli.destroy(VARIANT)
    assert leftovers(emulator.endpoint_url) == []
