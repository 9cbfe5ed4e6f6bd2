"""The build runner against botocore's own model of CodeBuild and Logs: what it calls, answers and says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber

from build_runner import handler

if TYPE_CHECKING:
    from mypy_boto3_codebuild.type_defs import BuildTypeDef

PROJECT = "ModelBuild-1A2B"
BUILD_ID = f"{PROJECT}:2f0c7f1e-0000-4000-8000-000000000001"
ARN = f"arn:aws:codebuild:eu-west-1:123456789012:build/{BUILD_ID}"


def build(status: str, **more: Any) -> BuildTypeDef:
    return {"id": BUILD_ID, "arn": ARN, "projectName": PROJECT, "buildStatus": status, **more}  # type: ignore[typeddict-item]


def event(request_type: str, **more: Any) -> handler.Event:
    return {
        "RequestType": request_type,
        "RequestId": "request-1",
        "ResourceProperties": {"ProjectName": PROJECT, "ContentHash": "abc"},
        **more,
    }


class Aws:
    """Stubbed clients: every call must be one that was announced, with these parameters."""

    def __init__(self) -> None:
        credentials = {"region_name": "eu-west-1", "aws_access_key_id": "x", "aws_secret_access_key": "x"}
        self.clients = {name: boto3.client(name, **credentials) for name in ("codebuild", "logs")}  # type: ignore[call-overload]
        self.codebuild, self.logs = (Stubber(self.clients[name]) for name in ("codebuild", "logs"))

    def starts(self) -> None:
        self.codebuild.add_response(
            "start_build",
            {"build": build("IN_PROGRESS")},
            {"projectName": PROJECT, "idempotencyToken": "request-1"},
        )

    def has(self, *builds: BuildTypeDef) -> None:
        self.codebuild.add_response("batch_get_builds", {"builds": list(builds)}, {"ids": [b["id"] for b in builds]})


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    stubs = Aws()
    monkeypatch.setattr(boto3, "client", lambda name: stubs.clients[name])
    with stubs.codebuild, stubs.logs:
        yield stubs
        stubs.codebuild.assert_no_pending_responses()
        stubs.logs.assert_no_pending_responses()


@pytest.mark.parametrize("request_type", ["Create", "Update"])
def test_a_new_or_changed_resource_starts_one_build_under_the_projects_name(aws: Aws, request_type: str) -> None:
    aws.starts()
    answer = handler.on_event(event(request_type, PhysicalResourceId="an-older-project"), None)
    assert answer == {"PhysicalResourceId": PROJECT, "BuildIds": [BUILD_ID]}


def test_a_role_that_cannot_be_assumed_yet_is_waited_for_and_told(
    aws: Aws, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    message = "CodeBuild is not authorized to perform: sts:AssumeRole on service role."
    aws.codebuild.add_client_error("start_build", "InvalidInputException", message)
    aws.starts()
    with caplog.at_level("INFO"):
        assert handler.on_event(event("Create"), None)["BuildIds"] == [BUILD_ID]
    assert pauses == [handler._START_PAUSE_SECONDS]
    assert "role not yet assumable" in caplog.text


def test_waiting_for_the_role_ends_before_the_function_does(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    message = "CodeBuild is not authorized to perform: sts:AssumeRole on service role."
    for _ in range(handler._START_ATTEMPTS):
        aws.codebuild.add_client_error("start_build", "InvalidInputException", message)
    with pytest.raises(ClientError, match="sts:AssumeRole"):
        handler.on_event(event("Create"), None)
    assert sum(pauses) < 90  # the function's own time-out is 120 s


def test_any_other_refusal_to_start_is_not_retried(aws: Aws) -> None:
    aws.codebuild.add_client_error("start_build", "AccountLimitExceededException", "too many builds")
    with pytest.raises(ClientError, match="too many builds"):
        handler.on_event(event("Create"), None)


def test_a_running_build_is_not_complete(aws: Aws) -> None:
    aws.has(build("IN_PROGRESS"))
    assert handler.is_complete(event("Create", BuildIds=[BUILD_ID]), None) == {"IsComplete": False}


def test_the_exported_variables_become_the_attributes(aws: Aws) -> None:
    variables = [{"name": "IMAGE_DIGEST", "value": "sha256:ab"}, {"name": "OTHER", "value": ""}]
    aws.has(build("SUCCEEDED", exportedEnvironmentVariables=variables))
    assert handler.is_complete(event("Update", BuildIds=[BUILD_ID]), None) == {
        "IsComplete": True,
        "Data": {"IMAGE_DIGEST": "sha256:ab", "OTHER": ""},
    }


@pytest.mark.parametrize("status", ["FAILED", "FAULT", "STOPPED", "TIMED_OUT"])
def test_every_other_end_fails_at_once_with_reason_log_end_and_log_address(aws: Aws, status: str) -> None:
    aws.has(
        build(
            status,
            logs={"groupName": "group", "streamName": "stream", "deepLink": "https://console/log"},
            phases=[
                {"phaseType": "INSTALL"},
                {"phaseType": "BUILD", "contexts": [{"statusCode": "X", "message": "exit status 3"}]},
            ],
        )
    )
    aws.logs.add_response(
        "get_log_events",
        {
            "events": [
                {"message": f"{line}\n"}
                for line in ("[Container] Entering phase BUILD", "fetching", "error: wrong sha256", "[Container] end")
            ]
        },
        {"logGroupName": "group", "logStreamName": "stream", "limit": handler._LOG_LINES, "startFromHead": False},
    )
    with pytest.raises(handler.BuildFailedError) as raised:
        handler.is_complete(event("Create", BuildIds=[BUILD_ID]), None)
    assert str(raised.value).splitlines() == [
        f"error: wrong sha256 (build {BUILD_ID} ended as {status})",
        "Log: https://console/log",
        "Its last lines:",
        "fetching",
        "error: wrong sha256",
    ]


def test_a_build_that_never_wrote_a_log_fails_with_an_address_made_from_its_arn(aws: Aws) -> None:
    aws.has(build("STOPPED", logs={"cloudWatchLogsArn": "arn:..."}))
    with pytest.raises(handler.BuildFailedError) as raised:
        handler.is_complete(event("Create", BuildIds=[BUILD_ID]), None)
    address = (
        "https://eu-west-1.console.aws.amazon.com/codesuite/codebuild/123456789012/projects/"
        f"{PROJECT}/build/{PROJECT}%3A2f0c7f1e-0000-4000-8000-000000000001/log"
    )
    assert str(raised.value).splitlines()[1:] == [f"Log: {address}", "Its last lines:", "(none)"]


def test_without_a_line_that_calls_itself_an_error_codebuilds_own_word_is_the_reason() -> None:
    contexts = [{"statusCode": "X", "message": "exit status 3"}, {"statusCode": "", "message": ""}]
    failed = build("FAILED", phases=[{"phaseType": "INSTALL"}, {"phaseType": "BUILD", "contexts": contexts}])
    lines = ["[Container] Entering phase BUILD", "[Container] Phase complete: BUILD"]
    message = handler.failure_message(failed, lines).splitlines()
    assert message[0] == f"BUILD: exit status 3 (build {BUILD_ID} ended as FAILED)"
    assert message[3:] == lines


def test_an_unreadable_log_does_not_hide_the_failure(aws: Aws) -> None:
    aws.has(build("FAILED", logs={"groupName": "group", "streamName": "stream"}))
    aws.logs.add_client_error("get_log_events", "AccessDeniedException", "no")
    with pytest.raises(handler.BuildFailedError, match=r"ended as FAILED[\s\S]*cannot be read: .*AccessDenied"):
        handler.is_complete(event("Create", BuildIds=[BUILD_ID]), None)


def test_the_message_keeps_the_end_of_the_log_within_cloudformations_limit() -> None:
    lines = [f"line {number} ä" + "ö" * 200 for number in range(50)]
    message = handler.failure_message(build("FAILED"), lines)
    assert len(message.encode()) <= handler._MESSAGE_BYTES
    assert message.endswith("\n".join(["", *lines[-3:]]))  # whole lines
    assert lines[0] not in message


def test_delete_stops_what_runs_and_waits_until_it_has_stopped(aws: Aws) -> None:
    ended = {**build("SUCCEEDED"), "id": f"{PROJECT}:older"}
    aws.codebuild.add_response(
        "list_builds_for_project",
        {"ids": [BUILD_ID, ended["id"]]},
        {"projectName": PROJECT, "sortOrder": "DESCENDING"},
    )
    aws.has(build("IN_PROGRESS"), ended)  # type: ignore[arg-type]
    aws.codebuild.add_response("stop_build", {"build": build("IN_PROGRESS")}, {"id": BUILD_ID})
    answer = handler.on_event(event("Delete", PhysicalResourceId=PROJECT), None)
    assert answer == {"PhysicalResourceId": PROJECT, "BuildIds": [BUILD_ID]}

    aws.has(build("IN_PROGRESS"))
    assert handler.is_complete(event("Delete", **answer), None) == {"IsComplete": False}
    aws.has(build("STOPPED"))
    assert handler.is_complete(event("Delete", **answer), None) == {"IsComplete": True}


def test_delete_succeeds_where_the_project_is_gone_already(aws: Aws) -> None:
    aws.codebuild.add_client_error("list_builds_for_project", "ResourceNotFoundException", "gone")
    answer = handler.on_event(event("Delete", PhysicalResourceId=PROJECT), None)
    assert answer["BuildIds"] == []
    assert handler.is_complete(event("Delete", **answer), None) == {"IsComplete": True}
