"""GET /openapi.json is true: its paths are the server's, its examples are answered, and every answer has its schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from adapter.api.openapi import document
from adapter.settings import Settings
from tests.container.conftest import KEY, Server, running_adapter
from tests.models.make_models import model_path

POSTS = ("/invocations", "/v1/systemone", "/v1/decisions", "/v1/chat/completions")
GETS = ("/ping", "/v1/models", "/metrics", "/openapi.json")


@pytest.fixture(scope="module")
def described(keyed_server: Server) -> dict[str, Any]:
    response = httpx.get(f"{keyed_server.url}/openapi.json", headers={"authorization": f"Bearer {KEY}"})
    assert response.status_code == 200
    answer: dict[str, Any] = response.json()
    return answer


@pytest.fixture(scope="module")
def client(keyed_server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=keyed_server.url, headers={"authorization": f"Bearer {KEY}"}, timeout=600) as made:
        yield made


def _check(described: dict[str, Any], response: httpx.Response) -> None:
    """The answer has the status, the headers and the shape that the document promises of its path."""
    operation = described["paths"][response.request.url.path]
    (promised,) = (one["responses"] for one in operation.values())
    promise = promised[str(response.status_code)]
    for name, header in promise["headers"].items():
        rule = described["components"]["headers"][header["$ref"].rpartition("/")[2]]
        value: Any = response.headers[name]
        jsonschema.validate(int(value) if rule["schema"].get("type") == "integer" else value, rule["schema"])
    media_type = response.headers["content-type"].partition(";")[0]
    if media_type == "application/json":
        _validate(described, promise["content"][media_type]["schema"], response.json())
    else:
        assert media_type in promise["content"]


def _validate(described: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    root = {**schema, "components": described["components"]}
    jsonschema.Draft202012Validator(root).validate(value)


def test_it_lists_every_path_and_nothing_else(client: httpx.Client, described: dict[str, Any]) -> None:
    assert sorted(described["paths"]) == sorted(POSTS + GETS)
    for path, operations in described["paths"].items():
        wrong = client.request("PUT", path)
        assert wrong.status_code == 405  # which a path that is not there is not
        assert wrong.headers["allow"] == ", ".join(operations).upper()
        _check(described, wrong)
        assert "200" in next(iter(operations.values()))["responses"]


def test_it_loads_nothing_from_elsewhere(described: dict[str, Any]) -> None:
    refs = [line for line in json.dumps(described, indent=0).splitlines() if '"$ref"' in line]
    assert len(refs) > 100
    assert all('"#/components/' in line for line in refs)
    assert "servers" not in described


@pytest.mark.parametrize("path", POSTS)
def test_every_example_is_answered_as_described(client: httpx.Client, described: dict[str, Any], path: str) -> None:
    operation = described["paths"][path]["post"]
    content = operation["requestBody"]["content"]["application/json"]
    answers = operation["responses"]["200"]["content"]
    shown = {name: each["value"] for kind in answers.values() for name, each in kind["examples"].items()}
    assert shown.keys() == content["examples"].keys()
    for name, example in content["examples"].items():
        _validate(described, content["schema"], example["value"])
        response = client.post(path, json=example["value"])
        assert response.status_code == 200
        _check(described, response)
        if isinstance(shown[name], str):
            assert _events(response.text) == _events(shown[name])
            for event in response.text.split("\n\n")[:-2]:
                chunk = json.loads(event.removeprefix("data: "))
                _validate(described, {"$ref": "#/components/schemas/OpenAIChatCompletionChunk"}, chunk)
        else:
            _validate(described, answers["application/json"]["schema"], shown[name])
            assert _outline(response.json()) == _outline(shown[name])


def _outline(value: Any) -> Any:
    """The shape of an answer, and those of its texts that do not depend on the machine."""
    if isinstance(value, dict):
        volatile = {"id", "device", "backends", "model", "name", "gguf_file", "gguf_sha256", "content", "choice"}
        return {key: type(item) if key in volatile else _outline(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_outline(item) for item in value]
    return value if isinstance(value, str) else type(value)


def _events(stream: str) -> list[Any]:
    assert stream.endswith("data: [DONE]\n\n")
    return [_outline(json.loads(event.removeprefix("data: "))) for event in stream.split("\n\n")[:-2]]


@pytest.mark.parametrize("path", GETS)
def test_what_is_read_is_as_described(client: httpx.Client, described: dict[str, Any], path: str) -> None:
    response = client.get(path)
    assert response.status_code == 200
    _check(described, response)


@pytest.mark.parametrize("path", POSTS)
def test_every_error_is_as_described(client: httpx.Client, described: dict[str, Any], path: str) -> None:
    def post(content: bytes = b"{", content_type: str = "application/json", **headers: str) -> httpx.Response:
        return client.post(path, content=content, headers={"content-type": content_type, **headers})

    examples = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["examples"]
    kind, example = next(iter(examples.items()))
    long = json.dumps(example["value"]).replace(".", ". word" * 9000, 1)
    assert "word" in long, kind
    wrong_body = 422 if path == "/v1/systemone" else 400
    refusals = {
        wrong_body: post(),
        401: post(authorization="Bearer wrong"),
        413: post(long.encode()),
        415: post(content_type="text/plain"),
    }
    if path != "/invocations":
        unknown = post(json.dumps({**example["value"], "model": "other"}).encode())
        refusals[400 if path == "/v1/systemone" else 404] = unknown
    for status, response in refusals.items():
        assert response.status_code == status
        _check(described, response)
    told = set(described["paths"][path]["post"]["responses"]) - {"200", "405", "408", "499", "500", "503"}
    assert told == {str(status) for status in refusals} | ({"400"} if path == "/v1/decisions" else set())


def test_examples_of_errors_have_their_schema(described: dict[str, Any]) -> None:
    shown = 0
    for operations in described["paths"].values():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                content = response.get("content", {}).get("application/json", {})
                for example in content.get("examples", {}).values():
                    _validate(described, content["schema"], example["value"])
                    shown += status != "200"
    assert shown > 50


def test_a_busy_adapter_answers_as_described(described: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to(model_path("tiny-sentencepiece"))
    with running_adapter(tmp_path, tmp_path / "log", SEMIF_DEADLINE_SECONDS="0.001") as busy:
        example = described["paths"]["/invocations"]["post"]["requestBody"]["content"]["application/json"]["examples"]
        refused = httpx.post(f"{busy.url}/invocations", json=example["decisions"]["value"], timeout=60)
        assert refused.status_code == 503
        _check(described, refused)
        other = httpx.get(f"{busy.url}/openapi.json").json()
    assert "security" not in other  # wanted only where a key is configured
    assert "401" not in other["paths"]["/invocations"]["post"]["responses"]


def test_the_key_is_wanted_everywhere_but_at_ping(described: dict[str, Any]) -> None:
    assert described["components"]["securitySchemes"] == {"bearer": {"type": "http", "scheme": "bearer"}}
    assert described["security"] == [{"bearer": []}]
    without = [path for path, operations in described["paths"].items() if "security" in next(iter(operations.values()))]
    assert without == ["/ping"]
    assert described["paths"]["/ping"]["get"]["security"] == []


def test_limits_are_the_configured_ones() -> None:
    made = document(Settings(max_shared_decisions=7, max_body_bytes=5000), "the-model")
    schemas = made["components"]["schemas"]
    assert schemas["SharedDecisions"]["properties"]["decisions"]["maxItems"] == 7
    assert "5000 bytes" in made["info"]["description"]
    name = jsonschema.Draft202012Validator(schemas["ModelName"])
    assert [name.is_valid(asked) for asked in ("the-model", "jev-x", "gpt-6-luna", "other", "my-gpt-")] == [
        *(True, True, True),
        *(False, False),
    ]
