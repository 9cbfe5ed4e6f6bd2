"""Whom a run asks, and of which image it is."""

from __future__ import annotations

from botocore.exceptions import BotoCoreError, ClientError

from ops.aws import connect
from ops.bench.run_file import Target
from ops.client import DecisionClient
from ops.deployed import find_endpoint, image_digests, variant_of
from ops.errors import aws_sentence
from ops.options import decision_endpoint, environment
from ops.output import note
from ops.target import client_for


def target_of(
    env: str | None, endpoint: str | None, endpoint_url: str | None, local: str | None
) -> tuple[Target, DecisionClient]:
    """The target, and what asks it. Raises UsageError unless it is an environment's decision endpoint or an address."""
    client = client_for(env, endpoint, endpoint_url, local)
    return Target(client.target, None if env is None else _image(env, endpoint, endpoint_url)), client


def _image(env: str, endpoint: str | None, endpoint_url: str | None) -> str | None:
    of = environment(env)
    sagemaker = connect(of, endpoint_url).client("sagemaker")
    try:
        described = find_endpoint(sagemaker, of.endpoint_name(decision_endpoint(of, endpoint)))
    except (BotoCoreError, ClientError) as error:
        # Who may only ask the endpoint can measure it, too.
        note(f"The image is not known: {aws_sentence(error)}.")
        return None
    return ", ".join(sorted(set(image_digests(variant_of(described or {}))))) or None
