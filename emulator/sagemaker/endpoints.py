"""Endpoints: their states, and the blue/green exchange of the fleet behind a name."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from emulator.aws import Params, invalid
from emulator.sagemaker.container import ContainerError
from emulator.sagemaker.deployment import check_deployment, rollback_alarms
from emulator.sagemaker.fleet import Fleet, Variant
from emulator.sagemaker.names import arn, now, page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from emulator.sagemaker.catalog import Catalog
    from emulator.workshop import Workshop

CREATING, IN_SERVICE, UPDATING, DELETING, FAILED = "Creating", "InService", "Updating", "Deleting", "Failed"
_SETTLED = {IN_SERVICE, FAILED}
DRAIN_SECONDS = 60.0  # the longest that one invocation can take


@dataclass
class Endpoint:
    """One endpoint. `fleet` is what serves now; it stays while a newer one is tried."""

    name: str
    config_name: str
    status: str = CREATING
    failure: str | None = None
    fleet: Fleet | None = None
    deployment: Params | None = None
    created: datetime = field(default_factory=now)
    modified: datetime = field(default_factory=now)

    @property
    def arn(self) -> str:
        """The endpoint's ARN."""
        return arn("endpoint", self.name)


class Endpoints:
    """All endpoints. Starting and ending containers happens on threads; the operations answer at once.

    Deployment policies are checked and shown, but traffic always moves at once when the new fleet is healthy and none
    of the roll-back alarms is in the state ALARM then: there is no baking period. The alarms are looked at with the
    execution role, as on AWS; one that does not exist fails the deployment.
    """

    def __init__(
        self, workshop: Workshop, catalog: Catalog, on_tags: Callable[[str, list[Params] | None], None]
    ) -> None:
        self._workshop = workshop
        self._catalog = catalog
        self._on_tags = on_tags
        self._changed = threading.Condition(threading.RLock())
        self._endpoints: dict[str, Endpoint] = {}

    def create(self, params: Params) -> Params:
        """CreateEndpoint."""
        name, config = params["EndpointName"], params["EndpointConfigName"]
        check_deployment(params.get("DeploymentConfig"))
        with self._changed:
            if name.lower() in self._endpoints:
                raise invalid(f'Cannot create already existing endpoint "{arn("endpoint", name)}".')
            fleet = Fleet(self._workshop, name, config, self._catalog.plans(config))
            endpoint = Endpoint(name, config, deployment=params.get("DeploymentConfig"))
            self._endpoints[name.lower()] = endpoint
            self._on_tags(endpoint.arn, params.get("Tags", []))
        self._in_background(self._deploy, endpoint, fleet)
        return {"EndpointArn": endpoint.arn}

    def update(self, params: Params) -> Params:
        """UpdateEndpoint: the old fleet serves until the new one is healthy, and on if it never is."""
        config = params["EndpointConfigName"]
        check_deployment(params.get("DeploymentConfig"))
        with self._changed:
            endpoint = self._updatable(params["EndpointName"])
            plans = self._catalog.plans(config)
            fleet = Fleet(self._workshop, endpoint.name, config, plans)
            self._set(endpoint, UPDATING)
            endpoint.failure = None
            endpoint.deployment = params.get("DeploymentConfig") or (
                endpoint.deployment if params.get("RetainDeploymentConfig") else None
            )
        retained = _retained(endpoint.fleet, params)
        self._in_background(self._deploy, endpoint, fleet, retained)
        return {"EndpointArn": endpoint.arn}

    def update_weights(self, params: Params) -> Params:
        """UpdateEndpointWeightsAndCapacities: takes effect at once, since one process stands for all instances."""
        with self._changed:
            endpoint = self._updatable(params["EndpointName"])
            known = {variant.name for variant in endpoint.fleet.variants} if endpoint.fleet else set()
            for desired in params["DesiredWeightsAndCapacities"]:
                if desired["VariantName"] not in known:
                    raise invalid(f"The endpoint {endpoint.name} has no variant {desired['VariantName']}.")
            for desired in params["DesiredWeightsAndCapacities"]:
                if endpoint.fleet:
                    endpoint.fleet.set_capacity(
                        desired["VariantName"], desired.get("DesiredWeight"), desired.get("DesiredInstanceCount")
                    )
            self._set(endpoint, IN_SERVICE)
            return {"EndpointArn": endpoint.arn}

    def delete(self, params: Params) -> Params:
        """DeleteEndpoint."""
        with self._changed:
            endpoint = self._get(params["EndpointName"])
            if endpoint.status not in _SETTLED:
                raise invalid(f'Cannot update in-progress endpoint "{endpoint.arn}".')
            self._set(endpoint, DELETING)
        self._in_background(self._remove, endpoint)
        return {}

    def describe(self, params: Params) -> Params:
        """DescribeEndpoint."""
        with self._changed:
            endpoint = self._get(params["EndpointName"])
            answer: Params = {
                "EndpointName": endpoint.name,
                "EndpointArn": endpoint.arn,
                "EndpointConfigName": endpoint.config_name,
                "EndpointStatus": endpoint.status,
                "CreationTime": endpoint.created,
                "LastModifiedTime": endpoint.modified,
            }
            if endpoint.fleet:
                answer["ProductionVariants"] = [variant.summary() for variant in endpoint.fleet.variants]
            if endpoint.failure:
                answer["FailureReason"] = endpoint.failure
            if endpoint.deployment:
                answer["LastDeploymentConfig"] = endpoint.deployment
            return answer

    def list(self, params: Params) -> Params:
        """ListEndpoints."""
        with self._changed:
            rows = [
                {
                    "EndpointName": endpoint.name,
                    "EndpointArn": endpoint.arn,
                    "EndpointStatus": endpoint.status,
                    "CreationTime": endpoint.created,
                    "LastModifiedTime": endpoint.modified,
                }
                for endpoint in self._endpoints.values()
            ]
        chosen, token = page(params, rows, "EndpointName")
        return {"Endpoints": chosen, **token}

    @contextmanager
    def serving(self, name: str, target_variant: str | None) -> Iterator[Variant | None]:
        """The variant for one request, which its fleet outlives; None where nothing of these names serves."""
        with self._changed:
            endpoint = self._endpoints.get(name.lower())
            # An endpoint that is being updated has its old fleet; one that is created, failed or deleted has none.
            fleet = endpoint.fleet if endpoint and endpoint.status != DELETING else None
            if fleet:
                fleet.in_flight += 1
        try:
            yield fleet.route(target_variant) if fleet else None
        finally:
            with self._changed:
                if fleet:
                    fleet.in_flight -= 1
                    self._changed.notify_all()

    def variants(self, name: str) -> set[str]:
        """Names of the variants in service; empty when there is no such endpoint."""
        with self._changed:
            endpoint = self._endpoints.get(name.lower())
            return {v.name for v in endpoint.fleet.variants} if endpoint and endpoint.fleet else set()

    def is_asynchronous(self, name: str) -> bool:
        """Whether the endpoint is in service with a configuration for asynchronous inference."""
        with self._changed:
            endpoint = self._endpoints.get(name.lower())
            return bool(endpoint and endpoint.fleet and endpoint.fleet.is_asynchronous)

    def wait_settled(self, name: str) -> Params:
        """Block until the endpoint is neither being created nor updated; returns its description."""
        with self._changed:
            self._changed.wait_for(lambda: self._get(name).status in _SETTLED)
            return self.describe({"EndpointName": name})

    def wait_gone(self, name: str) -> None:
        """Block until there is no endpoint of this name."""
        with self._changed:
            self._changed.wait_for(lambda: name.lower() not in self._endpoints)

    def _deploy(
        self, endpoint: Endpoint, fleet: Fleet, retained: dict[str, tuple[float | None, int | None]] | None = None
    ) -> None:
        try:
            fleet.start()
            if endpoint.fleet:
                fleet.watch(rollback_alarms(endpoint.deployment))
        except ContainerError as error:
            fleet.stop()
            self._settle_failed(endpoint, str(error))
            return
        except Exception as error:  # noqa: BLE001 - a fault of the emulator must not leave an endpoint in Creating
            fleet.stop()
            self._settle_failed(endpoint, f"fault of the emulator: {error!r}")
            return
        for name, (weight, instances) in (retained or {}).items():
            if name in {variant.name for variant in fleet.variants}:
                fleet.set_capacity(name, weight, instances)
        with self._changed:
            old, endpoint.fleet = endpoint.fleet, fleet
            endpoint.config_name = fleet.config_name
            self._set(endpoint, IN_SERVICE)
        if old:
            self._retire(old)

    def _retire(self, fleet: Fleet) -> None:
        """End a fleet that gets no new requests, once those that it has are answered."""
        with self._changed:
            self._changed.wait_for(lambda: fleet.in_flight == 0, DRAIN_SECONDS)
        fleet.stop()

    def _settle_failed(self, endpoint: Endpoint, reason: str) -> None:
        """A first deployment fails the endpoint; a failed update leaves it in service as it was, with the reason."""
        with self._changed:
            endpoint.failure = reason
            self._set(endpoint, IN_SERVICE if endpoint.fleet else FAILED)

    def _remove(self, endpoint: Endpoint) -> None:
        if endpoint.fleet:
            self._retire(endpoint.fleet)
        with self._changed:
            del self._endpoints[endpoint.name.lower()]
            self._on_tags(endpoint.arn, None)
            self._changed.notify_all()

    def _get(self, name: str) -> Endpoint:
        endpoint = self._endpoints.get(name.lower())
        if endpoint is None:
            raise invalid(f'Could not find endpoint "{arn("endpoint", name)}".')
        return endpoint

    def _updatable(self, name: str) -> Endpoint:
        endpoint = self._get(name)
        if endpoint.status not in _SETTLED:
            raise invalid(f'Cannot update in-progress endpoint "{endpoint.arn}".')
        if endpoint.status != IN_SERVICE:
            raise invalid(f'Cannot update endpoint "{endpoint.arn}" in status {endpoint.status}.')
        return endpoint

    def _set(self, endpoint: Endpoint, status: str) -> None:
        endpoint.status = status
        endpoint.modified = now()
        self._changed.notify_all()

    @staticmethod
    def _in_background(function: Callable[..., None], endpoint: Endpoint, *args: object) -> None:
        threading.Thread(target=function, args=(endpoint, *args), name=f"endpoint {endpoint.name}", daemon=True).start()


def _retained(fleet: Fleet | None, params: Params) -> dict[str, tuple[float | None, int | None]]:
    """Weights and counts that RetainAllVariantProperties carries over to variants of the same name."""
    if fleet is None or not params.get("RetainAllVariantProperties"):
        return {}
    reset = {item["VariantPropertyType"] for item in params.get("ExcludeRetainedVariantProperties", [])}
    return {
        variant.name: (
            None if "DesiredWeight" in reset else variant.weight,
            None if "DesiredInstanceCount" in reset else variant.instances,
        )
        for variant in fleet.variants
    }
