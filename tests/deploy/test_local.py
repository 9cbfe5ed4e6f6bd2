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
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from ops.bench.run_file import read_run
from ops.cli import main
from stacks.config import LOCAL
from tests.deploy.conftest import Cdk
from tests.emulator_fixture import EMULATOR_PYTHON, ROOT, Emulator
from tools.browser import browser
from tools.cdk import CdkError
from tools.demo import EXAMPLE
from tools.leftovers import leftovers

NAME = "decision-endpoints-local-decision"
STACK = "decision-endpoints-local-endpoints"
ONE_THREAD = {"endpoint": {"threads": 1}}
NO_CACHE = {"endpoint": {"environment": {"SEMIF_CACHE_BYTES": "-1"}}}
POOL = ["ml.m6i.large", "ml.c6i.large"]
# The same file under another name is another model: it is packaged anew, under a prefix of its own.
OTHER_MODEL_ON_A_POOL = {
    "model": {"name": "another-name"},
    "endpoint": {"instance_type": None, "instance_pool": POOL, "threads": 1},
}


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


def test_invoke_asks_the_environments_endpoint_row_by_row(
    emulator: Emulator, outputs: dict[str, str], tmp_path: Path
) -> None:
    decision = EXAMPLE["decision"]
    rows, output = tmp_path / "rows.jsonl", tmp_path / "answers.jsonl"
    rows.write_text("\n".join(map(json.dumps, (decision, {**decision, "id": ""}))))
    options = ("--endpoint-url", emulator.endpoint_url, "-i", str(rows), "-o", str(output))
    assert main(["invoke", "local", *options]) == 1
    (answered,) = map(json.loads, output.read_text().splitlines())
    assert answered["result"]["probabilities"] == pytest.approx(decide(emulator)["probabilities"], abs=1e-3)
    (failed,) = map(json.loads, (tmp_path / "answers.failures.jsonl").read_text().splitlines())
    # The container's own sentence, which SageMaker wraps.
    assert failed == {
        "row": 2,
        "id": "",
        "status": 400,
        "reason": "decision.id: String should have at least 1 character",
    }


def test_a_run_of_labelled_decisions_knows_the_image(
    emulator: Emulator, outputs: dict[str, str], tmp_path: Path
) -> None:
    labelled, run = tmp_path / "labelled.jsonl", tmp_path / "run.json"
    question = {"type": "noul", "instructions": "Does something not work?"}
    labelled.write_text(json.dumps({"id": "1", "state": "I cannot log in.", "question": question, "expected": "yes"}))
    options = ("--endpoint-url", emulator.endpoint_url, "--output", str(run))
    assert main(["bench", str(labelled), "local", *options]) == 0
    target = read_run(run).target
    assert (target.described, target.image) == (f"endpoint {NAME}", outputs["CpuAdapterImageDigest"])


def operator(emulator: Emulator, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """The exit status of `decide ARGUMENTS --json`, and what it printed, by line where that is no one document."""
    capsys.readouterr()
    status = main([*arguments, "--json", "--endpoint-url", emulator.endpoint_url])
    printed = capsys.readouterr().out
    return status, printed.splitlines() if arguments[0] == "logs" else json.loads(printed or "null")


def verdicts(verified: dict[str, Any]) -> dict[str, str]:
    """Of `decide verify`, by check."""
    (found,) = verified["endpoints"]
    return {row["check"]: row["verdict"] for row in found["rows"]}


def test_the_operators_command_sees_what_was_deployed(
    emulator: Emulator, outputs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    status, verified = operator(emulator, capsys, "verify", "local")
    assert (status, verified["verified"]) == (0, True)
    checks = ("last deploy", "in service", "configuration", "image", "instances", "answers", "model")
    assert verdicts(verified) == dict.fromkeys(checks, "ok")

    status, found = operator(emulator, capsys, "status", "local")
    assert (status, found["deployed"], found["ringing"]) == (0, True, [])
    (served,) = found["endpoints"]
    assert served["placement"] == [{"instance_type": "ml.c6i.large", "instances": 1}]
    assert (served["scaling"], served["images"]) == ([1, 2], [outputs["CpuAdapterImageDigest"]])
    assert served["model"] == LOCAL.model.name
    assert served["model_uri"].endswith(f"/{outputs['ModelPrefix']}")
    built = {build["name"]: build["status"] for build in found["builds"]}
    assert built == dict.fromkeys(("CpuAdapterImage", "CpuBaseImage", "ModelBuild"), "SUCCEEDED")

    status, lines = operator(emulator, capsys, "logs", "local", "--build", "ModelBuild", "--filter", "Phase complete")
    assert (status, {json.loads(line)["source"] for line in lines}) == (0, {"ModelBuild"})
    assert "Phase complete: BUILD State: SUCCEEDED" in "".join(lines)
    # Nothing of a stack is a leftover.
    assert operator(emulator, capsys, "sweep", "local", "--delete", "--yes") == (1, None)
    assert decide(emulator)["id"] == "support-route"


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
    emulator: Emulator, cdk_cli: Cdk, outputs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = configs(emulator), [model["ModelName"] for model in models(emulator)]
    with pytest.raises(CdkError, match=r"AWS::SageMaker::Endpoint .*SEMIF_CACHE_BYTES"):
        cdk_cli.deploy(NO_CACHE)
    (stack,) = emulator.client("cloudformation").describe_stacks(StackName=STACK)["Stacks"]
    assert stack["StackStatus"] == "UPDATE_ROLLBACK_COMPLETE"
    assert (configs(emulator), [model["ModelName"] for model in models(emulator)]) == before
    served = endpoint(emulator)
    assert ([served["EndpointConfigName"]], served["EndpointStatus"]) == (before[0], "InService")
    assert decide(emulator)["model"]["threads"] == 1
    status, verified = operator(emulator, capsys, "verify", "local")
    assert (status, verdicts(verified)["last deploy"], verdicts(verified)["configuration"]) == (1, "failed", "ok")


def test_another_model_and_a_pool_of_types_update_the_endpoint_in_place(
    emulator: Emulator, cdk_cli: Cdk, outputs: dict[str, str]
) -> None:
    created, built = endpoint(emulator)["CreationTime"], builds(emulator)
    updated = cdk_cli.deploy(OTHER_MODEL_ON_A_POOL)
    assert updated == {**outputs, "ModelPrefix": updated["ModelPrefix"]}
    assert updated["ModelPrefix"] != outputs["ModelPrefix"]
    assert len(builds(emulator)) == len(built) + 1
    (model,) = models(emulator)
    source = model["PrimaryContainer"]["ModelDataSource"]["S3DataSource"]["S3Uri"]
    assert source.endswith(f"/{updated['ModelPrefix']}")
    served = endpoint(emulator)
    assert ([served["EndpointConfigName"]], served["CreationTime"]) == (configs(emulator), created)
    (variant,) = served["ProductionVariants"]
    assert variant["InstancePools"] == [
        {"InstanceType": POOL[0], "CurrentInstanceCount": 1},
        {"InstanceType": POOL[1], "CurrentInstanceCount": 0},
    ]
    assert decide(emulator)["model"]["gguf_sha256"] == LOCAL.model.sha256


def test_the_commands_of_the_operations_page_run(emulator: Emulator, outputs: dict[str, str], tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    commands = [line for line in page.splitlines() if line.startswith(("aws ", "echo ", "cat "))]
    told = {}
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env={
                **os.environ,
                **emulator.environment,
                "PATH": f"{EMULATOR_PYTHON.parent}{os.pathsep}{os.environ['PATH']}",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        verb = " ".join(command.split()[1:3])
        # The stack is in no such state now; the page says so.
        in_vain = verb in {"cloudformation cancel-update-stack", "cloudformation continue-update-rollback"}
        assert (done.returncode != 0) == in_vain, (command, done.stderr)
        assert ("cannot be called from current stack status" in done.stderr) == in_vain, (command, done.stderr)
        told[verb] = done.stdout
    assert page.count("\naws ") >= 12
    assert outputs["DecisionEndpointInvokePolicy"] in told["cloudformation describe-stacks"]
    assert "SEMIF_CACHE_BYTES" in told["cloudformation describe-stack-events"]
    assert f"endpoint/{NAME}/variant/main\t1\t2" in told["application-autoscaling describe-scalable-targets"]
    assert json.loads(told["sagemaker describe-endpoint"])[0] == "InService"
    assert json.loads(told["answer.json"])["result"]["option_ids"] == ["yes", "no"]


class Runner:
    """The deployed build runner, called as CDK's framework calls it, for projects of a test's own."""

    def __init__(self, emulator: Emulator) -> None:
        self._projects: list[str] = []
        self._logs = emulator.client("logs")
        self._functions = emulator.client("lambda")
        self._codebuild = emulator.client("codebuild", parameter_validation=False)
        stack = emulator.client("cloudformation").describe_stack_resources(StackName=STACK)["StackResources"]
        functions = {r["LogicalResourceId"]: r["PhysicalResourceId"] for r in stack if "Function" in r["ResourceType"]}
        self._names = {
            part: next(name for logical, name in functions.items() if logical.startswith(f"BuildRunner{part}"))
            for part in ("OnEvent", "IsComplete")
        }

    def project(self, command: str, timeout_minutes: float = 5) -> dict[str, Any]:
        """The custom resource of a new project whose builds run one command."""
        name, spec = f"project-{uuid.uuid4()}", {"version": 0.2, "phases": {"build": {"commands": [command]}}}
        self._codebuild.create_project(
            name=name,
            serviceRole="arn:aws:iam::000000000000:role/build",
            artifacts={"type": "NO_ARTIFACTS"},
            source={"type": "NO_SOURCE", "buildspec": json.dumps(spec)},
            environment={"type": "LINUX_CONTAINER", "image": "x", "computeType": "BUILD_GENERAL1_SMALL"},
            # Below the API's minimum of five minutes, so that a test can see it pass.
            timeoutInMinutes=timeout_minutes,
        )
        self._projects.append(name)
        return {"ResourceProperties": {"ProjectName": name, "ContentHash": "1"}, "RequestId": str(uuid.uuid4())}

    def begin(self, request: str, resource: dict[str, Any]) -> dict[str, Any]:
        """The event that the framework polls with, once the runner has begun."""
        event = {**resource, "RequestType": request}
        return {**event, **self._call("OnEvent", event)}

    def outcome(self, event: dict[str, Any]) -> dict[str, Any]:
        """What the runner says when it does not say "not yet" any more: an error, or that it is complete."""
        while (answer := self._call("IsComplete", event)).get("IsComplete") is False:
            time.sleep(0.5)
        return answer

    def statuses(self, event: dict[str, Any]) -> list[str]:
        """What has become of the builds."""
        return [build["buildStatus"] for build in self._codebuild.batch_get_builds(ids=event["BuildIds"])["builds"]]

    def kill(self, event: dict[str, Any]) -> None:
        """Stop the builds, as an operator might."""
        for build in event["BuildIds"]:
            self._codebuild.stop_build(id=build)

    def tidy_up(self) -> None:
        """Delete the projects and their logs."""
        for name in self._projects:
            self._codebuild.delete_project(name=name)
            self._logs.delete_log_group(logGroupName=f"/aws/codebuild/{name}")

    def _call(self, part: str, event: dict[str, Any]) -> dict[str, Any]:
        answer = self._functions.invoke(FunctionName=self._names[part], Payload=json.dumps(event))
        decoded: dict[str, Any] = json.loads(answer["Payload"].read())
        return decoded


@pytest.fixture
def runner(emulator: Emulator, outputs: dict[str, str]) -> Iterator[Runner]:
    runner = Runner(emulator)
    yield runner
    runner.tidy_up()


@pytest.mark.parametrize(
    ("command", "timeout_minutes", "status"),
    [("echo error: no such model; exit 3", 5, "FAILED"), ("sleep 300", 5, "STOPPED"), ("sleep 300", 0.02, "TIMED_OUT")],
)
def test_the_build_runner_ends_at_once_with_a_build_that_does_not_succeed(
    runner: Runner, command: str, timeout_minutes: float, status: str
) -> None:
    event = runner.begin("Create", runner.project(command, timeout_minutes))
    if status == "STOPPED":
        runner.kill(event)
    told = runner.outcome(event)
    assert f"(build {event['BuildIds'][0]} ended as {status})" in told["errorMessage"]
    assert "Log: https://" in told["errorMessage"]
    if status == "FAILED":
        assert told["errorMessage"].startswith("error: no such model (build ")


def test_deleting_the_resource_stops_a_running_build(runner: Runner) -> None:
    resource = runner.project("sleep 300")
    running = runner.begin("Create", resource)
    assert runner.statuses(running) == ["IN_PROGRESS"]
    deleting = runner.begin("Delete", {**resource, "PhysicalResourceId": running["PhysicalResourceId"]})
    assert deleting["BuildIds"] == running["BuildIds"]
    assert runner.outcome(deleting) == {"IsComplete": True}
    assert runner.statuses(running) == ["STOPPED"]


def test_destroy_leaves_nothing(
    emulator: Emulator, cdk_cli: Cdk, outputs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = {line.split(" ")[0] for line in leftovers(emulator.endpoint_url)}
    # The check sees what it is to miss afterwards.
    assert kinds >= {"stack", "bucket", "repository", "image", "log", "model", "endpoint", "role", "scaling"}
    cdk_cli.destroy()
    assert leftovers(emulator.endpoint_url) == []
    status, swept = operator(emulator, capsys, "sweep", "local")
    assert (status, swept["leftovers"], swept["kept"], swept["not_looked_at"]) == (0, [], [], [])
    assert operator(emulator, capsys, "status", "local")[0] == 1
