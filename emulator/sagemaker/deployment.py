"""Deployment configurations: what SageMaker's own model of them does not say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emulator.aws import invalid

if TYPE_CHECKING:
    from emulator.aws import Params

_STEP = {"CANARY": "CanarySize", "LINEAR": "LinearStepSize"}


def check_deployment(deployment: Params | None) -> None:
    """Raise ValidationException unless there is one policy, with the members that its kind of traffic routing needs."""
    if deployment is None:
        return
    policies = [key for key in ("BlueGreenUpdatePolicy", "RollingUpdatePolicy") if key in deployment]
    if len(policies) != 1:
        raise invalid("exactly one of BlueGreenUpdatePolicy and RollingUpdatePolicy must be given")
    routing = deployment.get("BlueGreenUpdatePolicy", {}).get("TrafficRoutingConfiguration", {})
    kind = routing.get("Type")
    wanted = _STEP.get(kind)
    given = [step for step in _STEP.values() if step in routing]
    if given != ([wanted] if wanted else []):
        raise invalid(
            f"traffic routing of type {kind} takes {wanted or 'no step size'}, not {', '.join(given) or 'none'}"
        )


def rollback_alarms(deployment: Params | None) -> list[str]:
    """The names of the alarms that roll a deployment back."""
    rollback = (deployment or {}).get("AutoRollbackConfiguration", {})
    return [alarm["AlarmName"] for alarm in rollback.get("Alarms", [])]
