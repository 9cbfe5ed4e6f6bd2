"""What CloudFormation and SageMaker say of an environment that is deployed; reads only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from botocore.exceptions import ClientError

from ops.errors import FailedError
from stacks.config import PREFIX, DecisionEndpoint, Endpoint, Environment

_GONE = "DELETE_COMPLETE"


@dataclass(frozen=True)
class Stack:
    """A stack that exists."""

    name: str
    status: str
    created: datetime
    # The last update's begin; None where there was none.
    updated: datetime | None
    protected: bool
    outputs: Mapping[str, str]
    reason: str = ""


@dataclass(frozen=True)
class Resource:
    """A resource of a stack."""

    logical_id: str
    kind: str
    physical_id: str
    status: str


def artifacts_name(environment: Environment) -> str:
    """The stack of what holds data, as stacks/stage.py names it."""
    return f"{PREFIX}-{environment.name}-artifacts"


def endpoints_name(environment: Environment) -> str:
    """The stack of builds and endpoints."""
    return f"{PREFIX}-{environment.name}-endpoints"


def find_stack(cloudformation: Any, name: str) -> Stack | None:
    """The stack; None where there is none. Raises botocore's errors."""
    try:
        found = cloudformation.describe_stacks(StackName=name)["Stacks"]
    except ClientError as error:
        # CloudFormation has no code of its own for it.
        if "does not exist" in str(error):
            return None
        raise
    if not found or found[0]["StackStatus"] == _GONE:
        return None
    stack = found[0]
    return Stack(
        name=stack["StackName"],
        status=stack["StackStatus"],
        created=stack["CreationTime"],
        updated=stack.get("LastUpdatedTime"),
        protected=stack.get("EnableTerminationProtection", False),
        outputs={output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])},
        reason=stack.get("StackStatusReason", ""),
    )


def require_endpoints_stack(cloudformation: Any, environment: Environment, region: str) -> Stack:
    """The stack of the endpoints. Raises FailedError, which says what to do, where there is none."""
    name = endpoints_name(environment)
    stack = find_stack(cloudformation, name)
    if stack is None:
        raise FailedError(not_deployed(environment, region))
    return stack


def not_deployed(environment: Environment, region: str) -> str:
    """The sentence for an environment without stack."""
    name = endpoints_name(environment)
    return (
        f"environment {environment.name!r} is not deployed in {region}: there is no stack {name}; "
        f"deploy it: make deploy ENV={environment.name}"
    )


def resources(cloudformation: Any, stack: str) -> tuple[Resource, ...]:
    """The stack's resources that exist. Raises botocore's errors."""
    return tuple(
        Resource(
            resource["LogicalResourceId"],
            resource["ResourceType"],
            resource.get("PhysicalResourceId", ""),
            resource["ResourceStatus"],
        )
        for resource in pages(cloudformation, "list_stack_resources", "StackResourceSummaries", StackName=stack)
        if resource["ResourceStatus"] != _GONE
    )


def intended_configurations(cloudformation: Any, stack: str) -> dict[str, str]:
    """The name of each endpoint's configuration in the stack, by the endpoint's name.

    The template says which resource it is, the stack what that is called: SageMaker alone would say what serves, which
    after a roll-back is something else. Raises botocore's errors.
    """
    template = cloudformation.get_template(StackName=stack)["TemplateBody"]
    physical = {resource.logical_id: resource.physical_id for resource in resources(cloudformation, stack)}
    found = {}
    for resource in template["Resources"].values():
        if resource["Type"] == "AWS::SageMaker::Endpoint":
            properties = resource["Properties"]
            logical_id = _referred(properties["EndpointConfigName"])
            if logical_id in physical:
                # The physical id is the configuration's ARN.
                found[properties["EndpointName"]] = physical[logical_id].rpartition("/")[2]
    return found


def _referred(value: Mapping[str, Any]) -> str:
    """The logical id in `{"Fn::GetAtt": [ID, ATTRIBUTE]}` or `{"Ref": ID}`."""
    reference = value.get("Fn::GetAtt", value.get("Ref"))
    return str(reference if isinstance(reference, str) else reference[0] if reference else "")


def image_digest_output(endpoint: Endpoint) -> str:
    """The output of the endpoints' stack that has the digest of the endpoint's image."""
    kind = "Gpu" if endpoint.on_gpu else "Cpu"
    return f"{kind}{'Adapter' if isinstance(endpoint, DecisionEndpoint) else 'Base'}ImageDigest"


def find_endpoint(sagemaker: Any, name: str) -> dict[str, Any] | None:
    """DescribeEndpoint's answer; None where there is no such endpoint. Raises botocore's errors."""
    return _found(lambda: sagemaker.describe_endpoint(EndpointName=name))


def find_configuration(sagemaker: Any, name: str) -> dict[str, Any] | None:
    """DescribeEndpointConfig's answer; None where it is gone, which stops no endpoint. Raises botocore's errors."""
    return _found(lambda: sagemaker.describe_endpoint_config(EndpointConfigName=name))


def find_model(sagemaker: Any, name: str) -> dict[str, Any] | None:
    """DescribeModel's answer; None where it is gone, which stops no endpoint. Raises botocore's errors."""
    return _found(lambda: sagemaker.describe_model(ModelName=name))


def _found(describe: Any) -> dict[str, Any] | None:
    try:
        answer: dict[str, Any] = describe()
    except ClientError as error:
        # SageMaker has no code of its own for it.
        if re.search(r"could not find|does not exist", str(error), re.IGNORECASE):
            return None
        raise
    return answer


def image_digests(variant: Mapping[str, Any]) -> tuple[str, ...]:
    """The digests of the images that a variant of DescribeEndpoint runs."""
    images = (image.get("ResolvedImage", "") for image in variant.get("DeployedImages", []))
    return tuple(image.rpartition("@")[2] for image in images if "@" in image)


@dataclass(frozen=True)
class Placement:
    """How many instances of a type a variant runs."""

    instance_type: str
    instances: int


def placements(variant: Mapping[str, Any], configured: Mapping[str, Any]) -> tuple[Placement, ...]:
    """The types of a variant of DescribeEndpoint, in the order of its pool, without those that it does not use.

    `configured` is the variant in DescribeEndpointConfig, which alone names the type where there is no pool; empty
    where that is unknown.
    """
    pools = variant.get("InstancePools", [])
    if not pools and "InstanceType" in configured:
        pools = [{**configured, "CurrentInstanceCount": variant.get("CurrentInstanceCount", 0)}]
    return tuple(
        Placement(pool["InstanceType"], pool["CurrentInstanceCount"])
        for pool in pools
        if pool.get("CurrentInstanceCount", 0) > 0
    )


def variant_of(described: Mapping[str, Any]) -> Mapping[str, Any]:
    """The one variant of an endpoint or configuration; empty while it has none."""
    variants: Sequence[Mapping[str, Any]] = described.get("ProductionVariants", [])
    return variants[0] if variants else {}


def pages(client: Any, operation: str, key: str, **parameters: Any) -> Iterator[Any]:
    """Every entry of a listing, all its pages. Raises botocore's errors."""
    if client.can_paginate(operation):
        for page in client.get_paginator(operation).paginate(**parameters):
            yield from page.get(key, [])
    else:
        yield from getattr(client, operation)(**parameters).get(key, [])
