"""Application Auto Scaling for SageMaker variants: targets, policies and schedules are kept, nothing is scaled."""

from __future__ import annotations

import re
import threading
import uuid
from typing import TYPE_CHECKING, Any

from emulator.aws import AwsError, Params, Response, call, invalid
from emulator.sagemaker.names import now
from emulator.settings import ACCOUNT, REGION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from emulator.sagemaker.endpoints import Endpoints

_VARIANT = re.compile(r"endpoint/(?P<endpoint>[^/]+)/variant/(?P<variant>[^/]+)")
_DIMENSION = "sagemaker:variant:DesiredInstanceCount"
_IDENTITY = ("ServiceNamespace", "ResourceId", "ScalableDimension")
_CONFIGURATION = {
    "StepScaling": "StepScalingPolicyConfiguration",
    "TargetTrackingScaling": "TargetTrackingScalingPolicyConfiguration",
    "PredictiveScaling": "PredictiveScalingPolicyConfiguration",
}
_DEFAULT_PAGE = 50
Key = tuple[str, ...]


class AutoScaling:
    """Scalable targets, policies and scheduled actions of endpoint variants. No scaling action is performed."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._lock = threading.RLock()
        self._targets: dict[Key, Params] = {}
        self._policies: dict[Key, Params] = {}
        self._actions: dict[Key, Params] = {}
        self._operations: dict[str, Callable[[Params], Params]] = {
            "RegisterScalableTarget": self.register,
            "DescribeScalableTargets": self.describe_targets,
            "DeregisterScalableTarget": self.deregister,
            "PutScalingPolicy": self.put_policy,
            "DescribeScalingPolicies": self.describe_policies,
            "DeleteScalingPolicy": self.delete_policy,
            "PutScheduledAction": self.put_action,
            "DescribeScheduledActions": self.describe_actions,
            "DeleteScheduledAction": self.delete_action,
        }

    def handle(self, _method: str, _path: str, headers: Mapping[str, str], body: bytes) -> Response:
        """Answer one request."""
        return call("application-autoscaling", self._operations, headers.get("x-amz-target", ""), body)

    def register(self, params: Params) -> Params:
        """RegisterScalableTarget: creates, or changes what is given."""
        self._check_variant(params)
        with self._lock:
            old = self._targets.get(_key(params))
            if old is None and not {"MinCapacity", "MaxCapacity"} <= params.keys():
                raise invalid("MinCapacity and MaxCapacity are required to register a new scalable target")
            target = {"CreationTime": now(), "ScalableTargetARN": _arn("scalable-target"), **(old or {}), **params}
            target.pop("Tags", None)
            if target["MinCapacity"] > target["MaxCapacity"]:
                raise invalid("Maximum capacity cannot be less than minimum capacity")
            if target["MinCapacity"] == 0 and not self._endpoints.is_asynchronous(_variant(params)["endpoint"]):
                raise invalid("Minimum capacity of a real-time variant cannot be 0")
            self._targets[_key(params)] = target
            return {"ScalableTargetARN": target["ScalableTargetARN"]}

    def deregister(self, params: Params) -> Params:
        """DeregisterScalableTarget, and with it its policies and scheduled actions."""
        with self._lock:
            if self._targets.pop(_key(params), None) is None:
                raise _no_target(params)
            self._policies = {key: policy for key, policy in self._policies.items() if _key(policy) != _key(params)}
            self._actions = {key: action for key, action in self._actions.items() if _key(action) != _key(params)}
            return {}

    def describe_targets(self, params: Params) -> Params:
        """DescribeScalableTargets."""
        wanted = params.get("ResourceIds")
        with self._lock:
            found = [
                t for t in self._targets.values() if _matches(params, t) and (not wanted or t["ResourceId"] in wanted)
            ]
        return _page(params, "ScalableTargets", found)

    def put_policy(self, params: Params) -> Params:
        """PutScalingPolicy: creates or replaces."""
        self._check_variant(params)
        with self._lock:
            if _key(params) not in self._targets:
                raise _no_target(params)
            key = (params["PolicyName"], *_key(params))
            policy_type = str(params.get("PolicyType", self._policies.get(key, {}).get("PolicyType", "StepScaling")))
            configuration = _CONFIGURATION[policy_type]
            if configuration not in params:
                raise invalid(f"a policy of type {policy_type} needs {configuration}")
            old = self._policies.get(key, {})
            policy = {"CreationTime": now(), "PolicyARN": _arn("scalingPolicy"), **old, **params}
            self._policies[key] = {**policy, "PolicyType": policy_type, "Alarms": []}
            return {"PolicyARN": policy["PolicyARN"], "Alarms": []}

    def describe_policies(self, params: Params) -> Params:
        """DescribeScalingPolicies."""
        names = params.get("PolicyNames")
        with self._lock:
            found = [
                policy
                for policy in self._policies.values()
                if _matches(params, policy)
                and params.get("ResourceId", policy["ResourceId"]) == policy["ResourceId"]
                and (not names or policy["PolicyName"] in names)
            ]
        return _page(params, "ScalingPolicies", found)

    def delete_policy(self, params: Params) -> Params:
        """DeleteScalingPolicy."""
        with self._lock:
            if self._policies.pop((params["PolicyName"], *_key(params)), None) is None:
                raise AwsError(
                    "ObjectNotFoundException",
                    f"No scaling policy found for service namespace: {params['ServiceNamespace']}, "
                    f"resource ID: {params['ResourceId']}, scalable dimension: {params['ScalableDimension']}, "
                    f"policy name: {params['PolicyName']}",
                )
            return {}

    def put_action(self, params: Params) -> Params:
        """PutScheduledAction: creates or replaces."""
        with self._lock:
            if _key(params) not in self._targets:
                raise _no_target(params)
            if "ScalableTargetAction" not in params:
                raise invalid("a scheduled action needs a ScalableTargetAction")
            key = (params["ScheduledActionName"], *_key(params))
            self._actions[key] = {"CreationTime": now(), "ScheduledActionARN": _arn("scheduledAction"), **params}
            return {}

    def describe_actions(self, params: Params) -> Params:
        """DescribeScheduledActions."""
        wanted = params.get("ResourceId")
        with self._lock:
            found = [a for a in self._actions.values() if _matches(params, a) and wanted in (None, a["ResourceId"])]
        return _page(params, "ScheduledActions", found)

    def delete_action(self, params: Params) -> Params:
        """DeleteScheduledAction."""
        with self._lock:
            if self._actions.pop((params["ScheduledActionName"], *_key(params)), None) is None:
                raise AwsError("ObjectNotFoundException", f"No scheduled action {params['ScheduledActionName']} found")
            return {}

    def _check_variant(self, params: Params) -> None:
        match = _variant(params)
        if params["ServiceNamespace"] != "sagemaker" or params["ScalableDimension"] != _DIMENSION or match is None:
            raise invalid(
                "the emulator knows SageMaker variants only: service namespace sagemaker, "
                f"scalable dimension {_DIMENSION}, resource ID endpoint/<name>/variant/<name>"
            )
        if match["variant"] not in self._endpoints.variants(match["endpoint"]):
            raise invalid(f"SageMaker variant doesn't exist: {params['ResourceId']}")


def _variant(params: Params) -> Any:
    """The resource's parts, `endpoint` and `variant`; None where it is no variant."""
    return _VARIANT.fullmatch(params["ResourceId"])


def _key(params: Params) -> Key:
    return tuple(params[name] for name in _IDENTITY)


def _arn(kind: str) -> str:
    return f"arn:aws:application-autoscaling:{REGION}:{ACCOUNT}:{kind}/{uuid.uuid4()}"


def _matches(params: Params, record: Params) -> bool:
    return all(params.get(name, record[name]) == record[name] for name in ("ServiceNamespace", "ScalableDimension"))


def _no_target(params: Params) -> AwsError:
    return AwsError(
        "ObjectNotFoundException",
        f"No scalable target found for service namespace: {params['ServiceNamespace']}, "
        f"resource ID: {params['ResourceId']}, scalable dimension: {params['ScalableDimension']}",
    )


def _page(params: Params, member: str, found: list[Params]) -> Params:
    start = int(params.get("NextToken", "0"))
    end = start + params.get("MaxResults", _DEFAULT_PAGE)
    return {member: found[start:end], **({"NextToken": str(end)} if end < len(found) else {})}
