"""`GET /openapi.json`: every path, body, answer and error, made from the types that check and build them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from starlette.responses import JSONResponse

from adapter.api import chat, errors, invocations, models, openai_decisions, systemone
from adapter.api.errors import ApiError, Fault, as_api_error, invalid
from adapter.scheduler import Busy
from adapter.service import TooLarge
from adapter.settings import Settings

_SCHEMAS = "#/components/schemas/"
_HEADERS = "#/components/headers/"

# One exchange of each kind, recorded from the embedded model: what is asked and what is answered.
_EXAMPLES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("examples.json").read_text("utf-8"))


class _Untitled(GenerateJsonSchema):
    """Without a title for every field, which only repeats its name."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's signature
        return False


@dataclass(frozen=True)
class _Api:
    """A published API: its types, and how it tells errors."""

    prefix: str  # of its types' names in the document
    types: Sequence[Any]
    error_response: Callable[[ApiError], JSONResponse]
    error_type: Callable[[int], str]  # by status
    headers: Sequence[str] = ("x-request-id",)

    def ref(self, name: str) -> dict[str, Any]:
        return {"$ref": f"{_SCHEMAS}{self.prefix}{name}"}

    def schemas(self) -> dict[str, Any]:
        _, found = TypeAdapter.json_schemas(
            [(index, "validation", TypeAdapter(each)) for index, each in enumerate(self.types)],
            ref_template=f"{_SCHEMAS}{self.prefix}{{model}}",
            schema_generator=_Untitled,
        )
        return {self.prefix + name: schema for name, schema in found["$defs"].items()}


_PLAIN = _Api(
    "",
    (
        *(invocations.OneDecision, invocations.SharedDecisions, invocations.OneResult, invocations.SharedResults),
        *(models.ModelList, errors.Error),
    ),
    errors.error_response,
    lambda _: "Error",
)
_SYSTEMONE = _Api(
    "SystemOne",
    (systemone.Request, systemone.Response, systemone.Faults, systemone.Error),
    systemone.error_response,
    lambda status: "Faults" if status == 422 else "Error",  # noqa: PLR2004 - the status
    ("x-request-id", "x-typesafe-request-id"),
)
_OPENAI = _Api(
    "OpenAI",
    (
        *(openai_decisions.Request, openai_decisions.Response, openai_decisions.Error),
        *(chat.ChatRequest, chat.ChatCompletion, chat.ChatCompletionChunk),
    ),
    openai_decisions.error_response,
    lambda _: "Error",
)
_APIS = (_PLAIN, _SYSTEMONE, _OPENAI)


def document(settings: Settings, model_name: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document of an adapter with these settings, whose model has this name."""
    keyed = settings.api_key is not None
    schemas = {name: schema for api in _APIS for name, schema in api.schemas().items()}
    schemas["ModelName"] = {
        "description": "The model's own name, or one of the hosted APIs' models: a client changes only its address.",
        "type": "string",
        "anyOf": [{"const": model_name}, {"pattern": f"^({'|'.join(models.FAMILIES)})"}],
    }
    for request in ("SystemOneRequest", "OpenAIRequest"):
        schemas[request]["properties"]["model"] = _PLAIN.ref("ModelName")
    schemas["OpenAIChatRequest"]["properties"]["model"] = {"anyOf": [_PLAIN.ref("ModelName"), {"type": "null"}]}
    schemas["SharedDecisions"]["properties"]["decisions"]["maxItems"] = settings.max_shared_decisions
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "decision-endpoints adapter",
            "version": "1",
            "description": (
                "Probabilities for declared options, read from the logits of one model. Bodies are JSON of at most "
                f"{settings.max_body_bytes} bytes, as they are or packed (`Content-Encoding: zstd`). "
                'Any other path is answered with 404 and `{"error": ..., "retryable": false}`.'
            ),
        },
        "paths": _paths(keyed=keyed),
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "headers": _headers(),
            **({"securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}} if keyed else {}),
        },
        **({"security": [{"bearer": []}]} if keyed else {}),
    }


def _paths(*, keyed: bool) -> dict[str, Any]:
    ask = _refusals(keyed=keyed, body=True)
    look = _refusals(keyed=keyed, body=False)
    not_ready = {"not ready": ApiError(503, "the engine is stuck", retry_after=1)}
    return {
        "/ping": {
            "get": {
                "summary": "Whether the model can decide",
                "security": [],
                "responses": {
                    "200": _answer(_PLAIN, "It can.", {"const": {"status": "ok"}}),
                    **_errors(_PLAIN, {**_refusals(keyed=False, body=False), **not_ready}),
                },
            }
        },
        "/invocations": {
            "post": {
                "summary": "Any kind of body, told apart by its top-level keys",
                "requestBody": _request({"oneOf": _bodies_of_invocations()}, _EXAMPLES),
                "responses": {
                    "200": _streamed(
                        _answer(
                            _PLAIN,
                            "What the API of that body answers.",
                            {
                                "oneOf": [
                                    *(_PLAIN.ref("OneResult"), _PLAIN.ref("SharedResults")),
                                    *(_SYSTEMONE.ref("Response"), _OPENAI.ref("Response")),
                                    _OPENAI.ref("ChatCompletion"),
                                ]
                            },
                            _EXAMPLES,
                        )
                    ),
                    **_errors(_PLAIN, ask),
                },
            }
        },
        "/v1/systemone": {
            "post": {
                "summary": "TypeSafe System One",
                "requestBody": _request(_SYSTEMONE.ref("Request"), _examples("systemone")),
                "responses": {
                    "200": _answer(_SYSTEMONE, "The answers.", _SYSTEMONE.ref("Response"), _examples("systemone")),
                    **_errors(_SYSTEMONE, ask),
                },
            }
        },
        "/v1/decisions": {
            "post": {
                "summary": "OpenAI Decisions",
                "requestBody": _request(_OPENAI.ref("Request"), _examples("openai-decisions")),
                "responses": {
                    "200": _answer(_OPENAI, "The answers.", _OPENAI.ref("Response"), _examples("openai-decisions")),
                    **_errors(_OPENAI, ask),
                },
            }
        },
        "/v1/chat/completions": {
            "post": {
                "summary": "OpenAI chat completions by the same model",
                "requestBody": _request(_OPENAI.ref("ChatRequest"), _examples("chat", "chat-stream")),
                "responses": {
                    "200": _streamed(_answer(_OPENAI, "The answer.", _OPENAI.ref("ChatCompletion"), _examples("chat"))),
                    **_errors(_OPENAI, ask),
                },
            }
        },
        "/v1/models": {
            "get": {
                "summary": "The model and its aliases, in TypeSafe's and in OpenAI's shape",
                "responses": {
                    "200": _answer(_SYSTEMONE, "The models.", _PLAIN.ref("ModelList")),
                    **_errors(_SYSTEMONE, look),
                },
            }
        },
        "/metrics": {
            "get": {
                "summary": "Metrics for Prometheus",
                "responses": {
                    "200": _answer(_PLAIN, "Prometheus' text format.", {"type": "string"}, media_type="text/plain"),
                    **_errors(_PLAIN, look),
                },
            }
        },
        "/openapi.json": {
            "get": {
                "summary": "This document",
                "responses": {
                    "200": _answer(_PLAIN, "This document.", {"type": "object", "required": ["openapi", "paths"]}),
                    **_errors(_PLAIN, look),
                },
            }
        },
    }


def _examples(*kinds: str) -> dict[str, dict[str, Any]]:
    return {kind: _EXAMPLES[kind] for kind in kinds}


def _streamed(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer to a chat request, which may also ask for it in pieces."""
    shown = {
        "chat-stream": {"summary": _EXAMPLES["chat-stream"]["summary"], "value": _EXAMPLES["chat-stream"]["answer"]}
    }
    chunk = {"anyOf": [_OPENAI.ref("ChatCompletionChunk"), _OPENAI.ref("Error"), _PLAIN.ref("Error")]}
    data = {
        "type": "string",
        "description": "A chunk of the answer, or the error that ended it; at the end `[DONE]`.",
        "anyOf": [{"const": "[DONE]"}, {"contentMediaType": "application/json", "contentSchema": chunk}],
    }
    event = {"type": "object", "description": "Of each event.", "required": ["data"], "properties": {"data": data}}
    answer["content"]["text/event-stream"] = {"schema": event, "examples": shown}
    return answer


def _bodies_of_invocations() -> list[dict[str, Any]]:
    """The bodies by kind; those that ignore keys they do not know must not have another kind's."""

    def without_other_kinds(ref: dict[str, Any], own: str) -> dict[str, Any]:
        return {**ref, "properties": {key: False for key in invocations.KINDS if key != own}}

    return [
        _PLAIN.ref("OneDecision"),
        _PLAIN.ref("SharedDecisions"),
        without_other_kinds(_SYSTEMONE.ref("Request"), "state"),
        *(_OPENAI.ref("Request"), _OPENAI.ref("ChatRequest")),
    ]


def _request(schema: dict[str, Any], examples: dict[str, dict[str, Any]]) -> dict[str, Any]:
    shown = {kind: {"summary": each["summary"], "value": each["request"]} for kind, each in examples.items()}
    return {"required": True, "content": {"application/json": {"schema": schema, "examples": shown}}}


def _answer(
    api: _Api,
    description: str,
    schema: dict[str, Any],
    examples: dict[str, dict[str, Any]] | None = None,
    *,
    media_type: str = "application/json",
) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": schema}
    if examples:
        content["examples"] = {
            kind: {"summary": each["summary"], "value": each["answer"]}
            for kind, each in examples.items()
            if not isinstance(each["answer"], str)  # a stream is not JSON
        }
    return {"description": description, "headers": _refs(api.headers), "content": {media_type: content}}


def _refusals(*, keyed: bool, body: bool) -> dict[str, ApiError]:
    """An error of each kind that a path can answer with, by what it is called here."""
    found = {"wrong method": ApiError(405, "PUT: Method Not Allowed"), "fault": as_api_error(Exception())}
    if keyed:
        found["no key"] = ApiError(401, "an API key is needed", code=errors.INVALID_API_KEY)
    if body:
        found |= {
            "wrong body": invalid([Fault(("questions",), "Field required", "missing")]),
            "unknown model": ApiError(400, "model 'other' is not served here", code=errors.UNKNOWN_MODEL),
            "slow body": ApiError(408, "the body took more than 20 s to arrive", retry_after=1),
            "long body": ApiError(413, "the body is longer than the 26214400 bytes allowed (SEMIF_MAX_BODY_BYTES)"),
            "long prompt": as_api_error(
                TooLarge("the prompt of decision 'q' has 9000 tokens; at most 8192 are allowed")
            ),
            "wrong content type": ApiError(415, "content type 'text/plain' is not supported; send application/json"),
            "busy": as_api_error(Busy("8 decisions are waiting; the last ends in 40 s", 12)),
        }
    return found


_MEANING = {
    400: "The body is not JSON, is ambiguous, or has the wrong shape.",
    401: "The API key is missing or wrong.",
    404: "The model is not served here.",
    405: "The path has another method.",
    408: "The body took too long to arrive.",
    413: "The body or a prompt is too long; the message says both numbers.",
    415: "The content type or encoding is not supported.",
    422: "The body has the wrong shape.",
    500: "The engine failed.",
    503: "Busy, draining or not ready: the same request may succeed later.",
}


def _errors(api: _Api, refusals: dict[str, ApiError]) -> dict[str, Any]:
    """The responses with which an API tells `refusals`, by status, each shown as it is told."""
    responses: dict[str, Any] = {}
    for name, error in refusals.items():
        told = api.error_response(error)
        headers = [*api.headers, *_extra_headers(told.status_code)]
        response = responses.setdefault(
            str(told.status_code),
            {
                "description": _MEANING[told.status_code],
                "headers": _refs(headers),
                "content": {"application/json": {"schema": api.ref(api.error_type(told.status_code)), "examples": {}}},
            },
        )
        shown = {"summary": name, "value": json.loads(bytes(told.body))}
        response["content"]["application/json"]["examples"][name.replace(" ", "-")] = shown
    if "wrong body" in refusals:
        responses["499"] = {"description": "The caller left: its work is dropped, and nobody reads this."}
    return dict(sorted(responses.items()))


def _extra_headers(status: int) -> Sequence[str]:
    return {401: ("WWW-Authenticate",), 405: ("Allow",), 408: ("Retry-After",), 503: ("Retry-After",)}.get(status, ())


def _refs(names: Iterable[str]) -> dict[str, Any]:
    return {name: {"$ref": _HEADERS + name} for name in names}


def _headers() -> dict[str, Any]:
    text = {"type": "string"}
    request_id = {"required": True, "description": "Names the request in the log.", "schema": text}
    return {
        "x-request-id": request_id,
        "x-typesafe-request-id": request_id,
        "Retry-After": {
            "required": True,
            "description": "Seconds after which to ask again, computed from the queue.",
            "schema": {"type": "integer", "minimum": 1},
        },
        "WWW-Authenticate": {"required": True, "schema": {"const": "Bearer"}},
        "Allow": {"required": True, "description": "The methods that the path has.", "schema": text},
    }
