"""What the options of an environment and of its endpoints come to, those of `prod` and those that none shipped uses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import App, Stack

from stacks import builds
from stacks.config import PROD, STAGING, Environment, TextEndpoint
from stacks.models import HubModel
from stacks.stage import build
from tests.stacks.conftest import OPTIONS, Synthesise, Templates, path_of, text

CAPTURE = "data-capture/decision-endpoints-options-captured"
OFFLINE = "asynchronous/decision-endpoints-options-offline"
KEY = "ExportsOutputFnGetAttKey"


def ends(value: Any) -> str:
    """The last literal of a joined text."""
    end: str = value["Fn::Join"][1][-1]
    return end


def allowed(templates: Templates, path: str, action: str) -> list[dict[str, Any]]:
    """The statements of the role or policy at that path that allow the action."""
    return [s for s in templates.statements(path) if action in _as_list(s["Action"])]


def objects(templates: Templates, path: str, action: str) -> set[str]:
    """On which objects of the bucket the role or policy at that path may do it."""
    return {ends(r) for s in allowed(templates, path, action) for r in _as_list(s["Resource"])}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def test_an_archive_is_one_object_that_sagemaker_unpacks(options: Templates) -> None:
    data = options.container("Text")["ModelDataSource"]["S3DataSource"]
    assert (data["S3DataType"], data["CompressionType"]) == ("S3Object", "Gzip")
    assert ends(data["S3Uri"]) == "model.tar.gz"
    variables = options.one("AWS::CodeBuild::Project", "ModelBuild/")["Environment"]["EnvironmentVariables"]
    assert {"Name": "MODEL_ARCHIVE", "Type": "PLAINTEXT", "Value": "true"} in variables


def test_calibrations_are_part_of_what_the_model_build_is_made_from(options: Templates, local: Templates) -> None:
    for templates, expected in ((options, "tests/stacks/calibrations/options.json"), (local, None)):
        variables = templates.one("AWS::CodeBuild::Project", "ModelBuild/")["Environment"]["EnvironmentVariables"]
        assert {v["Name"]: v["Value"] for v in variables}.get("MODEL_CALIBRATIONS") == expected
    assert options.container("Captured")["Environment"]["SEMIF_CALIBRATION"] == "support"


def test_the_model_builds_source_has_the_calibrations(tmp_path: Path) -> None:
    app = App(outdir=str(tmp_path))
    build(app, OPTIONS)
    app.synth()
    (found,) = tmp_path.glob("asset.*/tests/stacks/calibrations/options.json")
    assert (found.parents[3] / "stacks/model_build/buildspec.yml").exists()


def test_other_calibrations_are_another_source_and_so_another_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "_ROOT", tmp_path)
    for name in ("calibrations/prod.json", "calibrations/other.json", "stacks/model_build/buildspec.yml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    hashes = []
    for content in ("1", "2"):
        (tmp_path / "calibrations/prod.json").write_text(content)
        app = App(outdir=str(tmp_path / f"out{content}"))
        source = builds._source(Stack(app), "Source", "stacks/model_build", "calibrations/prod.json")
        app.synth()
        staged = tmp_path / f"out{content}" / f"asset.{source.asset_hash}"
        found = {str(file.relative_to(staged)) for file in staged.rglob("*") if file.is_file()}
        assert found == {"stacks/model_build/buildspec.yml", "calibrations/prod.json"}
        hashes.append(source.asset_hash)
    assert hashes[0] != hashes[1]


def test_a_text_endpoint_runs_the_copied_base_over_the_same_model(prod: Templates) -> None:
    for kind in ("Cpu", "Gpu"):
        decision, writing = prod.container(f"Decision{kind}"), prod.container(f"Text{kind}")
        assert text(writing["ModelDataSource"]) == text(decision["ModelDataSource"])
        (base,) = [i for i, r in prod.of_type("Custom::Build").items() if path_of(r).startswith(f"{kind}BaseImage/")]
        assert writing["Image"]["Fn::Join"][1][-1] == {"Fn::GetAtt": [base, "IMAGE_DIGEST"]}
        assert decision["Image"] != writing["Image"]


def test_a_text_endpoint_with_a_model_of_its_own_has_no_data_and_reads_no_bucket(options: Templates) -> None:
    container = options.container("HubText")
    assert "ModelDataSource" not in container
    assert options.one("AWS::SageMaker::Model", "HubTextEndpoint/")["EnableNetworkIsolation"] is False
    assert allowed(options, "HubTextEndpoint/Role", "s3:GetObject") == []
    assert allowed(options, "HubTextEndpoint/Role", "s3:ListBucket") == []


def test_without_anyone_to_serve_it_no_model_is_packaged(synthesise: Synthesise) -> None:
    hub = HubModel(repository="owner/name", file="m.gguf")
    endpoint = TextEndpoint(name="text", instance_type="ml.g5.xlarge", hub_model=hub, network_isolation=False)
    templates = synthesise(replace(OPTIONS, endpoints=(endpoint,)))
    assert {path_of(r).split("/")[0] for r in templates.of_type("Custom::Build").values()} == {"GpuBaseImage"}
    assert "ModelPrefix" not in templates.endpoints["Outputs"]


def test_a_pool_of_one_type_is_that_type(options: Templates) -> None:
    variant = options.variant("HubText")
    assert variant["InstanceType"] == "ml.g5.xlarge"
    assert "InstancePools" not in variant
    assert "VariantInstanceProvisionTimeoutInSeconds" not in variant


def test_a_vpc_is_the_models_and_sagemaker_may_put_interfaces_there(options: Templates) -> None:
    assert options.one("AWS::SageMaker::Model", "HubTextEndpoint/")["VpcConfig"] == {
        "Subnets": ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"],
        "SecurityGroupIds": ["sg-01234567"],
    }
    assert len(allowed(options, "HubTextEndpoint/Role", "ec2:CreateNetworkInterface")) == 1
    assert allowed(options, "TextEndpoint/Role", "ec2:CreateNetworkInterface") == []


def test_what_is_captured_has_its_own_prefix_and_goes_in_time(options: Templates) -> None:
    capture = options.one("AWS::SageMaker::EndpointConfig", "CapturedEndpoint/")["DataCaptureConfig"]
    assert (capture["EnableCapture"], capture["InitialSamplingPercentage"]) == (True, 20)
    assert ends(capture["DestinationS3Uri"]) == f"/{CAPTURE}"
    assert [option["CaptureMode"] for option in capture["CaptureOptions"]] == ["Input", "Output"]
    assert capture["CaptureContentTypeHeader"] == {"JsonContentTypes": ["application/json"]}
    assert KEY in text(capture["KmsKeyId"])
    assert objects(options, "CapturedEndpoint/Role", "s3:PutObject") == {f"/{CAPTURE}/*"}
    assert options.one("AWS::SageMaker::EndpointConfig", "TextEndpoint/").get("DataCaptureConfig") is None


def test_callers_data_expires_with_all_its_versions(options: Templates) -> None:
    rules = {rule.get("Prefix"): rule for rule in options.one("AWS::S3::Bucket")["LifecycleConfiguration"]["Rules"]}
    assert set(rules) == {None, f"{CAPTURE}/", f"{OFFLINE}/"}
    for prefix, days in ((f"{CAPTURE}/", 14), (f"{OFFLINE}/", 5)):
        assert rules[prefix]["ExpirationInDays"] == days
        assert rules[prefix]["NoncurrentVersionExpiration"] == {"NoncurrentDays": 1}
        assert rules[prefix]["Status"] == "Enabled"


def test_an_asynchronous_endpoint_reads_and_writes_objects(options: Templates) -> None:
    config = options.one("AWS::SageMaker::EndpointConfig", "OfflineEndpoint/")["AsyncInferenceConfig"]
    assert config["ClientConfig"] == {"MaxConcurrentInvocationsPerInstance": 2}
    assert ends(config["OutputConfig"]["S3OutputPath"]) == f"/{OFFLINE}/output"
    assert ends(config["OutputConfig"]["S3FailurePath"]) == f"/{OFFLINE}/failure"
    assert KEY in text(config["OutputConfig"]["KmsKeyId"])
    assert objects(options, "OfflineEndpoint/Role", "s3:GetObject") == {"/models/*", f"/{OFFLINE}/input/*"}
    written = {f"/{OFFLINE}/output/*", f"/{OFFLINE}/failure/*"}
    assert objects(options, "OfflineEndpoint/Role", "s3:PutObject") == written
    assert options.one("Custom::RolloutCheck", "OfflineEndpoint/")["Request"] == ""


def test_who_invokes_it_writes_requests_and_reads_answers(options: Templates) -> None:
    path = "OfflineEndpoint/Invoke"
    assert [ends(s["Resource"]) for s in allowed(options, path, "sagemaker:InvokeEndpointAsync")] == [
        ":endpoint/decision-endpoints-options-offline"
    ]
    assert objects(options, path, "s3:PutObject") == {f"/{OFFLINE}/input/*"}
    assert objects(options, path, "s3:GetObject") == {f"/{OFFLINE}/output/*", f"/{OFFLINE}/failure/*"}
    (keyed,) = allowed(options, path, "kms:Decrypt")
    assert "kms:ViaService" in text(keyed["Condition"])
    assert allowed(options, path, "sagemaker:InvokeEndpoint") == []


def test_it_has_no_instance_without_work_and_a_first_one_with(options: Templates) -> None:
    below = "OfflineEndpoint/"
    target = options.one("AWS::ApplicationAutoScaling::ScalableTarget", below)
    assert (target["MinCapacity"], target["MaxCapacity"]) == (0, 3)
    policies = {
        id_: policy["Properties"]
        for id_, policy in options.of_type("AWS::ApplicationAutoScaling::ScalingPolicy").items()
        if path_of(policy).startswith(below)
    }
    (tracking,) = [p for p in policies.values() if p["PolicyType"] == "TargetTrackingScaling"]
    tracked = tracking["TargetTrackingScalingPolicyConfiguration"]
    assert tracked["TargetValue"] == 9
    assert tracked["CustomizedMetricSpecification"] == {
        "Namespace": "AWS/SageMaker",
        "MetricName": "ApproximateBacklogSizePerInstance",
        "Statistic": "Average",
        "Dimensions": [{"Name": "EndpointName", "Value": "decision-endpoints-options-offline"}],
    }
    ((first_id, first),) = [(i, p) for i, p in policies.items() if p["PolicyType"] == "StepScaling"]
    assert first["StepScalingPolicyConfiguration"]["AdjustmentType"] == "ChangeInCapacity"
    assert first["StepScalingPolicyConfiguration"]["StepAdjustments"] == [
        {"MetricIntervalLowerBound": 0, "ScalingAdjustment": 1}
    ]
    alarm = options.one("AWS::CloudWatch::Alarm", f"{below}BacklogWithoutInstance")
    assert (alarm["MetricName"], alarm["Threshold"], alarm["ComparisonOperator"]) == (
        "HasBacklogWithoutCapacity",
        1,
        "GreaterThanOrEqualToThreshold",
    )
    assert alarm["AlarmActions"] == [{"Ref": first_id}]
    assert options.one("AWS::SageMaker::Endpoint", below)["RetainAllVariantProperties"] is True


def test_a_schedule_changes_the_bounds_by_the_clock(options: Templates) -> None:
    target = options.one("AWS::ApplicationAutoScaling::ScalableTarget", "CapturedEndpoint/")
    assert (target["MinCapacity"], target["MaxCapacity"]) == (4, 9)
    assert target["ScheduledActions"] == [
        {
            "ScheduledActionName": "scheduled-1",
            "Schedule": "cron(0 7 ? * MON-FRI *)",
            "Timezone": "Europe/Berlin",
            "ScalableTargetAction": {"MinCapacity": 6, "MaxCapacity": 9},
        },
        {
            "ScheduledActionName": "scheduled-2",
            "Schedule": "cron(0 19 ? * MON-FRI *)",
            "Timezone": "UTC",
            "ScalableTargetAction": {"MinCapacity": 4, "MaxCapacity": 9},
        },
    ]
    policy = options.one("AWS::ApplicationAutoScaling::ScalingPolicy", "CapturedEndpoint/")
    tracking = policy["TargetTrackingScalingPolicyConfiguration"]
    assert (tracking["ScaleOutCooldown"], tracking["ScaleInCooldown"]) == (30, 300)


def test_without_scaling_there_is_no_target_and_nothing_to_retain(options: Templates) -> None:
    targets = [path_of(r) for r in options.of_type("AWS::ApplicationAutoScaling::ScalableTarget").values()]
    assert sorted(targets) == ["CapturedEndpoint/ScalableTarget", "OfflineEndpoint/ScalableTarget"]
    assert options.one("AWS::SageMaker::Endpoint", "TextEndpoint/")["RetainAllVariantProperties"] is False


def deployment(templates: Templates, title: str) -> dict[str, Any]:
    found: dict[str, Any] = templates.one("AWS::SageMaker::Endpoint", f"{title}Endpoint/")["DeploymentConfig"]
    return found


def test_each_way_of_an_update(prod: Templates, options: Templates) -> None:
    half = {"Type": "CAPACITY_PERCENT", "Value": 50}
    canary = deployment(prod, "DecisionGpu")["BlueGreenUpdatePolicy"]["TrafficRoutingConfiguration"]
    assert canary == {"Type": "CANARY", "CanarySize": half, "WaitIntervalInSeconds": 600}
    linear = deployment(prod, "TextGpu")["BlueGreenUpdatePolicy"]["TrafficRoutingConfiguration"]
    assert linear == {"Type": "LINEAR", "LinearStepSize": half, "WaitIntervalInSeconds": 600}
    at_once = deployment(prod, "TextCpu")["BlueGreenUpdatePolicy"]["TrafficRoutingConfiguration"]
    assert at_once == {"Type": "ALL_AT_ONCE", "WaitIntervalInSeconds": 600}
    rolling = deployment(options, "Captured")
    assert rolling["RollingUpdatePolicy"]["MaximumBatchSize"] == {"Type": "CAPACITY_PERCENT", "Value": 25}
    assert rolling["RollingUpdatePolicy"]["WaitIntervalInSeconds"] == 60
    assert "BlueGreenUpdatePolicy" not in rolling
    assert "AutoRollbackConfiguration" not in rolling
    assert "DeploymentConfig" not in options.one("AWS::SageMaker::Endpoint", "TextEndpoint/")


def test_alarms_of_the_endpoint_itself_roll_its_update_back(all_templates: dict[str, Templates]) -> None:
    for environment in (STAGING, PROD):
        templates = all_templates[environment.name]
        for title in _titles(environment):
            names = deployment(templates, title)["AutoRollbackConfiguration"]["Alarms"]
            assert 1 <= len(names) <= 10
            for name in names:
                alarm = templates.endpoints["Resources"][name["AlarmName"]["Ref"]]
                assert path_of(alarm).startswith(f"{title}Alarms/")


def _titles(environment: Environment) -> list[str]:
    return ["".join(part.capitalize() for part in endpoint.name.split("-")) for endpoint in environment.endpoints]


def test_the_environments_own_key_encrypts_all_that_can_be(prod: Templates, options: Templates) -> None:
    for templates in (prod, options):
        (key_id,) = [id_ for id_ in templates.artifacts["Resources"] if id_.startswith("Key")]
        key = templates.artifacts["Resources"][key_id]["Properties"]
        assert key["EnableKeyRotation"] is True
        bucket = templates.one("AWS::S3::Bucket")["BucketEncryption"]["ServerSideEncryptionConfiguration"][0]
        assert bucket["BucketKeyEnabled"] is True
        assert bucket["ServerSideEncryptionByDefault"]["KMSMasterKeyID"] == {"Fn::GetAtt": [key_id, "Arn"]}
        images = templates.one("AWS::ECR::Repository")["EncryptionConfiguration"]
        assert images == {"EncryptionType": "KMS", "KmsKey": {"Fn::GetAtt": [key_id, "Arn"]}}
        owner, logs, _alarms = key["KeyPolicy"]["Statement"]
        assert owner["Action"] == "kms:*"
        assert "root" in text(owner["Principal"])
        assert "logs." in text(logs["Principal"])
        assert ":log-group:*" in text(logs["Condition"]["ArnLike"]["kms:EncryptionContext:aws:logs:arn"])
        assert allowed(templates, "ModelBuild/Role", "kms:GenerateDataKey") != []


def test_a_volume_has_that_key_unless_its_type_brings_an_encrypted_disk(prod: Templates, options: Templates) -> None:
    """SageMaker refuses a key for g4dn, g5, g6, g6e and the types with a 'd'."""
    keyed = {
        path_of(config).split("/")[0]: KEY in text(config["Properties"].get("KmsKeyId", ""))
        for templates in (prod, options)
        for config in templates.of_type("AWS::SageMaker::EndpointConfig").values()
    }
    assert keyed == {
        "DecisionCpuEndpoint": True,
        "TextCpuEndpoint": True,
        "DecisionGpuEndpoint": False,
        "TextGpuEndpoint": False,
        "OfflineEndpoint": False,
        "CapturedEndpoint": True,
        "HubTextEndpoint": False,
        "TextEndpoint": True,
    }
    assert len(allowed(prod, "DecisionCpuEndpoint/Role", "kms:CreateGrant")) == 1
    assert allowed(prod, "DecisionGpuEndpoint/Role", "kms:CreateGrant") == []
    assert len(allowed(prod, "DecisionGpuEndpoint/Role", "kms:Decrypt")) == 1


def test_without_it_no_policy_speaks_of_keys(all_templates: dict[str, Templates]) -> None:
    for name in ("local", "dev"):
        assert "kms:" not in text(all_templates[name].endpoints)
        assert all_templates[name].of_type("AWS::KMS::Key") == {}
