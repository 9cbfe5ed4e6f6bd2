"""The HTTP application: which path speaks which API, to whom, and what becomes of its errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from datetime import datetime, timezone
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from adapter.api import errors, openai_decisions, systemone
from adapter.api.auth import bearer_check
from adapter.api.body import read_json
from adapter.api.chat import ChatRequest, EventStream, completion, events, parse_chat
from adapter.api.emf import EmbeddedMetrics
from adapter.api.errors import ApiError, as_api_error
from adapter.api.floating_json import FloatingJSONResponse
from adapter.api.invocations import kind_of, parse_decision, parse_shared
from adapter.api.metrics import Metrics
from adapter.api.models import check_model, model_list
from adapter.api.openai_decisions import DecisionsRequest, parse_decisions
from adapter.api.openapi import document
from adapter.api.playground import playground
from adapter.api.record import record_of
from adapter.api.systemone import SystemOneRequest, parse_systemone
from adapter.api.telemetry import Telemetry, write_line, write_log_to_stdout
from adapter.chat_service import ChatService, Reply
from adapter.result import Result, Timing
from adapter.service import Decision, DecisionService
from adapter.settings import Settings

T = TypeVar("T")
_REQUEST_TIMEOUT = 408
_CLIENT_CLOSED_REQUEST = 499  # nginx's code: the caller went away, nobody reads the answer

# Paths whose errors have a shape of their own.
_ERROR_RESPONSES: dict[str, Callable[[ApiError], JSONResponse]] = {
    "/v1/systemone": systemone.error_response,
    "/v1/models": systemone.error_response,
    "/v1/decisions": openai_decisions.error_response,
    "/v1/chat/completions": openai_decisions.error_response,
}


class _CallerLeft(Exception):  # noqa: N818 - nobody's fault
    """The caller hung up before the answer was ready."""


def create_app(service: DecisionService, chats: ChatService, settings: Settings) -> FastAPI:
    """The application over services that are ready."""
    write_log_to_stdout()
    metrics = Metrics(service, chats)
    embedded = _embedded_metrics(service, settings)
    handlers = _Handlers(service, chats, settings, metrics)
    app = FastAPI(
        title="decision-endpoints adapter",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=_writing(embedded),
    )
    app.add_api_route("/ping", handlers.ping, methods=["GET"])
    guarded = APIRouter(dependencies=[Depends(bearer_check(settings.api_key))])
    guarded.add_api_route("/invocations", handlers.invocations, methods=["POST"])
    guarded.add_api_route("/v1/systemone", handlers.systemone, methods=["POST"])
    guarded.add_api_route("/v1/decisions", handlers.decisions, methods=["POST"])
    guarded.add_api_route("/v1/chat/completions", handlers.chat, methods=["POST"])
    guarded.add_api_route("/v1/models", handlers.models, methods=["GET"])
    guarded.add_api_route("/metrics", handlers.metrics, methods=["GET"])
    guarded.add_api_route("/openapi.json", handlers.openapi, methods=["GET"])
    app.include_router(guarded)
    if settings.playground:
        app.add_api_route("/", playground(), methods=["GET"], include_in_schema=False)
    apis = ("/v1/systemone", "/v1/decisions", "/v1/chat/completions", "/v1/models")
    paths = ("/ping", "/invocations", *apis, "/metrics", "/openapi.json")
    app.add_middleware(Telemetry, metrics=metrics, embedded=embedded, paths=paths)
    _answer_errors(app, metrics)
    return app


def _embedded_metrics(service: DecisionService, settings: Settings) -> EmbeddedMetrics | None:
    if settings.emf_namespace is None or settings.endpoint_name is None:
        return None
    return EmbeddedMetrics(
        settings.emf_namespace, settings.endpoint_name, gpu_layers=service.gpu_layers, write=write_line
    )


def _writing(embedded: EmbeddedMetrics | None) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """A lifespan in which the embedded metrics are written."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        writing = None if embedded is None else asyncio.create_task(embedded.run())
        yield
        if writing is not None:
            writing.cancel()
            await asyncio.wait([writing])

    return lifespan


class _Handlers:
    """What each path does."""

    def __init__(self, service: DecisionService, chats: ChatService, settings: Settings, metrics: Metrics) -> None:
        self._service = service
        self._chats = chats
        self._settings = settings
        self._metrics = metrics
        self._since = datetime.now(timezone.utc)
        self._document = document(settings, service.model_name)

    async def ping(self) -> Response:
        """Whether the model can decide."""
        if (fault := "draining" if self._service.draining else self._service.fault()) is not None:
            raise ApiError(503, fault, retry_after=1)
        return JSONResponse({"status": "ok"})

    async def invocations(self, request: Request) -> Response:
        """SageMaker's only way in: every kind of body."""
        body = await self._read(request)
        kind = kind_of(body)
        record_of(request).kind = kind
        if kind == "systemone":
            return await self._answer(request, parse_systemone(body))
        if kind == "openai-decisions":
            return await self._answer(request, parse_decisions(body))
        if kind == "chat":
            return await self._chat(request, parse_chat(body))
        if kind == "decision":
            results, _ = await self._decide(request, [parse_decision(body)])
            return JSONResponse({"result": results[0]})
        decisions = parse_shared(body, self._settings.max_shared_decisions)
        results, timing = await self._decide(request, decisions)
        return JSONResponse({"results": results, "timing": timing})

    async def systemone(self, request: Request) -> Response:
        """TypeSafe System One."""
        record_of(request).kind = "systemone"
        if request.headers.get("content-type", "").startswith("multipart/form-data"):
            raise ApiError(400, "images (multipart/form-data) are not supported; send application/json")
        return await self._answer(request, parse_systemone(await self._read(request)))

    async def decisions(self, request: Request) -> Response:
        """OpenAI Decisions."""
        record_of(request).kind = "openai-decisions"
        return await self._answer(request, parse_decisions(await self._read(request)))

    async def chat(self, request: Request) -> Response:
        """OpenAI chat completions."""
        record_of(request).kind = "chat"
        return await self._chat(request, parse_chat(await self._read(request)))

    async def models(self) -> Response:
        """The model and its aliases."""
        return JSONResponse(model_list(self._service.model_name, self._since, self._service.calibration_name))

    async def metrics(self) -> Response:
        """For Prometheus."""
        return Response(self._metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def openapi(self) -> Response:
        """What all of this accepts and answers."""
        return JSONResponse(self._document)

    async def _read(self, request: Request) -> Any:
        return await read_json(request, self._settings.max_body_bytes)

    async def _answer(self, request: Request, asked: SystemOneRequest | DecisionsRequest) -> Response:
        check_model(asked.model, self._service.model_name)
        results, _ = await self._decide(request, asked.decisions())
        return FloatingJSONResponse(asked.response(results, self._service.model_name))

    async def _decide(self, request: Request, decisions: Sequence[Decision]) -> tuple[list[Result], Timing]:
        results, timing = await _unless_caller_leaves(request, self._service.decide(decisions))
        record_of(request).add(results)
        self._metrics.observe(results)
        return results, timing

    async def _chat(self, request: Request, asked: ChatRequest) -> Response:
        if asked.model is not None:
            check_model(asked.model, self._service.model_name)
        beginning = self._chats.answer(
            asked.conversation(), asked.sampling(), stops=asked.stops, max_tokens=asked.most_tokens
        )
        with ExitStack() as at_end:
            reply = at_end.enter_context(await _unless_caller_leaves(request, beginning))
            at_end.callback(self._count_chat, request, reply)
            if not asked.stream:
                text = await _unless_caller_leaves(request, reply.text())
                return JSONResponse(completion(reply, text, self._service.model_name))
            # What fails before there is anything to say is an answer with a status of its own.
            first = await _unless_caller_leaves(request, reply.next())
            sent = events(
                reply,
                first,
                self._service.model_name,
                with_usage=asked.with_usage,
                error_body=lambda error: bytes(_error_response(request, as_api_error(error)).body),
            )
            return EventStream(sent, at_end.pop_all())

    def _count_chat(self, request: Request, reply: Reply) -> None:
        record_of(request).add_chat(reply)
        self._metrics.observe_chat(reply)


def _error_response(request: Request, error: ApiError) -> JSONResponse:
    """In the shape of the API that was asked."""
    return _ERROR_RESPONSES.get(request.url.path, errors.error_response)(error)


def _answer_errors(app: FastAPI, metrics: Metrics) -> None:
    """Everything that is raised becomes an answer in the shape of the API that was asked."""

    def respond(request: Request, error: ApiError, headers: dict[str, str]) -> Response:
        response = _error_response(request, error)
        response.headers.update(headers)
        if error.retry_after is not None:
            response.headers["Retry-After"] = str(error.retry_after)
        if error.status == _REQUEST_TIMEOUT:
            response.headers["Connection"] = "close"  # the rest of the body is not waited for
        if error.code == errors.INVALID_API_KEY:
            response.headers["WWW-Authenticate"] = "Bearer"
        if error.code == errors.BUSY:
            metrics.count_busy()
        return response

    async def on_error(request: Request, error: Exception) -> Response:
        return respond(request, as_api_error(error), {})

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for nothing else
        told = ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
        return respond(request, told, dict(error.headers or {}))

    async def on_caller_left(_request: Request, _error: Exception) -> Response:
        return Response(status_code=_CLIENT_CLOSED_REQUEST)

    for kind in errors.DOMAIN_ERRORS:
        app.add_exception_handler(kind, on_error)
    app.add_exception_handler(ApiError, on_error)
    app.add_exception_handler(Exception, on_error)  # a fault of ours: told as such, and logged with its traceback
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(_CallerLeft, on_caller_left)
    app.add_exception_handler(ClientDisconnect, on_caller_left)


async def _unless_caller_leaves(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; raises `_CallerLeft` where the caller hung up first, and cancels it."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise _CallerLeft
        return task.result()
    finally:
        gone.cancel()
        task.cancel()


async def _disconnected(request: Request) -> None:
    """Returns when the caller hangs up. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
