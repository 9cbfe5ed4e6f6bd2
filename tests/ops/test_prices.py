"""Prices of instances: which product of the price list is an endpoint's, and what the table says."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber

from ops.prices import listed_hourly, table
from tests.ops.price_list import asked_for, product
from tests.ops.stubbed import client

TYPE = "ml.g6e.2xlarge"


@pytest.fixture
def pricing() -> Any:
    """A client that reaches nobody."""
    return client("pricing")


def listed(pricing: Any, *pages: list[str], **options: Any) -> Decimal | None:
    """The price by these pages of the price list."""
    with Stubber(pricing) as stubber:
        for number, page in enumerate(pages):
            more = {"NextToken": str(number)} if number else {}
            next_token = {"NextToken": str(number + 1)} if number + 1 < len(pages) else {}
            stubber.add_response("get_products", {"PriceList": page, **next_token}, asked_for(TYPE, **more))
        price = listed_hourly(pricing, "us-east-1", TYPE, **options)
        stubber.assert_no_pending_responses()
    return price


EVERYTHING = [
    product(f"USE1-Notebk:{TYPE}", TYPE, "1.1000000000"),
    product(f"USE1-Train:{TYPE}", TYPE, "2.2000000000"),
    product(f"USE1-Host:{TYPE}", TYPE, "2.8026000000"),
    product(f"USE1-Host:{TYPE}", TYPE, "0.0000000000"),
    product(f"USE1-AsyncInf:{TYPE}", TYPE, "3.3000000000"),
]


def test_of_all_products_of_a_type_the_endpoints_counts(pricing: Any) -> None:
    assert listed(pricing, EVERYTHING) == Decimal("2.8026")
    assert listed(pricing, EVERYTHING, asynchronous=True) == Decimal("3.3")


def test_every_page_is_read(pricing: Any) -> None:
    assert listed(pricing, EVERYTHING[:2], EVERYTHING[2:]) == Decimal("2.8026")


def test_the_oldest_region_has_no_prefix(pricing: Any) -> None:
    assert listed(pricing, [product(f"Host:{TYPE}", TYPE, "2.5")]) == Decimal("2.5")


def test_other_sizes_and_units_are_not_it(pricing: Any) -> None:
    others = [product(f"USE1-Host:{TYPE}-x", TYPE, "1"), product(f"USE1-Host:{TYPE}", TYPE, "9", unit="GB")]
    assert listed(pricing, others) is None


def test_a_type_that_the_region_lacks_has_no_price(pricing: Any) -> None:
    assert listed(pricing, []) is None


def test_two_prices_of_one_product_are_refused(pricing: Any) -> None:
    twice = [product(f"USE1-Host:{TYPE}", TYPE, price) for price in ("2.8", "2.9")]
    with pytest.raises(ValueError, match=r"2 prices for Host:ml\.g6e\.2xlarge in us-east-1"):
        listed(pricing, twice)


def test_aws_own_error_passes(pricing: Any) -> None:
    with Stubber(pricing) as stubber:
        stubber.add_client_error(
            "get_products", "AccessDeniedException", "not authorized to perform: pricing:GetProducts"
        )
        with pytest.raises(ClientError, match="pricing:GetProducts"):
            listed_hourly(pricing, "us-east-1", TYPE)


def test_the_table_has_every_type_of_the_shipped_environments() -> None:
    prices = table()
    assert prices.date == "2026-09-27"
    shipped = ("ml.c6i.large", "ml.c6i.8xlarge", "ml.g6e.xlarge", "ml.g6.2xlarge", "ml.g5.2xlarge", "ml.g4dn.2xlarge")
    assert [prices.hourly("us-east-1", one) for one in shipped] == [
        Decimal(price) for price in ("0.102", "1.632", "2.61", "1.222", "1.52", "0.94")
    ]


def test_the_table_guesses_nothing() -> None:
    assert table().hourly("eu-west-1", "ml.c6i.8xlarge") is None
    assert table().hourly("us-east-1", "ml.c9i.8xlarge") is None
