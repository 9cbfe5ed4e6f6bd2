"""The resource types in CloudFormation: what Ref and GetAtt give, replacement, updates in place, rollback, removal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError, WaiterError

from tests.emulator.conftest import BUCKET, ROLE, Hosting, is_running

Template = dict[str, Any]


def template(hosting: Hosting, endpoint: str, greeting: str, **environment: str) -> Template:
    """Model, configuration, named endpoint, target and policy, as the CDK writes them: numbers as strings too."""
    resource_id = {"Fn::Sub": "endpoint/${Endpoint.EndpointName}/variant/main"}
    resources = {
        "Model": {
            "Type": "AWS::SageMaker::Model",
            "Properties": {
                "ExecutionRoleArn": ROLE,
                "PrimaryContainer": {
                    "Image": hosting.image,
                    "Environment": {"GREETING": greeting, **environment},
                    "ModelDataSource": {
                        "S3DataSource": {
                            "S3Uri": f"s3://{BUCKET}/one/",
                            "S3DataType": "S3Prefix",
                            "CompressionType": "None",
                        }
                    },
                },
            },
        },
        "Config": {
            "Type": "AWS::SageMaker::EndpointConfig",
            "Properties": {
                "ProductionVariants": [
                    {
                        "VariantName": "main",
                        "ModelName": {"Fn::GetAtt": ["Model", "ModelName"]},
                        "InitialInstanceCount": "1",
                        "InitialVariantWeight": "1.5",
                        "InstanceType": "ml.c6i.xlarge",
                    }
                ]
            },
        },
        "Endpoint": {
            "Type": "AWS::SageMaker::Endpoint",
            "Properties": {
                "EndpointName": endpoint,
                "EndpointConfigName": {"Fn::GetAtt": ["Config", "EndpointConfigName"]},
                "RetainAllVariantProperties": "true",
                "Tags": [{"Key": "greeting", "Value": greeting}],
            },
        },
        "Target": {
            "Type": "AWS::ApplicationAutoScaling::ScalableTarget",
            "Properties": {
                "ServiceNamespace": "sagemaker",
                "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
                "ResourceId": resource_id,
                "MinCapacity": "1",
                "MaxCapacity": "4",
                "ScheduledActions": [
                    {
                        "ScheduledActionName": f"morning-{greeting}",
                        "Schedule": "cron(0 6 * * ? *)",
                        "ScalableTargetAction": {"MinCapacity": "2"},
                    }
                ],
            },
        },
        "Policy": {
            "Type": "AWS::ApplicationAutoScaling::ScalingPolicy",
            "Properties": {
                "PolicyName": "requests",
                "PolicyType": "TargetTrackingScaling",
                "ScalingTargetId": {"Ref": "Target"},
                "TargetTrackingScalingPolicyConfiguration": {
                    "TargetValue": "3",
                    "PredefinedMetricSpecification": {
                        "PredefinedMetricType": "SageMakerVariantConcurrentRequestsPerModelHighResolution"
                    },
                },
            },
        },
    }
    outputs = {name: {"Value": {"Ref": name}} for name in resources}
    return {"Resources": resources, "Outputs": outputs}


class Stack:
    """A stack under a name, each operation waited for."""

    def __init__(self, hosting: Hosting, name: str) -> None:
        self.api = hosting.emulator.client("cloudformation")
        self.name = name

    def create(self, body: Template) -> dict[str, str]:
        """Its outputs."""
        self.api.create_stack(StackName=self.name, TemplateBody=json.dumps(body))
        return self._outputs("stack_create_complete")

    def update(self, body: Template) -> dict[str, str]:
        """Its outputs."""
        self.api.update_stack(StackName=self.name, TemplateBody=json.dumps(body))
        return self._outputs("stack_update_complete")

    def delete(self) -> None:
        """Until it is gone."""
        self.api.delete_stack(StackName=self.name)
        self._wait("stack_delete_complete")

    def status(self) -> str:
        """Its status."""
        return str(self.api.describe_stacks(StackName=self.name)["Stacks"][0]["StackStatus"])

    def failures(self) -> str:
        """The reasons of all failed events."""
        events = self.api.describe_stack_events(StackName=self.name)["StackEvents"]
        return " ".join(e.get("ResourceStatusReason", "") for e in events if e["ResourceStatus"].endswith("FAILED"))

    def _outputs(self, waiter: str) -> dict[str, str]:
        self._wait(waiter)
        stack = self.api.describe_stacks(StackName=self.name)["Stacks"][0]
        return {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}

    def _wait(self, waiter: str) -> None:
        self.api.get_waiter(waiter).wait(StackName=self.name, WaiterConfig={"Delay": 0.2, "MaxAttempts": 300})


def test_life_of_a_stack(hosting: Hosting) -> None:
    endpoint = hosting.name()
    stack = Stack(hosting, endpoint)
    first = stack.create(template(hosting, endpoint, "first"))
    arn = "arn:aws:sagemaker:us-east-1:000000000000"
    assert first["Endpoint"] == f"{arn}:endpoint/{endpoint}"
    assert first["Model"].startswith(f"{arn}:model/model-")
    assert first["Config"].startswith(f"{arn}:endpoint-config/config-")
    dimension = "sagemaker:variant:DesiredInstanceCount"
    assert first["Target"] == f"endpoint/{endpoint}/variant/main|{dimension}|sagemaker"
    assert hosting.invoke(endpoint)["Body"]["environment"]["GREETING"] == "first"
    scaling = hosting.emulator.client("application-autoscaling")
    (target,) = scaling.describe_scalable_targets(
        ServiceNamespace="sagemaker", ResourceIds=[f"endpoint/{endpoint}/variant/main"]
    )["ScalableTargets"]
    assert (target["MinCapacity"], target["MaxCapacity"]) == (1, 4)
    (policy,) = scaling.describe_scaling_policies(ServiceNamespace="sagemaker")["ScalingPolicies"]
    assert policy["PolicyARN"] == first["Policy"]
    assert policy["TargetTrackingScalingPolicyConfiguration"]["TargetValue"] == 3.0

    def actions() -> list[tuple[str, int]]:
        found = scaling.describe_scheduled_actions(ServiceNamespace="sagemaker")["ScheduledActions"]
        return [(action["ScheduledActionName"], action["ScalableTargetAction"]["MinCapacity"]) for action in found]

    assert actions() == [("morning-first", 2)]

    # An update: model and configuration replaced and the old ones removed, the endpoint updated in place.
    second = stack.update(template(hosting, endpoint, "second"))
    assert second["Endpoint"] == first["Endpoint"]
    assert second["Model"] != first["Model"]
    assert hosting.invoke(endpoint)["Body"]["environment"]["GREETING"] == "second"
    assert actions() == [("morning-second", 2)]
    for kind, listed in (("Model", "Models"), ("Config", "EndpointConfigs")):
        operation = {"Model": hosting.api.list_models, "Config": hosting.api.list_endpoint_configs}[kind]
        arns = {value for item in operation(MaxResults=100)[listed] for value in item.values()}
        assert second[kind] in arns
        assert first[kind] not in arns
    tags = {tag["Key"]: tag["Value"] for tag in hosting.api.list_tags(ResourceArn=second["Endpoint"])["Tags"]}
    assert tags["greeting"] == "second"
    assert tags["aws:cloudformation:stack-name"] == stack.name

    # A failing update: rolled back, with the endpoint serving what it served.
    with pytest.raises(WaiterError):
        stack.update(template(hosting, endpoint, "third", BEHAVIOUR="exit"))
    assert stack.status() == "UPDATE_ROLLBACK_COMPLETE"
    assert "did not pass the ping health check" in stack.failures()
    assert hosting.invoke(endpoint)["Body"]["environment"]["GREETING"] == "second"
    config = hosting.api.describe_endpoint(EndpointName=endpoint)["EndpointConfigName"]
    assert second["Config"].endswith(config.lower())
    assert hosting.api.describe_endpoint_config(EndpointConfigName=config)

    pid = hosting.invoke(endpoint)["Body"]["pid"]
    stack.delete()
    assert not is_running(pid)
    assert not hosting.api.list_endpoints(NameContains=endpoint)["Endpoints"]
    assert not hosting.api.list_models(NameContains="model-", MaxResults=100)["Models"]
    assert not hosting.api.list_endpoint_configs(NameContains="config-", MaxResults=100)["EndpointConfigs"]
    assert not scaling.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"]
    assert not scaling.describe_scaling_policies(ServiceNamespace="sagemaker")["ScalingPolicies"]


def test_failed_creation_leaves_nothing(hosting: Hosting) -> None:
    endpoint = hosting.name()
    stack = Stack(hosting, endpoint)
    with pytest.raises(WaiterError):
        stack.create(template(hosting, endpoint, "never", BEHAVIOUR="exit"))
    assert stack.status() == "ROLLBACK_COMPLETE"
    assert "last log line: bad setting: BEHAVIOUR is exit" in stack.failures()
    assert not hosting.api.list_endpoints(NameContains=endpoint)["Endpoints"]
    assert not hosting.api.list_models(NameContains="model-")["Models"]


@pytest.mark.parametrize("resource", ["Model", "Config", "Endpoint", "Target", "Policy"])
def test_unknown_property_is_refused(hosting: Hosting, resource: str) -> None:
    endpoint = hosting.name()
    body = template(hosting, endpoint, "never")
    body["Resources"][resource]["Properties"]["Colour"] = "blue"
    stack = Stack(hosting, endpoint)
    with pytest.raises(WaiterError):
        stack.create(body)
    assert "Colour" in stack.failures()


def test_custom_name_cannot_be_replaced(hosting: Hosting) -> None:
    body = template(hosting, hosting.name(), "one")
    body = {"Resources": {"Model": body["Resources"]["Model"]}, "Outputs": {}}
    body["Resources"]["Model"]["Properties"]["ModelName"] = hosting.name()
    body["Outputs"] = {"Model": {"Value": {"Ref": "Model"}}}
    stack = Stack(hosting, hosting.name())
    stack.create(body)
    body["Resources"]["Model"]["Properties"]["EnableNetworkIsolation"] = "true"
    with pytest.raises(WaiterError):
        stack.update(body)
    assert "cannot update a stack when a custom-named resource requires replacing" in stack.failures()
    stack.delete()


def test_alarm_of_metric_math_is_kept_as_it_is_written(hosting: Hosting) -> None:
    metric = {"Metric": {"Namespace": "N", "MetricName": "M"}, "Period": "60", "Stat": "Sum"}
    alarm = {
        "Type": "AWS::CloudWatch::Alarm",
        "Properties": {
            "ComparisonOperator": "GreaterThanThreshold",
            "EvaluationPeriods": "3",
            "Threshold": "5",
            "Metrics": [
                {"Id": "share", "Expression": "100 * m", "ReturnData": "true"},
                {"Id": "m", "MetricStat": metric, "ReturnData": "false"},
            ],
        },
    }
    stack = Stack(hosting, hosting.name())
    name = stack.create({"Resources": {"Alarm": alarm}, "Outputs": {"Alarm": {"Value": {"Ref": "Alarm"}}}})["Alarm"]
    (described,) = hosting.emulator.client("cloudwatch").describe_alarms(AlarmNames=[name])["MetricAlarms"]
    assert described["StateValue"] == "INSUFFICIENT_DATA"
    assert "MetricName" not in described
    assert described["Metrics"][0] == {"Id": "share", "Expression": "100 * m", "ReturnData": True}
    assert described["Metrics"][1]["MetricStat"]["Period"] == 60
    stack.delete()


def test_bucket_and_repository_are_deleted_only_when_empty(hosting: Hosting) -> None:
    bucket, repository = hosting.name(), hosting.name()
    body: Template = {
        "Resources": {
            "Bucket": {
                "Type": "AWS::S3::Bucket",
                "Properties": {"BucketName": bucket, "Tags": [{"Key": "auto-delete", "Value": "true"}]},
            },
            "Repository": {"Type": "AWS::ECR::Repository", "Properties": {"RepositoryName": f"{repository}-of-stack"}},
        },
        "Outputs": {"Bucket": {"Value": {"Ref": "Bucket"}}},
    }
    stack = Stack(hosting, hosting.name())
    stack.create(body)
    s3, ecr = hosting.emulator.client("s3"), hosting.emulator.client("ecr")
    tags = {tag["Key"]: tag["Value"] for tag in s3.get_bucket_tagging(Bucket=bucket)["TagSet"]}
    assert tags["auto-delete"] == "true"
    s3.put_object(Bucket=bucket, Key="object", Body=b"")
    manifest = ecr.batch_get_image(repositoryName="server", imageIds=[{"imageTag": "1"}])["images"][0]["imageManifest"]
    ecr.put_image(repositoryName=f"{repository}-of-stack", imageManifest=manifest, imageTag="1")
    with pytest.raises(WaiterError):
        stack.delete()
    assert stack.status() == "DELETE_FAILED"
    assert "is not empty" in stack.failures()
    s3.delete_object(Bucket=bucket, Key="object")
    ecr.batch_delete_image(repositoryName=f"{repository}-of-stack", imageIds=[{"imageTag": "1"}])
    stack.delete()
    with pytest.raises(ClientError):
        s3.head_bucket(Bucket=bucket)
