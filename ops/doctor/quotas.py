"""The doctor's checks of instance types: quota for each, instances that others use, and whether the region has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from ops.capacity import bounds, need, needs_by_type
from ops.doctor.row import Row, unanswered
from ops.prices import listed_hourly
from stacks.config import Environment

_SERVICE = "sagemaker"
# The quotas over all types, as AWS names them (AWS General Reference, Amazon SageMaker AI endpoints and quotas).
ALL_INSTANCES = "Number of instances across active endpoints"
PER_ENDPOINT = "Maximum number of instances per endpoint"
USED_ACTIONS = "sagemaker:ListEndpoints, sagemaker:DescribeEndpoint, sagemaker:DescribeEndpointConfig"
# Each takes two calls; an account with more is looked at by hand.
_MOST_OTHER_ENDPOINTS = 50
_IN_USE = "instances in use"


@dataclass(frozen=True)
class Quota:
    """A quota of the account in the region."""

    code: str
    value: int


def quota_name(instance_type: str) -> str:
    """The name under which Service Quotas has the instances of real-time and asynchronous endpoints."""
    return f"{instance_type} for endpoint usage"


def wanted_quotas(environment: Environment) -> set[str]:
    """The names of all quotas that the environment's endpoints count against."""
    return {ALL_INSTANCES, PER_ENDPOINT, *(quota_name(instance_type) for instance_type in needs_by_type(environment))}


def read_quotas(service_quotas: Any, names: set[str]) -> dict[str, Quota]:
    """The quotas of these names: the account's own values, and AWS's defaults where the account has none.

    Names that the region does not have are left out. Raises botocore's errors.
    """
    found: dict[str, Quota] = {}
    # ListServiceQuotas leaves out a quota without a value of the account's own.
    for operation in ("list_service_quotas", "list_aws_default_service_quotas"):
        missing = names - set(found)
        if missing:
            pages = service_quotas.get_paginator(operation).paginate(
                ServiceCode=_SERVICE, PaginationConfig={"PageSize": 100}
            )
            found.update(_named(pages, missing))
    return found


def _named(pages: Iterable[Mapping[str, Any]], names: set[str]) -> dict[str, Quota]:
    return {
        quota["QuotaName"]: Quota(quota["QuotaCode"], int(quota["Value"]))
        for page in pages
        for quota in page["Quotas"]
        if quota["QuotaName"] in names
    }


def check(service_quotas: Any, sagemaker: Any, environment: Environment, region: str) -> Sequence[Row]:
    """A row per quota; where other endpoints cannot be counted, a row that says so. Raises botocore's errors."""
    used: Counter[str] = Counter()
    rows = []
    try:
        used = instances_in_use(sagemaker, environment)
    except TooManyEndpoints as error:
        rows.append(Row(_IN_USE, str(error), "not checked", "look at the quotas' utilization in the console"))
    except (BotoCoreError, ClientError) as error:
        rows.append(unanswered(_IN_USE, USED_ACTIONS, error))
    return [*rows, *quota_rows(environment, read_quotas(service_quotas, wanted_quotas(environment)), used, region)]


def quota_rows(environment: Environment, quotas: Mapping[str, Quota], used: Counter[str], region: str) -> Sequence[Row]:
    """A row per instance type, and one for each quota over all types; `used` counts other endpoints' instances."""
    wanted = [
        _Wanted(
            f"quota {instance_type}",
            quota_name(instance_type),
            sum(one.instances for one in needs),
            used[instance_type],
            ", ".join(f"{one.endpoint} {one.reason}" for one in needs),
        )
        for instance_type, needs in needs_by_type(environment).items()
    ]
    all_needs = [need(endpoint) for endpoint in environment.endpoints]
    reason = ", ".join(f"{one.endpoint} {one.instances}" for one in all_needs)
    total = sum(one.instances for one in all_needs)
    wanted.append(_Wanted("quota of all endpoints", ALL_INSTANCES, total, sum(used.values()), reason))
    # Whether it counts both fleets of an update is not documented: the maximum of scaling is needed in any case.
    largest = max(environment.endpoints, key=lambda endpoint: bounds(endpoint).maximum)
    reason = f"{largest.name} at its maximum"
    wanted.append(_Wanted("quota of one endpoint", PER_ENDPOINT, bounds(largest).maximum, 0, reason))
    return [_row(one, quotas.get(one.quota), region) for one in wanted]


@dataclass(frozen=True)
class _Wanted:
    check: str
    quota: str
    needed: int
    # Other endpoints' instances, which count too.
    others: int
    reason: str


def _row(wanted: _Wanted, quota: Quota | None, region: str) -> Row:
    in_all = wanted.needed + wanted.others
    others = f"; {wanted.others} run in other endpoints" if wanted.others else ""
    found = f"{in_all} needed ({wanted.reason}{others})"
    if quota is None:
        said = f"{found}; Service Quotas has no {wanted.quota!r} in {region}"
        if wanted.quota in (ALL_INSTANCES, PER_ENDPOINT):
            return Row(wanted.check, said, "not checked")
        return Row(wanted.check, said, "failed", "choose a type that the region has, or another region")
    said = f"{quota.value}, {found}"
    if quota.value >= in_all:
        return Row(wanted.check, said, "ok")
    command = (
        f"aws service-quotas request-service-quota-increase --service-code {_SERVICE} --quota-code {quota.code} "
        f"--desired-value {in_all} --region {region}"
    )
    return Row(wanted.check, said, "failed", command)


class TooManyEndpoints(Exception):  # noqa: N818 - it is no error of anybody's
    """The account has more endpoints than are asked one by one; the message is one sentence."""


def instances_in_use(sagemaker: Any, environment: Environment) -> Counter[str]:
    """Running instances by type of all endpoints but the environment's own.

    Raises TooManyEndpoints, and botocore's errors.
    """
    own = {environment.endpoint_name(endpoint) for endpoint in environment.endpoints}
    names = [
        endpoint["EndpointName"]
        for page in sagemaker.get_paginator("list_endpoints").paginate(PaginationConfig={"PageSize": 100})
        for endpoint in page["Endpoints"]
        if endpoint["EndpointName"] not in own
    ]
    if len(names) > _MOST_OTHER_ENDPOINTS:
        raise TooManyEndpoints(f"{len(names)} other endpoints are too many to count their instances one by one")
    used: Counter[str] = Counter()
    for name in names:
        described = sagemaker.describe_endpoint(EndpointName=name)
        config = sagemaker.describe_endpoint_config(EndpointConfigName=described["EndpointConfigName"])
        types = {variant["VariantName"]: variant.get("InstanceType") for variant in config["ProductionVariants"]}
        for variant in described.get("ProductionVariants", []):
            used.update(_instances_of(variant, types.get(variant["VariantName"])))
    return used


def _instances_of(variant: Mapping[str, Any], instance_type: str | None) -> dict[str, int]:
    if pools := variant.get("InstancePools"):
        return {pool["InstanceType"]: pool.get("CurrentInstanceCount", 0) for pool in pools}
    # Serverless variants have no type, and variants of inference components none of their own.
    return {instance_type: variant.get("CurrentInstanceCount", 0)} if instance_type else {}


def offered_rows(pricing: Any, environment: Environment, region: str) -> Sequence[Row]:
    """Whether the region has each type for endpoints, as AWS prices it there.

    SageMaker has no operation that lists a region's types. The price list has a product `Host:TYPE` (asynchronous:
    `AsyncInf:TYPE`) for each type and region in which AWS bills endpoints on it, which is nearer to the question than
    EC2's DescribeInstanceTypeOfferings: SageMaker lacks types that EC2 has. Raises botocore's errors.
    """
    rows = []
    known: dict[tuple[str, bool], bool] = {}
    for endpoint in environment.endpoints:
        for instance_type in endpoint.instance_types:
            key = (instance_type, endpoint.asynchronous is not None)
            if key not in known:
                known[key] = listed_hourly(pricing, region, instance_type, asynchronous=key[1]) is not None
        missing = [t for t in endpoint.instance_types if not known[t, endpoint.asynchronous is not None]]
        rows.append(_offered(endpoint.name, endpoint.instance_types, missing, region))
    return rows


def _offered(endpoint: str, types: Sequence[str], missing: Sequence[str], region: str) -> Row:
    check = f"types of {endpoint}"
    if not missing:
        return Row(check, f"{', '.join(types)}: priced in {region}", "ok")
    found = f"{', '.join(missing)}: not in the price list of {region}"
    if len(missing) < len(types):
        return Row(
            check, found, "warning", "take it out of the instance_pool in stacks/config.py, or change the region"
        )
    return Row(check, found, "failed", "choose another type in stacks/config.py, or another region")
