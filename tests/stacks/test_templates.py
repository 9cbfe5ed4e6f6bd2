"""What every shipped environment has: what AWS would get, above all what the emulator drops without a word."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from stacks.config import LOCAL, DecisionEndpoint, Environment
from stacks.images import DLC_ACCOUNTS, LLAMA_CPP
from tests.stacks.conftest import Synthesise, Templates, path_of, text

MINUTE = 60


def titles(environment: Environment) -> dict[str, Any]:
    """The environment's endpoints by the words that their logical ids begin with."""
    return {"".join(part.capitalize() for part in e.name.split("-")): e for e in environment.endpoints}


def kinds(environment: Environment) -> set[str]:
    """For which kinds of instance there are images."""
    return {"Gpu" if endpoint.on_gpu else "Cpu" for endpoint in environment.endpoints}


def test_the_bucket_is_private_encrypted_versioned_and_speaks_tls_only(templates: Templates) -> None:
    bucket = templates.one("AWS::S3::Bucket")
    assert bucket["PublicAccessBlockConfiguration"] == {
        "BlockPublicAcls": True,
        "BlockPublicPolicy": True,
        "IgnorePublicAcls": True,
        "RestrictPublicBuckets": True,
    }
    (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    algorithm = "aws:kms" if templates.environment.customer_managed_key else "AES256"
    assert rule["ServerSideEncryptionByDefault"]["SSEAlgorithm"] == algorithm
    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
    assert bucket["OwnershipControls"] == {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
    (lifecycle,) = bucket["LifecycleConfiguration"]["Rules"]
    assert lifecycle["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
    # Emptying asks for this tag before it deletes anything.
    emptied = {"Key": "aws-cdk:auto-delete-objects", "Value": "true"} in bucket["Tags"]
    assert emptied == templates.environment.removable

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
    assert repository["EmptyOnDelete"] is templates.environment.removable


def test_a_removable_environment_leaves_nothing_and_another_its_data(templates: Templates) -> None:
    removable = templates.environment.removable
    assert templates.is_protected is not removable
    for type_ in ("AWS::S3::Bucket", "AWS::ECR::Repository"):
        (resource,) = templates.of_type(type_).values()
        assert resource["DeletionPolicy"] == ("Delete" if removable else "Retain")
    for id_, key in templates.of_type("AWS::KMS::Key").items():
        # The alarms' key encrypts nothing that lasts.
        assert key["DeletionPolicy"] == ("Delete" if removable or "Alarms" in id_ else "Retain")
    assert len(templates.of_type("Custom::S3AutoDeleteObjects")) == removable
    # A group that outlives its stack would stop the next deploy, since its name is taken.
    for id_, group in templates.of_type("AWS::Logs::LogGroup").items():
        assert (id_, group["DeletionPolicy"]) == (id_, "Delete")


def test_what_is_kept_is_said(all_templates: dict[str, Templates]) -> None:
    said = {name: "KeptOnDestroy" in t.artifacts["Outputs"] for name, t in all_templates.items()}
    assert said == {name: not t.environment.removable for name, t in all_templates.items()}
    value = text(all_templates["prod"].artifacts["Outputs"]["KeptOnDestroy"]["Value"])
    ids = [
        id_ for id_, r in all_templates["prod"].artifacts["Resources"].items() if r.get("DeletionPolicy") == "Retain"
    ]
    assert len(ids) == 3
    assert [id_ for id_ in ids if id_ not in value] == []


def test_nothing_is_named_but_the_endpoint_and_what_follows_from_its_name(templates: Templates) -> None:
    environment = templates.environment
    names = {
        value
        for stack in (templates.artifacts, templates.endpoints)
        for resource in stack["Resources"].values()
        if resource["Type"] != "AWS::IAM::Policy"  # part of its role, and unique within it only
        for key, value in resource.get("Properties", {}).items()
        # An alarm's MetricName and Namespace name what it watches.
        if re.fullmatch(r"(?:\w+)?Name", key) and key != "MetricName" and isinstance(value, str)
    }
    endpoints = {environment.endpoint_name(endpoint) for endpoint in environment.endpoints}
    assert names == {
        *endpoints,
        *(f"/aws/sagemaker/Endpoints/{name}" for name in endpoints),
        "main-concurrent-requests",
        # People look for it in the console.
        f"decision-endpoints-{environment.name}",
    }


def test_every_function_project_and_endpoint_writes_into_a_log_group_of_ours(templates: Templates) -> None:
    environment = templates.environment
    groups = templates.of_type("AWS::Logs::LogGroup")
    days = environment.log_retention_days
    assert {id_: group["Properties"]["RetentionInDays"] for id_, group in groups.items()} == dict.fromkeys(groups, days)
    keyed = {"KmsKeyId" in group["Properties"] for group in groups.values()}
    assert keyed == {environment.customer_managed_key}

    functions = templates.of_type("AWS::Lambda::Function")
    # Two of the build runner with three of its framework, the roll-out check with one, the bucket's emptying.
    assert len(functions) == 7 + environment.removable
    for function in functions.values():
        assert function["Properties"]["LoggingConfig"]["LogGroup"]["Ref"] in groups
    for project in templates.of_type("AWS::CodeBuild::Project").values():
        logs = project["Properties"]["LogsConfig"]["CloudWatchLogs"]
        assert logs["Status"] == "ENABLED"
        assert logs["GroupName"]["Ref"] in groups
    names = [g["Properties"].get("LogGroupName") for g in groups.values()]
    for id_, endpoint in templates.of_type("AWS::SageMaker::Endpoint").items():
        assert f"/aws/sagemaker/Endpoints/{endpoint['Properties']['EndpointName']}" in names, id_
        # Or SageMaker makes the group first, without an end to its lines.
        assert any("EndpointLogs" in dependency for dependency in endpoint["DependsOn"]), id_
    assert "LoggingConfiguration" not in templates.one("AWS::StepFunctions::StateMachine")


def test_no_role_may_make_a_log_group(templates: Templates) -> None:
    """Or a late line would bring back what destroy took away. CDK's emptying function is the exception."""
    for id_, policy in templates.of_type("AWS::IAM::Policy").items():
        assert (id_, "logs:CreateLogGroup" in text(policy)) == (id_, False)


def test_everything_that_can_be_tagged_says_whose_it_is(templates: Templates) -> None:
    wanted = [
        {"Key": "environment", "Value": templates.environment.name},
        {"Key": "project", "Value": "decision-endpoints"},
    ]
    for type_ in (
        "AWS::S3::Bucket",
        "AWS::ECR::Repository",
        "AWS::KMS::Key",
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
    for resource in templates.of_type("Custom::Build").values():
        assert poll_seconds < int(resource["Properties"]["ServiceTimeout"]) < 60 * MINUTE
    for start, type_ in (
        ("CustomS3Auto", "Custom::S3AutoDeleteObjects"),
        ("RolloutCheckOnEvent", "Custom::RolloutCheck"),
    ):
        for resource in templates.of_type(type_).values():
            (function,) = [f for i, f in templates.of_type("AWS::Lambda::Function").items() if i.startswith(start)]
            seconds = int(resource["Properties"]["ServiceTimeout"])
            assert function["Properties"]["Timeout"] < seconds < 60 * MINUTE


def test_a_build_waits_for_the_policies_of_its_role_and_of_the_runner(templates: Templates) -> None:
    policies = {path_of(policy): id_ for id_, policy in templates.of_type("AWS::IAM::Policy").items()}
    for resource in templates.of_type("Custom::Build").values():
        build = path_of(resource).split("/")[0]
        for path in (f"{build}/Role/DefaultPolicy", f"{build}/RunPolicy", "BuildRunner/Role/DefaultPolicy"):
            assert policies[f"{path}/Resource"] in resource["DependsOn"], path


def test_every_build_that_an_endpoint_needs_is_there_and_no_other(templates: Templates) -> None:
    environment = templates.environment
    decides = {"Gpu" if e.on_gpu else "Cpu" for e in environment.endpoints if isinstance(e, DecisionEndpoint)}
    assert {path_of(project).split("/")[0] for project in templates.of_type("AWS::CodeBuild::Project").values()} == {
        "ModelBuild",
        *(f"{kind}BaseImage" for kind in kinds(environment)),
        *(f"{kind}AdapterImage" for kind in decides),
    }


def _project(templates: Templates, build: str) -> tuple[dict[str, Any], bool]:
    """A build's variables, and whether it may run Docker."""
    environment = templates.one("AWS::CodeBuild::Project", f"{build}/")["Environment"]
    return {v["Name"]: v["Value"] for v in environment["EnvironmentVariables"]}, environment["PrivilegedMode"]


def test_the_model_build_gets_the_pinned_file_and_tokenizer(templates: Templates) -> None:
    variables, privileged = _project(templates, "ModelBuild")
    model = templates.environment.model
    assert variables["MODEL_SHA256"] == model.sha256
    assert variables["MODEL_BYTES"] == str(model.bytes)
    assert json.loads(variables["MODEL_SOURCE"]) == model.source.describe()
    tokenizer = model.tokenizer and {"repo": model.tokenizer.repository, "revision": model.tokenizer.revision}
    assert json.loads(variables["MODEL_TOKENIZER"]) == tokenizer
    assert variables["MODEL_ARCHIVE"] == "false"
    assert privileged is False


def test_a_base_image_is_copied_by_digest_from_the_regions_own_account(templates: Templates) -> None:
    for kind in kinds(templates.environment):
        base = LLAMA_CPP.gpu if kind == "Gpu" else LLAMA_CPP.cpu
        variables, privileged = _project(templates, f"{kind}BaseImage")
        account, *rest = variables["SOURCE_IMAGE"]["Fn::Join"][1]
        assert account == {"Fn::FindInMap": ["DeepLearningContainers", {"Ref": "AWS::Region"}, "account"]}
        assert text(rest) == text(
            [
                ".dkr.ecr.",
                {"Ref": "AWS::Region"},
                ".",
                {"Ref": "AWS::URLSuffix"},
                f"/llama-cpp@{base.digest}",
            ]
        )
        # A copy is made once for each digest, whatever else changes.
        assert variables["IMAGE_TAG"] == f"base-{base.digest[7:39]}"
        assert privileged is True
        pulls = [s for s in templates.statements(f"{kind}BaseImage/Role") if "repository/llama-cpp" in text(s)]
        assert [statement["Action"] for statement in pulls] == [["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]]
    table = templates.endpoints["Mappings"]["DeepLearningContainers"]
    assert table == {region: {"account": account} for region, account in DLC_ACCOUNTS.items()}


def test_an_adapters_image_is_built_on_the_copy_of_its_own_base(templates: Templates) -> None:
    for title, endpoint in titles(templates.environment).items():
        if not isinstance(endpoint, DecisionEndpoint):
            continue
        kind = "Gpu" if endpoint.on_gpu else "Cpu"
        base = LLAMA_CPP.gpu if endpoint.on_gpu else LLAMA_CPP.cpu
        variables, _ = _project(templates, f"{kind}AdapterImage")
        assert variables["BASE_IMAGE"]["Fn::Join"][1][-2:] == [
            "@",
            _result(templates, f"{kind}BaseImage", "IMAGE_DIGEST"),
        ]
        assert variables["BINDING_COMMIT"] == base.binding_commit
        run = templates.one("Custom::Build", f"{kind}AdapterImage/")
        assert variables["IMAGE_TAG"] == f"adapter-{run['ContentHash']}"
        image = templates.container(title)["Image"]["Fn::Join"][1]
        assert image[-2:] == ["@", _result(templates, f"{kind}AdapterImage", "IMAGE_DIGEST")]


def _result(templates: Templates, build: str, attribute: str) -> dict[str, list[str]]:
    (id_,) = [i for i, r in templates.of_type("Custom::Build").items() if path_of(r).startswith(f"{build}/")]
    return {"Fn::GetAtt": [id_, attribute]}


def test_every_model_is_isolated_and_takes_its_files_from_the_build(templates: Templates) -> None:
    for title in titles(templates.environment):
        model = templates.one("AWS::SageMaker::Model", f"{title}Endpoint/")
        assert model["EnableNetworkIsolation"] is True
        assert "VpcConfig" not in model
        data = templates.container(title)["ModelDataSource"]["S3DataSource"]
        assert (data["S3DataType"], data["CompressionType"]) == ("S3Prefix", "None")
        assert data["S3Uri"]["Fn::Join"][1][-1] == _result(templates, "ModelBuild", "MODEL_PREFIX")
    for id_, resource in templates.of_type("AWS::SageMaker::Model").items():
        # Otherwise SageMaker reads the bucket before the role may.
        assert any("RoleDefaultPolicy" in dependency for dependency in resource["DependsOn"]), id_


def test_every_variant_is_as_its_endpoint_says(templates: Templates) -> None:
    for title, endpoint in titles(templates.environment).items():
        variant = templates.variant(title)
        if endpoint.instance_type:
            assert variant["InstanceType"] == endpoint.instance_type
            assert "InstancePools" not in variant
            assert "VariantInstanceProvisionTimeoutInSeconds" not in variant
        else:
            assert "InstanceType" not in variant
            assert variant["InstancePools"] == [
                {"InstanceType": type_, "Priority": priority}
                for priority, type_ in enumerate(endpoint.instance_pool, start=1)
            ]
            assert variant["VariantInstanceProvisionTimeoutInSeconds"] == endpoint.provision_timeout_seconds
        ami = "al2023-ami-sagemaker-inference-gpu-4-1" if endpoint.on_gpu else None
        assert variant.get("InferenceAmiVersion") == ami
        assert variant["InitialInstanceCount"] == endpoint.instances
        assert variant["ContainerStartupHealthCheckTimeoutInSeconds"] == endpoint.startup_timeout_seconds
        assert variant["ModelDataDownloadTimeoutInSeconds"] == endpoint.download_timeout_seconds
        assert variant["RoutingConfig"] == {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}


def test_scaling_follows_concurrent_requests_and_survives_a_deploy(templates: Templates) -> None:
    for title, endpoint in titles(templates.environment).items():
        below = f"{title}Endpoint/"
        target = templates.one("AWS::ApplicationAutoScaling::ScalableTarget", below)
        assert (target["MinCapacity"], target["MaxCapacity"]) == (endpoint.instances, endpoint.scaling.max_instances)
        assert target["ScalableDimension"] == "sagemaker:variant:DesiredInstanceCount"
        assert text(target["ResourceId"]).count("variant/main") == 1
        policy = templates.one("AWS::ApplicationAutoScaling::ScalingPolicy", below)
        tracking = policy["TargetTrackingScalingPolicyConfiguration"]
        assert tracking["TargetValue"] == endpoint.scaling.concurrent_requests
        assert tracking["PredefinedMetricSpecification"] == {
            "PredefinedMetricType": "SageMakerVariantConcurrentRequestsPerModelHighResolution"
        }
        assert templates.one("AWS::SageMaker::Endpoint", below)["RetainAllVariantProperties"] is True


def test_a_caller_may_invoke_one_endpoint_and_nothing_else(templates: Templates) -> None:
    for title, endpoint in titles(templates.environment).items():
        (statement,) = templates.statements(f"{title}Endpoint/Invoke")
        wanted = ["sagemaker:InvokeEndpoint"]
        if not isinstance(endpoint, DecisionEndpoint):
            wanted.append("sagemaker:InvokeEndpointWithResponseStream")
        actions = statement["Action"]
        assert ([actions] if isinstance(actions, str) else actions) == wanted
        arn = statement["Resource"]["Fn::Join"][1][-1]
        assert arn == f":endpoint/{templates.environment.endpoint_name(endpoint)}"
        (policy,) = [
            id_
            for id_, policy in templates.of_type("AWS::IAM::ManagedPolicy").items()
            if path_of(policy).startswith(f"{title}Endpoint/")
        ]
        outputs = templates.endpoints["Outputs"]
        assert outputs[f"{title}EndpointInvokePolicy"]["Value"] == {"Ref": policy}
        assert outputs[f"{title}EndpointName"]["Value"] == templates.environment.endpoint_name(endpoint)


def test_what_was_rolled_out_is_checked_after_every_change(templates: Templates) -> None:
    for title, endpoint in titles(templates.environment).items():
        check = templates.one("Custom::RolloutCheck", f"{title}Endpoint/")
        (config,) = [
            id_
            for id_, resource in templates.of_type("AWS::SageMaker::EndpointConfig").items()
            if path_of(resource).startswith(f"{title}Endpoint/")
        ]
        assert check["EndpointConfigName"] == {"Fn::GetAtt": [config, "EndpointConfigName"]}
        request = json.loads(check["Request"])
        assert list(request) == (["decision"] if isinstance(endpoint, DecisionEndpoint) else ["messages", "max_tokens"])
    allowed = templates.statements("RolloutCheck/Role")
    arns = [text(resource) for statement in allowed for resource in _as_list(statement["Resource"])]
    for endpoint in templates.environment.endpoints:
        name = templates.environment.endpoint_name(endpoint)
        assert any(f":endpoint/{name}" in arn for arn in arns)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def test_other_content_means_another_build_and_the_same_content_the_same(
    synthesise: Synthesise, local: Templates
) -> None:
    def hashes(templates: Templates) -> dict[str, str]:
        return {i: r["Properties"]["ContentHash"] for i, r in templates.of_type("Custom::Build").items()}

    again = hashes(synthesise(LOCAL))
    assert again == hashes(local)
    assert len(again) == 3
    model = replace(LOCAL.model, sha256="0" * 64)
    images = replace(LLAMA_CPP, cpu=replace(LLAMA_CPP.cpu, digest="sha256:" + "0" * 64))
    other = hashes(synthesise(replace(LOCAL, model=model, base_images=images)))
    assert all(other[id_] != again[id_] for id_ in again)


def test_a_fixed_account_and_region_reach_both_stacks(synthesise: Synthesise) -> None:
    templates = synthesise(replace(LOCAL, account="123456789012", region="eu-central-2"))
    assert "Mappings" not in templates.endpoints
    source = _project(templates, "CpuBaseImage")[0]["SOURCE_IMAGE"]
    assert text(source).count("380420809688.dkr.ecr.") == 1
    assert ":sagemaker:eu-central-2:123456789012:endpoint/" in text(templates.endpoints)


@pytest.mark.parametrize("environment", ["dev"])
def test_an_environment_without_alarms_has_no_topic(all_templates: dict[str, Templates], environment: str) -> None:
    assert all_templates[environment].of_type("AWS::SNS::Topic") == {}
    assert all_templates[environment].of_type("AWS::CloudWatch::Alarm") == {}
