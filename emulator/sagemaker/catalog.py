"""Models and endpoint configurations: immutable records, and the rules for making them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from emulator.aws import Params, invalid
from emulator.sagemaker.names import arn, now, page

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

# Hosting modes that have no stand-in here: refused, so that nobody believes that they were tried.
_UNSUPPORTED_CONFIG = ("ShadowProductionVariants", "ExplainerConfig")


@dataclass(frozen=True)
class Record:
    """A model or an endpoint configuration: what it was created with."""

    arn: str
    params: Params
    created: datetime = field(default_factory=now)

    def described(self, arn_key: str) -> Params:
        """The answer of its Describe operation."""
        params = {key: value for key, value in self.params.items() if key != "Tags"}
        return {**params, arn_key: self.arn, "CreationTime": self.created}


@dataclass(frozen=True)
class VariantPlan:
    """Everything that one variant of a fleet is made from, kept apart from records that may be deleted meanwhile.

    `instance_type` is the one that serves: of a pool the first of which there is capacity, None where there is none.
    """

    variant: Params
    model: Params
    config: Params
    instance_type: str | None

    @property
    def name(self) -> str:
        """The variant's name."""
        return str(self.variant["VariantName"])


class Catalog:
    """All models and endpoint configurations. Names are unique regardless of case.

    There are any number of instances of every type but those in `no_capacity`, of which there are none.
    """

    def __init__(self, on_tags: Callable[[str, list[Params] | None], None], no_capacity: frozenset[str]) -> None:
        self._on_tags = on_tags
        self._no_capacity = no_capacity
        self._lock = threading.RLock()
        self._models: dict[str, Record] = {}
        self._configs: dict[str, Record] = {}

    def create_model(self, params: Params) -> Params:
        """CreateModel."""
        containers = params.get("Containers", [])
        if "PrimaryContainer" in params and containers:
            raise invalid("PrimaryContainer and Containers cannot both be given")
        if len(containers) > 1:
            raise invalid("inference pipelines (more than one container) are not supported by the emulator")
        container = container_of(params)
        if not container.get("Image"):
            raise invalid("the emulator needs the container's Image (model packages are not supported)")
        if "ModelDataUrl" in container and "ModelDataSource" in container:
            raise invalid("ModelDataUrl and ModelDataSource cannot both be given")
        if "ExecutionRoleArn" not in params:
            raise invalid("ExecutionRoleArn is required to access the model's image and data")
        record = self._add(self._models, "model", "model", params["ModelName"], params)
        return {"ModelArn": record.arn}

    def describe_model(self, params: Params) -> Params:
        """DescribeModel."""
        return self._get(self._models, "model", "model", params["ModelName"]).described("ModelArn")

    def delete_model(self, params: Params) -> Params:
        """DeleteModel. A model that an endpoint uses may go: the endpoint keeps what it has loaded."""
        self._remove(self._models, "model", "model", params["ModelName"])
        return {}

    def list_models(self, params: Params) -> Params:
        """ListModels."""
        with self._lock:
            rows = [
                {"ModelName": r.params["ModelName"], "ModelArn": r.arn, "CreationTime": r.created}
                for r in self._models.values()
            ]
        chosen, token = page(params, rows, "ModelName")
        return {"Models": chosen, **token}

    def create_config(self, params: Params) -> Params:
        """CreateEndpointConfig."""
        for feature in _UNSUPPORTED_CONFIG:
            if feature in params:
                raise invalid(f"{feature} is not supported by the emulator")
        names = [variant["VariantName"] for variant in params["ProductionVariants"]]
        if len(set(names)) != len(names):
            raise invalid("the production variants' names must be unique")
        with self._lock:
            for variant in params["ProductionVariants"]:
                _check_variant(variant)
                for _, model in _places(variant):
                    self._get(self._models, "model", "model", model)
            config = self._add(
                self._configs, "endpoint configuration", "endpoint-config", params["EndpointConfigName"], params
            )
        return {"EndpointConfigArn": config.arn}

    def describe_config(self, params: Params) -> Params:
        """DescribeEndpointConfig."""
        return self.config(params["EndpointConfigName"]).described("EndpointConfigArn")

    def delete_config(self, params: Params) -> Params:
        """DeleteEndpointConfig. One that an endpoint uses may go, as on AWS."""
        self._remove(self._configs, "endpoint configuration", "endpoint-config", params["EndpointConfigName"])
        return {}

    def list_configs(self, params: Params) -> Params:
        """ListEndpointConfigs."""
        with self._lock:
            rows = [
                {
                    "EndpointConfigName": r.params["EndpointConfigName"],
                    "EndpointConfigArn": r.arn,
                    "CreationTime": r.created,
                }
                for r in self._configs.values()
            ]
        chosen, token = page(params, rows, "EndpointConfigName")
        return {"EndpointConfigs": chosen, **token}

    def config(self, name: str) -> Record:
        """An endpoint configuration by name; raises ValidationException when there is none."""
        return self._get(self._configs, "endpoint configuration", "endpoint-config", name)

    def plans(self, config_name: str) -> list[VariantPlan]:
        """What a fleet of this configuration is made from. All instances are of one type."""
        with self._lock:
            config = self.config(config_name).params
            plans = []
            for variant in config["ProductionVariants"]:
                places = [place for place in _places(variant) if place[0] not in self._no_capacity]
                instance_type, model = places[0] if places else (None, variant["ModelName"])
                record = self._get(self._models, "model", "model", model)
                plans.append(VariantPlan(variant, record.params, config, instance_type))
            return plans

    def _add(self, records: dict[str, Record], noun: str, kind: str, name: str, params: Params) -> Record:
        with self._lock:
            if name.lower() in records:
                raise invalid(f'Cannot create already existing {noun} "{arn(kind, name)}".')
            record = records[name.lower()] = Record(arn(kind, name), params)
            self._on_tags(record.arn, params.get("Tags", []))
            return record

    def _get(self, records: dict[str, Record], noun: str, kind: str, name: str) -> Record:
        with self._lock:
            if name.lower() not in records:
                raise invalid(f'Could not find {noun} "{arn(kind, name)}".')
            return records[name.lower()]

    def _remove(self, records: dict[str, Record], noun: str, kind: str, name: str) -> None:
        with self._lock:
            record = self._get(records, noun, kind, name)
            del records[name.lower()]
            self._on_tags(record.arn, None)


def container_of(params: Params) -> Params:
    """A model's one container."""
    containers: list[Params] = params.get("Containers") or [params.get("PrimaryContainer", {})]
    return containers[0]


def _places(variant: Params) -> list[tuple[str, str]]:
    """Where a variant may run, in the order in which it is tried: instance type, and the model that runs there."""
    pools = sorted(variant.get("InstancePools", []), key=lambda pool: pool["Priority"])
    return [(pool["InstanceType"], pool.get("ModelNameOverride", variant["ModelName"])) for pool in pools] or [
        (variant["InstanceType"], variant["ModelName"])
    ]


def _check_variant(variant: dict[str, Any]) -> None:
    name = variant["VariantName"]
    if "ModelName" not in variant:
        raise invalid(f"ModelName is required for the production variant {name}")
    if "ServerlessConfig" in variant:
        raise invalid(f"the production variant {name} is serverless, which the emulator does not support")
    if ("InstanceType" in variant) == ("InstancePools" in variant):
        raise invalid(f"exactly one of InstanceType and InstancePools must be given for the production variant {name}")
    if "InitialInstanceCount" not in variant:
        raise invalid(f"InitialInstanceCount is required for the production variant {name}")
    priorities = [pool["Priority"] for pool in variant.get("InstancePools", [])]
    if len(set(priorities)) != len(priorities):
        raise invalid(f"the priorities of the production variant {name}'s instance pools must be unique")
