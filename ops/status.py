"""`decide status ENV`: what runs of an environment, on which types, since when, and what its builds and alarms say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

import typer
from botocore.exceptions import BotoCoreError, ClientError

from ops.aws import Aws, connect
from ops.deployed import (
    Placement,
    Stack,
    artifacts_name,
    builds,
    endpoints_name,
    find_configuration,
    find_endpoint,
    find_model,
    find_stack,
    image_digests,
    manifest_address,
    not_deployed,
    pages,
    placed,
    placements,
    resources,
    variant_of,
)
from ops.errors import FAILED
from ops.options import EndpointUrl, EnvironmentName, Json, environment
from ops.output import note, say, show_json, show_table
from stacks.config import Endpoint, Environment

# DescribeAlarms takes so many names.
_ALARMS_PER_CALL = 100


@dataclass(frozen=True)
class EndpointStatus:
    """One endpoint; None is unknown, or not so."""

    name: str
    # SageMaker's, or "not deployed".
    status: str
    reason: str | None = None
    created: datetime | None = None
    modified: datetime | None = None
    configuration: str | None = None
    # Of the types that serve now, the pool's first choice first.
    placement: tuple[Placement, ...] = ()
    # All that may serve, as stacks/config.py has them.
    types: tuple[str, ...] = ()
    instances: int = 0
    desired_instances: int = 0
    # The bounds of scaling; None where it does not scale.
    scaling: tuple[int, int] | None = None
    images: tuple[str, ...] = ()
    model: str | None = None
    model_uri: str | None = None


@dataclass(frozen=True)
class BuildStatus:
    """The last build of a project; `status` is None where it has had none."""

    name: str
    status: str | None
    started: datetime | None = None
    ended: datetime | None = None


@dataclass(frozen=True)
class Alarm:
    """An alarm that rings."""

    name: str
    since: datetime
    description: str


@dataclass(frozen=True)
class Status:
    """All of an environment."""

    environment: str
    region: str
    # By name; None is a stack that does not exist.
    stacks: Mapping[str, Stack | None]
    endpoints: tuple[EndpointStatus, ...] = ()
    builds: tuple[BuildStatus, ...] = ()
    alarms: int = 0
    ringing: tuple[Alarm, ...] = ()


def status(env: EnvironmentName, *, endpoint_url: EndpointUrl = None, as_json: Json = False) -> None:
    """What runs of an environment: stacks, endpoints with their types, image and model, builds, alarms that ring.

    Reads only. Exit status 1 where the environment is not deployed; what is wrong with one that is, `decide verify`
    says.

    Example: decide status prod
    """
    of = environment(env)
    found = look(of, connect(of, endpoint_url))
    if as_json:
        show_json(_json(found))
    else:
        _show(of, found)
    if found.stacks[endpoints_name(of)] is None:
        raise typer.Exit(FAILED)


def look(of: Environment, aws: Aws) -> Status:
    """What there is of the environment. Raises botocore's errors."""
    cloudformation = aws.client("cloudformation")
    stacks = {name: find_stack(cloudformation, name) for name in (artifacts_name(of), endpoints_name(of))}
    if stacks[endpoints_name(of)] is None:
        return Status(of.name, aws.region, stacks)
    alarms, ringing = _alarms(cloudformation, aws.client("cloudwatch"), endpoints_name(of))
    return Status(
        of.name,
        aws.region,
        stacks,
        tuple(_endpoint(of, one, aws) for one in of.endpoints),
        _builds(cloudformation, aws.client("codebuild"), endpoints_name(of)),
        alarms,
        ringing,
    )


def _endpoint(of: Environment, endpoint: Endpoint, aws: Aws) -> EndpointStatus:
    name = of.endpoint_name(endpoint)
    sagemaker = aws.client("sagemaker")
    described = find_endpoint(sagemaker, name)
    if described is None:
        return EndpointStatus(name, "not deployed", types=endpoint.instance_types)
    variant = variant_of(described)
    configured = variant_of(find_configuration(sagemaker, described["EndpointConfigName"]) or {})
    model = find_model(sagemaker, configured["ModelName"]) if "ModelName" in configured else None
    served, uri = _model(model or {}, aws)
    return EndpointStatus(
        name=name,
        status=described["EndpointStatus"],
        reason=described.get("FailureReason"),
        created=described["CreationTime"],
        modified=described["LastModifiedTime"],
        configuration=described["EndpointConfigName"],
        placement=placements(variant, configured),
        types=endpoint.instance_types,
        instances=variant.get("CurrentInstanceCount", 0),
        desired_instances=variant.get("DesiredInstanceCount", 0),
        scaling=_scaling(aws.client("application-autoscaling"), name, variant.get("VariantName")),
        images=image_digests(variant),
        model=served,
        model_uri=uri,
    )


def _model(model: Mapping[str, Any], aws: Aws) -> tuple[str | None, str | None]:
    """The name of the model, by its manifest, and where it lies."""
    repository = model.get("PrimaryContainer", {}).get("Environment", {}).get("SM_LLAMA_CPP_HF_REPO")
    if repository is not None:
        return str(repository), None
    address = manifest_address(model)
    if address is None:
        return None, None
    uri = f"s3://{address.bucket}/{address.key.rpartition('/')[0]}/"
    try:
        manifest = json.loads(aws.client("s3").get_object(Bucket=address.bucket, Key=address.key)["Body"].read())
        return str(manifest["name"]), uri
    except (BotoCoreError, ClientError, ValueError, KeyError, TypeError):
        # The address alone names its content too; a name is a kindness, not worth a failure.
        return None, uri


def _scaling(autoscaling: Any, name: str, variant: str | None) -> tuple[int, int] | None:
    resource = f"endpoint/{name}/variant/{variant}"
    answer = autoscaling.describe_scalable_targets(ServiceNamespace="sagemaker", ResourceIds=[resource])
    return next(((target["MinCapacity"], target["MaxCapacity"]) for target in answer["ScalableTargets"]), None)


def _builds(cloudformation: Any, codebuild: Any, stack: str) -> tuple[BuildStatus, ...]:
    found = []
    for build in builds(cloudformation, codebuild, stack):
        ids = codebuild.list_builds_for_project(projectName=build.project, sortOrder="DESCENDING")["ids"]
        if not ids:
            found.append(BuildStatus(build.name, None))
            continue
        last = codebuild.batch_get_builds(ids=ids[:1])["builds"][0]
        found.append(BuildStatus(build.name, last["buildStatus"], last.get("startTime"), last.get("endTime")))
    return tuple(found)


def _alarms(cloudformation: Any, cloudwatch: Any, stack: str) -> tuple[int, tuple[Alarm, ...]]:
    """How many alarms the stack has, and those that ring."""
    names = [r.physical_id for r in resources(cloudformation, stack) if r.kind == "AWS::CloudWatch::Alarm"]
    ringing = []
    for start in range(0, len(names), _ALARMS_PER_CALL):
        some = names[start : start + _ALARMS_PER_CALL]
        for alarm in pages(cloudwatch, "describe_alarms", "MetricAlarms", AlarmNames=some, StateValue="ALARM"):
            described = alarm.get("AlarmDescription", "")
            ringing.append(Alarm(alarm["AlarmName"], alarm["StateUpdatedTimestamp"], described))
    return len(names), tuple(ringing)


def _show(of: Environment, found: Status) -> None:
    stacks = [
        (name, stack.status if stack else "not deployed", _time(stack.changed if stack else None))
        for name, stack in found.stacks.items()
    ]
    if found.stacks[endpoints_name(of)] is None:
        if any(found.stacks.values()):
            show_table(("stack", "state", "last update (UTC)"), stacks)
        note(_sentence(not_deployed(of, found.region)))
        return
    say(f"Environment {of.name!r} in {found.region}")
    say()
    show_table(("stack", "state", "last update (UTC)"), stacks)
    say()
    show_table(
        ("endpoint", "status", "created (UTC)", "changed (UTC)", "instances", "serves on", "may scale"),
        [_endpoint_row(endpoint) for endpoint in found.endpoints],
    )
    say()
    show_table(
        ("endpoint", "image", "model", "model's place"),
        [(e.name, ", ".join(e.images) or "-", e.model or "-", e.model_uri or "-") for e in found.endpoints],
    )
    say()
    show_table(
        ("last build", "status", "began (UTC)", "seconds"),
        [(b.name, b.status or "none yet", _time(b.started), _seconds(b)) for b in found.builds],
        right=("seconds",),
    )
    say()
    for endpoint in found.endpoints:
        if endpoint.reason:
            say(f"{endpoint.name}: {endpoint.reason}")
    for alarm in found.ringing:
        say(f"In ALARM since {_time(alarm.since)}: {alarm.name}: {alarm.description}")
    if not found.ringing:
        say(f"None of its {found.alarms} alarms rings." if found.alarms else "It has no alarms.")


def _endpoint_row(endpoint: EndpointStatus) -> Sequence[str]:
    count = str(endpoint.instances)
    if endpoint.instances != endpoint.desired_instances:
        count += f" of {endpoint.desired_instances}"
    scaling = "no" if endpoint.scaling is None else f"{endpoint.scaling[0]} to {endpoint.scaling[1]}"
    return (
        endpoint.name,
        endpoint.status,
        _time(endpoint.created),
        _time(endpoint.modified),
        count,
        placed(endpoint.placement, endpoint.types) or "-",
        scaling,
    )


def _time(when: datetime | None) -> str:
    return "-" if when is None else f"{when.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}"


def _seconds(build: BuildStatus) -> str:
    if build.started is None or build.ended is None:
        return "-"
    return f"{(build.ended - build.started).total_seconds():.0f}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _json(found: Status) -> Any:
    """The status as JSON's types, times in UTC by ISO 8601."""

    def plain(value: Any) -> Any:
        if isinstance(value, datetime):
            return value.astimezone(timezone.utc).isoformat()
        if isinstance(value, Mapping):
            return {key: plain(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(one) for one in value]
        return value

    stacks = {name: None if stack is None else _stack(stack) for name, stack in found.stacks.items()}
    shown = {field: [asdict(one) for one in getattr(found, field)] for field in ("endpoints", "builds", "ringing")}
    return plain(
        {
            "environment": found.environment,
            "region": found.region,
            "deployed": bool(found.endpoints),
            "stacks": stacks,
            **shown,
            "alarms": found.alarms,
        }
    )


def _stack(stack: Stack) -> Mapping[str, Any]:
    return {**asdict(stack), "outputs": dict(stack.outputs)}
