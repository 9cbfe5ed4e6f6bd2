"""Answers of the AWS price list, in the shape in which GetProducts gives them."""

from __future__ import annotations

import json


def product(usage_type: str, instance_type: str, usd: str, *, region: str = "us-east-1", unit: str = "Hrs") -> str:
    """One entry of PriceList: a JSON document in a string, with an offer on demand."""
    component = {"Host": "Hosting", "AsyncInf": "Async Inference"}.get(usage_type.partition(":")[0].rpartition("-")[2])
    sku = "2X4QS8A7RJ6ZB5YH"
    dimension = f"{sku}.JRTCKXETXF.6YS6EN2CT7"
    return json.dumps(
        {
            "product": {
                "productFamily": "ML Instance",
                "attributes": {
                    "regionCode": region,
                    "servicecode": "AmazonSageMaker",
                    "instanceName": instance_type,
                    "instanceType": f"{instance_type}-{component or 'Notebook'}",
                    "component": component or "Notebook",
                    "platoinstancetype": component or "Notebook",
                    "usagetype": usage_type,
                    "locationType": "AWS Region",
                    "operation": "RunInstance",
                },
                "sku": sku,
            },
            "serviceCode": "AmazonSageMaker",
            "terms": {
                "OnDemand": {
                    f"{sku}.JRTCKXETXF": {
                        "priceDimensions": {
                            dimension: {
                                "unit": unit,
                                "endRange": "Inf",
                                "description": f"${usd} per {usage_type} hour",
                                "appliesTo": [],
                                "rateCode": dimension,
                                "beginRange": "0",
                                "pricePerUnit": {"USD": usd},
                            }
                        },
                        "sku": sku,
                        "effectiveDate": "2026-09-01T00:00:00Z",
                        "offerTermCode": "JRTCKXETXF",
                        "termAttributes": {},
                    }
                }
            },
            "version": "20260927000000",
            "publicationDate": "2026-09-27T00:00:00Z",
        }
    )


def asked_for(instance_type: str, region: str = "us-east-1", **more: object) -> dict[str, object]:
    """The parameters of the request for one type."""
    wanted = (("regionCode", region), ("instanceName", instance_type))
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted]
    return {"ServiceCode": "AmazonSageMaker", "Filters": filters, **more}
