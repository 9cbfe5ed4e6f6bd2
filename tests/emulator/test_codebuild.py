"""CodeBuild: buildspecs that run, and the records, logs and failures that they leave."""

from __future__ import annotations

import io
import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.emulator.conftest import is_running, wait_for
from tests.emulator_fixture import Emulator

ENVIRONMENT = {"type": "LINUX_CONTAINER", "image": "aws/codebuild/standard:7.0", "computeType": "BUILD_GENERAL1_SMALL"}


class Builds:
    """Runs buildspecs in projects of their own."""

    def __init__(self, emulator: Emulator) -> None:
        self.api = emulator.client("codebuild", parameter_validation=False)
        self.emulator = emulator
        self._count = 0

    def start(self, buildspec: str | dict[str, Any], overrides: dict[str, Any] | None = None, **project: Any) -> str:
        """A new build of a new project; its id."""
        self._count += 1
        text = buildspec if isinstance(buildspec, str) else json.dumps({"version": 0.2, **buildspec})
        name = f"project-{self._count}"
        self.api.create_project(
            name=name,
            artifacts={"type": "NO_ARTIFACTS"},
            serviceRole="arn:aws:iam::000000000000:role/build",
            **{
                "source": {"type": "NO_SOURCE", "buildspec": text},
                "environment": ENVIRONMENT,
                "timeoutInMinutes": 5,
                **project,
            },
        )
        return str(self.api.start_build(projectName=name, **(overrides or {}))["build"]["id"])

    def finished(self, build_id: str) -> dict[str, Any]:
        """The build's record when it is complete."""
        build: dict[str, Any] = {}

        def complete() -> bool:
            build.update(self.api.batch_get_builds(ids=[build_id])["builds"][0])
            return bool(build["buildComplete"])

        wait_for(complete)
        return build

    def run(self, buildspec: str | dict[str, Any], **more: Any) -> dict[str, Any]:
        """Start and wait."""
        return self.finished(self.start(buildspec, **more))

    def log(self, build: dict[str, Any]) -> list[str]:
        """The lines of its log."""
        stream = {"logGroupName": build["logs"]["groupName"], "logStreamName": build["logs"]["streamName"]}
        found = self.emulator.client("logs").get_log_events(**stream, startFromHead=True)
        return [event["message"] for event in found["events"]]


@pytest.fixture(scope="module")
def builds(emulator: Emulator) -> Builds:
    """CodeBuild."""
    return Builds(emulator)


def exported(build: dict[str, Any]) -> dict[str, str]:
    """The variables that a build exported."""
    return {item["name"]: item["value"] for item in build["exportedEnvironmentVariables"]}


def phases(build: dict[str, Any]) -> dict[str, str]:
    """Status by phase."""
    return {phase["phaseType"]: phase.get("phaseStatus", "") for phase in build["phases"]}


def commands(**by_phase: list[str]) -> dict[str, Any]:
    """A buildspec's phases."""
    return {"phases": {name: {"commands": lines} for name, lines in by_phase.items()}}


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_commands_share_one_shell_and_export_what_it_holds(builds: Builds, shell: str) -> None:
    build = builds.run(
        {
            "env": {"shell": shell, "exported-variables": ["OUT", "UNSET"], "variables": {"FROM_SPEC": "spec"}},
            **commands(
                install=["mkdir inner && cd inner", "local_variable=kept", 'greet() { echo "hello $1"; }'],
                build=['test "$(basename "$PWD")" = inner', 'OUT="$(greet "$local_variable") $FROM_SPEC"\nexport OUT'],
            ),
        }
    )
    assert build["buildStatus"] == "SUCCEEDED", builds.log(build)
    assert exported(build) == {"OUT": "hello kept spec", "UNSET": ""}


def test_bash_where_it_is_asked_for(builds: Builds) -> None:
    build = builds.run({"env": {"shell": "bash"}, **commands(build=["set -o pipefail", "[[ ab == a* ]] || exit 9"])})
    assert build["buildStatus"] == "SUCCEEDED"


def test_source_is_unpacked_with_its_modes_and_holds_the_buildspec(builds: Builds) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        program = zipfile.ZipInfo("tool/run")
        program.external_attr = 0o100755 << 16
        archive.writestr(program, '#!/bin/sh\necho ran as "$1"\n')
        spec = {
            "version": 0.2,
            "env": {"exported-variables": ["SAID"]},
            **commands(build=["export SAID=$(tool/run x)"]),
        }
        archive.writestr("ci/spec.yml", json.dumps(spec))
    builds.emulator.client("s3").put_object(Bucket="models", Key="source.zip", Body=buffer.getvalue())
    source = {"type": "S3", "location": "models/source.zip", "buildspec": "ci/spec.yml"}
    assert exported(builds.run("", source=source)) == {"SAID": "ran as x"}
    missing = builds.run("", source={**source, "buildspec": "absent.yml"})
    assert phases(missing)["DOWNLOAD_SOURCE"] == "FAILED"
    assert "no buildspec absent.yml" in missing["phases"][-3]["contexts"][0]["message"]


def test_environment_of_a_build(builds: Builds) -> None:
    show = (
        "import json, os, sys; keep = {k: v for k, v in os.environ.items()}; "
        "print('SEEN', json.dumps({**keep, 'version': sys.version_info[:2], 'prefix': sys.prefix}))"
    )
    build = builds.run(
        commands(build=[f'python3 -c "{show}"', "aws sts get-caller-identity --query Account --output text"]),
        environment={
            **ENVIRONMENT,
            "environmentVariables": [{"name": "A", "value": "project"}, {"name": "B", "value": "project"}],
        },
        overrides={"environmentVariablesOverride": [{"name": "B", "value": "override"}]},
    )
    lines = builds.log(build)
    assert build["buildStatus"] == "SUCCEEDED", lines
    seen = json.loads(next(line for line in lines if line.startswith("SEEN")).removeprefix("SEEN "))
    assert (seen["A"], seen["B"]) == ("project", "override")
    assert seen["CODEBUILD_BUILD_ID"] == build["id"]
    assert seen["CODEBUILD_BUILD_SUCCEEDING"] == "1"
    assert seen["AWS_ENDPOINT_URL"] == builds.emulator.endpoint_url
    assert seen["HOME"] != os.environ["HOME"]
    assert Path(seen["PIP_CACHE_DIR"]).is_absolute()
    assert Path(seen["PWD"]) == Path(seen["CODEBUILD_SRC_DIR"])
    assert tuple(seen["version"]) >= (3, 10)
    assert seen["prefix"] != sys.prefix, "the machine's Python, not the one of a virtual environment"
    assert "000000000000" in lines, "the AWS command line speaks to the emulator"


def test_failing_command_is_reported_with_its_reason_and_followed_by_post_build(builds: Builds) -> None:
    build = builds.run(
        commands(build=["echo before", "sh -c 'exit 3'", "echo never"], post_build=["echo $CODEBUILD_BUILD_SUCCEEDING"])
    )
    assert build["buildStatus"] == "FAILED"
    assert phases(build)["BUILD"] == "FAILED"
    assert phases(build)["POST_BUILD"] == "SUCCEEDED"
    (context,) = next(phase for phase in build["phases"] if phase["phaseType"] == "BUILD")["contexts"]
    assert context == {
        "statusCode": "COMMAND_EXECUTION_ERROR",
        "message": "Error while executing command: sh -c 'exit 3'. Reason: exit status 3",
    }
    lines = builds.log(build)
    assert "before" in lines
    assert "never" not in lines
    assert "0" in lines, "post_build is told that the build has failed"
    assert any("Phase complete: BUILD State: FAILED" in line for line in lines)


def test_finally_runs_after_a_failure_and_later_phases_do_not(builds: Builds) -> None:
    spec = {
        "phases": {"pre_build": {"commands": ["false"], "finally": ["echo at last"]}, "build": {"commands": ["date"]}}
    }
    build = builds.run(spec)
    assert build["buildStatus"] == "FAILED"
    assert "BUILD" not in phases(build)
    assert "at last" in builds.log(build)


def test_command_that_ends_the_shell_fails_its_phase_and_the_next_phase_gets_a_new_one(builds: Builds) -> None:
    build = builds.run(
        {
            "env": {"exported-variables": ["SEEN"]},
            **commands(build=["export KEPT=yes", "exit 4"], post_build=["export SEEN=$KEPT"]),
        }
    )
    assert phases(build)["BUILD"] == "FAILED"
    assert exported(build) == {"SEEN": "yes"}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("version: 0.1\nphases: {}\n", "version 0.1 is not supported"),
        ("version: 0.2\nphases:\n  biuld:\n    commands: [date]\n", "phases has biuld"),
        ("version: 0.2\nreports: {}\nphases: {}\n", "the buildspec has reports"),
        ("version: 0.2\nphases: [\n", "not YAML"),
    ],
)
def test_buildspec_that_cannot_be_followed_fails_with_one_reason(builds: Builds, spec: str, words: str) -> None:
    build = builds.run(spec)
    assert build["buildStatus"] == "FAILED"
    (context,) = next(phase for phase in build["phases"] if phase["phaseType"] == "DOWNLOAD_SOURCE")["contexts"]
    assert context["statusCode"] == "YAML_FILE_ERROR"
    assert words in context["message"]


@pytest.mark.parametrize("how", ["stop", "time out"])
def test_build_that_is_stopped_or_out_of_time_ends_all_its_processes(builds: Builds, tmp_path: Path, how: str) -> None:
    marker = tmp_path / "pid"
    spec = commands(build=[f"bash -c 'sleep 300 & echo $! > {marker}; wait'"], post_build=["echo never"])
    # Below the API's minimum of five minutes, so that a test can see it pass.
    build_id = builds.start(spec, timeoutInMinutes=5 if how == "stop" else 0.03)
    wait_for(lambda: marker.exists() and marker.read_text().endswith("\n"))
    if how == "stop":
        builds.api.stop_build(id=build_id)
    build = builds.finished(build_id)
    status = "STOPPED" if how == "stop" else "TIMED_OUT"
    assert build["buildStatus"] == status
    assert phases(build)["BUILD"] == status
    assert "never" not in builds.log(build)
    wait_for(lambda: not is_running(int(marker.read_text())))


def test_log_goes_where_the_stack_says(builds: Builds) -> None:
    build = builds.run(commands(build=["echo here"]))
    assert build["logs"]["groupName"] == f"/aws/codebuild/{build['projectName']}"
    template = {
        "Resources": {
            "Project": {
                "Type": "AWS::CodeBuild::Project",
                "Properties": {
                    "Name": "of-a-stack",
                    "ServiceRole": "arn:aws:iam::000000000000:role/build",
                    "Artifacts": {"Type": "NO_ARTIFACTS"},
                    "Environment": {"Type": "LINUX_CONTAINER", "Image": "x", "ComputeType": "BUILD_GENERAL1_SMALL"},
                    "Source": {
                        "Type": "NO_SOURCE",
                        "BuildSpec": "version: 0.2\nphases: {build: {commands: [echo here]}}\n",
                    },
                    "LogsConfig": {"CloudWatchLogs": {"Status": "ENABLED", "GroupName": "/my/group"}},
                },
            }
        }
    }
    cloudformation = builds.emulator.client("cloudformation")
    cloudformation.create_stack(StackName="project", TemplateBody=json.dumps(template))
    cloudformation.get_waiter("stack_create_complete").wait(StackName="project", WaiterConfig={"Delay": 0.2})
    build = builds.finished(builds.api.start_build(projectName="of-a-stack")["build"]["id"])
    assert build["logs"]["groupName"] == "/my/group"
    assert "here" in builds.log(build)
    assert "my" in build["logs"]["deepLink"]


def test_what_is_not_supported_is_refused(builds: Builds) -> None:
    build = builds.run(commands(build=["date"]))
    with pytest.raises(ClientError, match="does not support sourceVersion"):
        builds.api.start_build(projectName=build["projectName"], sourceVersion="main")
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        builds.api.start_build(projectName="absent")
