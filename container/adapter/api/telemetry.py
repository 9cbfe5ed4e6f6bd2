"""What a request leaves behind: its id in the answer, a count in the metrics and one JSON line in the log."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapter.api.metrics import Metrics

_TYPESAFE_PATHS = ("/v1/systemone", "/v1/models")
_OTHER_PATH = "other"  # a path that is not ours is the caller's text, and there is no end of them

_log = logging.getLogger("adapter.requests")


@dataclass
class Record:
    """What is known of one request; never the caller's text."""

    id: str = field(default_factory=lambda: f"req_{uuid4().hex}")
    kind: str | None = None  # which API's body it brought
    decisions: int = 0
    tokens_evaluated: int = 0
    tokens_reused: int = 0
    mass: float = 0.0  # of all decisions together

    def add(self, results: Sequence[dict[str, Any]]) -> None:
        """Account for the results (the wire's `R`) of its decisions."""
        self.decisions += len(results)
        self.tokens_reused += sum(result["cached_tokens"] for result in results)
        self.tokens_evaluated += sum(result["input_tokens"] - result["cached_tokens"] for result in results)
        self.mass += sum(result["allowed_token_mass"] for result in results)


def record_of(request: Request) -> Record:
    """The record that `Telemetry` keeps of `request`."""
    record: Record = request.state.record
    return record


def write_log_to_stdout() -> None:
    """Write the request log to standard output, where containers' logs are collected: nothing but JSON lines."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _log.handlers = [handler]
    _log.propagate = False
    _log.setLevel(logging.INFO)


class Telemetry:
    """ASGI middleware around all routes."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, paths: Collection[str]) -> None:
        """`paths` are those that are told apart; all others are counted as one."""
        self._app = app
        self._metrics = metrics
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event; what is not an HTTP request passes untouched."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = Record()
        scope.setdefault("state", {})["record"] = record
        path = scope["path"] if scope["path"] in self._paths else _OTHER_PATH
        status = 500  # unless the application says otherwise

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = record.id
                if path in _TYPESAFE_PATHS:
                    headers["x-typesafe-request-id"] = record.id
            await send(message)

        started = time.perf_counter()
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            self._metrics.count_request(path, status)
            if (path, status) != ("/ping", 200):  # SageMaker asks every few seconds
                _log.info(_line(record, path, status, time.perf_counter() - started))


def _line(record: Record, path: str, status: int, seconds: float) -> str:
    entry = {
        "request_id": record.id,
        "path": path,
        "kind": record.kind,
        "status": status,
        "milliseconds": round(1000 * seconds, 1),
        "decisions": record.decisions,
        "tokens_evaluated": record.tokens_evaluated,
        "tokens_reused": record.tokens_reused,
        "allowed_token_mass": round(record.mass / record.decisions, 6) if record.decisions else None,
    }
    return json.dumps(entry)
