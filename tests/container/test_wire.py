"""What all paths have in common, over HTTP: keys, errors in each API's shape, packed bodies, metrics and the log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from prometheus_client.parser import text_string_to_metric_families

from tests.container.conftest import KEY, Server, running_adapter
from tests.models.make_models import model_path

Make = Callable[..., dict[str, Any]]

SYSTEM_ONE = {"state": "s", "model": "jev-latest", "questions": {"q": {"type": "noul", "instructions": "?"}}}
DECISIONS = {"model": "gpt-6-luna", "input": "s", "questions": [{"type": "predicate", "instructions": "?"}]}
WORDS = "the caller's own words"


@pytest.fixture(scope="module")
def client(keyed_server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=keyed_server.url, headers={"authorization": f"Bearer {KEY}"}, timeout=600) as made:
        yield made


@pytest.mark.parametrize(
    "authorization", [None, "Bearer wrong", f"Basic {KEY}", "Bearer", f"Bearer {KEY}x", "Bearer é"]
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/invocations"),
        ("POST", "/v1/systemone"),
        ("POST", "/v1/decisions"),
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
    ],
)
def test_without_the_key_nothing_is_answered(
    keyed_server: Server, *, method: str, path: str, authorization: str | None
) -> None:
    headers = httpx.Headers([] if authorization is None else [("authorization", authorization)], encoding="utf-8")
    response = httpx.request(
        method, keyed_server.url + path, headers=headers, content=b"{" if method == "POST" else None
    )
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    body = response.json()
    if path == "/v1/decisions":
        assert body["error"]["code"] == "invalid_api_key"
    elif path.startswith("/v1/"):
        assert body["detail"]["error_type"] == "authentication_error"
    else:
        assert body["retryable"] is False


def test_ping_needs_no_key(keyed_server: Server) -> None:
    assert httpx.get(f"{keyed_server.url}/ping", timeout=60).status_code == 200


def test_the_scheme_of_the_key_may_be_written_in_any_case(keyed_server: Server) -> None:
    assert httpx.get(f"{keyed_server.url}/v1/models", headers={"authorization": f"bEARER {KEY}"}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "answer"), [("/v1/systemone", SYSTEM_ONE, "answers"), ("/v1/decisions", DECISIONS, "answers")]
)
def test_invocations_answers_the_bodies_of_every_api(
    client: httpx.Client, path: str, body: dict[str, Any], answer: str
) -> None:
    direct = client.post(path, json=body)
    invoked = client.post("/invocations", json=body)
    assert direct.status_code == invoked.status_code == 200
    assert invoked.json()[answer] == direct.json()[answer]


def test_a_wrong_body_is_told_in_the_shape_of_the_path(client: httpx.Client) -> None:
    wrong = {**SYSTEM_ONE, "questions": {}}
    direct = client.post("/v1/systemone", json=wrong)
    assert (direct.status_code, direct.json()["detail"][0]["loc"]) == (422, ["body", "questions"])
    invoked = client.post("/invocations", json=wrong)
    assert invoked.status_code == 400
    assert invoked.json() == {
        "error": "questions: Dictionary should have at least 1 item after validation, not 0",
        "retryable": False,
    }


@pytest.mark.parametrize(
    ("path", "shape"), [("/v1/systemone", ("detail", "error_type")), ("/v1/decisions", ("error", "type"))]
)
def test_every_error_has_the_shape_of_its_api(client: httpx.Client, path: str, shape: tuple[str, str]) -> None:
    outer, inner = shape
    wrong_method = client.get(path)
    assert (wrong_method.status_code, wrong_method.headers["allow"]) == (405, "POST")
    assert isinstance(wrong_method.json()[outer][inner], str)
    wrong_encoding = client.post(path, content=b"x", headers={"content-encoding": "br"})
    assert wrong_encoding.status_code == 415
    assert "'br'" in wrong_encoding.json()[outer]["message"]
    body = {**(SYSTEM_ONE if path == "/v1/systemone" else DECISIONS)}
    body["state" if path == "/v1/systemone" else "input"] = "word " * 9000
    too_long = client.post(path, json=body)
    assert too_long.status_code == 413
    assert "at most 8192 are allowed" in too_long.json()[outer]["message"]


def test_a_path_that_is_not_there(client: httpx.Client) -> None:
    response = client.get("/v1/nowhere")
    assert response.status_code == 404
    assert response.json() == {"error": "GET /v1/nowhere: Not Found", "retryable": False}


@pytest.mark.parametrize("path", ["/invocations", "/v1/systemone"])
def test_a_packed_body_is_answered_and_a_bomb_refused(client: httpx.Client, path: str) -> None:
    headers = {"content-encoding": "zstd", "content-type": "application/json"}
    packed = zstandard.ZstdCompressor().compress(json.dumps(SYSTEM_ONE).encode())
    assert client.post(path, content=packed, headers=headers).json()["answers"]["q"]["type"] == "noul"
    bomb = zstandard.ZstdCompressor().compress(bytes(8_000_000)) * 10_000
    assert client.post(path, content=bomb, headers=headers).status_code == 413
    assert client.post(path, content=b"not zstd", headers=headers).status_code in (400, 422)


def test_floats_are_written_with_a_decimal_point(client: httpx.Client) -> None:
    options = {str(number): None for number in range(26)}
    body = {**SYSTEM_ONE, "questions": {"q": {"type": "choice", "criteria": options}}}
    text = client.post("/v1/systemone", json=body).text
    floats: list[str] = []
    json.loads(text, parse_float=floats.append)
    assert len(floats) == 28  # 26 probabilities, confidence and mass
    assert all("." in digits for digits in floats)


def test_models_are_listed_in_both_shapes(client: httpx.Client) -> None:
    body = client.get("/v1/models").json()
    assert body["object"] == "list"
    assert [model["id"] for model in body["data"]] == [model["name"] for model in body["models"]]
    assert body["models"][0]["name"] == "model"  # the file's name, where no manifest names the model
    assert {model["object"] for model in body["data"]} == {"model"}


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[tuple[httpx.Client, Path]]:
    """A client of an adapter of its own, and the file with all that the adapter writes."""
    (tmp_path / "model.gguf").symlink_to(model_path("tiny-sentencepiece"))
    log = tmp_path / "log"
    with (
        running_adapter(tmp_path, log, SEMIF_API_KEY=KEY) as running,
        httpx.Client(base_url=running.url, headers={"authorization": f"Bearer {KEY}"}, timeout=600) as made,
    ):
        yield made, log


def _metrics(client: httpx.Client) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(client.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def test_a_request_is_counted_and_logged_without_the_callers_words(
    logged: tuple[httpx.Client, Path], decision: Make
) -> None:
    client, log = logged
    before = _metrics(client)
    two = [decision(id=WORDS, state=WORDS), decision(id="b", state=WORDS, question=WORDS)]
    answered = client.post("/invocations", json={"decisions": two})
    results = answered.json()["results"]
    refused = client.post("/v1/systemone", json={"state": WORDS, "model": WORDS, "questions": {WORDS: {}}})
    unknown = client.get(f"/{WORDS}")
    assert (answered.status_code, refused.status_code, unknown.status_code) == (200, 422, 404)
    after = _metrics(client)

    def grown(*name: str) -> float:
        return after[name] - before.get(name, 0)

    reused = sum(result["cached_tokens"] for result in results)
    evaluated = sum(result["input_tokens"] for result in results) - reused
    assert grown("adapter_requests_total", "/invocations", "200") == 1
    assert grown("adapter_requests_total", "/v1/systemone", "422") == 1
    assert grown("adapter_requests_total", "other", "404") == 1
    assert grown("adapter_tokens_evaluated_total") == evaluated
    assert grown("adapter_tokens_reused_total") == reused
    assert grown("adapter_decision_seconds_count") == grown("adapter_allowed_token_mass_count") == 2
    mass = sum(result["allowed_token_mass"] for result in results)
    assert grown("adapter_allowed_token_mass_sum") == pytest.approx(mass)
    assert grown("adapter_engine_heartbeat_timestamp_seconds") > 0
    assert (after["adapter_queue_depth",], after["adapter_engine_up",], after["adapter_busy_total",]) == (0, 1, 0)

    text = log.read_text()
    assert WORDS not in text
    assert KEY not in text
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    by_id = {line["request_id"]: line for line in lines}
    told = by_id[answered.headers["x-request-id"]]
    milliseconds = told.pop("milliseconds")
    assert 1000 * results[0]["total_seconds"] <= milliseconds + 0.1
    assert told == {
        "request_id": answered.headers["x-request-id"],
        "path": "/invocations",
        "kind": "decisions",
        "status": 200,
        "decisions": 2,
        "tokens_evaluated": evaluated,
        "tokens_generated": 0,
        "tokens_reused": reused,
        "allowed_token_mass": pytest.approx(mass / 2, abs=1e-6),
    }
    told = by_id[refused.headers["x-typesafe-request-id"]]
    assert (told["path"], told["kind"], told["status"]) == ("/v1/systemone", "systemone", 422)
    assert by_id[unknown.headers["x-request-id"]]["path"] == "other"
    assert not any(line["path"] == "/ping" for line in lines)  # asked every few seconds: only failures are told
