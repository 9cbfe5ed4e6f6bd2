"""The doctor about quotas, instances in use and types that the region has, by AWS's own answers."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from functools import partial
from typing import Any

import pytest
from botocore.stub import Stubber

from ops.doctor import quotas
from ops.doctor.row import Check, Row
from stacks.config import environment_named
from tests.ops.price_list import asked_for, product
from tests.ops.stubbed import client

DEV = environment_named("dev")
STAGING = environment_named("staging")
PROD = environment_named("prod")
CPU = "ml.c6i.8xlarge"
NOW = datetime(2026, 12, 1, tzinfo=timezone.utc)
PAGE = {"ServiceCode": "sagemaker", "MaxResults": 100}
# Codes as Service Quotas has them.
CODES = {f"{CPU} for endpoint usage": "L-8E8FCC45", "ml.g5.2xlarge for endpoint usage": "L-9614C779"}


def quota(name: str, value: float) -> dict[str, Any]:
    """A quota as ListServiceQuotas writes it."""
    code = CODES.get(name, "L-00000000")
    return {
        "ServiceCode": "sagemaker",
        "ServiceName": "Amazon SageMaker",
        "QuotaArn": f"arn:aws:servicequotas:us-east-1:111122223333:sagemaker/{code}",
        "QuotaCode": code,
        "QuotaName": name,
        "Value": value,
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }


def all_quotas(value: float) -> list[dict[str, Any]]:
    """Every quota that `prod` counts against, all of the same value."""
    return [quota(name, value) for name in sorted(quotas.wanted_quotas(PROD))]


def no_endpoints() -> Any:
    sagemaker = client("sagemaker")
    stubber = Stubber(sagemaker)
    stubber.add_response("list_endpoints", {"Endpoints": []}, {"MaxResults": 100})
    stubber.activate()
    return sagemaker


def rows(environment: Any, service_quotas: Any, sagemaker: Any) -> dict[str, Row]:
    work = partial(quotas.check, service_quotas, sagemaker, environment, "us-east-1")
    found = Check("quotas", "servicequotas:ListServiceQuotas", work).rows(emulator=False)
    return {row.check: row for row in found}


def test_quotas_of_prod_by_hand() -> None:
    service_quotas = client("service-quotas")
    with Stubber(service_quotas) as stubber:
        stubber.add_response("list_service_quotas", {"Quotas": all_quotas(19)}, PAGE)
        found = rows(PROD, service_quotas, no_endpoints())
    # CPU: 4 + 2 and 2 x 2; each GPU type: 2 x 6 and 2 x 4; of all endpoints 6 + 12 + 4 + 8; one endpoint: 6.
    assert {check: (row.found.split(" needed")[0], row.verdict) for check, row in found.items()} == {
        "quota ml.c6i.8xlarge": ("19, 10", "ok"),
        "quota ml.g6e.xlarge": ("19, 20", "failed"),
        "quota ml.g6.2xlarge": ("19, 20", "failed"),
        "quota ml.g5.2xlarge": ("19, 20", "failed"),
        "quota ml.g4dn.2xlarge": ("19, 20", "failed"),
        "quota of all endpoints": ("19, 30", "failed"),
        "quota of one endpoint": ("19, 6", "ok"),
    }
    assert found["quota ml.g5.2xlarge"].advice == (
        "aws service-quotas request-service-quota-increase --service-code sagemaker --quota-code L-9614C779 "
        "--desired-value 20 --region us-east-1"
    )
    assert "decision-gpu 2 x 6 blue/green, text-gpu 2 x 4 blue/green" in found["quota ml.g5.2xlarge"].found


def test_exactly_enough_is_enough() -> None:
    wanted = {name: quotas.Quota("L-1", 4) for name in quotas.wanted_quotas(STAGING)}
    found = {row.check: row.verdict for row in quotas.quota_rows(STAGING, wanted, Counter(), "us-east-1")}
    # Each type 2 x 2; over all of them 4 + 4.
    assert found.pop("quota of all endpoints") == "failed"
    assert set(found.values()) == {"ok"}
    assert len(found) == 6


def test_a_quota_without_a_value_of_its_own_has_awss_default_from_a_later_page() -> None:
    service_quotas = client("service-quotas")
    name = f"{CPU} for endpoint usage"
    with Stubber(service_quotas) as stubber:
        others = [quota("ml.c6i.8xlarge for training job usage", 50)]
        stubber.add_response("list_service_quotas", {"Quotas": others}, PAGE)
        stubber.add_response("list_aws_default_service_quotas", {"Quotas": others, "NextToken": "2"}, PAGE)
        stubber.add_response(
            "list_aws_default_service_quotas", {"Quotas": [quota(name, 0)]}, {**PAGE, "NextToken": "2"}
        )
        found = rows(DEV, service_quotas, no_endpoints())[f"quota {CPU}"]
    assert (found.found.split(" needed")[0], found.verdict) == ("0, 4", "failed")
    assert "--quota-code L-8E8FCC45 --desired-value 4" in found.advice


def test_the_accounts_own_value_counts_not_the_default() -> None:
    service_quotas = client("service-quotas")
    name = f"{CPU} for endpoint usage"
    with Stubber(service_quotas) as stubber:
        stubber.add_response("list_service_quotas", {"Quotas": [quota(name, 8)]}, PAGE)
        defaults = [quota(name, 0), quota(quotas.ALL_INSTANCES, 4), quota(quotas.PER_ENDPOINT, 4)]
        stubber.add_response("list_aws_default_service_quotas", {"Quotas": defaults}, PAGE)
        found = rows(DEV, service_quotas, no_endpoints())
    assert [row.verdict for row in found.values()] == ["ok", "ok", "ok"]


def test_a_type_without_a_quota_is_not_to_be_had() -> None:
    found = {row.check: row for row in quotas.quota_rows(DEV, {}, Counter(), "eu-north-1")}
    assert found[f"quota {CPU}"].verdict == "failed"
    assert "no 'ml.c6i.8xlarge for endpoint usage' in eu-north-1" in found[f"quota {CPU}"].found
    # Whether a quota over all types has another name there says nothing about the account.
    assert found["quota of all endpoints"].verdict == "not checked"


def test_who_may_not_list_quotas_is_told_the_permission() -> None:
    service_quotas = client("service-quotas")
    with Stubber(service_quotas) as stubber:
        stubber.add_client_error("list_service_quotas", "AccessDeniedException", "no", http_status_code=400)
        (row,) = rows(DEV, service_quotas, no_endpoints()).values()
    assert (row.check, row.verdict) == ("quotas", "not checked")
    assert "servicequotas:ListServiceQuotas" in row.found


def summary(name: str) -> dict[str, Any]:
    arn = f"arn:aws:sagemaker:us-east-1:111122223333:endpoint/{name}"
    times = {"CreationTime": NOW, "LastModifiedTime": NOW}
    return {"EndpointName": name, "EndpointArn": arn, "EndpointStatus": "InService", **times}


def add_endpoint(stubber: Stubber, name: str, served: list[dict[str, Any]], meant: list[dict[str, Any]]) -> None:
    described = {**summary(name), "EndpointConfigName": f"{name}-config", "ProductionVariants": served}
    stubber.add_response("describe_endpoint", described, {"EndpointName": name})
    config = {
        "EndpointConfigName": f"{name}-config",
        "EndpointConfigArn": f"arn:aws:sagemaker:us-east-1:111122223333:endpoint-config/{name}-config",
        "CreationTime": NOW,
        "ProductionVariants": meant,
    }
    stubber.add_response("describe_endpoint_config", config, {"EndpointConfigName": f"{name}-config"})


def test_instances_of_others_count_and_the_environments_own_do_not() -> None:
    sagemaker = client("sagemaker")
    with Stubber(sagemaker) as stubber:
        own = summary("decision-endpoints-dev-decision")
        stubber.add_response(
            "list_endpoints", {"Endpoints": [own, summary("plain")], "NextToken": "2"}, {"MaxResults": 100}
        )
        more = {"Endpoints": [summary("pool"), summary("serverless")]}
        stubber.add_response("list_endpoints", more, {"MaxResults": 100, "NextToken": "2"})
        plain = [{"VariantName": "main", "CurrentInstanceCount": 3}]
        add_endpoint(stubber, "plain", plain, [{"VariantName": "main", "InstanceType": CPU}])
        pools = [
            {"InstanceType": "ml.g6e.xlarge", "CurrentInstanceCount": 1},
            {"InstanceType": "ml.g5.2xlarge", "CurrentInstanceCount": 2},
        ]
        pooled = [{"VariantName": "main", "CurrentInstanceCount": 3, "InstancePools": pools}]
        add_endpoint(stubber, "pool", pooled, [{"VariantName": "main"}])
        add_endpoint(stubber, "serverless", [{"VariantName": "main"}], [{"VariantName": "main"}])
        used = quotas.instances_in_use(sagemaker, DEV)
    assert used == {CPU: 3, "ml.g6e.xlarge": 1, "ml.g5.2xlarge": 2}
    wanted = {name: quotas.Quota("L-1", 6) for name in quotas.wanted_quotas(DEV)}
    found = {row.check: row for row in quotas.quota_rows(DEV, wanted, used, "us-east-1")}
    # 4 for `dev` and 3 that run; of all types 4 and 6.
    assert found[f"quota {CPU}"].found == "6, 7 needed (decision 2 x 2 blue/green; 3 run in other endpoints)"
    assert found[f"quota {CPU}"].verdict == "failed"
    assert "--desired-value 10" in found["quota of all endpoints"].advice


@pytest.mark.parametrize("refused", [True, False])
def test_where_others_cannot_be_counted_the_quotas_are_compared_all_the_same(refused: bool) -> None:
    service_quotas, sagemaker = client("service-quotas"), client("sagemaker")
    with Stubber(service_quotas) as stubber, Stubber(sagemaker) as other:
        stubber.add_response("list_service_quotas", {"Quotas": all_quotas(4)}, PAGE)
        if refused:
            other.add_client_error("list_endpoints", "AccessDeniedException", "no", http_status_code=400)
        else:
            other.add_response(
                "list_endpoints", {"Endpoints": [summary(f"e{n}") for n in range(51)]}, {"MaxResults": 100}
            )
        found = rows(DEV, service_quotas, sagemaker)
    assert found["instances in use"].verdict == "not checked"
    said = "sagemaker:ListEndpoints" if refused else "51 other endpoints are too many"
    assert said in found["instances in use"].found
    assert found[f"quota {CPU}"].verdict == "ok"


def offered(*there: str) -> dict[str, Row]:
    pricing = client("pricing")
    with Stubber(pricing) as stubber:
        for instance_type in (CPU, *STAGING.endpoints[1].instance_types):
            listed = [product(f"USE1-Notebk:{instance_type}", instance_type, "1.0")]
            if instance_type in there:
                listed.append(product(f"USE1-Host:{instance_type}", instance_type, "1.0"))
            stubber.add_response("get_products", {"PriceList": listed}, asked_for(instance_type))
        return {row.check: row for row in quotas.offered_rows(pricing, STAGING, "us-east-1")}


def test_every_type_is_priced() -> None:
    found = offered(CPU, *STAGING.endpoints[1].instance_types)
    assert [row.verdict for row in found.values()] == ["ok", "ok"]


def test_a_pool_lacks_one_type_and_an_endpoint_its_only_one() -> None:
    found = offered("ml.g6e.xlarge", "ml.g6.2xlarge", "ml.g5.2xlarge")
    assert found["types of decision-cpu"].verdict == "failed"
    gpu = found["types of decision-gpu"]
    assert (gpu.verdict, gpu.found) == ("warning", "ml.g4dn.2xlarge: not in the price list of us-east-1")
