"""How many instances an environment may run, and how many its updates need: arithmetic over stacks/config.py only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stacks.config import Endpoint, Environment, Rolling


@dataclass(frozen=True)
class Bounds:
    """The numbers of instances between which an endpoint's scaling may choose."""

    minimum: int
    maximum: int


@dataclass(frozen=True)
class Need:
    """The instances that one endpoint may run at a time while it is updated at the maximum of its scaling."""

    endpoint: str
    instances: int
    # How the number comes about.
    reason: str


def bounds(endpoint: Endpoint) -> Bounds:
    """The bounds of the endpoint's scaling, scheduled ones included; without scaling both are its `instances`.

    An asynchronous endpoint has no instance while it has no work, as stacks/scaling.py sets it up.
    """
    if endpoint.asynchronous is not None:
        return Bounds(0, endpoint.asynchronous.max_instances)
    if endpoint.scaling is None:
        return Bounds(endpoint.instances, endpoint.instances)
    schedule = endpoint.scaling.schedule
    return Bounds(
        min([endpoint.instances, *(action.min_instances for action in schedule)]),
        max([endpoint.scaling.max_instances, *(action.max_instances for action in schedule)]),
    )


def need(endpoint: Endpoint) -> Need:
    """The instances for which the account needs quota: the maximum, and the second fleet of an update.

    Blue/green, SageMaker's default too, runs a whole second fleet; a rolling update one batch of `step_percent`,
    rounded up (SageMaker's documentation on deployment guardrails).
    """
    maximum = bounds(endpoint).maximum
    if isinstance(endpoint.rollout, Rolling):
        batch = math.ceil(maximum * endpoint.rollout.step_percent / 100)
        return Need(endpoint.name, maximum + batch, f"{maximum} + {batch} rolling")
    return Need(endpoint.name, 2 * maximum, f"2 x {maximum} blue/green")


def needs_by_type(environment: Environment) -> dict[str, tuple[Need, ...]]:
    """What each endpoint needs of each instance type, in the order of the configuration.

    Of a pool every type may have to serve all of it, so that every type counts in full.
    """
    found: dict[str, list[Need]] = {}
    for endpoint in environment.endpoints:
        for instance_type in endpoint.instance_types:
            found.setdefault(instance_type, []).append(need(endpoint))
    return {instance_type: tuple(needs) for instance_type, needs in found.items()}
