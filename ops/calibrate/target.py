"""Whom a calibration asks: an environment's endpoint, or an adapter directly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx

from ops.aws import connect
from ops.calibrate.answers import Decide
from ops.errors import OpsError, UsageError
from ops.options import decision_endpoint, environment

_SECONDS = 70.0  # an adapter answers within 55 s, or says that it cannot


def decide_by(env: str | None, endpoint: str | None, endpoint_url: str | None, local: str | None) -> Decide:
    """What asks one plain decision. Raises UsageError unless it is either an environment or an address."""
    if local is not None:
        if env is not None or endpoint is not None or endpoint_url is not None:
            raise UsageError("--local asks an adapter directly: leave out ENV, --endpoint and --endpoint-url")
        return _local(local)
    if env is None:
        raise UsageError("name an environment of stacks/config.py, or an adapter with --local")
    of = environment(env)
    name = of.endpoint_name(decision_endpoint(of, endpoint))
    runtime = connect(of, endpoint_url).client("sagemaker-runtime")

    def ask(decision: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = runtime.invoke_endpoint(
            EndpointName=name, ContentType="application/json", Body=json.dumps({"decision": decision})
        )
        return _result(answer["Body"].read())

    return ask


def _local(url: str) -> Decide:
    client = httpx.Client(timeout=_SECONDS)

    def ask(decision: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            answer = client.post(f"{url.rstrip('/')}/invocations", json={"decision": decision})
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise OpsError(f"{url} does not answer: {error}") from error
        if answer.status_code != httpx.codes.OK:
            raise OpsError(f"decision {decision['id']!r} got status {answer.status_code}: {answer.text[:500]}")
        return _result(answer.content)

    return ask


def _result(body: bytes) -> Mapping[str, Any]:
    try:
        result: Mapping[str, Any] = json.loads(body)["result"]
    except (ValueError, KeyError, TypeError) as error:
        raise OpsError("what answers is no decision endpoint: its answer has no 'result'") from error
    return result
