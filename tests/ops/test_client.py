"""The client: what is asked again and when, in AWS's shapes, over HTTP and against a real adapter; thresholds."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError
from botocore.response import StreamingBody
from botocore.stub import Stubber

from ops.client import (
    AsyncDecisionClient,
    DecisionClient,
    DecisionError,
    Outcome,
    Policy,
    Retry,
    UnreachableError,
    _aws_failure,
    _seconds,
)
from ops.errors import UsageError
from tests.container.conftest import KEY, Server, free_port, running_adapter
from tests.models.make_models import model_path
from tests.ops.scripted import answered, result, scripted
from tests.ops.stubbed import client as aws_client

DECISION = {
    "id": "a",
    "state": "The lamp is broken.",
    "question": "What is right?",
    "options": [{"id": "refund", "description": "Give the money back"}, {"id": "repair", "description": "Repair it"}],
}
BUSY = {"error": "busy: 8 decisions are waiting already", "retryable": True}


class Waits(list[float]):
    """The pauses that were made, of which none takes time; the jitter is always the whole of its range."""

    def retry(self, seconds: float = 120.0) -> Retry:
        return Retry(seconds=seconds, sleep=self.append, random=lambda: 1.0)

    async def wait(self, seconds: float) -> None:
        self.append(seconds)


def test_backoff_doubles_to_its_cap_with_jitter_over_the_whole_range() -> None:
    def pauses(jitter: float) -> list[float | None]:
        retry = Retry(seconds=10_000, random=lambda: jitter)
        found = []
        for attempts in (1, 2, 3, 6, 7, 5000):
            error = DecisionError("busy", status=503, retryable=True)
            error.attempts = attempts
            found.append(retry.pause(error, 0))
        return found

    assert pauses(1.0) == [0.5, 1, 2, 16, 20, 20]
    assert pauses(0.5) == [0.25, 0.5, 1, 8, 10, 10]
    assert pauses(0.0) == [0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("retry_after", "spent", "pause"),
    [(3.0, 0, 3.5), (None, 119.9, 0.1), (119.8, 0, 120), (120.0, 0, None), (3.0, 118, None), (None, 120, None)],
)
def test_no_attempt_begins_before_the_server_wants_it_or_after_the_time_in_all(
    retry_after: float | None, spent: float, pause: float | None
) -> None:
    error = DecisionError("busy", status=503, retryable=True, retry_after=retry_after)
    found = Retry(random=lambda: 1.0).pause(error, spent)
    assert found == (None if pause is None else pytest.approx(pause))


def test_a_busy_adapter_is_asked_again_when_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DECIDE_API_KEY", "secret")

    def twice_busy(decision: Mapping[str, Any], before: int) -> tuple[int, Mapping[str, str], Any]:
        return answered(decision, before) if before == 2 else (503, {"Retry-After": "3"}, BUSY)

    waits = Waits()
    with scripted(twice_busy) as server, DecisionClient.http(f"{server.url}/", retry=waits.retry()) as client:
        assert client.decide(DECISION) == result(DECISION)
    assert waits == pytest.approx([3.5, 4], abs=0.01)
    assert server.bodies == [{"decision": DECISION}] * 3
    assert server.keys == ["Bearer secret"] * 3


def test_who_stays_busy_is_given_up_in_time() -> None:
    waits = Waits()
    with (
        scripted(lambda *_: (503, {"Retry-After": "50"}, BUSY)) as server,
        DecisionClient.http(server.url, retry=waits.retry()) as client,
        pytest.raises(DecisionError) as raised,
    ):
        client.decide(DECISION)
    assert waits == pytest.approx([50.5, 51], abs=0.01)  # a third would end after 120 s
    error = raised.value
    assert (error.status, error.retryable, error.attempts, error.exit_status) == (503, True, 3, 3)
    assert error.reason == BUSY["error"]
    assert str(error) == "busy: 8 decisions are waiting already (asked 3 times)"


@pytest.mark.parametrize(
    ("status", "body", "reason", "exit_status"),
    [
        (400, {"error": "decision.id: Field required", "retryable": False}, "decision.id: Field required", 2),
        (
            408,
            {"error": "the body took more than 20 s to arrive", "retryable": True},
            "the body took more than 20 s",
            3,
        ),
        (422, {"detail": [{"loc": ["state"], "msg": "Field required"}]}, 'status 422: [{"loc": ["state"]', 2),
        (401, {"error": {"message": "no key", "code": "invalid_api_key"}}, "no key", 3),
        (500, {"error": "the server failed; its log says why", "retryable": False}, "the server failed", 3),
        (302, b"", "status 302 without a reason", 3),
        (404, b"<html>\n nothing</html>", "status 404: <html> nothing</html>", 3),
    ],
)
def test_what_no_retry_helps_is_asked_once(status: int, body: Any, reason: str, exit_status: int) -> None:
    waits = Waits()
    with (
        scripted(lambda *_: (status, {}, body)) as server,
        DecisionClient.http(server.url, retry=waits.retry()) as client,
        pytest.raises(DecisionError) as raised,
    ):
        client.decide(DECISION)
    assert (len(server.bodies), waits) == (1, [])
    assert raised.value.reason.startswith(reason)
    assert (raised.value.status, raised.value.retryable, raised.value.exit_status) == (status, False, exit_status)
    assert isinstance(raised.value, UnreachableError) == (status in (401, 404))


@pytest.mark.parametrize("body", [b"hello", [1], {"results": []}])
def test_what_is_no_answer_is_told(body: Any) -> None:
    with (
        scripted(lambda *_: (200, {}, body)) as server,
        DecisionClient.http(server.url) as client,
        pytest.raises(DecisionError, match="what answers is no decision endpoint"),
    ):
        client.decide(DECISION)


def test_nobody_who_listens_is_asked_four_times() -> None:
    waits = Waits()
    url = f"http://127.0.0.1:{free_port()}"
    with DecisionClient.http(url, retry=waits.retry()) as client, pytest.raises(UnreachableError, match=url) as raised:
        client.decide(DECISION)
    assert waits == [0.5, 1, 2]
    assert (raised.value.attempts, raised.value.status) == (4, None)


def test_retry_after_is_a_number_or_a_date() -> None:
    assert _seconds("7") == 7
    later = datetime.now(timezone.utc) + timedelta(seconds=100)
    assert _seconds(format_datetime(later, usegmt=True)) == pytest.approx(100, abs=5)
    assert _seconds("Thu, 01 Jan 1970 00:00:00 GMT") == 0
    assert _seconds("soon") is None
    assert _seconds("-1") is None


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "schlüssel"])
def test_a_key_that_no_header_holds_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(UsageError, match="DECIDE_API_KEY") as raised:
        DecisionClient.http("http://127.0.0.1:8080", api_key=key)
    assert key not in str(raised.value)


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://host", "http://", "http://host:70000", "http://host:x"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="no address"):
        DecisionClient.http(url)


def test_what_is_no_json_is_not_sent() -> None:
    client = DecisionClient.http(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(UsageError, match="no JSON"):
        client.decide({**DECISION, "state": [float("nan")]})


class Endpoint:
    """InvokeEndpoint as AWS answers it: botocore checks the shapes against its own model of the service."""

    def __init__(self) -> None:
        self.client = aws_client("sagemaker-runtime")
        self.stubber = Stubber(self.client)
        self._expected = {"EndpointName": "e", "ContentType": "application/json", "Body": _body(DECISION)}

    def answers(self, said: Any) -> Endpoint:
        content = json.dumps(said).encode()
        answer = {"Body": StreamingBody(io.BytesIO(content), len(content)), "InvokedProductionVariant": "main"}
        self.stubber.add_response("invoke_endpoint", answer, self._expected)
        return self

    def fails(self, code: str, message: str, status: int, **modeled: Any) -> Endpoint:
        self.stubber.add_client_error("invoke_endpoint", code, message, status, None, self._expected, None, modeled)
        return self

    def model_error(self, status: int, said: Mapping[str, Any]) -> Endpoint:
        """As SageMaker wraps what a container answered, in the words that its documentation has."""
        original = json.dumps(said)
        message = f'Received server error ({status}) from primary with message "{original}". See https://us-east-1.c …'
        stream = "arn:aws:logs:us-east-1:111122223333:log-group:/aws/sagemaker/Endpoints/e:log-stream:main/i-0"
        return self.fails(
            "ModelError",
            message,
            424,
            OriginalStatusCode=status,
            OriginalMessage=original,
            LogStreamArn=stream,
        )


def _body(decision: Mapping[str, Any]) -> bytes:
    return json.dumps({"decision": decision}).encode()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """An endpoint `e` for which a test says what it answers; all of it must be asked for."""
    found = Endpoint()
    with found.stubber:
        yield found
        found.stubber.assert_no_pending_responses()


def test_sagemaker_is_asked_again_where_the_container_is_busy_or_aws_is(endpoint: Endpoint) -> None:
    waits = Waits()
    endpoint.model_error(503, BUSY).fails("ThrottlingException", "Rate exceeded", 400)
    endpoint.fails("ServiceUnavailable", "Unable to process", 503).fails("ModelNotReadyException", "Loading", 429)
    endpoint.answers({"result": result(DECISION)})
    client = DecisionClient.sagemaker("e", runtime=endpoint.client, retry=waits.retry())
    assert client.decide(DECISION) == result(DECISION)
    assert waits == [0.5, 1, 2, 4]


def test_what_the_container_refuses_comes_through_sagemaker_as_it_was(endpoint: Endpoint) -> None:
    endpoint.model_error(413, {"error": "the prompt has 9000 tokens, 8192 are allowed", "retryable": False})
    client = DecisionClient.sagemaker("e", runtime=endpoint.client, retry=Waits().retry())
    with pytest.raises(DecisionError) as raised:
        client.decide(DECISION)
    assert raised.value.reason == "the prompt has 9000 tokens, 8192 are allowed"
    assert (raised.value.status, raised.value.exit_status) == (413, 2)


@pytest.mark.parametrize(
    ("code", "message", "status", "for_nobody"),
    [
        ("ValidationError", "Endpoint e of account 111122223333 not found.", 400, True),
        ("ValidationError", "1 validation error detected: Value at 'body' failed to satisfy constraint", 400, False),
        ("AccessDeniedException", "User is not authorized to perform: sagemaker:InvokeEndpoint", 403, True),
        ("ExpiredTokenException", "The security token included in the request is expired", 403, True),
    ],
)
def test_what_aws_refuses_is_told_with_its_code_and_asked_once(
    endpoint: Endpoint, code: str, message: str, status: int, *, for_nobody: bool
) -> None:
    endpoint.fails(code, message, status)
    client = DecisionClient.sagemaker("e", runtime=endpoint.client, retry=Waits().retry())
    with pytest.raises(DecisionError, match=f"InvokeEndpoint answered {code}") as raised:
        client.decide(DECISION)
    assert (raised.value.status, raised.value.retryable) == (status, False)
    assert isinstance(raised.value, UnreachableError) == for_nobody


def test_no_connection_to_aws_differs_from_an_answer_that_does_not_come() -> None:
    no_connection = _aws_failure(EndpointConnectionError(endpoint_url="https://runtime"))
    assert isinstance(no_connection, UnreachableError)
    no_answer = _aws_failure(ReadTimeoutError(endpoint_url="https://runtime"))
    assert not isinstance(no_answer, UnreachableError)
    assert no_connection.retryable
    assert no_answer.retryable


def test_the_async_client_asks_again_too(endpoint: Endpoint) -> None:
    def busy_once(decision: Mapping[str, Any], before: int) -> tuple[int, Mapping[str, str], Any]:
        return answered(decision, before) if before else (503, {"Retry-After": "2"}, BUSY)

    async def ask(client: AsyncDecisionClient, waits: Waits) -> Mapping[str, Any]:
        client._sleep = waits.wait
        async with client:
            return await client.decide(DECISION)

    endpoint.model_error(503, BUSY).answers({"result": result(DECISION)})
    waits = Waits()
    over_aws = AsyncDecisionClient.sagemaker("e", runtime=endpoint.client, retry=waits.retry())
    assert asyncio.run(ask(over_aws, waits)) == result(DECISION)
    assert waits == [0.5]
    waits = Waits()
    with scripted(busy_once) as server:
        over_http = AsyncDecisionClient.http(server.url, retry=waits.retry())
        assert asyncio.run(ask(over_http, waits)) == result(DECISION)
    assert waits == [2.5]


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        (Policy(), Outcome("b", 0.614, "b", fell_back=False, why=None)),
        (Policy(0.614, "c"), Outcome("b", 0.614, "b", fell_back=False, why=None)),
        (Policy(0.8, "c"), Outcome("c", 0.614, "b", fell_back=True, why="below min_probability 0.80: 0.61")),
        (Policy(0.8), Outcome(None, 0.614, "b", fell_back=True, why="below min_probability 0.80: 0.61")),
        # Two decimals would not tell them apart.
        (Policy(0.6141, "c"), Outcome("c", 0.614, "b", fell_back=True, why="below min_probability 0.6141: 0.6140")),
    ],
)
def test_an_answer_counts_from_its_threshold_on(policy: Policy, outcome: Outcome) -> None:
    assert policy.outcome({"option_ids": ["a", "b", "c"], "probabilities": [0.3, 0.614, 0.086]}) == outcome


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "0.5", True])
def test_a_threshold_that_is_no_probability_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="must be a number from 0 to 1"):
        Policy(value)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real adapter with a small model, which wants a key."""
    place = tmp_path_factory.mktemp("keyed")
    (place / "model.gguf").symlink_to(model_path("tiny-hybrid"))
    with running_adapter(place, place / "log", SEMIF_API_KEY=KEY) as running:
        yield running


def test_a_real_adapter_answers_one_and_several(keyed: Server, tmp_path: Path) -> None:
    with DecisionClient.http(keyed.url, api_key=KEY) as client:
        one = client.decide(DECISION)
        both = client.decide_all([DECISION, {**DECISION, "id": "b", "question": "What is wrong?"}])
        with pytest.raises(DecisionError) as raised:
            client.decide({**DECISION, "options": []})
    assert (one["id"], one["option_ids"], sum(one["probabilities"])) == ("a", ["refund", "repair"], pytest.approx(1))
    assert [r["id"] for r in both["results"]] == ["a", "b"]
    assert both["results"][0]["probabilities"] == pytest.approx(one["probabilities"], abs=1e-3)
    assert (raised.value.status, raised.value.attempts) == (400, 1)
    assert raised.value.reason.startswith("decision.options: ")
    with DecisionClient.http(keyed.url, api_key="another") as client, pytest.raises(UnreachableError) as refused:
        client.decide(DECISION)
    assert refused.value.status == 401
