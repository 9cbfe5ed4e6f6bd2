"""SageMaker's control plane: the rules for models and configurations, in AWS's error codes and words."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.emulator.conftest import ROLE, Hosting

POOL = [{"InstanceType": "ml.c6i.xlarge", "Priority": 1}, {"InstanceType": "ml.c6i.2xlarge", "Priority": 2}]


def refused(call: Any, **parameters: Any) -> str:
    """The message of a ValidationException."""
    with pytest.raises(ClientError) as raised:
        call(**parameters)
    assert raised.value.response["Error"]["Code"] == "ValidationException"
    return str(raised.value.response["Error"]["Message"])


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"InstancePools": POOL}, "exactly one of InstanceType and InstancePools"),
        ({"InstanceType": None}, "exactly one of InstanceType and InstancePools"),
        ({"InstanceType": "ml.c6i.xxl"}, "'productionVariants.1.member.instanceType' failed to satisfy constraint"),
        ({"InstanceType": None, "InstancePools": [POOL[0], {**POOL[1], "Priority": 1}]}, "must be unique"),
        ({"InstanceType": None, "InstancePools": [*POOL, *POOL, *POOL]}, "length less than or equal to 5"),
        ({"InstanceType": None, "InstancePools": [{**POOL[0], "Priority": 6}]}, "value less than or equal to 5"),
        ({"InitialInstanceCount": None}, "InitialInstanceCount is required"),
        ({"ContainerStartupHealthCheckTimeoutInSeconds": 3601}, "value less than or equal to 3600"),
        ({"VariantName": "no_underscores"}, "regular expression pattern"),
        ({"ModelName": "absent"}, 'Could not find model "arn:aws:sagemaker:us-east-1:000000000000:model/absent".'),
    ],
)
def test_variant_that_aws_would_refuse(hosting: Hosting, members: dict[str, Any], words: str) -> None:
    variant = hosting.variant(hosting.model(), **members)
    name = hosting.name()
    message = refused(hosting.api.create_endpoint_config, EndpointConfigName=name, ProductionVariants=[variant])
    assert words in message
    assert "Could not find endpoint configuration" in refused(
        hosting.api.describe_endpoint_config, EndpointConfigName=name
    ), "a refused configuration must not exist"


def test_model_is_described_as_it_was_made_and_its_name_is_taken(hosting: Hosting) -> None:
    name = hosting.model(GREETING="hello")
    described = hosting.api.describe_model(ModelName=name)
    assert described["ModelArn"] == f"arn:aws:sagemaker:us-east-1:000000000000:model/{name}"
    assert described["PrimaryContainer"]["Environment"] == {"GREETING": "hello"}
    again = refused(
        hosting.api.create_model, ModelName=name, PrimaryContainer={"Image": hosting.image}, ExecutionRoleArn=ROLE
    )
    assert again == f'Cannot create already existing model "{described["ModelArn"]}".'
    hosting.api.delete_model(ModelName=name)
    missing = f'Could not find model "{described["ModelArn"]}".'
    assert refused(hosting.api.describe_model, ModelName=name) == missing
    assert refused(hosting.api.delete_model, ModelName=name) == missing


def test_lists_are_filtered_sorted_and_paged(hosting: Hosting) -> None:
    names = [f"paged-{letter}" for letter in "bac"]
    for name in names:
        hosting.api.create_model(ModelName=name, PrimaryContainer={"Image": hosting.image}, ExecutionRoleArn=ROLE)
    listed = {"NameContains": "paged-", "MaxResults": 2}
    first = hosting.api.list_models(**listed, SortBy="Name", SortOrder="Ascending")
    second = hosting.api.list_models(**listed, SortBy="Name", SortOrder="Ascending", NextToken=first["NextToken"])
    assert [model["ModelName"] for page in (first, second) for model in page["Models"]] == sorted(names)
    assert "NextToken" not in second
    newest_first = hosting.api.list_models(**listed)["Models"]
    assert [model["ModelName"] for model in newest_first] == ["paged-c", "paged-a"]


def test_tags(hosting: Hosting) -> None:
    name = hosting.name()
    arn = hosting.api.create_model(
        ModelName=name,
        PrimaryContainer={"Image": hosting.image},
        ExecutionRoleArn=ROLE,
        Tags=[{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}],
    )["ModelArn"]
    hosting.api.add_tags(ResourceArn=arn, Tags=[{"Key": "b", "Value": "3"}])
    hosting.api.delete_tags(ResourceArn=arn, TagKeys=["a"])
    assert hosting.api.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "b", "Value": "3"}]
