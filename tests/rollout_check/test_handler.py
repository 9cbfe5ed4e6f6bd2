"""The roll-out check: what it takes for served, what it calls rolled back, and when it asks again."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.response import StreamingBody
from botocore.stub import Stubber

from rollout_check import handler

NAME = "decision-endpoints-x-decision"
ARN = f"arn:aws:sagemaker:eu-west-1:123456789012:endpoint/{NAME}"
BODY = '{"decision": {}}'


class Aws:
    """The two clients with what they will answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        keys: Any = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "eu-west-1"}
        clients: dict[str, Any] = {name: boto3.client(name, **keys) for name in ("sagemaker", "sagemaker-runtime")}
        self.sagemaker, self.runtime = (Stubber(client) for client in clients.values())
        monkeypatch.setattr(boto3, "client", lambda name, **_: clients[name])
        self.pauses: list[float] = []
        monkeypatch.setattr(time, "sleep", self.pauses.append)

    def serves(self, config: str, status: str = "InService", **more: str) -> None:
        self.sagemaker.add_response(
            "describe_endpoint",
            {
                "EndpointName": NAME,
                "EndpointArn": ARN,
                "EndpointConfigName": config,
                "EndpointStatus": status,
                "CreationTime": 0,
                "LastModifiedTime": 0,
                **more,
            },
            {"EndpointName": NAME},
        )

    def answers(self) -> None:
        self.runtime.add_response(
            "invoke_endpoint",
            {"Body": StreamingBody(io.BytesIO(b"{}"), 2)},
            {"EndpointName": NAME, "ContentType": "application/json", "Body": BODY},
        )

    def fails_with(self, status: int) -> None:
        self.runtime.add_client_error(
            "invoke_endpoint",
            "ModelError",
            f"Received server error ({status})",
            modeled_fields={"OriginalStatusCode": status},
        )


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    found = Aws(monkeypatch)
    with found.sagemaker, found.runtime:
        yield found
        found.sagemaker.assert_no_pending_responses()
        found.runtime.assert_no_pending_responses()


def event(request_type: str, request: str = BODY) -> dict[str, Any]:
    properties = {"EndpointName": NAME, "EndpointConfigName": "new", "Request": request}
    return {"RequestType": request_type, "ResourceProperties": properties}


@pytest.mark.parametrize("request_type", ["Create", "Update"])
def test_an_endpoint_that_serves_what_was_deployed_and_answers_passes(aws: Aws, request_type: str) -> None:
    aws.serves("new")
    aws.answers()
    assert handler.on_event(event(request_type), None) == {"PhysicalResourceId": NAME}


def test_without_a_request_nothing_is_asked(aws: Aws) -> None:
    aws.serves("new")
    handler.on_event(event("Create", request=""), None)


def test_nothing_is_checked_on_delete(aws: Aws) -> None:
    assert handler.on_event(event("Delete"), None) == {"PhysicalResourceId": NAME}


def test_a_silent_roll_back_is_a_failure_with_sagemakers_reason(aws: Aws) -> None:
    aws.serves("old", FailureReason="alarm Faults in ALARM")
    with pytest.raises(handler.RolloutError) as raised:
        handler.on_event(event("Update"), None)
    assert str(raised.value) == (
        f"endpoint {NAME} serves the configuration old, not new of this deploy: "
        "the update was rolled back (alarm Faults in ALARM)"
    )


def test_so_is_an_endpoint_that_is_not_in_service(aws: Aws) -> None:
    aws.serves("new", status="Failed", FailureReason="no capacity")
    with pytest.raises(handler.RolloutError, match=f"endpoint {NAME} is Failed: no capacity"):
        handler.on_event(event("Update"), None)


def test_a_busy_endpoint_is_asked_again(aws: Aws) -> None:
    aws.serves("new")
    aws.fails_with(503)
    aws.fails_with(503)
    aws.answers()
    handler.on_event(event("Update"), None)
    assert aws.pauses == [handler._PAUSE_SECONDS] * 2


def test_but_not_for_ever(aws: Aws) -> None:
    aws.serves("new")
    for _ in range(handler._ATTEMPTS):
        aws.fails_with(503)
    with pytest.raises(handler.RolloutError, match="is in service and does not answer"):
        handler.on_event(event("Update"), None)
    assert sum(aws.pauses) < 240  # the function's own time-out is 300 s


@pytest.mark.parametrize("status", [400, 500])
def test_any_other_failure_is_one_at_once(aws: Aws, status: int) -> None:
    aws.serves("new")
    aws.fails_with(status)
    with pytest.raises(handler.RolloutError, match=rf"does not answer: .*\({status}\)"):
        handler.on_event(event("Create"), None)
    assert aws.pauses == []
