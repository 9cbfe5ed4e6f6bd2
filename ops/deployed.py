"""What CloudFormation and SageMaker say of an environment that is deployed; reads only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from botocore.exceptions import ClientError

from ops.errors import FailedError
from stacks.config import PREFIX, DecisionEndpoint, Endpoint, Environment

_GONE = "DELETE_COMPLETE"
# As stacks/model_build/package_model.py calls it.
_MANIFEST = "model-manifest.json"
# What CDK makes of a build's construct `Project`: its name, and eight digits of a hash.
_BUILD_LOGICAL_ID = re.compile(r"Project[0-9A-F]{8}$")


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

    @property
    def changed(self) -> datetime:
        """When its last deploy began."""
        return self.updated or self.created


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
    stack = find_stack(cloudformation, endpoints_name(environment))
    if stack is None:
        raise FailedError(not_deployed(environment, region))
    return stack


def not_deployed(environment: Environment, region: str) -> str:
    """The sentence for an environment without stack."""
    return (
        f"environment {environment.name!r} is not deployed in {region}: there is no stack "
        f"{endpoints_name(environment)}; deploy it: make deploy ENV={environment.name}"
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


@dataclass(frozen=True)
class Build:
    """A CodeBuild project of the stack: its short name, as in `ModelBuild`, its own, and where its builds log."""

    name: str
    project: str
    log_group: str


def builds(cloudformation: Any, codebuild: Any, stack: str) -> tuple[Build, ...]:
    """The stack's builds, in the order of their names. Raises botocore's errors."""
    names = {
        resource.physical_id: _BUILD_LOGICAL_ID.sub("", resource.logical_id)
        for resource in resources(cloudformation, stack)
        if resource.kind == "AWS::CodeBuild::Project" and resource.physical_id
    }
    if not names:
        return ()
    found = []
    for project in codebuild.batch_get_projects(names=list(names))["projects"]:
        configured = project.get("logsConfig", {}).get("cloudWatchLogs", {}).get("groupName")
        # CodeBuild's own name, where the project names none.
        group = configured or f"/aws/codebuild/{project['name']}"
        found.append(Build(names[project["name"]], project["name"], group))
    return tuple(sorted(found, key=lambda build: build.name))


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
class S3Object:
    """An object of a bucket."""

    bucket: str
    key: str


def manifest_address(model: Mapping[str, Any]) -> S3Object | None:
    """Where the manifest of a model of DescribeModel lies: beside the files; None where SageMaker tells no place."""
    source = model.get("PrimaryContainer", {}).get("ModelDataSource", {}).get("S3DataSource", {})
    if "S3Uri" not in source:
        return None
    address = urlsplit(source["S3Uri"])
    folder = address.path.removesuffix("model.tar.gz").strip("/")
    return S3Object(address.netloc, f"{folder}/{_MANIFEST}")


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


def placed(placements: Sequence[Placement], types: Sequence[str]) -> str:
    """The placements for people; of a pool, `types`, with the place of each in its order."""

    def choice(one: Placement) -> str:
        known = len(types) > 1 and one.instance_type in types
        return f" (choice {types.index(one.instance_type) + 1} of {len(types)})" if known else ""

    return ", ".join(f"{one.instances} x {one.instance_type}{choice(one)}" for one in placements)


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
