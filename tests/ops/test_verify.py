"""The judgements of `decide verify` over recorded shapes of AWS and an adapter; tests/deploy has the real ones."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import pytest
from botocore.response import StreamingBody
from botocore.stub import Stubber

from ops.client import DecisionError
from ops.deployed import Stack, placements
from ops.doctor.row import Row
from ops.errors import FailedError
from ops.verify import (
    chat_row,
    configuration_row,
    decision_rows,
    examine,
    gpu_metric_row,
    image_row,
    placement_row,
    stack_row,
    status_row,
    stored_model_row,
)
from stacks.config import PROD, STAGING, Asynchronous, DecisionEndpoint
from tests.ops.stubbed import account, client

NOW = datetime(2026, 12, 7, 10, tzinfo=timezone.utc)
CPU, GPU = (endpoint for endpoint in STAGING.endpoints if isinstance(endpoint, DecisionEndpoint))
NAME = "decision-endpoints-staging-decision-gpu"
DIGEST, OTHER_DIGEST = "sha256:" + "a" * 64, "sha256:" + "b" * 64
REPOSITORY = "123456789012.dkr.ecr.us-east-1.amazonaws.com/images"
MODEL = {
    "name": "Qwen3.5-4B",
    "gguf_sha256": STAGING.model.sha256,
    "gpu_layers": 33,
    "device": "NVIDIA L40S",
    "backends": ["CUDA0", "CPU"],
}
ANSWER: dict[str, Any] = {
    "result": {
        "id": "verification",
        "option_ids": ["account_access", "billing", "sales"],
        "probabilities": [0.9, 0.06, 0.04],
        "model": MODEL,
    }
}


def variant(**counts: int) -> dict[str, Any]:
    """The variant of an endpoint on a pool, in DescribeEndpoint's shape; how many instances of which type."""
    total = sum(counts.values())
    types = {"g6e": "ml.g6e.xlarge", "g6": "ml.g6.2xlarge", "g5": "ml.g5.2xlarge", "other": "ml.g4dn.xlarge"}
    return {
        "VariantName": "main",
        "DeployedImages": [{"SpecifiedImage": f"{REPOSITORY}@{DIGEST}", "ResolvedImage": f"{REPOSITORY}@{DIGEST}"}],
        "CurrentInstanceCount": total,
        "DesiredInstanceCount": total,
        "InstancePools": [
            {"InstanceType": types[name], "CurrentInstanceCount": count} for name, count in counts.items()
        ],
    }


def verdict(row: Row) -> tuple[str, str]:
    return row.verdict, row.found


def test_the_pools_type_that_serves_is_named_with_its_place() -> None:
    served = variant(g6e=0, g6=1, g5=2)
    row = placement_row(GPU, served, placements(served, {}))
    assert verdict(row) == ("ok", "1 x ml.g6.2xlarge (choice 2 of 4), 2 x ml.g5.2xlarge (choice 3 of 4)")


def test_instances_that_are_wanted_and_not_there_are_said() -> None:
    served = {**variant(g6e=1), "DesiredInstanceCount": 2}
    row = placement_row(GPU, served, placements(served, {}))
    assert verdict(row) == ("ok", "1 x ml.g6e.xlarge (choice 1 of 4); 2 are wanted")


def test_a_type_that_the_configuration_does_not_name_fails() -> None:
    served = variant(other=1)
    row = placement_row(GPU, served, placements(served, {}))
    assert verdict(row) == ("failed", "1 x ml.g4dn.xlarge")
    assert row.advice.startswith("stacks/config.py has not ml.g4dn.xlarge but ml.g6e.xlarge, ml.g6.2xlarge,")


def test_without_a_pool_the_configuration_tells_the_type_and_without_both_nobody_does() -> None:
    served = {"CurrentInstanceCount": 2, "DesiredInstanceCount": 2}
    assert verdict(placement_row(CPU, served, placements(served, {"InstanceType": "ml.c6i.8xlarge"}))) == (
        "ok",
        "2 x ml.c6i.8xlarge",
    )
    assert placement_row(CPU, served, placements(served, {})).verdict == "not checked"


def test_an_asynchronous_endpoint_may_have_no_instance() -> None:
    idle = dataclasses.replace(CPU, scaling=None, asynchronous=Asynchronous(max_instances=2))
    served = {"CurrentInstanceCount": 0, "DesiredInstanceCount": 0}
    assert verdict(placement_row(idle, served, ())) == ("ok", "none now: there is no work")
    assert placement_row(CPU, served, ()).verdict == "not checked"


def test_a_configuration_that_was_rolled_back_to_fails_with_sagemakers_reason() -> None:
    described = {"EndpointConfigName": "Config-Old", "FailureReason": "alarm Faults went off"}
    assert configuration_row(described, "config-old").verdict == "ok"  # as a stack's ARN spells it
    row = configuration_row(described, "config-new")
    assert verdict(row) == (
        "failed",
        "serves Config-Old, not config-new of the stack: the update was rolled back (alarm Faults went off)",
    )
    assert configuration_row(described, None).verdict == "failed"


def test_another_image_than_the_stacks_fails() -> None:
    assert verdict(image_row([DIGEST], DIGEST)) == ("ok", DIGEST)
    assert verdict(image_row([OTHER_DIGEST], DIGEST)) == ("failed", f"{OTHER_DIGEST} serves; the stack's is {DIGEST}")
    assert image_row([DIGEST, OTHER_DIGEST], DIGEST).verdict == "failed"
    assert (image_row([], DIGEST).verdict, image_row([DIGEST], None).verdict) == ("not checked", "not checked")


def test_an_endpoint_that_is_not_in_service_fails_with_its_reason() -> None:
    assert status_row({"EndpointStatus": "InService"}).verdict == "ok"
    row = status_row({"EndpointStatus": "Failed", "FailureReason": "no capacity"})
    assert verdict(row) == ("failed", "Failed: no capacity")
    assert verdict(status_row({"EndpointStatus": "Updating"})) == ("failed", "Updating")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("CREATE_COMPLETE", "ok"),
        ("UPDATE_COMPLETE", "ok"),
        ("UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", "ok"),
        ("UPDATE_IN_PROGRESS", "failed"),
        ("UPDATE_ROLLBACK_COMPLETE", "failed"),
        ("UPDATE_ROLLBACK_FAILED", "failed"),
        ("DELETE_FAILED", "failed"),
    ],
)
def test_only_a_deploy_that_ended_well_is_one(state: str, expected: str) -> None:
    row = stack_row(Stack("s", state, NOW, None, protected=False, outputs={}))
    assert row.verdict == expected
    assert bool(row.advice) == (expected == "failed")


def decided(changes: Mapping[str, Any], *, endpoint: DecisionEndpoint = GPU, emulator: bool = False) -> dict[str, Row]:
    """The rows of an answer that differs from the right one in these members of its result."""
    answer = copy.deepcopy(ANSWER)
    answer["result"].update(changes)
    return {row.check: row for row in decision_rows(lambda _: answer, STAGING, endpoint, emulator=emulator)}


def test_the_right_answer_of_the_pinned_model_on_a_gpu() -> None:
    rows = decided({})
    assert [(check, row.verdict) for check, row in rows.items()] == [("answers", "ok"), ("model", "ok"), ("GPU", "ok")]
    assert rows["answers"].found == "account_access with 0.900"
    assert rows["GPU"].found == "33 layers on NVIDIA L40S"
    assert list(decided({}, endpoint=CPU)) == ["answers", "model"]


def test_a_wrong_answer_and_another_model_are_told_apart() -> None:
    rows = decided({"probabilities": [0.2, 0.7, 0.1]})
    assert rows.keys() == {"answers"}
    assert rows["answers"].verdict == "failed"
    assert rows["answers"].found.startswith("'billing' is the likeliest option, not 'account_access'")
    rows = decided({"model": {**MODEL, "name": "other", "gguf_sha256": "0" * 64}})
    assert (rows["answers"].verdict, rows["model"].verdict) == ("ok", "failed")
    assert rows["model"].found == f"other, SHA-256 {'0' * 64}; pinned is Qwen3.5-4B, {STAGING.model.sha256}"
    assert decided({"model": None})["answers"].found == "the answer is none of a decision endpoint"


def test_layers_on_the_cpu_of_a_gpu_endpoint_fail_and_on_the_emulator_are_not_judged() -> None:
    on_cpu = {"model": {**MODEL, "gpu_layers": 0, "device": "Xeon", "backends": ["CPU"]}}
    row = decided(on_cpu)["GPU"]
    assert verdict(row) == ("failed", "no layer is on a GPU; Xeon computes (backends: CPU)")
    row = decided(on_cpu, emulator=True)["GPU"]
    assert verdict(row) == (
        "not checked",
        "the emulator's machine has none: no layer is on a GPU; Xeon computes (backends: CPU)",
    )


def test_an_endpoint_that_does_not_answer_fails_with_the_reason() -> None:
    def refuse(_: Mapping[str, Any]) -> Mapping[str, Any]:
        raise DecisionError("busy", status=503)

    (row,) = decision_rows(refuse, STAGING, CPU, emulator=False)
    assert row.verdict == "failed"
    assert "busy" in row.found
    assert chat_row(refuse).verdict == "failed"


def test_a_text_endpoint_has_to_say_something() -> None:
    def saying(text: str) -> Row:
        return chat_row(lambda _: {"choices": [{"message": {"content": text}}]})

    assert verdict(saying("Hello.")) == ("ok", "6 characters of text")
    assert verdict(saying(" ")) == ("failed", "the chat completion is empty")


@pytest.mark.parametrize(("sha256", "expected"), [(PROD.model.sha256, "ok"), ("0" * 64, "failed"), (None, "failed")])
def test_the_model_of_a_text_endpoint_is_judged_by_its_manifest(sha256: str | None, expected: str) -> None:
    s3 = client("s3")
    manifest = json.dumps({"name": "Qwen3.5-4B", "sha256": sha256} if sha256 else {}).encode()
    with Stubber(s3) as answers:
        answers.add_response(
            "get_object",
            {"Body": StreamingBody(io.BytesIO(manifest), len(manifest))},
            {"Bucket": "bucket", "Key": "models/abc/model-manifest.json"},
        )
        source = {"S3DataSource": {"S3Uri": "s3://bucket/models/abc/model.tar.gz"}}
        model = {"PrimaryContainer": {"ModelDataSource": source}}
        assert stored_model_row(PROD, PROD.endpoints[2], model, account(s3=s3)).verdict == expected


@pytest.mark.parametrize(
    ("points", "expected"), [([(1, 0.0), (2, 61.0)], "ok"), ([(2, 0.0), (1, 61.0)], "failed"), ([], "not checked")]
)
def test_the_gpu_of_a_text_endpoint_is_judged_by_the_newest_minute(
    points: list[tuple[int, float]], expected: str
) -> None:
    cloudwatch = client("cloudwatch")
    with Stubber(cloudwatch) as answers:
        answers.add_response(
            "get_metric_statistics",
            {"Datapoints": [{"Timestamp": NOW.replace(minute=minute), "Minimum": used} for minute, used in points]},
        )
        assert gpu_metric_row("name", account(cloudwatch=cloudwatch)).verdict == expected


TEMPLATE = {
    "Resources": {
        "GpuConfig": {"Type": "AWS::SageMaker::EndpointConfig", "Properties": {}},
        "Gpu": {
            "Type": "AWS::SageMaker::Endpoint",
            "Properties": {
                "EndpointName": NAME,
                "EndpointConfigName": {"Fn::GetAtt": ["GpuConfig", "EndpointConfigName"]},
            },
        },
    }
}


def test_a_silent_roll_back_is_seen_in_what_sagemaker_and_the_stack_say() -> None:
    """The whole command: the update went back to the configuration before, in service, at the second choice."""
    cloudformation, sagemaker, runtime = client("cloudformation"), client("sagemaker"), client("sagemaker-runtime")
    stack = "decision-endpoints-staging-endpoints"
    arn = "arn:aws:sagemaker:us-east-1:123456789012:endpoint"
    with Stubber(cloudformation) as stacks, Stubber(sagemaker) as endpoints, Stubber(runtime) as answers:
        output = {"OutputKey": "GpuAdapterImageDigest", "OutputValue": OTHER_DIGEST}
        made = {"StackName": stack, "CreationTime": NOW, "StackStatus": "UPDATE_COMPLETE", "Outputs": [output]}
        stacks.add_response("describe_stacks", {"Stacks": [made]}, {"StackName": stack})
        stacks.add_response("get_template", {"TemplateBody": json.dumps(TEMPLATE)}, {"StackName": stack})
        resource = {
            "LogicalResourceId": "GpuConfig",
            "ResourceType": "AWS::SageMaker::EndpointConfig",
            "PhysicalResourceId": f"{arn}-config/gpuconfig-new",
            "ResourceStatus": "UPDATE_COMPLETE",
            "LastUpdatedTimestamp": NOW,
        }
        stacks.add_response("list_stack_resources", {"StackResourceSummaries": [resource]}, {"StackName": stack})
        described = {
            "EndpointName": NAME,
            "EndpointArn": f"{arn}/{NAME}",
            "EndpointConfigName": "GpuConfig-Old",
            "EndpointStatus": "InService",
            "FailureReason": "One or more alarms have gone off",
            "CreationTime": NOW,
            "LastModifiedTime": NOW,
            "ProductionVariants": [variant(g6e=0, g6=1)],
        }
        endpoints.add_response("describe_endpoint", described, {"EndpointName": NAME})
        gone = 'Could not find endpoint configuration "x".'
        endpoints.add_client_error("describe_endpoint_config", "ValidationException", gone)
        body = json.dumps(ANSWER).encode()
        answers.add_response("invoke_endpoint", {"Body": StreamingBody(io.BytesIO(body), len(body))})
        aws = account(cloudformation=cloudformation, sagemaker=sagemaker, sagemaker_runtime=runtime)
        (verified,) = examine(STAGING, [GPU], aws)
    assert verified.endpoint == NAME
    assert {row.check: row.verdict for row in verified.rows} == {
        "last deploy": "ok",
        "in service": "ok",
        "configuration": "failed",
        "image": "failed",
        "instances": "ok",
        "answers": "ok",
        "model": "ok",
        "GPU": "ok",
    }
    by_check = {row.check: row.found for row in verified.rows}
    assert by_check["configuration"].endswith("rolled back (One or more alarms have gone off)")
    assert by_check["instances"] == "1 x ml.g6.2xlarge (choice 2 of 4)"


def test_what_is_not_deployed_is_one_sentence() -> None:
    cloudformation = client("cloudformation")
    with Stubber(cloudformation) as stacks:
        stacks.add_client_error("describe_stacks", "ValidationError", "Stack with id x does not exist")
        with pytest.raises(FailedError, match=r"'staging' is not deployed in us-east-1: .* make deploy ENV=staging"):
            examine(STAGING, STAGING.endpoints, account(cloudformation=cloudformation))
