"""Lists what an emulator still holds beside CDK's own bootstrap: after `cdk destroy` there must be nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import boto3

_REGION = "us-east-1"
# The bootstrap stack and the qualifier in the names of all that it makes.
_BOOTSTRAP_STACK = "CDKToolkit"
_BOOTSTRAP_QUALIFIER = "hnb659fds"
_GONE = "DELETE_COMPLETE"

# What to ask of which service: kind, service, operation, its parameters, and the name of each thing it lists.
_Named = Callable[[dict[str, Any]], str]
_KINDS: tuple[tuple[str, str, str, dict[str, Any], str, _Named], ...] = (
    ("stack", "cloudformation", "describe_stacks", {}, "Stacks", lambda s: s["StackName"]),
    ("bucket", "s3", "list_buckets", {}, "Buckets", lambda b: b["Name"]),
    ("repository", "ecr", "describe_repositories", {}, "repositories", lambda r: r["repositoryName"]),
    ("log group", "logs", "describe_log_groups", {}, "logGroups", lambda g: g["logGroupName"]),
    ("role", "iam", "list_roles", {}, "Roles", lambda r: r["RoleName"]),
    ("policy", "iam", "list_policies", {"Scope": "Local"}, "Policies", lambda p: p["PolicyName"]),
    ("alarm", "cloudwatch", "describe_alarms", {}, "MetricAlarms", lambda a: a["AlarmName"]),
    ("dashboard", "cloudwatch", "list_dashboards", {}, "DashboardEntries", lambda d: d["DashboardName"]),
    ("topic", "sns", "list_topics", {}, "Topics", lambda t: t["TopicArn"]),
    ("function", "lambda", "list_functions", {}, "Functions", lambda f: f["FunctionName"]),
    ("state machine", "stepfunctions", "list_state_machines", {}, "stateMachines", lambda m: m["name"]),
    ("build project", "codebuild", "list_projects", {}, "projects", str),
    ("model", "sagemaker", "list_models", {}, "Models", lambda m: m["ModelName"]),
    (
        "endpoint configuration",
        "sagemaker",
        "list_endpoint_configs",
        {},
        "EndpointConfigs",
        lambda c: c["EndpointConfigName"],
    ),
    ("endpoint", "sagemaker", "list_endpoints", {}, "Endpoints", lambda e: e["EndpointName"]),
    (
        "scaling target",
        "application-autoscaling",
        "describe_scalable_targets",
        {"ServiceNamespace": "sagemaker"},
        "ScalableTargets",
        lambda t: t["ResourceId"],
    ),
    (
        "scaling policy",
        "application-autoscaling",
        "describe_scaling_policies",
        {"ServiceNamespace": "sagemaker"},
        "ScalingPolicies",
        lambda p: f"{p['ResourceId']} {p['PolicyName']}",
    ),
)


def leftovers(endpoint_url: str, certificate: Path | None = None) -> list[str]:
    """What the emulator at this address holds that is not CDK's bootstrap, as `kind name`, images included.

    `certificate` is what to trust at an https address. Raises botocore's errors where the emulator does not answer.
    """
    trusted = str(certificate) if certificate else None
    session = boto3.Session(aws_access_key_id="test", aws_secret_access_key="test", region_name=_REGION)  # noqa: S106

    def client(service: str) -> Any:
        return session.client(service, endpoint_url=endpoint_url, verify=trusted)  # type: ignore[call-overload]

    found = []
    for kind, service, operation, parameters, key, name_of in _KINDS:
        for thing in _listed(client(service), operation, parameters, key):
            name = name_of(thing)
            is_gone = isinstance(thing, dict) and thing.get("StackStatus") == _GONE
            if name == _BOOTSTRAP_STACK or _BOOTSTRAP_QUALIFIER in name or is_gone:
                continue
            found.append(f"{kind} {name}")
            if kind == "repository":
                images = _listed(client("ecr"), "list_images", {"repositoryName": name}, "imageIds")
                found.extend(f"image {name}@{image['imageDigest']}" for image in images)
    return found


def _listed(client: Any, operation: str, parameters: dict[str, Any], key: str) -> Iterable[Any]:
    """Every entry of a listing, all its pages."""
    if client.can_paginate(operation):
        for page in client.get_paginator(operation).paginate(**parameters):
            yield from page.get(key, [])
    else:
        yield from getattr(client, operation)(**parameters).get(key, [])


def main() -> int:
    """Print what is left; 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=4566, help="the emulator's port")
    left = leftovers(f"http://127.0.0.1:{parser.parse_args().port}")
    for line in left:
        print(line)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
