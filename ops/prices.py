"""What an hour of an instance costs: from the AWS price list, or from the dated table in prices.json."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

_TABLE = Path(__file__).with_name("prices.json")

# The price list answers in three regions, for all of them; this one is in every account.
PRICE_LIST_REGION = "us-east-1"
PRICE_LIST_ACTION = "pricing:GetProducts"
_SERVICE = "AmazonSageMaker"


@dataclass(frozen=True)
class Table:
    """The prices of the repository, as of a day."""

    date: str
    source: str
    # USD an hour by region and instance type.
    regions: Mapping[str, Mapping[str, Decimal]]

    def hourly(self, region: str, instance_type: str) -> Decimal | None:
        """USD for an hour of one instance; None where the table has none. It is never estimated from another's."""
        return self.regions.get(region, {}).get(instance_type)


@functools.cache
def table() -> Table:
    """The table of prices.json."""
    content = json.loads(_TABLE.read_text(encoding="utf-8"))
    regions = {
        region: {instance_type: Decimal(price) for instance_type, price in prices.items()}
        for region, prices in content["regions"].items()
    }
    return Table(content["date"], f"{content['source']}; {content['what']}", regions)


def listed_hourly(pricing: Any, region: str, instance_type: str, *, asynchronous: bool = False) -> Decimal | None:
    """USD for an hour of one instance by the AWS price list, on demand; None where the list has no such product.

    `pricing` is a client in PRICE_LIST_REGION. An endpoint's hours are the product whose usage type is
    `PREFIX-Host:TYPE`, an asynchronous one's `PREFIX-AsyncInf:TYPE`, without prefix in the oldest region (source: the
    offer file of AmazonSageMaker); the same type's training or notebook hours are other products. Products of price
    zero are the free tier. Raises botocore's errors, and ValueError for two prices of one product.
    """
    usage = f"{'AsyncInf' if asynchronous else 'Host'}:{instance_type}"
    prices = {
        price
        for product in _products(pricing, region, instance_type)
        if _is_usage(product["product"]["attributes"].get("usagetype", ""), usage)
        for price in _on_demand_hours(product)
        if price > 0
    }
    if len(prices) > 1:
        raise ValueError(f"the price list has {len(prices)} prices for {usage} in {region}: {sorted(prices)}")
    return prices.pop() if prices else None


def _products(pricing: Any, region: str, instance_type: str) -> Iterator[dict[str, Any]]:
    wanted = {"regionCode": region, "instanceName": instance_type}
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    for page in pricing.get_paginator("get_products").paginate(ServiceCode=_SERVICE, Filters=filters):
        for text in page["PriceList"]:
            yield json.loads(text)


def _is_usage(usage_type: str, usage: str) -> bool:
    return usage_type == usage or usage_type.endswith(f"-{usage}")


def _on_demand_hours(product: Mapping[str, Any]) -> Iterator[Decimal]:
    for offer in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in offer["priceDimensions"].values():
            if dimension["unit"] == "Hrs":
                yield Decimal(dimension["pricePerUnit"]["USD"])
