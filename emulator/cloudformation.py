"""CloudFormation resource types for SageMaker and Application Auto Scaling, in the shape that MiniStack registers."""

from __future__ import annotations

import secrets
import string
from typing import TYPE_CHECKING, Any

from emulator.aws import AwsError, Params, from_cloudformation, input_shape, members, validate

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator.autoscaling import AutoScaling
    from emulator.sagemaker.service import SageMaker

Created = tuple[str, dict[str, str]]  # physical id (what Ref returns) and attributes (GetAtt)
_ALPHABET = string.ascii_letters + string.digits
_TAGS = "Tags"
_ACTIONS = "ScheduledActions"


class ResourceFailedError(Exception):
    """A resource could not be made, changed or deleted; the message becomes the stack event's reason."""


class ImmutableType:
    """A type of which every property but Tags is create-only: a change makes a new one and deletes the old."""

    def __init__(
        self,
        sagemaker: SageMaker,
        kind: str,
        *,
        create: Callable[[Params], Params],
        delete: Callable[[Params], Params],
    ) -> None:
        self._sagemaker = sagemaker
        self._create = create
        self._delete = delete
        self._operation = f"Create{kind}"
        self._name_key = f"{kind}Name"
        self._arn_key = f"{kind}Arn"

    @property
    def create_only(self) -> tuple[str, ...]:
        """Properties whose change replaces the resource."""
        return tuple(sorted(members("sagemaker", self._operation) - {_TAGS}))

    def create(self, logical_id: str, props: Params, _stack: str) -> Created:
        """Make it, under a generated name where the template gives none."""
        params = _params("sagemaker", self._operation, {self._name_key: _name(logical_id), **props})
        arn = self._create(params)[self._arn_key]
        return arn, {self._name_key: params[self._name_key], self._arn_key: arn}

    def update(self, physical_id: str, _old: Params, new: Params, _stack: str) -> Created:
        """Only tags can change in place."""
        _replace_tags(self._sagemaker, physical_id, new)
        name = physical_id.rpartition("/")[2]
        return physical_id, {self._name_key: new.get(self._name_key, name), self._arn_key: physical_id}

    def delete(self, physical_id: str, _props: Params) -> None:
        """Delete it; one that is gone already is fine."""
        _ignoring_missing(self._delete, {self._name_key: physical_id.rpartition("/")[2]})


class EndpointType:
    """AWS::SageMaker::Endpoint: waits for InService, updates in place."""

    create_only = ("EndpointName",)

    def __init__(self, sagemaker: SageMaker) -> None:
        self._sagemaker = sagemaker

    def create(self, logical_id: str, props: Params, _stack: str) -> Created:
        """Create and wait. A failed endpoint is deleted again, as a rolled-back stack leaves none."""
        _check_known(props, "CreateEndpoint", "UpdateEndpoint")
        creating = _only("CreateEndpoint", {"EndpointName": _name(logical_id), **props})
        endpoints = self._sagemaker.endpoints
        params = _params("sagemaker", "CreateEndpoint", creating)
        name = params["EndpointName"]
        arn = endpoints.create(params)["EndpointArn"]
        settled = endpoints.wait_settled(name)
        if settled["EndpointStatus"] != "InService":
            self._delete_and_wait(name)
            raise ResourceFailedError(settled["FailureReason"])
        return arn, {"EndpointName": name, "EndpointArn": arn}

    def update(self, physical_id: str, old: Params, new: Params, _stack: str) -> Created:
        """Update in place and wait. Raises with the reason when the endpoint has rolled back to what it was."""
        _check_known(new, "CreateEndpoint", "UpdateEndpoint")
        name = self._sagemaker.endpoints.describe({"EndpointName": physical_id.rpartition("/")[2]})["EndpointName"]
        _replace_tags(self._sagemaker, physical_id, new)
        changed = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
        if changed - {_TAGS}:
            updating = _only("UpdateEndpoint", {**new, "EndpointName": name})
            self._sagemaker.endpoints.update(_params("sagemaker", "UpdateEndpoint", updating))
            settled = self._sagemaker.endpoints.wait_settled(name)
            if reason := settled.get("FailureReason"):
                raise ResourceFailedError(reason)
        return physical_id, {"EndpointName": name, "EndpointArn": physical_id}

    def delete(self, physical_id: str, _props: Params) -> None:
        """Delete and wait until it is gone."""
        _ignoring_missing(self._delete_and_wait, physical_id.rpartition("/")[2])

    def _delete_and_wait(self, name: str) -> None:
        self._sagemaker.endpoints.wait_settled(name)
        self._sagemaker.endpoints.delete({"EndpointName": name})
        self._sagemaker.endpoints.wait_gone(name)


class ScalableTargetType:
    """AWS::ApplicationAutoScaling::ScalableTarget. Ref is `resource id|scalable dimension|namespace`."""

    create_only = ("ResourceId", "ScalableDimension", "ServiceNamespace")

    def __init__(self, scaling: AutoScaling) -> None:
        self._scaling = scaling

    def create(self, _logical_id: str, props: Params, _stack: str) -> Created:
        """Register the target and put its scheduled actions."""
        own = {name: value for name, value in props.items() if name != _ACTIONS}
        params = _params("application-autoscaling", "RegisterScalableTarget", own)
        target = {name: params[name] for name in self.create_only}
        actions = [
            _params("application-autoscaling", "PutScheduledAction", {**target, **action})
            for action in props.get(_ACTIONS, [])
        ]
        self._scaling.register(params)
        for action in actions:
            self._scaling.put_action(action)
        identity = "|".join(target.values())
        return identity, {"Id": identity}

    def update(self, _physical_id: str, old: Params, new: Params, stack: str) -> Created:
        """Registering again changes the target; scheduled actions that are no longer named go."""
        created = self.create("", new, stack)
        kept = {action["ScheduledActionName"] for action in new.get(_ACTIONS, [])}
        target = {name: new[name] for name in self.create_only}
        for action in old.get(_ACTIONS, []):
            if action["ScheduledActionName"] not in kept:
                _ignoring_missing(
                    self._scaling.delete_action, {**target, "ScheduledActionName": action["ScheduledActionName"]}
                )
        return created

    def delete(self, physical_id: str, _props: Params) -> None:
        """Deregister the target."""
        params = dict(zip(self.create_only, physical_id.split("|"), strict=True))
        _ignoring_missing(self._scaling.deregister, params)


class ScalingPolicyType:
    """AWS::ApplicationAutoScaling::ScalingPolicy. Ref is the policy's ARN."""

    create_only = ("PolicyName", "ResourceId", "ScalableDimension", "ServiceNamespace", "ScalingTargetId")

    def __init__(self, scaling: AutoScaling) -> None:
        self._scaling = scaling

    def create(self, _logical_id: str, props: Params, _stack: str) -> Created:
        """Put the policy."""
        arn = self._scaling.put_policy(_params("application-autoscaling", "PutScalingPolicy", _policy(props)))[
            "PolicyARN"
        ]
        return arn, {"Arn": arn}

    def update(self, _physical_id: str, _old: Params, new: Params, stack: str) -> Created:
        """Putting it again replaces its configuration."""
        return self.create("", new, stack)

    def delete(self, _physical_id: str, props: Params) -> None:
        """Delete the policy."""
        identity = ("PolicyName", *ScalableTargetType.create_only)
        policy = _policy(props)
        _ignoring_missing(self._scaling.delete_policy, {name: policy[name] for name in identity})


def resource_types(sagemaker: SageMaker, scaling: AutoScaling) -> dict[str, Any]:
    """The types by name."""
    catalog = sagemaker.catalog
    return {
        "AWS::SageMaker::Model": ImmutableType(
            sagemaker, "Model", create=catalog.create_model, delete=catalog.delete_model
        ),
        "AWS::SageMaker::EndpointConfig": ImmutableType(
            sagemaker, "EndpointConfig", create=catalog.create_config, delete=catalog.delete_config
        ),
        "AWS::SageMaker::Endpoint": EndpointType(sagemaker),
        "AWS::ApplicationAutoScaling::ScalableTarget": ScalableTargetType(scaling),
        "AWS::ApplicationAutoScaling::ScalingPolicy": ScalingPolicyType(scaling),
    }


def _name(logical_id: str) -> str:
    """A generated name as CloudFormation makes it: SageMaker's names have 63 characters at most."""
    return f"{logical_id[:50]}-{''.join(secrets.choice(_ALPHABET) for _ in range(12))}"


def _params(service: str, operation: str, props: Params) -> Params:
    """A template's properties as the operation's parameters; raises on unknown or wrong ones."""
    shape = input_shape(service, operation)
    params = from_cloudformation(props, shape)
    validate(params, shape)
    return dict(params)


def _only(operation: str, props: Params) -> Params:
    known = members("sagemaker", operation)
    return {name: value for name, value in props.items() if name in known}


def _check_known(props: Params, *operations: str) -> None:
    known = set().union(*(members("sagemaker", operation) for operation in operations))
    if unknown := sorted(props.keys() - known):
        raise ResourceFailedError(f"extraneous key [{', '.join(unknown)}] is not permitted")


def _policy(props: Params) -> Params:
    """Properties with ScalingTargetId, the target's Ref, written out."""
    props = dict(props)
    if target := props.pop("ScalingTargetId", None):
        props |= zip(ScalableTargetType.create_only, target.split("|"), strict=True)
    return props


def _replace_tags(sagemaker: SageMaker, arn: str, props: Params) -> None:
    old = sagemaker.list_tags({"ResourceArn": arn})[_TAGS]
    sagemaker.delete_tags({"ResourceArn": arn, "TagKeys": [tag["Key"] for tag in old]})
    sagemaker.add_tags({"ResourceArn": arn, "Tags": props.get(_TAGS, [])})


def _ignoring_missing(function: Callable[[Any], Any], argument: object) -> None:
    try:
        function(argument)
    except AwsError as error:
        if not str(error).startswith(("Could not find", "No scal")):
            raise
