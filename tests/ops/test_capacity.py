"""Instances and quota, against numbers worked out by hand from stacks/config.py."""

from __future__ import annotations

import pytest

from ops.capacity import Bounds, bounds, need, needs_by_type
from stacks.config import (
    Asynchronous,
    BlueGreen,
    DecisionEndpoint,
    Rolling,
    Scaling,
    ScheduledCapacity,
    environment_named,
)

CPU = "ml.c6i.8xlarge"
GPUS = ("ml.g6e.xlarge", "ml.g6.2xlarge", "ml.g5.2xlarge", "ml.g4dn.2xlarge")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ("local", {"ml.c6i.large": 4}),
        ("dev", {CPU: 4}),
        ("staging", {CPU: 4, **dict.fromkeys(GPUS, 4)}),
        # CPU: 4 and a rolling batch of 2, and twice 2. GPU: twice 6 and twice 4, of every type of the pool.
        ("prod", {CPU: 10, **dict.fromkeys(GPUS, 20)}),
    ],
)
def test_quota_needed_by_the_shipped_environments(environment: str, expected: dict[str, int]) -> None:
    needed = needs_by_type(environment_named(environment))
    assert {t: sum(one.instances for one in needs) for t, needs in needed.items()} == expected


def test_what_shares_a_type_is_named() -> None:
    needs = needs_by_type(environment_named("prod"))[CPU]
    assert [(one.endpoint, one.reason) for one in needs] == [
        ("decision-cpu", "4 + 2 rolling"),
        ("text-cpu", "2 x 2 blue/green"),
    ]


def test_a_batch_of_a_rolling_update_is_rounded_up() -> None:
    scaling = Scaling(max_instances=5, concurrent_requests=4)
    endpoint = DecisionEndpoint(
        name="a", instance_type=CPU, instances=4, scaling=scaling, rollout=Rolling(step_percent=33)
    )
    assert need(endpoint).instances == 7


def test_without_scaling_both_fleets_of_an_update_are_needed() -> None:
    endpoint = DecisionEndpoint(name="a", instance_type=CPU, instances=3, rollout=BlueGreen())
    assert bounds(endpoint) == Bounds(3, 3)
    assert need(endpoint).instances == 6


def test_an_asynchronous_endpoint_goes_down_to_nothing() -> None:
    endpoint = DecisionEndpoint(name="a", instance_type=CPU, instances=2, asynchronous=Asynchronous(max_instances=5))
    assert bounds(endpoint) == Bounds(0, 5)
    assert need(endpoint).instances == 10


def test_a_schedule_widens_the_bounds() -> None:
    night = ScheduledCapacity(schedule="cron(0 20 * * ? *)", min_instances=1, max_instances=2)
    day = ScheduledCapacity(schedule="cron(0 8 * * ? *)", min_instances=4, max_instances=9)
    scaling = Scaling(max_instances=6, concurrent_requests=4, schedule=(day, night))
    endpoint = DecisionEndpoint(name="a", instance_type=CPU, instances=2, scaling=scaling)
    assert bounds(endpoint) == Bounds(1, 9)
