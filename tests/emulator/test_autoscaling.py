"""Application Auto Scaling's API for variants of endpoints."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.emulator.conftest import Hosting

TRACKING = {
    "TargetValue": 3.0,
    "PredefinedMetricSpecification": {"PredefinedMetricType": "SageMakerVariantInvocationsPerInstance"},
}


def code_and_message(call: Any, **parameters: Any) -> tuple[str, str]:
    """What the call is refused with."""
    with pytest.raises(ClientError) as raised:
        call(**parameters)
    error = raised.value.response["Error"]
    return error["Code"], error["Message"]


def test_targets_and_policies(hosting: Hosting) -> None:
    api = hosting.emulator.client("application-autoscaling")
    identity = {
        "ServiceNamespace": "sagemaker",
        "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
        "ResourceId": f"endpoint/{hosting.endpoint(hosting.config())}/variant/main",
    }
    policy = {"PolicyName": "p", "PolicyType": "TargetTrackingScaling", **identity}
    tracking = {"TargetTrackingScalingPolicyConfiguration": TRACKING}

    code, message = code_and_message(api.put_scaling_policy, **policy, **tracking)
    assert code == "ObjectNotFoundException"
    assert message.startswith("No scalable target found")
    other = {**identity, "ResourceId": identity["ResourceId"].replace("main", "other")}
    for wrong, words in (
        ({**other, "MinCapacity": 1, "MaxCapacity": 2}, "variant doesn't exist"),
        ({**identity, "MinCapacity": 3, "MaxCapacity": 2}, "Maximum capacity cannot be less than minimum"),
        ({**identity, "MinCapacity": 1}, "MinCapacity and MaxCapacity are required"),
        ({**identity, "MinCapacity": 0, "MaxCapacity": 2}, "real-time variant cannot be 0"),
        ({**identity, "ServiceNamespace": "sage", "MinCapacity": 1, "MaxCapacity": 2}, "enum value set"),
    ):
        code, message = code_and_message(api.register_scalable_target, **wrong)
        assert code == "ValidationException"
        assert words in message

    arn = api.register_scalable_target(**identity, MinCapacity=1, MaxCapacity=2)["ScalableTargetARN"]
    assert api.register_scalable_target(**identity, MaxCapacity=5)["ScalableTargetARN"] == arn
    (target,) = api.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"]
    assert (target["MinCapacity"], target["MaxCapacity"]) == (1, 5)

    code, message = code_and_message(api.put_scaling_policy, **policy)
    assert (code, "TargetTrackingScalingPolicyConfiguration" in message) == ("ValidationException", True)
    policy_arn = api.put_scaling_policy(**policy, **tracking)["PolicyARN"]
    changed = {"TargetTrackingScalingPolicyConfiguration": {**TRACKING, "TargetValue": 4.0}}
    assert api.put_scaling_policy(**policy, **changed)["PolicyARN"] == policy_arn
    (found,) = api.describe_scaling_policies(ServiceNamespace="sagemaker", PolicyNames=["p"])["ScalingPolicies"]
    assert found["TargetTrackingScalingPolicyConfiguration"]["TargetValue"] == 4.0
    api.delete_scaling_policy(PolicyName="p", **identity)
    assert code_and_message(api.delete_scaling_policy, PolicyName="p", **identity)[0] == "ObjectNotFoundException"

    api.put_scaling_policy(**policy, **tracking)
    api.deregister_scalable_target(**identity)
    assert not api.describe_scaling_policies(ServiceNamespace="sagemaker")["ScalingPolicies"], "they go with the target"
    assert code_and_message(api.deregister_scalable_target, **identity)[0] == "ObjectNotFoundException"
