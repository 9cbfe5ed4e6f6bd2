"""The life of the `local` environment: deployed, deployed again, updated, failed to update, destroyed.

The tests run in this order on one deployment: each is a step of one story, and a deployment takes a minute.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from stacks.config import LOCAL
from tests.deploy.conftest import Cdk
from tests.emulator_fixture import EMULATOR_PYTHON, ROOT, Emulator
from tools.browser import browser
from tools.cdk import CdkError
from tools.demo import EXAMPLE
from tools.leftovers import leftovers

NAME = "decision-endpoints-local-decision"
ONE_THREAD = {"endpoint": {"threads": 1}}
NO_CACHE = {"endpoint": {"environment": {"SEMIF_CACHE_BYTES": "-1"}}}


@pytest.fixture(scope="module")
def outputs(cdk_cli: Cdk) -> dict[str, str]:
    return cdk_cli.deploy()


def decide(emulator: Emulator) -> dict[str, Any]:
    """The example decision, answered by the endpoint."""
    answer = emulator.client("sagemaker-runtime").invoke_endpoint(
        EndpointName=NAME, ContentType="application/json", Body=json.dumps(EXAMPLE)
    )
    result: dict[str, Any] = json.loads(answer["Body"].read())["result"]
    return result


def endpoint(emulator: Emulator) -> dict[str, Any]:
    described: dict[str, Any] = emulator.client("sagemaker").describe_endpoint(EndpointName=NAME)
    return described


def models(emulator: Emulator) -> list[dict[str, Any]]:
    sagemaker = emulator.client("sagemaker")
    return [sagemaker.describe_model(ModelName=model["ModelName"]) for model in sagemaker.list_models()["Models"]]


def configs(emulator: Emulator) -> list[str]:
    found = emulator.client("sagemaker").list_endpoint_configs()["EndpointConfigs"]
    return [config["EndpointConfigName"] for config in found]


def builds(emulator: Emulator) -> list[str]:
    return sorted(emulator.client("codebuild").list_builds()["ids"])


def test_the_deployed_endpoint_decides(emulator: Emulator, outputs: dict[str, str]) -> None:
    assert outputs["DecisionEndpointName"] == NAME
    assert endpoint(emulator)["EndpointStatus"] == "InService"
    result = decide(emulator)
    assert result["id"] == "support-route"
    assert result["option_ids"] == ["account_access", "billing", "sales"]
    assert sum(result["probabilities"]) == pytest.approx(1)
    assert result["model"]["gguf_sha256"] == LOCAL.model.sha256


def test_the_pipelines_verification_accepts_the_intended_model_and_no_other(
    emulator: Emulator, outputs: dict[str, str]
) -> None:
    def verify(model_sha256: str) -> subprocess.CompletedProcess[str]:
        asked = [{"name": NAME, "kind": "decision", "model_sha256": model_sha256}]
        path = f"{EMULATOR_PYTHON.parent}{os.pathsep}{os.environ['PATH']}"  # its AWS command line
        return subprocess.run(
            [sys.executable, "stacks/verification/verify.py"],
            cwd=ROOT,
            env={**os.environ, **emulator.environment, "PATH": path, "ENDPOINTS": json.dumps(asked)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    right = verify(LOCAL.model.sha256)
    assert (right.returncode, right.stdout) == (0, f"{NAME}: account_access with {right.stdout[-6:]}"), right.stderr
    assert float(right.stdout[-6:]) == pytest.approx(decide(emulator)["probabilities"][0], abs=1e-3)
    wrong = verify("0" * 64)
    assert wrong.returncode == 1
    said = f"the model that serves has SHA-256 {LOCAL.model.sha256}, the intended one {'0' * 64}"
    assert wrong.stderr == f"{NAME}: {said}\n"


def test_its_playground_asks_through_invoke_endpoint_and_gives_code_that_does(
    emulator: Emulator, outputs: dict[str, str]
) -> None:
    with browser(width=1280, height=900) as driver:
        driver.get(f"{emulator.endpoint_url}/endpoints/{NAME}/")
        driver.find_element(By.ID, "ask").click()
        WebDriverWait(driver, 120).until(lambda page: page.find_elements(By.CSS_SELECTOR, "#results data"))
        shown = [
            float(bar.get_attribute("value") or "") for bar in driver.find_elements(By.CSS_SELECTOR, "#results data")
        ]
        driver.find_element(By.CSS_SELECTOR, "[data-copy=boto3]").click()
        snippet = str(driver.find_element(By.ID, "code").get_attribute("textContent"))
    assert shown == decide(emulator)["probabilities"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(snippet, "copied", "exec"), {})  # noqa: S102 - that it runs as it is, is the point
    option_probabilities = dict(zip(("account_access", "billing", "sales"), shown, strict=True))
    assert printed.getvalue() == f"question-1 {option_probabilities}\n"


def test_the_model_and_the_image_are_what_the_builds_made(emulator: Emulator, outputs: dict[str, str]) -> None:
    (model,) = models(emulator)
    container = model["PrimaryContainer"]
    s3_uri = container["ModelDataSource"]["S3DataSource"]["S3Uri"]
    bucket, _, prefix = s3_uri.removeprefix("s3://").partition("/")
    assert prefix == outputs["ModelPrefix"]
    s3 = emulator.client("s3")
    objects = {o["Key"].removeprefix(prefix): o["Size"] for o in s3.list_objects_v2(Bucket=bucket)["Contents"]}
    assert objects.keys() == {LOCAL.model.file, "model-manifest.json"}
    assert objects[LOCAL.model.file] == LOCAL.model.bytes
    manifest = json.loads(s3.get_object(Bucket=bucket, Key=f"{prefix}model-manifest.json")["Body"].read())
    assert (manifest["name"], manifest["sha256"]) == (LOCAL.model.name, LOCAL.model.sha256)

    repository, _, digest = container["Image"].partition("@")
    assert digest == outputs["CpuAdapterImageDigest"]
    images = emulator.client("ecr").list_images(repositoryName=repository.split("/", 1)[1])["imageIds"]
    assert {image["imageDigest"] for image in images} == {digest, outputs["CpuBaseImageDigest"]}


def test_a_second_deploy_changes_and_builds_nothing(emulator: Emulator, cdk_cli: Cdk, outputs: dict[str, str]) -> None:
    before = builds(emulator), configs(emulator), endpoint(emulator)["LastModifiedTime"]
    assert cdk_cli.deploy() == outputs
    assert (builds(emulator), configs(emulator), endpoint(emulator)["LastModifiedTime"]) == before
    assert len(before[0]) == 3


def test_a_changed_variable_updates_the_endpoint_in_place(
    emulator: Emulator, cdk_cli: Cdk, outputs: dict[str, str]
) -> None:
    created, (old_config,), (old_model,) = endpoint(emulator)["CreationTime"], configs(emulator), models(emulator)
    built = builds(emulator)
    assert cdk_cli.deploy(ONE_THREAD) == outputs
    (new_config,), (new_model,) = configs(emulator), models(emulator)
    assert new_config != old_config
    assert new_model["ModelName"] != old_model["ModelName"]
    assert new_model["PrimaryContainer"]["Environment"]["SEMIF_THREADS"] == "1"
    served = endpoint(emulator)
    assert (served["EndpointConfigName"], served["EndpointStatus"]) == (new_config, "InService")
    assert served["CreationTime"] == created
    assert builds(emulator) == built
    assert decide(emulator)["model"]["threads"] == 1


def test_an_update_that_does_not_start_rolls_back_and_the_endpoint_goes_on_serving(
    emulator: Emulator, cdk_cli: Cdk, outputs: dict[str, str]
) -> None:
    before = configs(emulator), [model["ModelName"] for model in models(emulator)]
    with pytest.raises(CdkError, match=r"AWS::SageMaker::Endpoint .*SEMIF_CACHE_BYTES"):
        cdk_cli.deploy(NO_CACHE)
    stack_name = "decision-endpoints-local-endpoints"
    (stack,) = emulator.client("cloudformation").describe_stacks(StackName=stack_name)["Stacks"]
    assert stack["StackStatus"] == "UPDATE_ROLLBACK_COMPLETE"
    assert (configs(emulator), [model["ModelName"] for model in models(emulator)]) == before
    served = endpoint(emulator)
    assert ([served["EndpointConfigName"]], served["EndpointStatus"]) == (before[0], "InService")
    assert decide(emulator)["model"]["threads"] == 1


def test_destroy_leaves_nothing(emulator: Emulator, cdk_cli: Cdk, outputs: dict[str, str]) -> None:
    kinds = {line.split(" ")[0] for line in leftovers(emulator.endpoint_url)}
    # The check sees what it is to miss afterwards.
    assert kinds >= {"stack", "bucket", "repository", "image", "log", "model", "endpoint", "role", "scaling"}
    cdk_cli.destroy()
    assert leftovers(emulator.endpoint_url) == []
