"""The containers that serve one endpoint configuration, started, switched and ended together."""

from __future__ import annotations

import random
import threading
import uuid
from typing import TYPE_CHECKING

from emulator.aws import Params
from emulator.roles import ROOT
from emulator.sagemaker.container import Container, ContainerError
from emulator.sagemaker.names import now
from emulator.settings import ACCOUNT, REGION

if TYPE_CHECKING:
    from emulator.sagemaker.catalog import VariantPlan
    from emulator.workshop import Workshop

_random = random.SystemRandom()


class Variant:
    """One production variant in service. One process stands for all its instances."""

    def __init__(self, container: Container) -> None:
        variant = container.plan.variant
        self.name = container.plan.name
        self.container = container
        self.weight = float(variant.get("InitialVariantWeight", 1.0))
        self.instances = int(variant["InitialInstanceCount"])
        self.resolved_at = now()

    def summary(self) -> Params:
        """Its entry in DescribeEndpoint."""
        variant = self.container.plan.variant
        image = {
            "SpecifiedImage": self.container.specified_image,
            "ResolvedImage": self.container.resolved_image,
            "ResolutionTime": self.resolved_at,
        }
        summary: Params = {
            "VariantName": self.name,
            "DeployedImages": [image],
            "CurrentWeight": self.weight,
            "DesiredWeight": self.weight,
            "CurrentInstanceCount": self.instances,
            "DesiredInstanceCount": self.instances,
        }
        serving = self.container.plan.instance_type
        pools = sorted(variant.get("InstancePools", []), key=lambda pool: pool["Priority"])
        if pools:
            summary["InstancePools"] = [
                {
                    "InstanceType": pool["InstanceType"],
                    "CurrentInstanceCount": self.instances if pool["InstanceType"] == serving else 0,
                }
                for pool in pools
            ]
        for passed_on in ("ManagedInstanceScaling", "RoutingConfig"):
            if passed_on in variant:
                summary[passed_on] = variant[passed_on]
        return summary


class Fleet:
    """All variants of one configuration."""

    def __init__(self, workshop: Workshop, endpoint: str, config_name: str, plans: list[VariantPlan]) -> None:
        self.config_name = config_name
        self._workshop = workshop
        self.variants: list[Variant] = []
        self.in_flight = 0  # requests that are with its containers now
        self.is_asynchronous = any("AsyncInferenceConfig" in plan.config for plan in plans)
        self._containers = [Container(workshop, endpoint, plan, f"i-{uuid.uuid4().hex[:17]}") for plan in plans]

    def start(self) -> None:
        """Return when every container answers /ping. Raises ContainerError; what has started is then ended."""
        try:
            for container in self._containers:
                container.start()
            for container in self._containers:
                container.wait_until_healthy()
        except ContainerError:
            self.stop()
            raise
        self.variants = [Variant(container) for container in self._containers]

    def watch(self, alarms: list[str]) -> None:
        """Raise ContainerError where one of these roll-back alarms has gone off or may not be looked at."""
        if not alarms:
            return
        role = self._containers[0].plan.model["ExecutionRoleArn"]
        for alarm in (f"arn:aws:cloudwatch:{REGION}:{ACCOUNT}:alarm:{name}" for name in alarms):
            if not self._workshop.roles.may(role, "cloudwatch:DescribeAlarms", alarm):
                raise ContainerError(f"{role} is not authorized to perform: cloudwatch:DescribeAlarms on {alarm}")
        found = self._workshop.clients(ROOT).cloudwatch.describe_alarms(AlarmNames=alarms)["MetricAlarms"]
        if missing := sorted({*alarms} - {alarm["AlarmName"] for alarm in found}):
            raise ContainerError(f"There are no alarms {', '.join(missing)} to roll back on")
        if tripped := sorted(alarm["AlarmName"] for alarm in found if alarm["StateValue"] == "ALARM"):
            raise ContainerError(f"One or more alarms have gone off during the deployment: {', '.join(tripped)}")

    def stop(self) -> None:
        """End all containers, at once."""
        threads = [threading.Thread(target=container.stop) for container in self._containers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def route(self, target_variant: str | None) -> Variant | None:
        """The variant that takes a request: the one named, or one drawn by weight. None when there is no such."""
        if target_variant is not None:
            return next((variant for variant in self.variants if variant.name == target_variant), None)
        weights = [variant.weight for variant in self.variants]
        return _random.choices(self.variants, weights)[0] if sum(weights) else None

    def set_capacity(self, name: str, weight: float | None, instances: int | None) -> None:
        """Apply a desired weight and instance count."""
        variant = next(variant for variant in self.variants if variant.name == name)
        variant.weight = variant.weight if weight is None else weight
        variant.instances = variant.instances if instances is None else instances
