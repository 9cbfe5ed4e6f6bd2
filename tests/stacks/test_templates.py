"""The templates: what AWS would get, above all what the emulator drops without a word."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from stacks.config import LOCAL, DecisionEndpoint, Scaling
from tests.stacks.conftest import Synthesise, Templates

MINUTE = 60


def text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def test_the_bucket_is_private_encrypted_versioned_and_speaks_tls_only(templates: Templates) -> None:
    bucket = templates.one("AWS::S3::Bucket")
    assert bucket["PublicAccessBlockConfiguration"] == {
        "BlockPublicAcls": True,
        "BlockPublicPolicy": True,
        "IgnorePublicAcls": True,
        "RestrictPublicBuckets": True,
    }
    (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["ServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
    assert bucket["OwnershipControls"] == {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
    (lifecycle,) = bucket["LifecycleConfiguration"]["Rules"]
    assert lifecycle["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
    # Emptying asks for this tag before it deletes anything.
    assert {"Key": "aws-cdk:auto-delete-objects", "Value": "true"} in bucket["Tags"]

    denied = [s for s in templates.one("AWS::S3::BucketPolicy")["PolicyDocument"]["Statement"] if s["Effect"] == "Deny"]
    assert {text(statement["Condition"]) for statement in denied} == {
        text({"Bool": {"aws:SecureTransport": "false"}}),
        text({"NumericLessThan": {"s3:TlsVersion": 1.2}}),
    }
    for statement in denied:
        assert statement["Action"] == "s3:*"
        assert statement["Principal"] == {"AWS": "*"}
        assert len(statement["Resource"]) == 2  # the bucket and what is in it


def test_images_are_scanned_and_their_tags_never_move(templates: Templates) -> None:
    repository = templates.one("AWS::ECR::Repository")
    assert repository["ImageTagMutability"] == "IMMUTABLE"
    assert repository["ImageScanningConfiguration"] == {"ScanOnPush": True}
    assert repository["EmptyOnDelete"] is True


def test_an_environment_that_keeps_its_data_keeps_it(synthesise: Synthesise) -> None:
    kept = synthesise(replace(LOCAL, removable=False))
    for type_ in ("AWS::S3::Bucket", "AWS::ECR::Repository"):
        (resource,) = kept.of_type(type_).values()
        assert resource["DeletionPolicy"] == "Retain"
    assert kept.one("AWS::ECR::Repository")["EmptyOnDelete"] is False
    assert kept.of_type("Custom::S3AutoDeleteObjects") == {}


def test_what_goes_with_its_stack_is_marked_so(templates: Templates) -> None:
    for type_ in ("AWS::S3::Bucket", "AWS::ECR::Repository", "AWS::Logs::LogGroup"):
        for id_, resource in templates.of_type(type_).items():
            assert (id_, resource["DeletionPolicy"]) == (id_, "Delete")


def test_nothing_is_named_but_the_endpoint_and_what_follows_from_its_name(templates: Templates) -> None:
    name = f"decision-endpoints-{templates.environment.name}-decision"
    names = {
        value
        for stack in (templates.artifacts, templates.endpoints)
        for resource in stack["Resources"].values()
        if resource["Type"] != "AWS::IAM::Policy"  # part of its role, and unique within it only
        for key, value in resource.get("Properties", {}).items()
        if re.fullmatch(r"(?:\w+)?Name", key) and isinstance(value, str)
    }
    assert names == {name, f"/aws/sagemaker/Endpoints/{name}", "main-concurrent-requests"}


def test_every_function_project_and_endpoint_writes_into_a_log_group_of_ours(templates: Templates) -> None:
    groups = templates.of_type("AWS::Logs::LogGroup")
    days = templates.environment.log_retention_days
    assert {id_: group["Properties"]["RetentionInDays"] for id_, group in groups.items()} == dict.fromkeys(groups, days)

    functions = templates.of_type("AWS::Lambda::Function")
    assert len(functions) == 6  # two of the build runner, three of the provider framework, the bucket's emptying
    for function in functions.values():
        assert function["Properties"]["LoggingConfig"]["LogGroup"]["Ref"] in groups
    projects = templates.of_type("AWS::CodeBuild::Project")
    assert len(projects) == 2
    for project in projects.values():
        logs = project["Properties"]["LogsConfig"]["CloudWatchLogs"]
        assert logs["Status"] == "ENABLED"
        assert logs["GroupName"]["Ref"] in groups
    name = templates.one("AWS::SageMaker::Endpoint")["EndpointName"]
    assert f"/aws/sagemaker/Endpoints/{name}" in [g["Properties"].get("LogGroupName") for g in groups.values()]
    assert "LoggingConfiguration" not in templates.one("AWS::StepFunctions::StateMachine")


def test_no_role_may_make_a_log_group(templates: Templates) -> None:
    """Or a late line would bring back what destroy took away. CDK's emptying function is the exception."""
    for id_, policy in templates.of_type("AWS::IAM::Policy").items():
        assert (id_, "logs:CreateLogGroup" in text(policy)) == (id_, False)
    managed = [i for i, r in templates.of_type("AWS::IAM::Role").items() if r["Properties"].get("ManagedPolicyArns")]
    assert managed == ["CustomS3AutoDeleteObjectsCustomResourceProviderRole3B1BD092"]


def test_everything_that_can_be_tagged_says_whose_it_is(templates: Templates) -> None:
    wanted = [
        {"Key": "environment", "Value": templates.environment.name},
        {"Key": "project", "Value": "decision-endpoints"},
    ]
    for type_ in (
        "AWS::S3::Bucket",
        "AWS::ECR::Repository",
        "AWS::IAM::Role",
        "AWS::CodeBuild::Project",
        "AWS::Logs::LogGroup",
        "AWS::SageMaker::Model",
        "AWS::SageMaker::EndpointConfig",
        "AWS::SageMaker::Endpoint",
    ):
        for id_, resource in templates.of_type(type_).items():
            if id_.startswith("CustomS3AutoDelete"):
                continue  # CDK makes it below its constructs, where no tag reaches
            tags = resource["Properties"]["Tags"]
            assert [tag for tag in tags if tag in wanted] == wanted, id_


def test_a_build_ends_before_the_poll_and_the_poll_before_cloudformation_does(templates: Templates) -> None:
    for project in templates.of_type("AWS::CodeBuild::Project").values():
        minutes = project["Properties"]["TimeoutInMinutes"] + project["Properties"]["QueuedTimeoutInMinutes"]
        assert minutes < 55
    machine = text(templates.one("AWS::StepFunctions::StateMachine")["DefinitionString"])
    retry = re.search(r'IntervalSeconds\\+":(\d+),\\+"MaxAttempts\\+":(\d+),\\+"BackoffRate\\+":1[,}]', machine)
    assert retry is not None
    poll_seconds = int(retry[1]) * int(retry[2])
    assert minutes * MINUTE < poll_seconds
    resources = templates.of_type("Custom::Build")
    assert len(resources) == 2
    for resource in resources.values():
        assert poll_seconds < int(resource["Properties"]["ServiceTimeout"]) < 60 * MINUTE
    emptying = templates.one("Custom::S3AutoDeleteObjects")
    (function,) = [f for i, f in templates.of_type("AWS::Lambda::Function").items() if i.startswith("CustomS3Auto")]
    assert function["Properties"]["Timeout"] < int(emptying["ServiceTimeout"]) < 60 * MINUTE


def test_a_build_waits_for_the_policies_of_its_role_and_of_the_runner(templates: Templates) -> None:
    policies = templates.of_type("AWS::IAM::Policy")
    for id_, resource in templates.of_type("Custom::Build").items():
        kind = id_.split("Run")[0]
        for prefix in (f"{kind}RoleDefaultPolicy", "BuildRunnerRoleDefaultPolicy"):
            (policy,) = [p for p in policies if p.startswith(prefix)]
            assert policy in resource["DependsOn"]


def test_the_model_build_gets_the_pinned_file(templates: Templates) -> None:
    (project,) = [p for i, p in templates.of_type("AWS::CodeBuild::Project").items() if i.startswith("ModelBuild")]
    environment = project["Properties"]["Environment"]
    variables = {v["Name"]: v["Value"] for v in environment["EnvironmentVariables"]}
    model = templates.environment.model
    assert variables["MODEL_SHA256"] == model.sha256
    assert variables["MODEL_BYTES"] == str(model.bytes)
    assert json.loads(variables["MODEL_SOURCE"]) == model.source.describe()
    assert environment["PrivilegedMode"] is False


def test_the_image_build_gets_the_base_by_digest(templates: Templates) -> None:
    (project,) = [p for i, p in templates.of_type("AWS::CodeBuild::Project").items() if i.startswith("ImageBuild")]
    variables = {v["Name"]: v["Value"] for v in project["Properties"]["Environment"]["EnvironmentVariables"]}
    base = templates.environment.base_image
    assert variables["BASE_IMAGE"] == f"{base.repository}@{base.digest}"
    assert variables["BINDING_COMMIT"] == base.binding_commit
    (run,) = [r for i, r in templates.of_type("Custom::Build").items() if i.startswith("ImageBuild")]
    assert variables["IMAGE_TAG"] == run["Properties"]["ContentHash"]


def test_the_model_is_isolated_and_takes_its_files_and_image_from_the_builds(templates: Templates) -> None:
    (model,) = templates.of_type("AWS::SageMaker::Model").values()
    properties = model["Properties"]
    assert properties["EnableNetworkIsolation"] is True
    container = properties["PrimaryContainer"]
    data = container["ModelDataSource"]["S3DataSource"]
    assert (data["S3DataType"], data["CompressionType"]) == ("S3Prefix", "None")
    assert data["S3Uri"]["Fn::Join"][1][-1] == {"Fn::GetAtt": [_run(templates, "ModelBuild"), "MODEL_PREFIX"]}
    image = container["Image"]["Fn::Join"][1]
    assert image[-2:] == ["@", {"Fn::GetAtt": [_run(templates, "ImageBuild"), "IMAGE_DIGEST"]}]
    # Otherwise SageMaker reads the bucket before the role may.
    assert any(id_.startswith("DecisionEndpointRoleDefaultPolicy") for id_ in model["DependsOn"])


def _run(templates: Templates, kind: str) -> str:
    (id_,) = [i for i in templates.of_type("Custom::Build") if i.startswith(kind)]
    return id_


def test_the_variant_of_a_fixed_type(templates: Templates) -> None:
    (variant,) = templates.one("AWS::SageMaker::EndpointConfig")["ProductionVariants"]
    endpoint = templates.environment.endpoints[0]
    assert variant["InstanceType"] == endpoint.instance_type
    assert "InstancePools" not in variant
    assert "VariantInstanceProvisionTimeoutInSeconds" not in variant
    assert variant["InitialInstanceCount"] == 1
    assert variant["ContainerStartupHealthCheckTimeoutInSeconds"] == endpoint.startup_timeout_seconds
    assert variant["ModelDataDownloadTimeoutInSeconds"] == endpoint.download_timeout_seconds
    assert variant["RoutingConfig"] == {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}


def test_scaling_follows_concurrent_requests_and_survives_a_deploy(templates: Templates) -> None:
    target = templates.one("AWS::ApplicationAutoScaling::ScalableTarget")
    assert (target["MinCapacity"], target["MaxCapacity"]) == (1, 2)
    assert target["ScalableDimension"] == "sagemaker:variant:DesiredInstanceCount"
    assert text(target["ResourceId"]).count("variant/main") == 1
    tracking = templates.one("AWS::ApplicationAutoScaling::ScalingPolicy")["TargetTrackingScalingPolicyConfiguration"]
    assert tracking["TargetValue"] == 4
    assert tracking["PredefinedMetricSpecification"] == {
        "PredefinedMetricType": "SageMakerVariantConcurrentRequestsPerModelHighResolution"
    }
    assert templates.one("AWS::SageMaker::Endpoint")["RetainAllVariantProperties"] is True


@pytest.fixture(scope="module")
def two_endpoints(synthesise: Synthesise) -> Templates:
    fixed = replace(LOCAL.endpoints[0], scaling=None, environment={"SEMIF_THREADS": "2"})
    pooled = DecisionEndpoint(
        name="pooled-one",
        instance_pool=("ml.c7i.xlarge", "ml.c6i.xlarge"),
        instances=2,
        scaling=Scaling(max_instances=5, concurrent_requests=1),
        provision_timeout_seconds=900,
    )
    return synthesise(replace(LOCAL, endpoints=(fixed, pooled)))


def test_several_endpoints_share_one_model_and_one_image(two_endpoints: Templates) -> None:
    assert len(two_endpoints.of_type("Custom::Build")) == 2
    models = [
        model["Properties"]["PrimaryContainer"] for model in two_endpoints.of_type("AWS::SageMaker::Model").values()
    ]
    assert len(models) == 2
    assert text(models[0]["ModelDataSource"]) == text(models[1]["ModelDataSource"])
    assert text(models[0]["Image"]) == text(models[1]["Image"])
    outputs = two_endpoints.endpoints["Outputs"]
    assert outputs["DecisionEndpointName"]["Value"] == "decision-endpoints-local-decision"
    assert outputs["PooledOneEndpointName"]["Value"] == "decision-endpoints-local-pooled-one"


def test_a_pool_is_ordered_and_replaces_the_type(two_endpoints: Templates) -> None:
    (config,) = [
        c for i, c in two_endpoints.of_type("AWS::SageMaker::EndpointConfig").items() if i.startswith("Pooled")
    ]
    (variant,) = config["Properties"]["ProductionVariants"]
    assert "InstanceType" not in variant
    assert variant["InstancePools"] == [
        {"InstanceType": "ml.c7i.xlarge", "Priority": 1},
        {"InstanceType": "ml.c6i.xlarge", "Priority": 2},
    ]
    assert variant["VariantInstanceProvisionTimeoutInSeconds"] == 900
    assert variant["InitialInstanceCount"] == 2


def test_an_endpoint_without_scaling_has_its_variables_and_no_target(two_endpoints: Templates) -> None:
    (model,) = [m for i, m in two_endpoints.of_type("AWS::SageMaker::Model").items() if i.startswith("Decision")]
    assert model["Properties"]["PrimaryContainer"]["Environment"] == {"SEMIF_THREADS": "2"}
    (target,) = two_endpoints.of_type("AWS::ApplicationAutoScaling::ScalableTarget").values()
    assert "DecisionEndpoint" not in text(target["Properties"]["ResourceId"])
    (endpoint,) = [e for i, e in two_endpoints.of_type("AWS::SageMaker::Endpoint").items() if i.startswith("Decision")]
    assert endpoint["Properties"]["RetainAllVariantProperties"] is False


def test_other_content_means_another_build_and_the_same_content_the_same(
    synthesise: Synthesise, local: Templates
) -> None:
    def hashes(templates: Templates) -> dict[str, str]:
        return {i: r["Properties"]["ContentHash"] for i, r in templates.of_type("Custom::Build").items()}

    again = hashes(synthesise(LOCAL))
    assert again == hashes(local)
    model = replace(LOCAL.model, sha256="0" * 64)
    base = replace(LOCAL.base_image, digest="sha256:" + "0" * 64)
    other = hashes(synthesise(replace(LOCAL, model=model, base_image=base)))
    assert all(other[id_] != again[id_] for id_ in again)


def test_a_fixed_account_and_region_reach_both_stacks(synthesise: Synthesise) -> None:
    templates = synthesise(replace(LOCAL, account="123456789012", region="eu-central-1"))
    policy = text(templates.endpoints)
    assert "eu-central-1" in policy
    assert "123456789012" in policy
