"""Whom a command asks for decisions: an environment's endpoint, or an adapter directly."""

from __future__ import annotations

from ops.aws import connect
from ops.client import RETRY, DecisionClient, Retry
from ops.errors import UsageError
from ops.options import decision_endpoint, environment


def client_for(
    environment_name: str | None,
    endpoint: str | None,
    endpoint_url: str | None,
    local: str | None,
    *,
    retry: Retry = RETRY,
) -> DecisionClient:
    """The client that these options of a command choose; its `target` says whom for people.

    Raises UsageError unless they name either an environment's decision endpoint or an address, and botocore's errors
    where there are no credentials or no region.
    """
    if local is not None:
        if environment_name is not None or endpoint is not None or endpoint_url is not None:
            raise UsageError("--local asks an adapter directly: leave out ENV, --endpoint and --endpoint-url")
        return DecisionClient.http(local, retry=retry)
    if environment_name is None:
        raise UsageError("name an environment of stacks/config.py, or an adapter with --local")
    of = environment(environment_name)
    chosen = decision_endpoint(of, endpoint)
    if chosen.asynchronous is not None:
        raise UsageError(
            f"endpoint {chosen.name!r} of environment {of.name!r} takes its requests from S3, not directly"
        )
    runtime = connect(of, endpoint_url).client("sagemaker-runtime", attempts=1)
    return DecisionClient.sagemaker(of.endpoint_name(chosen), runtime=runtime, retry=retry)
