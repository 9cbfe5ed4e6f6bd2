"""`decide verify ENV`: whether what serves after a deploy is what was deployed, and whether it works."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import typer
from botocore.exceptions import BotoCoreError, ClientError

from ops.aws import Aws, connect
from ops.client import DecisionClient
from ops.deployed import (
    Placement,
    Stack,
    find_configuration,
    find_endpoint,
    find_model,
    image_digest_output,
    image_digests,
    intended_configurations,
    manifest_address,
    placed,
    placements,
    require_endpoints_stack,
    variant_of,
)
from ops.doctor.row import Row, Verdict, unanswered
from ops.errors import FAILED, OpsError
from ops.options import EndpointName, EndpointUrl, EnvironmentName, Json, endpoints, environment
from ops.output import say, show_json, show_table
from stacks.config import DecisionEndpoint, Endpoint, Environment, TextEndpoint
from stacks.verification.verify import CHAT, DECISION, WrongAnswerError, check_chat, check_decision

_DEPLOYED = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", "IMPORT_COMPLETE")
# An instance with a model in its GPU's memory uses more of it than this; stacks/alarms.py reads the same metric.
_IDLE_GPU_MEMORY_PERCENT = 1
_GPU_MINUTES = 15

Ask = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Verified:
    """The rows of one endpoint."""

    endpoint: str
    rows: tuple[Row, ...]


def verify(
    env: EnvironmentName, *, endpoint: EndpointName = None, endpoint_url: EndpointUrl = None, as_json: Json = False
) -> None:
    """Whether what serves after a deploy is what was deployed, and works: each endpoint is asked for a real answer.

    For each endpoint: the last deploy of its stack succeeded; it is in service; it serves the configuration and the
    image of that deploy, not one before that SageMaker went back to in silence; on which instance types; it answers,
    and rightly; with the pinned model; on the GPU where one was asked for. Exit status 1 where a check failed.

    Example: decide verify staging --endpoint decision-gpu
    """
    of = environment(env)
    chosen = endpoints(of, endpoint)
    aws = connect(of, endpoint_url)
    found = examine(of, chosen, aws)
    failed = any(row.verdict == "failed" for one in found for row in one.rows)
    if as_json:
        show_json({"environment": of.name, "verified": not failed, "endpoints": [asdict(one) for one in found]})
    else:
        _show(of, found)
    if failed:
        raise typer.Exit(FAILED)


def examine(of: Environment, chosen: Sequence[Endpoint], aws: Aws) -> list[Verified]:
    """All rows of these endpoints. Raises FailedError where the environment is not deployed, and botocore's errors."""
    cloudformation = aws.client("cloudformation")
    stack = require_endpoints_stack(cloudformation, of, aws.region)
    intended = intended_configurations(cloudformation, stack.name)
    return [
        Verified(of.endpoint_name(one), tuple(_rows(of, one, stack, intended.get(of.endpoint_name(one)), aws)))
        for one in chosen
    ]


def _rows(of: Environment, endpoint: Endpoint, stack: Stack, intended: str | None, aws: Aws) -> Iterator[Row]:
    name = of.endpoint_name(endpoint)
    sagemaker = aws.client("sagemaker")
    yield stack_row(stack)
    described = find_endpoint(sagemaker, name)
    if described is None:
        yield Row("in service", f"there is no endpoint {name}", "failed", f"deploy it: make deploy ENV={of.name}")
        return
    yield status_row(described)
    yield configuration_row(described, intended)
    served = variant_of(described)
    yield image_row(image_digests(served), stack.outputs.get(image_digest_output(endpoint)))
    configured = variant_of(find_configuration(sagemaker, described["EndpointConfigName"]) or {})
    yield placement_row(endpoint, served, placements(served, configured))
    model = find_model(sagemaker, configured["ModelName"]) if "ModelName" in configured else None
    # One attempt each: the client itself asks a busy endpoint again.
    ask = DecisionClient.sagemaker(name, runtime=aws.client("sagemaker-runtime", attempts=1)).invoke
    if isinstance(endpoint, DecisionEndpoint) and endpoint.asynchronous is None:
        yield from decision_rows(ask, of, endpoint, emulator=aws.is_emulator)
        return
    if endpoint.asynchronous is not None:
        reason = "an asynchronous endpoint takes its requests from S3, and may have no instance now"
        yield Row("answers", reason, "not checked")
    else:
        yield chat_row(ask)
    yield stored_model_row(of, endpoint, model, aws)
    if endpoint.on_gpu:
        yield gpu_metric_row(name, aws)


def stack_row(stack: Stack) -> Row:
    """Whether the last deploy of the stack succeeded: what is intended is what it says."""
    if stack.status in _DEPLOYED:
        return Row(
            "last deploy", f"{stack.status} since {stack.changed.astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC", "ok"
        )
    found = f"stack {stack.name} is {stack.status}" + (f": {stack.reason}" if stack.reason else "")
    if stack.status.endswith("IN_PROGRESS"):
        return Row("last deploy", found, "failed", "wait for its end, then verify again")
    if "ROLLBACK" in stack.status:
        return Row(
            "last deploy", found, "failed", "what serves is from the deploy before: see why it failed, and repeat"
        )
    return Row("last deploy", found, "failed", "see the stack's events, and deploy again")


def status_row(described: Mapping[str, Any]) -> Row:
    """Whether the endpoint is in service."""
    status = described["EndpointStatus"]
    if status == "InService":
        return Row("in service", status, "ok")
    found = f"{status}: {described['FailureReason']}" if described.get("FailureReason") else status
    return Row("in service", found, "failed", "decide logs shows what its containers said")


def configuration_row(described: Mapping[str, Any], intended: str | None) -> Row:
    """Whether the configuration that serves is the stack's, as lambda/rollout_check asks at the end of a deploy.

    Names in ARNs, where `intended` is from, are in lower case; SageMaker takes no two names that differ in case alone.
    """
    served = described["EndpointConfigName"]
    if intended is None:
        found = f"serves {served}; the stack has no such endpoint"
        return Row("configuration", found, "failed", "deploy the environment as stacks/config.py has it")
    if served.lower() == intended.lower():
        return Row("configuration", f"{served}, the stack's own", "ok")
    reason = described.get("FailureReason", "SageMaker gives no reason")
    found = f"serves {served}, not {intended} of the stack: the update was rolled back ({reason})"
    return Row("configuration", found, "failed", "see the alarms and the log, then deploy a change that lasts")


def image_row(served: Sequence[str], intended: str | None) -> Row:
    """Whether the image that serves is the one that the stack's build made."""
    if not served or intended is None:
        missing = "DescribeEndpoint tells no image" if not served else "the stack has no output with the digest"
        return Row("image", missing, "not checked")
    if set(served) == {intended}:
        return Row("image", intended, "ok")
    found = f"{', '.join(served)} serves; the stack's is {intended}"
    return Row("image", found, "failed", "an update was rolled back, or somebody else made it: deploy again")


def placement_row(endpoint: Endpoint, variant: Mapping[str, Any], serving: Sequence[Placement]) -> Row:
    """Which types serve, and whether stacks/config.py names them."""
    current, desired = variant.get("CurrentInstanceCount", 0), variant.get("DesiredInstanceCount", 0)
    if not serving:
        if endpoint.asynchronous is not None and current == 0:
            return Row("instances", "none now: there is no work", "ok")
        return Row("instances", f"{current} of {desired}, of a type that SageMaker does not tell", "not checked")
    types = endpoint.instance_types
    found = placed(serving, types) + (f"; {desired} are wanted" if current != desired else "")
    if strangers := [one.instance_type for one in serving if one.instance_type not in types]:
        advice = f"stacks/config.py has not {', '.join(strangers)} but {', '.join(types)}: deploy it"
        return Row("instances", found, "failed", advice)
    return Row("instances", found, "ok")


def decision_rows(ask: Ask, of: Environment, endpoint: DecisionEndpoint, *, emulator: bool) -> Iterator[Row]:
    """What one decision tells: whether it is right, of which model, and on what it was computed."""
    try:
        answer = ask({"decision": DECISION})
    except OpsError as error:
        yield _no_answer(error)
        return
    try:
        model = answer["result"]["model"]
        # The model has a row of its own.
        said = check_decision(dict(answer), model["gguf_sha256"])
    except WrongAnswerError as error:
        yield Row("answers", str(error), "failed", "the model does not decide: see its prompt, image and file")
        return
    except (KeyError, TypeError):
        yield Row("answers", "the answer is none of a decision endpoint", "failed", "see which image serves")
        return
    yield Row("answers", said, "ok")
    yield model_row(model, of)
    if endpoint.on_gpu:
        yield gpu_row(model, emulator=emulator)


def model_row(served: Mapping[str, Any], of: Environment) -> Row:
    """Whether the file that answered is the pinned one."""
    sha256 = served["gguf_sha256"]
    if sha256 == of.model.sha256:
        return Row("model", f"{served['name']}, SHA-256 {sha256[:12]}…, as pinned", "ok")
    found = f"{served['name']}, SHA-256 {sha256}; pinned is {of.model.name}, {of.model.sha256}"
    return Row("model", found, "failed", f"deploy it: make deploy ENV={of.name}")


def gpu_row(served: Mapping[str, Any], *, emulator: bool) -> Row:
    """Whether the layers lie on the GPU, by the adapter's own word."""
    where = f"{served['gpu_layers']} layers on {served['device']}"
    if served["gpu_layers"] > 0:
        return Row("GPU", where, "ok")
    found = f"no layer is on a GPU; {served['device']} computes (backends: {', '.join(served['backends'])})"
    if emulator:
        return Row("GPU", f"the emulator's machine has none: {found}", "not checked")
    return Row("GPU", found, "failed", "the driver, the image or SEMIF_N_GPU_LAYERS: see the first lines of the log")


def chat_row(ask: Ask) -> Row:
    """Whether a text endpoint says something."""
    try:
        return Row("answers", check_chat(dict(ask(CHAT))), "ok")
    except WrongAnswerError as error:
        return Row("answers", str(error), "failed", "see the log of the endpoint")
    except OpsError as error:
        return _no_answer(error)


def _no_answer(error: OpsError) -> Row:
    return Row("answers", str(error), "failed", "decide logs shows what its containers said")


def stored_model_row(of: Environment, endpoint: Endpoint, model: Mapping[str, Any] | None, aws: Aws) -> Row:
    """Whether the artifact that the served SageMaker model names is of the pinned file, by its manifest.

    An endpoint that answers no decision now does not tell which file it has loaded.
    """
    if isinstance(endpoint, TextEndpoint) and endpoint.hub_model is not None:
        return Row("model", f"{endpoint.hub_model.repository}'s newest revision, which nothing pins", "not checked")
    address = manifest_address(model or {})
    if address is None:
        return Row("model", "SageMaker does not tell where the model lies", "not checked")
    try:
        manifest = json.loads(aws.client("s3").get_object(Bucket=address.bucket, Key=address.key)["Body"].read())
        served = {"name": manifest["name"], "gguf_sha256": manifest["sha256"]}
    except (BotoCoreError, ClientError) as error:
        return unanswered("model", f"s3:GetObject on {address.bucket}/{address.key}", error)
    except (KeyError, TypeError, ValueError):
        return Row("model", f"s3://{address.bucket}/{address.key} is no manifest", "failed", "deploy again")
    row = model_row(served, of)
    return Row(row.check, f"{row.found} (by the manifest of its artifact)", row.verdict, row.advice)


def gpu_metric_row(name: str, aws: Aws) -> Row:
    """Whether every GPU has a model in its memory, by SageMaker's own metric of the last minutes."""
    if aws.is_emulator:
        return Row("GPU", "the emulator's machine has none", "not checked")
    now = datetime.now(timezone.utc)
    try:
        points = aws.client("cloudwatch").get_metric_statistics(
            Namespace="/aws/sagemaker/Endpoints",
            MetricName="GPUMemoryUtilization",
            Dimensions=[{"Name": "EndpointName", "Value": name}, {"Name": "VariantName", "Value": "main"}],
            StartTime=now - timedelta(minutes=_GPU_MINUTES),
            EndTime=now,
            Period=60,
            Statistics=["Minimum"],
        )["Datapoints"]
    except (BotoCoreError, ClientError) as error:
        return unanswered("GPU", "cloudwatch:GetMetricStatistics", error)
    if not points:
        return Row("GPU", f"no GPUMemoryUtilization in the last {_GPU_MINUTES} minutes", "not checked")
    used = max(points, key=lambda point: point["Timestamp"])["Minimum"]
    found = f"{used:.0f} % of its memory is in use, on the instance that uses the least"
    if used >= _IDLE_GPU_MEMORY_PERCENT:
        return Row("GPU", found, "ok")
    return Row("GPU", found, "failed", "the model runs on a CPU: see driver, image and SM_LLAMA_CPP_N_GPU_LAYERS")


def _show(of: Environment, found: Sequence[Verified]) -> None:
    rows = [(one.endpoint, row) for one in found for row in one.rows]
    show_table(
        ("endpoint", "check", "found", "verdict"),
        [(endpoint, row.check, row.found, row.verdict) for endpoint, row in rows],
    )
    if advised := [(endpoint, row) for endpoint, row in rows if row.advice]:
        say()
        say("What to do:")
        for endpoint, row in advised:
            say(f"  {endpoint}, {row.check}: {row.advice}")
    counts: Counter[Verdict] = Counter(row.verdict for _, row in rows)
    verdicts: tuple[Verdict, ...] = ("failed", "not checked", "ok")
    shown = ", ".join(f"{counts[verdict]} {verdict}" for verdict in verdicts if counts[verdict])
    say()
    say(f"Environment {of.name!r} {'is not as deployed' if counts['failed'] else 'serves what was deployed'}: {shown}.")
