"""The kinds of things that the stacks make: how each is listed, what is lost with one, and how it is deleted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from ops.aws import Aws
from ops.deployed import pages
from ops.sweep.ownership import belongs, is_of_another_region, is_of_endpoint
from stacks.config import PREFIX, Environment

# CloudFormation names SageMaker's models and configurations after the logical id, without the stack's name.
_SAGEMAKER_NAME = re.compile(r"[A-Za-z0-9]*Endpoint(?:Model|Config)[0-9A-F]{8}-\w+")
_KEY_DAYS = 7  # the shortest that KMS takes, as in stacks/artifacts.py
_ENDPOINT_WAIT = {"Delay": 5, "MaxAttempts": 180}
_GIB = 2**30


@dataclass(frozen=True)
class Thing:
    """Something in the account that is an environment's."""

    kind: str
    # What its service calls it, and takes to delete it.
    name: str
    # What goes with it for ever; empty where it holds nothing.
    lost: str = ""
    # Why it is there on purpose; empty for what is left behind.
    kept: str = ""


@dataclass(frozen=True)
class Kind:
    """A kind of thing. Its functions take a client of the service, and raise botocore's errors."""

    name: str
    service: str
    find: Callable[[Any, Environment, str], Iterator[Thing]]
    delete: Callable[[Any, str], None]
    # Whether it holds data, which an environment that is not removable keeps.
    holds_data: bool = False

    def things(self, environment: Environment, aws: Aws) -> Iterator[Thing]:
        """The environment's things of this kind."""
        return self.find(aws.client(self.service), environment, aws.region)


def _tags(entries: Sequence[Mapping[str, str]], key: str = "Key", value: str = "Value") -> dict[str, str]:
    return {entry[key]: entry[value] for entry in entries}


def _scaling_targets(client: Any, environment: Environment, _region: str) -> Iterator[Thing]:
    for target in pages(client, "describe_scalable_targets", "ScalableTargets", ServiceNamespace="sagemaker"):
        if is_of_endpoint(environment, target["ResourceId"]):
            yield Thing("scaling target", target["ResourceId"])


def _deregister(client: Any, name: str) -> None:
    client.deregister_scalable_target(
        ServiceNamespace="sagemaker", ResourceId=name, ScalableDimension="sagemaker:variant:DesiredInstanceCount"
    )


def _endpoints(client: Any, environment: Environment, _region: str) -> Iterator[Thing]:
    contains = f"{PREFIX}-{environment.name}-"
    for endpoint in pages(client, "list_endpoints", "Endpoints", NameContains=contains):
        if is_of_endpoint(environment, endpoint["EndpointName"]):
            yield Thing("endpoint", endpoint["EndpointName"], "its instances, which bill")


def _delete_endpoint(client: Any, name: str) -> None:
    client.delete_endpoint(EndpointName=name)
    # What lives on for a minute writes to its log group, and would make it anew.
    client.get_waiter("endpoint_deleted").wait(EndpointName=name, WaiterConfig=_ENDPOINT_WAIT)


def _configurations(client: Any, environment: Environment, _region: str) -> Iterator[Thing]:
    for one in pages(client, "list_endpoint_configs", "EndpointConfigs", NameContains="EndpointConfig"):
        if _is_tagged(client, environment, one["EndpointConfigName"], one["EndpointConfigArn"]):
            yield Thing("endpoint configuration", one["EndpointConfigName"])


def _models(client: Any, environment: Environment, _region: str) -> Iterator[Thing]:
    for model in pages(client, "list_models", "Models", NameContains="EndpointModel"):
        if _is_tagged(client, environment, model["ModelName"], model["ModelArn"]):
            yield Thing("model", model["ModelName"])


def _is_tagged(client: Any, environment: Environment, name: str, arn: str) -> bool:
    if not _SAGEMAKER_NAME.fullmatch(name):
        return False
    return belongs(environment, name, _tags(client.list_tags(ResourceArn=arn)["Tags"]))


def _alarms(client: Any, environment: Environment, _region: str) -> Iterator[Thing]:
    for prefix in (f"{PREFIX}-", f"TargetTracking-endpoint/{PREFIX}-"):
        for alarm in pages(client, "describe_alarms", "MetricAlarms", AlarmNamePrefix=prefix):
            name = alarm["AlarmName"]
            if belongs(environment, name, {}) or (name.startswith("T") and is_of_endpoint(environment, name)):
                yield Thing("alarm", name)


def _dashboards(client: Any, environment: Environment, region: str) -> Iterator[Thing]:
    name = f"{PREFIX}-{environment.name}"
    for dashboard in pages(client, "list_dashboards", "DashboardEntries", DashboardNamePrefix=name):
        if dashboard["DashboardName"] == name:
            body = client.get_dashboard(DashboardName=name)["DashboardBody"]
            if not is_of_another_region(body, region):
                yield Thing("dashboard", name)


def _state_machines(client: Any, environment: Environment, _region: str) -> Iterator[Thing]:
    for machine in pages(client, "list_state_machines", "stateMachines"):
        if machine["name"].startswith(PREFIX):
            arn = machine["stateMachineArn"]
            tags = _tags(client.list_tags_for_resource(resourceArn=arn)["tags"], "key", "value")
            if belongs(environment, machine["name"], tags):
                yield Thing("state machine", arn, "its history")


def _functions(client: Any, environment: Environment, _region: str) -> Iterator[Thing]:
    for function in pages(client, "list_functions", "Functions"):
        name = function["FunctionName"]
        if name.startswith(PREFIX) and belongs(
            environment, name, client.list_tags(Resource=function["FunctionArn"]).get("Tags", {})
        ):
            yield Thing("function", name)


def _projects(client: Any, environment: Environment, _region: str) -> Iterator[Thing]:
    names = [name for name in pages(client, "list_projects", "projects") if name.startswith(PREFIX)]
    for start in range(0, len(names), 100):  # what BatchGetProjects takes
        for project in client.batch_get_projects(names=names[start : start + 100])["projects"]:
            if belongs(environment, project["name"], _tags(project.get("tags", []), "key", "value")):
                yield Thing("build project", project["name"], "the records of its builds")


def _topics(client: Any, environment: Environment, _region: str) -> Iterator[Thing]:
    for topic in pages(client, "list_topics", "Topics"):
        arn = topic["TopicArn"]
        name = arn.rpartition(":")[2]
        if name.startswith(PREFIX) and belongs(
            environment, name, _tags(client.list_tags_for_resource(ResourceArn=arn)["Tags"])
        ):
            yield Thing("topic", arn, "its subscriptions")


def _roles(client: Any, environment: Environment, region: str) -> Iterator[Thing]:
    for role in pages(client, "list_roles", "Roles"):
        name = role["RoleName"]
        if not name.startswith(PREFIX) or not belongs(
            environment, name, _tags(client.list_role_tags(RoleName=name)["Tags"])
        ):
            continue
        policies = [
            client.get_role_policy(RoleName=name, PolicyName=policy)["PolicyDocument"]
            for policy in pages(client, "list_role_policies", "PolicyNames", RoleName=name)
        ]
        if not is_of_another_region(json.dumps(policies), region):
            yield Thing("role", name)


def _delete_role(client: Any, name: str) -> None:
    for policy in pages(client, "list_attached_role_policies", "AttachedPolicies", RoleName=name):
        client.detach_role_policy(RoleName=name, PolicyArn=policy["PolicyArn"])
    for policy in pages(client, "list_role_policies", "PolicyNames", RoleName=name):
        client.delete_role_policy(RoleName=name, PolicyName=policy)
    client.delete_role(RoleName=name)


def _policies(client: Any, environment: Environment, region: str) -> Iterator[Thing]:
    for policy in pages(client, "list_policies", "Policies", Scope="Local"):
        name, arn = policy["PolicyName"], policy["Arn"]
        if not name.startswith(PREFIX) or not belongs(
            environment, name, _tags(client.list_policy_tags(PolicyArn=arn)["Tags"])
        ):
            continue
        version = client.get_policy_version(PolicyArn=arn, VersionId=policy["DefaultVersionId"])["PolicyVersion"]
        if not is_of_another_region(json.dumps(version["Document"]), region):
            yield Thing("policy", arn)


def _delete_policy(client: Any, name: str) -> None:
    for version in pages(client, "list_policy_versions", "Versions", PolicyArn=name):
        if not version["IsDefaultVersion"]:
            client.delete_policy_version(PolicyArn=name, VersionId=version["VersionId"])
    # IAM refuses while somebody still has it: who calls the endpoint is not this command's to decide.
    client.delete_policy(PolicyArn=name)


def _log_groups(client: Any, environment: Environment, _region: str) -> Iterator[Thing]:
    of = f"{PREFIX}-{environment.name}-"
    places = ("", "/aws/sagemaker/Endpoints/", "/aws/codebuild/", "/aws/lambda/", "/aws/cloudformation/")
    for place in places:
        for group in pages(client, "describe_log_groups", "logGroups", logGroupNamePrefix=f"{place}{of}"):
            name = group["logGroupName"]
            if belongs(environment, name, {}) or (name.startswith("/") and is_of_endpoint(environment, name)):
                lost = f"{group.get('storedBytes', 0) / 2**20:.1f} MiB of lines"
                yield Thing("log group", name, lost)


def _keys(client: Any, environment: Environment, _region: str) -> Iterator[Thing]:
    for entry in pages(client, "list_keys", "Keys"):
        key = client.describe_key(KeyId=entry["KeyId"])["KeyMetadata"]
        if key.get("KeyManager") != "CUSTOMER":
            continue
        tags = _tags(client.list_resource_tags(KeyId=entry["KeyId"])["Tags"], "TagKey", "TagValue")
        # A key has no name: without tags it is nobody's.
        if belongs(environment, "", tags):
            kept = ""
            if "DeletionDate" in key:
                kept = f"scheduled for deletion on {key['DeletionDate']:%Y-%m-%d}"
            yield Thing("key", key["Arn"], f"all that is encrypted with it, {_KEY_DAYS} days later", kept)


def _repositories(client: Any, environment: Environment, _region: str) -> Iterator[Thing]:
    for repository in pages(client, "describe_repositories", "repositories"):
        name = repository["repositoryName"]
        if name.startswith(PREFIX) and belongs(
            environment, name, _tags(client.list_tags_for_resource(resourceArn=repository["repositoryArn"])["tags"])
        ):
            images = {image["imageDigest"] for image in pages(client, "list_images", "imageIds", repositoryName=name)}
            yield Thing("repository", name, _count(len(images), "image"))


def _buckets(client: Any, environment: Environment, region: str) -> Iterator[Thing]:
    for bucket in pages(client, "list_buckets", "Buckets"):
        name = bucket["Name"]
        if not name.startswith(PREFIX) or not belongs(environment, name, _bucket_tags(client, name)):
            continue
        # The listing is the account's, not the region's; us-east-1 has no constraint, the oldest of Europe an old one.
        location = client.get_bucket_location(Bucket=name).get("LocationConstraint") or "us-east-1"
        if {"EU": "eu-west-1"}.get(location, location) == region:
            sizes = [version.get("Size", 0) for version in _versions(client, name)]
            yield Thing("bucket", name, f"{_count(len(sizes), 'object version')}, {sum(sizes) / _GIB:.2f} GiB")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _bucket_tags(client: Any, name: str) -> dict[str, str]:
    try:
        return _tags(client.get_bucket_tagging(Bucket=name)["TagSet"])
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") == "NoSuchTagSet":
            return {}
        raise


def _versions(client: Any, bucket: str) -> Iterator[Mapping[str, Any]]:
    for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket):
        yield from page.get("Versions", [])
        yield from page.get("DeleteMarkers", [])


def _delete_bucket(client: Any, name: str) -> None:
    versions = [{"Key": v["Key"], "VersionId": v["VersionId"]} for v in _versions(client, name)]
    for start in range(0, len(versions), 1000):  # what DeleteObjects takes
        answer = client.delete_objects(Bucket=name, Delete={"Objects": versions[start : start + 1000], "Quiet": True})
        for error in answer.get("Errors", []):
            response = {"Error": {"Code": error.get("Code", ""), "Message": f"{error['Key']}: {error.get('Message')}"}}
            raise ClientError(response, "DeleteObjects")  # type: ignore[arg-type] # the stub wants all of a response
    client.delete_bucket(Bucket=name)


# In the order of deletion: what uses before what is used, and what holds data last.
KINDS = (
    Kind("scaling target", "application-autoscaling", _scaling_targets, _deregister),
    Kind("endpoint", "sagemaker", _endpoints, _delete_endpoint),
    Kind(
        "endpoint configuration",
        "sagemaker",
        _configurations,
        lambda c, name: c.delete_endpoint_config(EndpointConfigName=name),
    ),
    Kind("model", "sagemaker", _models, lambda c, name: c.delete_model(ModelName=name)),
    Kind("alarm", "cloudwatch", _alarms, lambda c, name: c.delete_alarms(AlarmNames=[name])),
    Kind("dashboard", "cloudwatch", _dashboards, lambda c, name: c.delete_dashboards(DashboardNames=[name])),
    Kind("topic", "sns", _topics, lambda c, name: c.delete_topic(TopicArn=name)),
    Kind(
        "state machine", "stepfunctions", _state_machines, lambda c, name: c.delete_state_machine(stateMachineArn=name)
    ),
    Kind("function", "lambda", _functions, lambda c, name: c.delete_function(FunctionName=name)),
    Kind("build project", "codebuild", _projects, lambda c, name: c.delete_project(name=name)),
    Kind("role", "iam", _roles, _delete_role),
    Kind("policy", "iam", _policies, _delete_policy),
    Kind("log group", "logs", _log_groups, lambda c, name: c.delete_log_group(logGroupName=name)),
    Kind(
        "repository",
        "ecr",
        _repositories,
        lambda c, name: c.delete_repository(repositoryName=name, force=True),
        holds_data=True,
    ),
    Kind("bucket", "s3", _buckets, _delete_bucket, holds_data=True),
    # Last: without it, nothing of the others could be read to empty them.
    Kind(
        "key",
        "kms",
        _keys,
        lambda c, name: c.schedule_key_deletion(KeyId=name, PendingWindowInDays=_KEY_DAYS),
        holds_data=True,
    ),
)
