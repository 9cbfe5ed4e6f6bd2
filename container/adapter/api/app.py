"""The HTTP application: `/ping` and `/invocations`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from adapter.api.body import read_json
from adapter.api.errors import ApiError, error_response
from adapter.api.invocations import parse_invocation
from adapter.calibrations import CalibrationError
from adapter.engine import EngineError
from adapter.prompt import PromptError
from adapter.scheduler import Busy
from adapter.service import DecisionService, TooLarge
from adapter.settings import Settings
from adapter.slots import SlotError

T = TypeVar("T")
_CLIENT_CLOSED_REQUEST = 499  # nginx's code: the caller went away, nobody reads the answer


def create_app(service: DecisionService, settings: Settings) -> FastAPI:
    """The application over a service that is ready."""
    app = FastAPI(title="decision-endpoints adapter", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/ping")
    async def ping() -> Response:
        if (fault := service.fault()) is not None:
            return error_response(503, fault, retry_after=1)
        return JSONResponse({"status": "ok"})

    @app.post("/invocations")
    async def invocations(request: Request) -> Response:
        body = await read_json(request, settings.max_body_bytes)
        decisions, shared = parse_invocation(body, settings.max_shared_decisions)
        answered = await _unless_caller_leaves(request, service.decide(decisions))
        if answered is None:
            return Response(status_code=_CLIENT_CLOSED_REQUEST)
        results, timing = answered
        return JSONResponse({"results": results, "timing": timing} if shared else {"result": results[0]})

    @app.exception_handler(ApiError)
    async def on_api_error(_: Request, error: ApiError) -> Response:
        return error_response(error.status, str(error), retry_after=error.retry_after)

    @app.exception_handler(Busy)
    async def on_busy(_: Request, error: Busy) -> Response:
        return error_response(503, f"busy: {error}", retry_after=error.retry_after)

    @app.exception_handler(TooLarge)
    async def on_too_large(_: Request, error: TooLarge) -> Response:
        return error_response(413, str(error))

    @app.exception_handler(CalibrationError)
    @app.exception_handler(SlotError)
    @app.exception_handler(PromptError)
    async def on_bad_decision(_: Request, error: Exception) -> Response:
        return error_response(400, str(error))

    @app.exception_handler(EngineError)
    async def on_engine_error(_: Request, error: EngineError) -> Response:
        return error_response(500, str(error))

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        return error_response(error.status_code, f"{request.method} {request.url.path}: {error.detail}")

    return app


async def _unless_caller_leaves(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None where the caller hung up first; `work` is then cancelled."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        gone.cancel()
        task.cancel()


async def _disconnected(request: Request) -> None:
    """Returns when the caller hangs up. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
