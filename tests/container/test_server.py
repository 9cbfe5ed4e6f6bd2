"""The adapter over real HTTP with the embedded model: both bodies, refusals, callers that leave, starts that fail."""

from __future__ import annotations

import json
import math
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.container.conftest import EMBEDDED, Server, running_adapter

Make = Callable[..., dict[str, Any]]
LONG_STATE = "The customer writes again and again. " * 100  # about 800 tokens: seconds of work


def test_ping_says_ready(server: Server) -> None:
    assert httpx.get(f"{server.url}/ping").status_code == 200


def test_one_decision_is_answered_in_full(server: Server, decision: Make) -> None:
    response = server.invoke({"decision": decision()})
    assert response.status_code == 200
    result = response.json()["result"]
    assert result["id"] == "support-route"
    assert result["option_ids"] == ["account_access", "billing", "sales"]
    assert math.fsum(result["probabilities"]) == pytest.approx(1, abs=1e-12)
    expected = [math.exp(logit - max(result["option_logits"])) for logit in result["option_logits"]]
    assert result["probabilities"] == pytest.approx([value / sum(expected) for value in expected])
    assert 0 < result["allowed_token_mass"] < 1
    assert result["answer_token_ids"] == [49, 50, 51]  # A, B, C in the embedded model's vocabulary
    assert result["input_tokens"] == 130
    assert result["prompt_version"] == "direct-options-v1"
    assert result["prompt_sha256"] == "8e5ee8efb6ae729e55096ffcd6ff2c46ee03ee1c92237d9fcf6982fd71304293"
    assert result["readout"].startswith("quantized last-position logits restricted to declared answer slots")
    assert result["model"]["gguf_sha256"] == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert result["model"]["gguf_bytes"] == EMBEDDED.stat().st_size
    assert 0 < result["forward_seconds"] <= result["total_seconds"]


def test_shared_decisions_answer_as_each_does_alone(server: Server, decision: Make) -> None:
    first = decision(id="first")
    second = decision(id="second", question="How urgent is it?")
    second["options"] = [{"id": "low", "description": "It can wait."}, {"id": "high", "description": "Today."}]
    response = server.invoke({"decisions": [first, second]}).json()
    assert [result["id"] for result in response["results"]] == ["first", "second"]
    assert response["timing"]["batch_size"] == 2
    alone = [server.invoke({"decision": one}).json()["result"] for one in (first, second)]
    for shared, single in zip(response["results"], alone, strict=True):
        assert shared["option_logits"] == single["option_logits"]
        assert shared["prompt_sha256"] == single["prompt_sha256"]


def test_a_named_calibration_changes_probabilities_and_says_so(server: Server, decision: Make) -> None:
    plain = server.invoke({"decision": decision()}).json()["result"]
    calibrated = server.invoke({"decision": decision(calibration="support")}).json()["result"]
    assert calibrated["option_logits"] == plain["option_logits"]
    roots = [math.sqrt(value) for value in plain["probabilities"]]  # temperature 2
    assert calibrated["probabilities"] == pytest.approx([root / sum(roots) for root in roots])
    assert calibrated["probability_status"] == "calibrated by 'support': softmax at temperature 2.0"
    assert plain["probability_status"].startswith("uncalibrated")
    unknown = server.invoke({"decision": decision(calibration="other")})
    assert unknown.status_code == 400
    assert unknown.json()["error"] == "there is no calibration 'other'; this endpoint holds: 'support'"


def test_permutations_average_over_the_orders_of_the_options(server: Server, decision: Make) -> None:
    options = decision()["options"]
    by_order = []
    for shift in range(3):
        rotated = [*options[shift:], *options[:shift]]
        result = server.invoke({"decision": decision(options=rotated)}).json()["result"]
        by_order.append(dict(zip(result["option_ids"], result["probabilities"], strict=True)))
    averaged = server.invoke({"decision": decision(permutations=8)}).json()["result"]
    assert averaged["permutations"]["orders"] == 3  # three options have three rotations
    for index, name in enumerate(averaged["option_ids"]):
        values = [order[name] for order in by_order]
        assert averaged["probabilities"][index] == pytest.approx(sum(values) / 3)
        assert averaged["permutations"]["spread"][index] == pytest.approx(max(values) - min(values))
    assert averaged["input_tokens"] == 390


def test_many_callers_get_their_own_answers(server: Server, decision: Make) -> None:
    questions = [f"Is the number {number} mentioned?" for number in range(6)]
    bodies = [{"decision": decision(id=str(number), question=text)} for number, text in enumerate(questions)]
    alone = [server.invoke(body).json()["result"]["option_logits"] for body in bodies]
    with ThreadPoolExecutor(6) as callers:
        together = [response.json()["result"] for response in callers.map(server.invoke, bodies)]
    assert [result["id"] for result in together] == [str(number) for number in range(6)]
    assert [result["option_logits"] for result in together] == alone


@pytest.mark.parametrize(
    ("request_line", "content", "content_type", "status", "message"),
    [
        ("POST /invocations", b"{", "application/json", 400, "not JSON"),
        ("POST /invocations", b"{}", "application/json", 400, "accepted are {'decision'"),
        ("POST /invocations", b"{}", "text/plain", 415, "text/plain"),
        ("GET /invocations", b"", "application/json", 405, "GET /invocations"),
        ("GET /nowhere", b"", "application/json", 404, "GET /nowhere"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_json(
    server: Server, *, request_line: str, content: bytes, content_type: str, status: int, message: str
) -> None:
    method, path = request_line.split()
    response = httpx.request(method, server.url + path, content=content, headers={"content-type": content_type})
    assert response.status_code == status
    body = response.json()
    assert message in body["error"]
    assert body["retryable"] is False


def test_limits_say_both_numbers(embedded_dir: Path, decision: Make, tmp_path: Path) -> None:
    limits = {"SEMIF_MAX_TOKENS": "200", "SEMIF_MAX_REQUEST_TOKENS": "300", "SEMIF_MAX_BODY_BYTES": "3000"}
    with running_adapter(embedded_dir, tmp_path / "log", **limits) as server:
        long = server.invoke({"decision": decision(state="word " * 200)})
        assert (long.status_code, long.json()["retryable"]) == (413, False)
        assert "at most 200 are allowed (SEMIF_MAX_TOKENS)" in long.json()["error"]
        together = server.invoke({"decisions": [decision(id=name) for name in "abc"]})
        assert together.status_code == 413
        assert "390 tokens together; at most 300" in together.json()["error"]
        huge = server.invoke({"decision": decision(state="x" * 4000)})
        assert huge.status_code == 413
        assert "3000 bytes" in huge.json()["error"]
        assert server.invoke({"decision": decision()}).status_code == 200


def test_a_busy_adapter_says_when_to_come_back(embedded_dir: Path, decision: Make, tmp_path: Path) -> None:
    with (
        running_adapter(embedded_dir, tmp_path / "log", SEMIF_MAX_IN_FLIGHT="1") as server,
        ThreadPoolExecutor(3) as callers,
    ):
        assert server.invoke({"decision": decision()}).status_code == 200  # from here on the speed is known
        body = {"decision": decision(state=LONG_STATE)}
        running = [callers.submit(server.invoke, body) for _ in range(3)]
        refused = _until_busy(server, decision)
        assert refused.json()["retryable"] is True
        assert "busy" in refused.json()["error"]
        assert int(refused.headers["retry-after"]) >= 1
        assert httpx.get(f"{server.url}/ping", timeout=5).status_code == 200  # not blocked by the running decision
        assert sorted(one.result().status_code for one in running) == [200, 503, 503]


def _until_busy(server: Server, decision: Make) -> httpx.Response:
    for _ in range(10):
        time.sleep(0.5)  # what was sent before is in by then
        response = server.invoke({"decision": decision()})
        if response.status_code == 503:
            return response
    pytest.fail("the adapter never said that it is busy")


def test_work_of_a_caller_who_left_is_dropped(embedded_dir: Path, decision: Make, tmp_path: Path) -> None:
    with running_adapter(embedded_dir, tmp_path / "log", SEMIF_MAX_IN_FLIGHT="1") as server:
        body = json.dumps({"decision": decision(state=LONG_STATE * 8)}).encode()
        head = f"POST /invocations HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as caller:
            caller.sendall(head.encode() + body)
            _until_busy(server, decision)
        # 6,400 tokens take far longer than what is waited for here: only dropping them makes the adapter free again.
        statuses = set()
        for _ in range(10):
            time.sleep(0.2)
            statuses.add(server.invoke({"decision": decision()}).status_code)
        assert 200 in statuses


def test_sigterm_answers_what_was_accepted(embedded_dir: Path, decision: Make, tmp_path: Path) -> None:
    with (
        running_adapter(embedded_dir, tmp_path / "log", SEMIF_MAX_IN_FLIGHT="1") as server,
        ThreadPoolExecutor(1) as callers,
    ):
        running = callers.submit(server.invoke, {"decision": decision(state=LONG_STATE[: len(LONG_STATE) // 2])})
        _until_busy(server, decision)
        server.process.send_signal(signal.SIGTERM)
        assert running.result().status_code == 200
        assert server.process.wait(30) == 0
