"""Endpoints that really run: from image and model data to answers, through updates that work and that fail."""

from __future__ import annotations

import io
import json
import tarfile
import threading
import time
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.emulator.conftest import BUCKET, REGISTRY, Hosting, Slow, is_running, wait_for
from tests.emulator.test_catalog import POOL, refused


@pytest.fixture(scope="module")
def endpoint(hosting: Hosting) -> str:
    """An endpoint in service."""
    return hosting.endpoint(hosting.config(GREETING="hello"))


def test_container_sees_its_model_its_environment_and_nothing_of_the_emulators(hosting: Hosting, endpoint: str) -> None:
    answer = hosting.invoke(endpoint)["Body"]
    assert answer["arguments"] == ["serve"]
    assert answer["model"] == {"weights.txt": "weights", "nested/vocabulary.txt": "words"}
    assert answer["environment"] == {
        "GREETING": "hello",
        "FROM_IMAGE": "set by the image",
        "LIBRARY_PATH": None,  # a path that only the base image has would lead nowhere
        "AWS_SECRET_ACCESS_KEY": None,
    }


def test_model_data_as_one_archive(hosting: Hosting) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        entry = tarfile.TarInfo("inside/model.txt")
        entry.size = 6
        archive.addfile(entry, io.BytesIO(b"packed"))
    hosting.emulator.client("s3").put_object(Bucket=BUCKET, Key="model.tar.gz", Body=buffer.getvalue())
    model = hosting.model(data={"ModelDataUrl": f"s3://{BUCKET}/model.tar.gz"})
    answer = hosting.invoke(hosting.endpoint(hosting.config(hosting.variant(model))))["Body"]
    assert answer["model"] == {"inside/model.txt": "packed"}


def test_headers_go_to_the_container_and_come_back(hosting: Hosting, endpoint: str) -> None:
    response = hosting.invoke(
        endpoint, ContentType="application/x-test", Accept="text/x-test", CustomAttributes="mine", InferenceId="id-1"
    )
    sent = {name.lower(): value for name, value in response["Body"]["headers"].items()}
    assert sent["content-type"] == "application/x-test"
    assert sent["accept"] == "text/x-test"
    assert sent["x-amzn-sagemaker-custom-attributes"] == "mine"
    assert sent["x-amzn-sagemaker-inference-id"] == "id-1"
    assert "authorization" not in sent
    assert response["ContentType"] == "application/json"
    assert response["CustomAttributes"] == "from-container"
    assert response["InvokedProductionVariant"] == "main"


@pytest.mark.parametrize(("status", "side"), [(400, "client"), (503, "server")])
def test_error_of_the_container_is_a_model_error(hosting: Hosting, endpoint: str, status: int, side: str) -> None:
    with pytest.raises(ClientError) as raised:
        hosting.invoke(endpoint, {"status": status})
    response: dict[str, Any] = raised.value.response  # type: ignore[assignment]
    assert response["Error"]["Code"] == "ModelError"
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 424
    assert response["OriginalStatusCode"] == status
    assert '"arguments": ["serve"]' in response["OriginalMessage"]
    assert response["LogStreamArn"].startswith(
        f"arn:aws:logs:us-east-1:000000000000:log-group:/aws/sagemaker/Endpoints/{endpoint}:log-stream:main/"
    )
    assert f"Received {side} error ({status}) from primary" in response["Error"]["Message"]


def test_what_cannot_be_invoked(hosting: Hosting, endpoint: str) -> None:
    for name, parameters, words in (
        ("absent", {}, "Endpoint absent of account 000000000000 not found."),
        (endpoint, {"TargetVariant": "other"}, "Variant other not found"),
        (endpoint, {"body": b"x" * (25 * 1024 * 1024 + 1)}, "length less than or equal to 26214400"),
    ):
        with pytest.raises(ClientError) as raised:
            hosting.invoke(name, **parameters)
        assert raised.value.response["Error"]["Code"] == "ValidationError"
        assert words in raised.value.response["Error"]["Message"]


def test_two_variants_by_name_and_by_weight(hosting: Hosting) -> None:
    config = hosting.config(
        hosting.variant(hosting.model(GREETING="one"), InitialVariantWeight=1.0),
        hosting.variant(hosting.model(GREETING="two"), InitialVariantWeight=0.0, VariantName="other"),
    )
    name = hosting.endpoint(config)
    assert {hosting.invoke(name)["InvokedProductionVariant"] for _ in range(8)} == {"main"}
    assert hosting.invoke(name, TargetVariant="other")["Body"]["environment"]["GREETING"] == "two"
    hosting.api.update_endpoint_weights_and_capacities(
        EndpointName=name,
        DesiredWeightsAndCapacities=[
            {"VariantName": "main", "DesiredWeight": 0.0, "DesiredInstanceCount": 3},
            {"VariantName": "other", "DesiredWeight": 1.0},
        ],
    )
    assert {hosting.invoke(name)["InvokedProductionVariant"] for _ in range(8)} == {"other"}
    main = hosting.api.describe_endpoint(EndpointName=name)["ProductionVariants"][0]
    assert (main["CurrentWeight"], main["CurrentInstanceCount"]) == (0.0, 3)


def test_pool_is_described_with_its_placement_and_first_pools_model(hosting: Hosting) -> None:
    override = hosting.model(GREETING="override")
    pool = [{**POOL[1], "Priority": 2}, {**POOL[0], "Priority": 1, "ModelNameOverride": override}]
    variant = hosting.variant(hosting.model(), InstanceType=None, InstancePools=pool, InitialInstanceCount=2)
    name = hosting.endpoint(hosting.config(variant))
    described = hosting.api.describe_endpoint(EndpointName=name)["ProductionVariants"][0]
    assert described["InstancePools"] == [
        {"InstanceType": "ml.c6i.xlarge", "CurrentInstanceCount": 2},
        {"InstanceType": "ml.c6i.2xlarge", "CurrentInstanceCount": 0},
    ]
    assert described["DeployedImages"][0]["ResolvedImage"] == hosting.image
    assert hosting.invoke(name)["Body"]["environment"]["GREETING"] == "override"


def test_pool_falls_back_to_a_type_of_which_there_are_instances(hosting: Hosting) -> None:
    pool = [{"InstanceType": "ml.g6e.xlarge", "Priority": 1}, {"InstanceType": "ml.g5.2xlarge", "Priority": 2}]
    model = hosting.model(GREETING="fallback", SEMIF_N_GPU_LAYERS="-1")
    name = hosting.endpoint(hosting.config(hosting.variant(model)))
    config = hosting.config(hosting.variant(model, InstanceType=None, InstancePools=pool))
    hosting.api.update_endpoint(EndpointName=name, EndpointConfigName=config)
    (variant,) = hosting.settled(name)["ProductionVariants"]
    assert {place["InstanceType"]: place["CurrentInstanceCount"] for place in variant["InstancePools"]} == {
        "ml.g6e.xlarge": 0,
        "ml.g5.2xlarge": 1,
    }
    assert hosting.invoke(name)["Body"]["gpu_layers"] == "0", "there is no GPU to put layers on"


def test_type_of_which_there_are_no_instances_fails_the_update(hosting: Hosting) -> None:
    name = hosting.endpoint(hosting.config(GREETING="old"))
    scarce = hosting.config(hosting.variant(hosting.model(), InstanceType="ml.p5.48xlarge"))
    hosting.api.update_endpoint(EndpointName=name, EndpointConfigName=scarce)
    assert "InsufficientInstanceCapacity" in hosting.settled(name)["FailureReason"]
    assert hosting.invoke(name)["Body"]["environment"]["GREETING"] == "old"


ALARMED: dict[str, Any] = {
    "BlueGreenUpdatePolicy": {
        "TrafficRoutingConfiguration": {
            "Type": "CANARY",
            "WaitIntervalInSeconds": 60,
            "CanarySize": {"Type": "CAPACITY_PERCENT", "Value": 10},
        }
    },
    "AutoRollbackConfiguration": {"Alarms": [{"AlarmName": "errors"}]},
}


def test_alarm_that_goes_off_rolls_an_update_back(hosting: Hosting) -> None:
    cloudwatch = hosting.emulator.client("cloudwatch")
    cloudwatch.put_metric_alarm(
        AlarmName="errors",
        MetricName="Invocation5XXErrors",
        Namespace="AWS/SageMaker",
        Statistic="Sum",
        Period=60,
        EvaluationPeriods=1,
        Threshold=1,
        ComparisonOperator="GreaterThanThreshold",
    )
    name = hosting.endpoint(hosting.config(GREETING="old"))
    for state, greeting in (("ALARM", "old"), ("OK", "new")):
        cloudwatch.set_alarm_state(AlarmName="errors", StateValue=state, StateReason="test")
        config = hosting.config(GREETING="new")
        hosting.api.update_endpoint(EndpointName=name, EndpointConfigName=config, DeploymentConfig=ALARMED)
        description = hosting.settled(name)
        assert hosting.invoke(name)["Body"]["environment"]["GREETING"] == greeting
        assert ("gone off during the deployment: errors" in description.get("FailureReason", "")) == (state == "ALARM")
    assert description["LastDeploymentConfig"] == ALARMED


@pytest.mark.parametrize(
    ("deployment", "words"),
    [
        ({"AutoRollbackConfiguration": {}}, "exactly one of BlueGreenUpdatePolicy and RollingUpdatePolicy"),
        (
            {"BlueGreenUpdatePolicy": {"TrafficRoutingConfiguration": {"Type": "LINEAR", "WaitIntervalInSeconds": 60}}},
            "type LINEAR takes LinearStepSize, not none",
        ),
    ],
)
def test_deployment_that_aws_would_refuse(
    hosting: Hosting, endpoint: str, deployment: dict[str, Any], words: str
) -> None:
    config = hosting.config()
    message = refused(
        hosting.api.update_endpoint, EndpointName=endpoint, EndpointConfigName=config, DeploymentConfig=deployment
    )
    assert words in message


def test_captured_calls_lie_in_s3(hosting: Hosting) -> None:
    capture = {
        "EnableCapture": True,
        "InitialSamplingPercentage": 100,
        "DestinationS3Uri": f"s3://{BUCKET}/captured",
        "CaptureOptions": [{"CaptureMode": "Input"}, {"CaptureMode": "Output"}],
    }
    name = hosting.endpoint(hosting.config(more={"DataCaptureConfig": capture}))
    hosting.invoke(name, {"asked": 1}, ContentType="application/json")
    s3 = hosting.emulator.client("s3")
    listed = {"Bucket": BUCKET, "Prefix": f"captured/{name}/main/"}
    wait_for(lambda: s3.list_objects_v2(**listed)["KeyCount"] == 1)
    key = s3.list_objects_v2(**listed)["Contents"][0]["Key"]
    captured = json.loads(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())["captureData"]
    assert json.loads(captured["endpointInput"]["data"]) == {"asked": 1}
    assert json.loads(captured["endpointOutput"]["data"])["arguments"] == ["serve"]


def test_asynchronous_answers_and_errors_lie_in_s3(hosting: Hosting) -> None:
    output = {"S3OutputPath": f"s3://{BUCKET}/answers", "S3FailurePath": f"s3://{BUCKET}/errors"}
    name = hosting.endpoint(hosting.config(more={"AsyncInferenceConfig": {"OutputConfig": output}}))
    s3, runtime = hosting.emulator.client("s3"), hosting.emulator.client("sagemaker-runtime")
    for status, location in ((200, "OutputLocation"), (400, "FailureLocation")):
        s3.put_object(Bucket=BUCKET, Key="asked.json", Body=json.dumps({"status": status}))
        accepted = runtime.invoke_endpoint_async(EndpointName=name, InputLocation=f"s3://{BUCKET}/asked.json")
        key = accepted[location].removeprefix(f"s3://{BUCKET}/")
        wait_for(lambda key=key: s3.list_objects_v2(Bucket=BUCKET, Prefix=key)["KeyCount"] == 1)  # type: ignore[misc]
        assert b"serve" in s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    with pytest.raises(ClientError, match="use InvokeEndpointAsync"):
        hosting.invoke(name)


def test_stream_is_the_containers_answer_as_events(hosting: Hosting, endpoint: str) -> None:
    runtime = hosting.emulator.client("sagemaker-runtime")
    response = runtime.invoke_endpoint_with_response_stream(EndpointName=endpoint, Body=b"{}")
    parts = [event["PayloadPart"]["Bytes"] for event in response["Body"]]
    assert json.loads(b"".join(parts))["arguments"] == ["serve"]
    assert response["ContentType"] == "application/json"


def test_tag_is_resolved_to_a_digest(hosting: Hosting) -> None:
    model = hosting.model(image=f"{REGISTRY}/server:1")
    name = hosting.endpoint(hosting.config(hosting.variant(model)))
    deployed = hosting.api.describe_endpoint(EndpointName=name)["ProductionVariants"][0]["DeployedImages"][0]
    assert (deployed["SpecifiedImage"], deployed["ResolvedImage"]) == (f"{REGISTRY}/server:1", hosting.image)


def test_output_reaches_the_log_group(hosting: Hosting, endpoint: str) -> None:
    hosting.invoke(endpoint)
    logs = hosting.emulator.client("logs")

    def lines() -> list[str]:
        found = logs.filter_log_events(logGroupName=f"/aws/sagemaker/Endpoints/{endpoint}")
        return [event["message"] for event in found["events"]]

    wait_for(lambda: any("POST /invocations" in line for line in lines()))
    assert lines()[0] == "serving"


def test_update_is_never_unavailable_and_ends_the_old_container(hosting: Hosting) -> None:
    name = hosting.endpoint(hosting.config(GREETING="old"))
    old = hosting.invoke(name)["Body"]["pid"]
    greetings: list[str] = []
    updated = threading.Event()

    def invoke_on() -> None:
        while not updated.is_set():
            greetings.append(hosting.invoke(name)["Body"]["environment"]["GREETING"])

    caller = threading.Thread(target=invoke_on)
    caller.start()
    config = hosting.config(GREETING="new")
    hosting.api.update_endpoint(EndpointName=name, EndpointConfigName=config)
    in_progress = f'endpoint "arn:aws:sagemaker:us-east-1:000000000000:endpoint/{name}".'
    again = refused(hosting.api.update_endpoint, EndpointName=name, EndpointConfigName=config)
    assert again == f"Cannot update in-progress {in_progress}"
    assert "in-progress" in refused(hosting.api.delete_endpoint, EndpointName=name)
    description = hosting.settled(name)
    wait_for(lambda: greetings[-1:] == ["new"])
    updated.set()
    caller.join()
    assert (description["EndpointStatus"], description["EndpointConfigName"]) == ("InService", config)
    assert greetings == sorted(greetings, reverse=True), "old answers first, new ones after, no error between"
    wait_for(lambda: not is_running(old))


def test_failed_update_keeps_the_old_configuration_serving(hosting: Hosting) -> None:
    config = hosting.config(GREETING="old")
    name = hosting.endpoint(config)
    hosting.api.update_endpoint(EndpointName=name, EndpointConfigName=hosting.config(BEHAVIOUR="exit"))
    description = hosting.settled(name)
    assert (description["EndpointStatus"], description["EndpointConfigName"]) == ("InService", config)
    assert "did not pass the ping health check" in description["FailureReason"]
    assert hosting.invoke(name)["Body"]["environment"]["GREETING"] == "old"
    hosting.api.update_endpoint(EndpointName=name, EndpointConfigName=hosting.config(GREETING="new"))
    assert "FailureReason" not in hosting.settled(name)


def test_container_that_ends_fails_the_endpoint_with_its_last_line(hosting: Hosting) -> None:
    name = hosting.endpoint(hosting.config(BEHAVIOUR="exit"))
    description = hosting.api.describe_endpoint(EndpointName=name)
    assert description["EndpointStatus"] == "Failed"
    assert description["FailureReason"] == (
        "The primary container for production variant main did not pass the ping health check. Please check "
        "CloudWatch logs for this endpoint. (the process ended with exit status 1; "
        "last log line: bad setting: BEHAVIOUR is exit)"
    )
    assert "in status Failed" in refused(
        hosting.api.update_endpoint, EndpointName=name, EndpointConfigName=hosting.config()
    )


@pytest.mark.parametrize(
    ("specified", "uri", "words"),
    [
        (f"{REGISTRY}/server@sha256:{'0' * 64}", f"s3://{BUCKET}/one/", f"has no sha256:{'0' * 64}"),
        ("public.ecr.aws/some/image:1", f"s3://{BUCKET}/one/", "is not in ECR"),
        (None, f"s3://{BUCKET}/none/", f"no objects under s3://{BUCKET}/none/"),
        (None, "s3://no-such-bucket/none/", "Failed to download model data"),
    ],
)
def test_missing_image_or_model_fails_the_endpoint(
    hosting: Hosting, specified: str | None, uri: str, words: str
) -> None:
    source = {"S3Uri": uri, "S3DataType": "S3Prefix", "CompressionType": "None"}
    model = hosting.model(image=specified, data={"ModelDataSource": {"S3DataSource": source}})
    description = hosting.settled(hosting.endpoint(hosting.config(hosting.variant(model))))
    assert description["EndpointStatus"] == "Failed"
    assert words in description["FailureReason"]


def test_deleted_records_leave_an_endpoint_serving_and_a_deleted_endpoint_leaves_nothing(hosting: Hosting) -> None:
    model = hosting.model()
    config = hosting.config(hosting.variant(model))
    name = hosting.endpoint(config)
    taken = refused(hosting.api.create_endpoint, EndpointName=name, EndpointConfigName=config)
    assert taken.startswith("Cannot create already existing endpoint ")
    hosting.api.delete_endpoint_config(EndpointConfigName=config)
    hosting.api.delete_model(ModelName=model)
    pid = hosting.invoke(name)["Body"]["pid"]
    hosting.api.delete_endpoint(EndpointName=name)
    wait_for(lambda: not hosting.api.list_endpoints(NameContains=name)["Endpoints"])
    assert not is_running(pid)
    assert refused(hosting.api.describe_endpoint, EndpointName=name) == (
        f'Could not find endpoint "arn:aws:sagemaker:us-east-1:000000000000:endpoint/{name}".'
    )
    missing = refused(hosting.api.create_endpoint, EndpointName=name, EndpointConfigName=config)
    assert missing.startswith("Could not find endpoint configuration ")


def test_a_working_container_does_not_hold_up_the_emulator(hosting: Hosting, endpoint: str) -> None:
    worker = threading.Thread(target=hosting.ask_for_a_minute, args=(endpoint,), daemon=True)
    worker.start()
    time.sleep(0.5)  # most likely, the request is with the container by then
    hosting.api.describe_endpoint(EndpointName=endpoint)
    hosting.invoke(endpoint)
    assert worker.is_alive(), "both were answered before the slow request"


def test_container_that_never_answers_ping_fails_on_its_time_out(hosting: Hosting, slow: Slow) -> None:
    wait_for(lambda: hosting.api.describe_endpoint(EndpointName=slow.silent)["EndpointStatus"] != "Creating")
    description = hosting.api.describe_endpoint(EndpointName=slow.silent)
    assert description["EndpointStatus"] == "Failed"
    assert "did not pass the ping health check" in description["FailureReason"]
    assert "no 200 in 60 s" in description["FailureReason"]


def test_invocation_that_takes_more_than_a_minute_is_a_model_error(slow: Slow) -> None:
    response: dict[str, Any] = slow.invocation_error().response  # type: ignore[assignment]
    assert (response["Error"]["Code"], response["OriginalStatusCode"]) == ("ModelError", 0)
    assert "timed out" in response["OriginalMessage"]
